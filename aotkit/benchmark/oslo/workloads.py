"""What OSLO's tutorial ran: GPT-2 on 256 x 16 tokens, and `generate` of T5-base on 256 prompts, no 3-gram twice.

Source: tutorials of OSLO v2.0.1. It counted ten calls, without waiting for the GPU to finish. Here the number of new
tokens is fixed, prompts are random, and there is a training step, with dropout.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

NGRAM_SIZE = 3
GPT2_INFERENCE, GPT2_TRAINING, T5_GENERATE = WORKLOADS = ("gpt2 inference", "gpt2 training", "t5 generate")
DROPOUT_CHANGES = 0.1  # norms of the loss and of gradients, by what it draws; the half of that was seen
OSLO_RATIOS = {GPT2_INFERENCE: 1.24, GPT2_TRAINING: 1.36, T5_GENERATE: 2.63}  # of eager's time to OSLO's


@dataclass(frozen=True)
class Sizes:
    """How large everything is.

    Attributes:
        batch, length: of GPT-2's inputs; T5 gets prompts of one token.
        new_tokens: that `generate` has to produce for each prompt, no more and no fewer.
        gpt2, t5: what their configs have in place of the defaults of GPT-2 small and of T5-base.
    """

    batch: int = 256
    length: int = 16
    new_tokens: int = 19
    gpt2: Mapping[str, Any] = field(default_factory=dict)
    t5: Mapping[str, Any] = field(default_factory=dict)


T5_BASE = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0}
SIZES = {
    "cuda": Sizes(),
    "cpu": Sizes(
        batch=4,
        gpt2={"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512},
        t5={"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4, "vocab_size": 512},
    ),
}


@dataclass
class Workload:
    """One model with what is done with it.

    Attributes:
        model: of transformers, on its device.
        run: does that once, given keyword arguments of `generate` or none, and returns what it computed.
        compare: what is wrong with such a result, given another one and the tolerance; None: nothing.
    """

    model: Any
    run: Callable[..., Any]
    compare: Callable[[Any, Any, float], str | None]


def build(
    name: str, device: str, dtype: torch.dtype, *, folder: str | None = None, new_tokens: int | None = None
) -> Workload:
    """One of `WORKLOADS`.

    Args:
        folder: what `save_pretrained` wrote; None: random weights, always the same.
        new_tokens: in place of those of the sizes.
    """
    sizes = SIZES[device]
    torch.manual_seed(0)
    if name == T5_GENERATE:
        model = _t5(sizes, folder).to(device, dtype).eval()
        inputs = _random_tokens(model, sizes.batch, 1)
        count = sizes.new_tokens if new_tokens is None else new_tokens
        return Workload(model, partial(_generate, model, inputs, count), _compare_tokens)
    model = _gpt2(sizes, folder).to(device, dtype)
    inputs = _random_tokens(model, sizes.batch, sizes.length)
    if name == GPT2_INFERENCE:
        return Workload(model.eval(), partial(_logits, model, inputs), _compare_logits)
    return Workload(model.train(), partial(_training_step, model, inputs), _compare_training)


def _gpt2(sizes: Sizes, folder: str | None) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    if folder is not None:
        return GPT2LMHeadModel.from_pretrained(folder)
    return GPT2LMHeadModel(GPT2Config(**sizes.gpt2))


def _t5(sizes: Sizes, folder: str | None) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    if folder is not None:
        return T5ForConditionalGeneration.from_pretrained(folder)
    return T5ForConditionalGeneration(T5Config(**{**T5_BASE, **sizes.t5}))


def _random_tokens(model: Any, batch: int, length: int) -> Tensor:
    return torch.randint(2, model.config.vocab_size, (batch, length)).to(model.device)


@torch.no_grad()
def _logits(model: Any, inputs: Tensor) -> Tensor:
    logits: Tensor = model(inputs, use_cache=False).logits
    return logits


def _training_step(model: Any, inputs: Tensor) -> list[Tensor]:
    """The loss and all gradients."""
    model.zero_grad(set_to_none=True)
    loss: Tensor = model(inputs, labels=inputs, use_cache=False).loss
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(p.grad for p in model.parameters())]


def _generate(model: Any, inputs: Tensor, count: int, **options: Any) -> Any:
    """Tokens; with `return_dict_in_generate`, an object with these as `sequences`."""
    return model.generate(
        inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=count, min_new_tokens=count,
        **options,
    )  # fmt: skip


def _compare_logits(found: Tensor, wanted: Tensor, tolerance: float) -> str | None:
    error = float((found - wanted).norm() / wanted.norm())
    return None if error <= tolerance else f"logits differ by {error:.1e} of their norm"


def _compare_training(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> str | None:
    """By norms, as values depend on what dropout drew; aotkit's own check compares those, with the same draws."""
    for what, part in ("loss", slice(1)), ("gradients", slice(1, None)):
        norms = [torch.stack([x.norm() for x in values[part]]).norm() for values in (found, wanted)]
        error = abs(float(norms[0] / norms[1]) - 1)
        if not error <= tolerance + DROPOUT_CHANGES:
            return f"the norm of {what} differs by {error:.1%}"
    return None


def _compare_tokens(found: Tensor, wanted: Any, tolerance: float) -> str | None:
    """Where a row first has another token, eager's scores of the two have to be as good as equal.

    Args:
        found: [rows, tokens].
        wanted: eager's: `sequences`, and `scores` of each new token.
        tolerance: of scores, as a part of their standard deviation.
    """
    if found.shape != wanted.sequences.shape:
        return f"{[*found.shape]} tokens, eager has {[*wanted.sequences.shape]}"
    differs = found != wanted.sequences
    prompt = found.shape[1] - len(wanted.scores)
    for row in differs.any(1).nonzero().flatten().tolist():
        first = int(differs[row].nonzero()[0])
        scores = wanted.scores[first - prompt][row].float()
        gap = float(scores[wanted.sequences[row, first]] - scores[found[row, first]])
        if not gap <= tolerance * float(scores[scores.isfinite()].std()):
            return f"row {row}: token {first} is another, whose score is {gap:.1e} lower"
    return None
