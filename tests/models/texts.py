"""Inputs of models of transformers, as a tokenizer, an image processor and a data collator give them."""

from typing import Any

import torch
from torch import Tensor

from tests.models.zoo import Training

VOCABULARY, PAD, START, END = 128, 0, 1, 2
BATCH, LENGTH, PADDING = 2, 16, 5
# What most configurations call their sizes.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "bos_token_id": START,
    "eos_token_id": END,
}


def tokens(length: int = LENGTH, padding: int = PADDING) -> dict[str, Tensor]:
    """Two texts, the second of them shorter: `input_ids` and `attention_mask`, padded on the right."""
    ids = torch.randint(END + 1, VOCABULARY, (BATCH, length))
    mask = torch.ones_like(ids)
    if padding:
        ids[1, -padding:], mask[1, -padding:] = PAD, 0
    return {"input_ids": ids, "attention_mask": mask}


def labels(inputs: dict[str, Tensor]) -> Tensor:
    """The same tokens, without those that pad."""
    return inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)


def classes(count: int = 2) -> Tensor:
    """One class for each example."""
    return torch.randint(0, count, (BATCH,))


def images(size: int = 32, channels: int = 3) -> Tensor:
    """Normalized pixels."""
    return torch.randn(BATCH, channels, size, size)


def model_of(kind: str, config_name: str, **options: Any) -> Any:
    """A model with random weights, such as `model_of("CausalLM", "gpt2", n_layer=2)`."""
    import transformers

    config = transformers.AutoConfig.for_model(config_name, **options)
    return getattr(transformers, f"AutoModelFor{kind}").from_config(config)


def training(kind: str, config_name: str, options: dict[str, Any], **inputs: Any) -> Training:
    """A step of such a model."""
    return Training(model_of(kind, config_name, **options), kwargs=inputs)
