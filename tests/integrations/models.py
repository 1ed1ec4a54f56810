"""Tiny models of transformers, and what their tests compare."""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import aotkit

VOCABULARY, PAD = 64, 0


def decoder(**options):
    """A Llama of one layer with random weights, the same for the same options."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=PAD, bos_token_id=1, eos_token_id=2, **options,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def batch(lengths, seed=0, left=False):
    """Token ids, mask and labels of sentences of these lengths, padded to the longest."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    mask = torch.stack([torch.arange(max(lengths)) < n for n in lengths]).long()
    mask = mask.flip(1) if left else mask
    ids = ids.masked_fill(mask == 0, PAD)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def compiled(model, **options):
    """The model compiled, such that a call that runs eagerly is an error."""
    return aotkit.compile(model, **{"backend": "nop", "strict": True, **options})


def twins(model, **options):
    """The model uncompiled, and a copy of it compiled."""
    return model, compiled(copy.deepcopy(model), **options)


def train(model, batches):
    """Losses of one step of SGD for each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs in batches:
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def assert_same_parameters(model, other):
    """Equal names and close values of parameters and buffers."""
    ours, theirs = model.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    torch.testing.assert_close(ours, theirs)
