"""What recomputing is taken to cost, on joint graphs as Inductor decomposes them."""

import pytest
import torch
from torch import nn

import aotkit
from aotkit.benchmark.capture import joint_graph
from aotkit.benchmark.kernels import DEVICES
from aotkit.inspection import saved_bytes
from aotkit.joint.sides import classify, simplify
from aotkit.partitioners import nx_min_cut
from aotkit.partitioners.rematerialization.costs import UNIT, tradeoff
from aotkit.partitioners.rematerialization.values import values_of

DIVISION = torch.ops.aten.div.Tensor


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


class SiLU(torch.autograd.Function):
    """As torch 2.11 decomposes it: the gradient reads what forward divides by."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        x32 = x.float()
        return (x32 / (1 + (-x32).exp())).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x32 = x.float()
        gate = (1 + (-x32).exp()).reciprocal()
        return (grad.float() * gate * (1 + x32 * (1 - gate))).to(x.dtype)


class Shrinking(nn.Module):
    """Of EfficientNet: what is padded is computed in two ways of one value."""

    def __init__(self, channels=32):
        super().__init__()
        self.before = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.shrink = nn.Conv2d(channels, channels, 3, 2, groups=channels, bias=False)
        self.after = nn.BatchNorm2d(channels)

    def forward(self, x):
        for _ in range(3):
            y = SiLU.apply(self.before(x))
            x = self.after(self.shrink(nn.functional.pad(y, (0, 1, 0, 1))))
        return x.float().square().mean()


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.sweep)])
def test_no_more_is_saved_than_torchs_cut_saves_where_it_takes_no_time(dtype, monkeypatch):
    monkeypatch.setattr(nx_min_cut, "typical_gpu_of", lambda values: DEVICES["H200"])
    net, x = SqueezeAndExcite().to(dtype), torch.randn(16, 32, 64, 64, dtype=dtype)
    backend = aotkit.Backend(lambda gm, inputs: gm, decompositions=aotkit.get_backend("inductor").decompositions)
    saved = {p: saved_bytes(aotkit.extract(net, x, partition=p, backend=backend)) for p in ("min_cut", "nx_min_cut")}
    assert saved["nx_min_cut"] <= saved["min_cut"]


def test_what_two_operands_are_computed_of_is_read_once():
    x, device = torch.randn(16, 32, 64, 64, dtype=torch.bfloat16), DEVICES["H200"]
    decompositions = aotkit.get_backend("inductor").decompositions
    joint = joint_graph(Shrinking().to(torch.bfloat16), [x], decompositions=decompositions())
    simplify(joint.gm)
    sides = classify(joint.gm, joint.num_outputs)
    values = values_of(joint.gm, sides)
    prices = tradeoff(values, sides, device).time.recompute
    divisions = [i for i, node in enumerate(values.nodes) if node.target is DIVISION and prices[i]]
    assert len(divisions) == 3
    for i, size in zip(divisions, (1, 4, 16), strict=True):
        assert prices[i] * UNIT <= 1.1 * x.nbytes / size / device.bandwidth
