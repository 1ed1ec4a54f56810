"""What the demo and the tests time: the function of functorch's tutorial, a step of GPT-2, a residual block."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The first sentences of "Alice's Adventures in Wonderland" (Lewis Carroll, 1865; public domain).
TEXT = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or "
    "twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, 'and "
    "what is the use of a book,' thought Alice 'without pictures or conversation?' So she was considering in her own "
    "mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether the pleasure of making "
    "a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White Rabbit with "
    "pink eyes ran close by her."
)

# What xFormers timed its fused layers at: batch, length, width.
XFORMERS_SHAPES = (
    (8, 256, 512), (8, 512, 1024), (4, 1024, 1024), (2, 2048, 2048), (1, 2048, 12288), (2, 4096, 4096),
)  # fmt: skip


def tutorial(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """The function of functorch's AOTAutograd tutorial."""
    x = a + b + c + d
    return x.cos().cos()


def tutorial_inputs(rows: int = 1024, columns: int = 2048) -> list[Tensor]:
    """Four float32 matrices that require gradients."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, columns, generator=generator).requires_grad_() for _ in range(4)]


def byte_tokens(batch: int, length: int) -> Tensor:
    """Text as bytes: int64 [batch, length], values below 256."""
    text = (TEXT * (batch * length // len(TEXT) + 1)).encode()
    return torch.tensor(list(text[: batch * length])).view(batch, length)


def padded_texts(length: int = 128) -> dict[str, Any]:
    """Two texts as a tokenizer and a trainer give them, the second a quarter shorter: int64 [2, length] each."""
    tokens = byte_tokens(2, length)
    mask = torch.ones_like(tokens)
    mask[1, -(length // 4) :] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def gpt2(layers: int = 2, width: int = 768, length: int = 128) -> nn.Module:
    """Hugging Face's GPT2LMHeadModel over bytes, with random weights.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config: Any = GPT2Config(
        vocab_size=256, n_positions=length, n_embd=width, n_layer=layers, n_head=width // 64,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model: nn.Module = GPT2LMHeadModel(config)
    return model


class ResidualLoss(nn.Module):
    """ResNet's basic block (He et al., 2015), two 3x3 convolutions with batch normalisation and a shortcut, and a loss.

    Images [batch, channels, height, width] and targets of that shape -> scalar.
    """

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, images: Tensor, target: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(images)))
        return F.mse_loss(F.relu(images + self.norm2(self.conv2(y))), target)
