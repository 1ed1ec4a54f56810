"""torch.amp and torch.utils.checkpoint around and inside of compiled modules."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.integrations.models import assert_same_parameters, compiled


class Blocks(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def step(model, x, scaler=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    with torch.autocast("cpu", torch.bfloat16, enabled=scaler.is_enabled()):
        loss = model(x).float().square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks(reentrant):
    model = Blocks(reentrant)
    ours = compiled(copy.deepcopy(model))
    x = torch.randn(4, 8, requires_grad=True)
    assert step(ours, x) == pytest.approx(step(model, x))
    assert_same_parameters(ours, model)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_of_a_compiled_module(reentrant):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    ours = compiled(copy.deepcopy(model))
    x = torch.randn(4, 8, requires_grad=True)
    for each in (model, ours):
        checkpoint(each, x, use_reentrant=reentrant).square().mean().backward()
    for a, b in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_scaled_gradients_under_autocast():
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 2))
    ours = compiled(copy.deepcopy(model))
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2) for _ in range(2)]
    batches = [torch.randn(4, 8) for _ in range(4)]
    batches.insert(2, torch.full((4, 8), torch.inf))  # a step that is skipped
    for x in batches:
        found, wanted = step(ours, x, scalers[0]), step(model, x, scalers[1])
        assert found == pytest.approx(wanted, rel=0.02, nan_ok=True)
    assert scalers[0].state_dict() == scalers[1].state_dict()
    torch.testing.assert_close(ours.state_dict(), model.state_dict(), rtol=0.02, atol=0.002)
