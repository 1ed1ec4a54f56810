"""Modules of torch.nn as they come."""

import torch
from torch import nn

from tests.models.zoo import Training, step


@step("torch")
def mlp() -> Training:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(), nn.Linear(32, 4))
    return Training(model, (torch.randn(8, 16),))


@step("torch")
def lstm() -> Training:
    return Training(nn.LSTM(8, 16, num_layers=2, batch_first=True, dropout=0.1), (torch.randn(3, 10, 8),))


class Packed(nn.Module):
    """A GRU over texts of different lengths, packed as a data loader's collate function has them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8, padding_idx=0)
        self.gru = nn.GRU(8, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 4)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(ids)
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        output, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.head(output)


@step("torch")
def gru_packed() -> Training:
    ids = torch.randint(1, 50, (3, 10))
    return Training(Packed(), (ids, torch.tensor([7, 10, 4])))


@step("torch")
def gru_packed_input() -> Training:
    """The packed sequence itself is the argument."""
    sequences = [torch.randn(length, 8) for length in (7, 5, 2)]
    return Training(nn.GRU(8, 16), (nn.utils.rnn.pack_sequence(sequences),), loss=lambda out: out[1].square().mean())


@step("torch")
def transformer() -> Training:
    model = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    padding = torch.zeros(2, 8, dtype=torch.bool)
    padding[1, -3:] = True
    options = {"tgt_mask": mask, "tgt_is_causal": True, "src_key_padding_mask": padding}
    return Training(model, (torch.randn(2, 8, 32), torch.randn(2, 6, 32)), options)


@step("torch")
def transformer_encoder() -> Training:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
    padding = torch.zeros(2, 8, dtype=torch.bool)
    padding[1, -3:] = True
    return Training(nn.TransformerEncoder(layer, 2), (torch.randn(2, 8, 32),), {"src_key_padding_mask": padding})


@step("torch")
def multihead_attention() -> Training:
    query, memory = torch.randn(2, 6, 32), torch.randn(2, 9, 32)
    return Training(nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True), (query, memory, memory))


@step("torch")
def convolutional() -> Training:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, groups=2), nn.GroupNorm(4, 16), nn.SiLU(inplace=True), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    images, targets = torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))
    return Training(model, (images,), loss=lambda output: nn.functional.cross_entropy(output, targets))


@step("torch")
def embedding_bag() -> Training:
    """Clicks of a recommender: bags of different sizes."""
    bags, offsets = torch.randint(0, 40, (12,)), torch.tensor([0, 3, 8])
    return Training(nn.EmbeddingBag(40, 8, mode="mean"), (bags, offsets))


@step("torch")
def checkpointed() -> Training:
    """Blocks under `torch.utils.checkpoint`, as gradient checkpointing is done by hand."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return x

    return Training(Checkpointed(), (torch.randn(4, 16),))
