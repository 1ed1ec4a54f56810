"""A model as Llama, of plain modules."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal attention of `width` channels, on as many of its heads as its projections give."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.channels = width // heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        parts = (part(x).unflatten(-1, (-1, self.channels)) for part in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """A SwiGLU layer, twice as wide within."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and an MLP, each after an RMS norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.RMSNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.RMSNorm(width), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Words -> logits of the next ones."""

    def __init__(self, width: int, heads: int, layers: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Stage(nn.Module):
    """What one of several ranks has of a model, in a pipeline of all."""

    def __init__(self, model: Llama, rank: int, ranks: int) -> None:
        super().__init__()
        first, last = rank == 0, rank == ranks - 1
        self.words = model.words if first else nn.Identity()
        self.layers = nn.ModuleList(
            list(model.layers)[len(model.layers) * rank // ranks :][: len(model.layers) // ranks]
        )
        self.end = nn.Sequential(model.norm, model.head) if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.end(x)  # type: ignore[no-any-return]


def loss_of(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean cross entropy."""
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def whole(tensor: Tensor) -> Tensor:
    """What a tensor is over all ranks that have a shard of it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def batch(number: int, rows: int, length: int, words: int, device: str) -> Tensor:
    """Words, as many for each number, and others."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, words, (rows, length), generator=generator).to(device)
