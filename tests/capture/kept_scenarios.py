"""A program that trains small models in ways in which later calls differ from the first, and prints what came of it.

Its second process runs what the first one kept, until a call comes that is none of those.
"""

import copy
import json
from functools import partial

import torch
from torch import nn

import aotkit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.norm, self.narrow = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.calls, self.scale = 0, 1.0

    def forward(self, x, mask=None):
        self.calls += 1
        y = self.narrow(nn.functional.gelu(self.norm(self.wide(x)))) * self.scale
        return y if mask is None else y.masked_fill(mask, 0)


def rows(count):
    return torch.linspace(-1, 1, count * 8).view(count, 8).sin()


def train(model, count, mask=None):
    model.zero_grad()
    x = rows(count).to(next(model.parameters()).dtype).requires_grad_()
    model(x, mask=mask).pow(2).mean().backward()
    return [x.grad.sum().item(), *(p.grad.abs().sum().item() for p in model.parameters() if p.grad is not None)]


def evaluate(model, count):
    model.eval()
    with torch.no_grad():
        found = model(rows(count)).sum().item()
    model.train()
    return found


def double(model):
    model.double()


def scale(model, factor):
    model.scale = factor


def freeze(model):
    model.wide.weight.requires_grad_(False)


def hook(model):
    model.wide.register_forward_hook(lambda module, given, result: result * 2)


def train_a_copy(model):
    return train(copy.deepcopy(model), 4)


def train_by_torch(model):
    return train(torch.compile(copy.deepcopy(model), backend="eager"), 4)


FOUR = partial(train, count=4)
MASKED = partial(train, count=4, mask=torch.arange(16).view(4, 4) % 2 == 0)
SCENARIOS = {
    "sizes": [FOUR, partial(train, count=6), partial(train, count=3), FOUR],
    "modes": [FOUR, partial(evaluate, count=4), FOUR, partial(evaluate, count=5)],
    "arguments": [FOUR, MASKED, FOUR],
    "numbers": [FOUR, partial(scale, factor=2.0), FOUR, partial(scale, factor=3.0), FOUR],
    "types": [FOUR, double, FOUR],
    "gradients": [FOUR, freeze, FOUR],
    "hooks": [FOUR, hook, FOUR],
    "copies": [FOUR, train_a_copy, train_by_torch, FOUR],
}


if __name__ == "__main__":
    found = {}
    for name, steps in SCENARIOS.items():
        torch.manual_seed(0)
        fast = aotkit.compile(Net(), backend="inductor", capture="dynamo")
        found[name] = [step(fast) for step in steps]
    print(json.dumps(found))
