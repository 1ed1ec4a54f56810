"""Training in several processes: each draws random numbers of its own, and gradients are averaged."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import aotkit
from tests.distributed.ranks import RANKS, results_of


def everywhere(tensor):
    found = [torch.empty_like(tensor) for _ in range(RANKS)]
    dist.all_gather(found, tensor.contiguous())
    return found


def in_group(rank):
    for work in (train_with_dropout, train_with_ddp, train_with_fsdp):
        torch.manual_seed(0)
        work(rank)


def train_with_dropout(rank):
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


class Branching(nn.Module):
    """A model that TorchDynamo has to capture: what it does depends on values."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        y = self.first(x)
        return self.second(y.relu() if x.sum() > 0 else y.tanh())


def losses(model, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for sign in (1, -1, 1):
        loss = model(sign * torch.full((4, 8), 1.0 + rank)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def train_with_ddp(rank):
    for capture in ("auto", "dynamo"):
        layers = Branching()
        eager = DistributedDataParallel(copy.deepcopy(layers))
        ours = DistributedDataParallel(aotkit.compile(layers, backend="nop", capture=capture, strict=True))
        assert losses(ours, rank) == pytest.approx(losses(eager, rank), rel=1e-5)
        torch.testing.assert_close(ours.state_dict(), eager.state_dict())


def train_with_fsdp(rank):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (RANKS,))  # else it takes the parameters to a GPU, which gloo does not serve
    for capture in ("auto", "dynamo"):
        eager = Branching()
        ours = copy.deepcopy(eager)
        for layer in (eager.first, eager.second, eager, ours.first, ours.second, ours):
            fully_shard(layer, mesh=mesh)
        compiled = aotkit.compile(ours, backend="nop", capture=capture, strict=True)
        assert losses(compiled, rank) == pytest.approx(losses(eager, rank), rel=1e-5)
        for parameter, wanted in zip(compiled.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(parameter.full_tensor(), wanted.full_tensor())


@pytest.mark.sweep
@pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch was built without gloo")
def test_two_processes():
    results_of(in_group)
