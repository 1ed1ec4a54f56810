"""Training in several processes: each draws random numbers of its own, and gradients are averaged."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import aotkit

RANKS = 2


def everywhere(tensor):
    found = [torch.empty_like(tensor) for _ in range(RANKS)]
    dist.all_gather(found, tensor.contiguous())
    return found


def train(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    try:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4))
        model = aotkit.compile(layers, backend="nop", partition="nx_min_cut")
        parallel = DistributedDataParallel(model)
        x = torch.randn(16, 8)

        torch.manual_seed(100 + rank)
        outputs = parallel(x)
        outputs.square().sum().backward()

        torch.manual_seed(100 + rank)
        again = model(x)
        local = torch.autograd.grad(again.square().sum(), list(model.parameters()))
        torch.testing.assert_close(again, outputs)
        for parameter, gradient in zip(model.parameters(), local, strict=True):
            torch.testing.assert_close(parameter.grad, sum(everywhere(gradient)) / RANKS)

        dropout = aotkit.compile(nn.functional.dropout, backend="nop")
        a, b = everywhere(dropout(torch.ones(2**14)))
        kept = ((a > 0) & (b > 0)).double().mean().item()
        assert abs(kept - 0.25) < 5 * (0.25 * 0.75 / 2**14) ** 0.5  # independent
        torch.manual_seed(1)
        a, b = everywhere(dropout(torch.ones(100)))
        assert torch.equal(a, b)  # as in eager, ranks with the same seed draw the same
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch was built without gloo")
def test_two_processes(tmp_path):
    mp.spawn(train, (str(tmp_path),), nprocs=RANKS)
