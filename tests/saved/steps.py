"""A model and a step of it, for a program of its own, too: it imports nothing that is slow."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(width, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x, *, power=1, mask=None):
        hidden = nn.functional.dropout(self.norm(self.first(x)).relu(), 0.25, self.training)
        logits = self.second(hidden) * self.scale**power
        return {"logits": logits, "loss": logits.logsumexp(-1).sum(), "power": power}


def model():
    torch.manual_seed(0)
    return Model()


def step(function, module, *args, **kwargs):
    """Result, gradients and buffers of one step with fixed random numbers."""
    module.zero_grad()
    torch.manual_seed(1)
    result = function(*args, **kwargs)
    result["loss"].backward()
    return result, [p.grad for p in module.parameters()], [b.clone() for b in module.buffers()]


X = torch.linspace(-1, 1, 32).reshape(4, 8)
