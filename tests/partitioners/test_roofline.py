"""What recomputing is taken to cost, on joint graphs as Inductor decomposes them."""

import pytest
import torch
from torch import nn

import aotkit
from aotkit.benchmark.kernels import DEVICES
from aotkit.inspection import saved_bytes
from aotkit.partitioners import nx_min_cut


class SqueezeAndExcite(nn.Module):
    """Of EfficientNet: what its gate's gradient reads is cheap to compute again from what is saved anyway."""

    def __init__(self, channels=32):
        super().__init__()
        self.before = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.SiLU())
        self.gate = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.SiLU(), nn.Conv2d(4, channels, 1), nn.Sigmoid())
        self.after = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, x):
        for _ in range(3):
            y = self.before(x)
            x = x + self.after(y * self.gate(y.mean((2, 3), keepdim=True)))
        return x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_more_is_saved_than_torchs_cut_saves_where_it_takes_no_time(dtype, monkeypatch):
    monkeypatch.setattr(nx_min_cut, "typical_gpu_of", lambda values: DEVICES["H200"])
    net, x = SqueezeAndExcite().to(dtype), torch.randn(16, 32, 64, 64, dtype=dtype)
    backend = aotkit.Backend(lambda gm, inputs: gm, decompositions=aotkit.get_backend("inductor").decompositions)
    saved = {p: saved_bytes(aotkit.extract(net, x, partition=p, backend=backend)) for p in ("min_cut", "nx_min_cut")}
    assert saved["nx_min_cut"] <= saved["min_cut"]
