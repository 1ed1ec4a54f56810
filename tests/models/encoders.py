"""Encoders of transformers, each with one of the heads that they are trained with."""

import functools
from typing import Any

import torch

from tests.models.texts import BATCH, LENGTH, SIZES, VOCABULARY, classes, labels, tokens, training
from tests.models.zoo import Training, add, step

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("SequenceClassification", SIZES),
    "roberta": ("MaskedLM", {**SIZES, "max_position_embeddings": 80}),
    "distilbert": ("SequenceClassification", {**SIZES, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4}),
    "albert": ("MaskedLM", {**SIZES, "embedding_size": 32}),
    "electra": ("TokenClassification", {**SIZES, "embedding_size": 32}),
    "deberta-v2": (
        "SequenceClassification",
        {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    ),
    "modernbert": ("MaskedLM", {**SIZES, "local_attention": 8, "global_attn_every_n_layers": 2}),
    "longformer": ("MaskedLM", {**SIZES, "attention_window": 4}),
    "big_bird": ("MaskedLM", {**SIZES, "attention_type": "original_full"}),
    "mpnet": ("QuestionAnswering", SIZES),
    "funnel": (
        "SequenceClassification",
        {"vocab_size": VOCABULARY, "block_sizes": [1, 1], "d_model": 64, "n_head": 4, "d_inner": 128, "d_head": 16},
    ),
    "convbert": ("MaskedLM", {**SIZES, "embedding_size": 64, "num_groups": 1}),
    "fnet": ("MaskedLM", SIZES),
    "esm": ("MaskedLM", {**SIZES, "position_embedding_type": "rotary", "mask_token_id": 3, "token_dropout": True}),
}  # fmt: skip


def encoder(name: str, kind: str, options: dict[str, Any]) -> Training:
    inputs = tokens()
    if name == "fnet":  # its tokenizer gives no mask
        targets = {"labels": labels(inputs)}
        del inputs["attention_mask"]
    elif kind == "QuestionAnswering":
        targets = {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])}
    elif kind == "TokenClassification":
        targets = {"labels": torch.randint(0, 2, (BATCH, LENGTH)).masked_fill(inputs["attention_mask"] == 0, -100)}
    else:
        targets = {"labels": classes() if kind == "SequenceClassification" else labels(inputs)}
    return training(kind, name, options, **inputs, **targets)


for name, (kind, options) in ENCODERS.items():
    add(name.replace("-", "_"), "transformers", functools.partial(encoder, name, kind, options))


@step("transformers")
def layoutlm() -> Training:
    inputs = tokens()
    corners = torch.randint(0, 500, (BATCH, LENGTH, 2))
    boxes = torch.cat([corners, corners + 100], dim=-1)
    targets = torch.randint(0, 3, (BATCH, LENGTH)).masked_fill(inputs["attention_mask"] == 0, -100)
    return training("TokenClassification", "layoutlm", {**SIZES, "num_labels": 3}, **inputs, bbox=boxes, labels=targets)
