"""Training losses whose first step is timed. The clock does not run while they are built.

Nothing of aotkit that compiles is imported with it, as that time is to be counted.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.benchmark import workloads

# A function or module, and keyword arguments: it returns a tensor, or an object with a `loss`.
Workload = tuple[Callable[..., Any], Mapping[str, Tensor]]


def tutorial() -> Workload:
    """The function of functorch's AOTAutograd tutorial."""
    return workloads.tutorial, dict(zip("abcd", workloads.tutorial_inputs(), strict=True))


def mlp() -> Workload:
    """Two linear layers with GELU and layer normalisation."""
    layers = (nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.LayerNorm(256))
    return nn.Sequential(*layers), {"input": torch.randn(64, 256)}


class Block(nn.Module):
    """A residual layer: layer norm, linear, GELU, linear."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, input: Tensor) -> Tensor:
        narrowed: Tensor = self.narrow(nn.functional.gelu(self.wide(self.norm(input))))
        return input + narrowed


def blocks(count: int) -> Workload:
    """Equal residual layers."""
    return nn.Sequential(*(Block(64) for _ in range(count))), {"input": torch.randn(64, 64)}


def language(family: str, batch: int, length: int, head: str = "ForCausalLM", **settings: Any) -> Workload:
    """A language model of transformers with random weights, over random tokens."""
    model = _of_transformers(family, head, **settings)
    tokens = torch.randint(1, model.config.vocab_size, (batch, length))
    return model, {"input_ids": tokens, "labels": tokens}


def vision(family: str, batch: int, size: int, **settings: Any) -> Workload:
    """A classifier of images of transformers with random weights."""
    model = _of_transformers(family, "ForImageClassification", num_labels=1000, **settings)
    return model, {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.randint(1000, (batch,))}


def _of_transformers(family: str, head: str, **settings: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{family}Config")(**settings)
    return getattr(transformers, family + head)(config)


SMALL_GPT2: dict[str, Any] = {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 1000, "use_cache": False}
LLAMA: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 8, "use_cache": False,
}  # fmt: skip
RESNET18: dict[str, Any] = {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"}
WORKLOADS: dict[str, dict[str, Callable[[], Workload]]] = {
    "cpu": {
        "tutorial": tutorial,
        "mlp": mlp,
        "gpt2-4": lambda: language("GPT2", 2, 64, "LMHeadModel", **SMALL_GPT2),
        "resnet18": lambda: vision("ResNet", 2, 64, **RESNET18),
        "blocks-4": lambda: blocks(4),
        "blocks-32": lambda: blocks(32),
    },
    "cuda": {
        "gpt2": lambda: language("GPT2", 8, 512, "LMHeadModel", use_cache=False),
        "llama-8": lambda: language("Llama", 4, 1024, **LLAMA),
        "resnet50": lambda: vision("ResNet", 32, 224),
        "vit": lambda: vision("ViT", 32, 224),
        "bert": lambda: language("Bert", 16, 512, "ForMaskedLM"),
        "blocks-4": lambda: blocks(4),
        "blocks-32": lambda: blocks(32),
    },
}
