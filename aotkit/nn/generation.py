"""How transformers' `generate` takes what aotkit has for its logits: in the place of processors of its own."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from aotkit.errors import UnsupportedError
from aotkit.nn.ngrams import FusedEncoderNoRepeatNGram, FusedNoRepeatNGram

Processor = Callable[[Tensor, Tensor], Tensor]


def fused_processor(processor: object) -> Processor | None:
    """What computes the same as a logits processor of transformers', or None where there is none."""
    kind = type(processor)
    if kind.__module__ != "transformers.generation.logits_process":
        return None
    size: Any = getattr(processor, "ngram_size", None)
    if kind.__name__ == "NoRepeatNGramLogitsProcessor":
        return FusedNoRepeatNGram(size)
    if kind.__name__ == "EncoderNoRepeatNGramLogitsProcessor" and hasattr(processor, "generated_ngrams"):
        sequences = processor.generated_ngrams
        windows = [[(*ngram, token) for ngram, tokens in found.items() for token in tokens] for found in sequences]
        ids = torch.tensor(windows, dtype=torch.int64)
        return FusedEncoderNoRepeatNGram.of_windows(ids.view(len(windows), len(windows[0]), size))
    return None


def generate_fused(
    model: Any, input_ids: Tensor, logits_processor: Iterable[Processor], generation_config: Any, **arguments: Any
) -> Any:
    """What `model.generate(..., custom_generate=generate_fused)` calls: its own loop, with fused logits processors.

    They are in the places of transformers' own, so `no_repeat_ngram_size` and `encoder_no_repeat_ngram_size` may come
    from the call or from any config. `generate` hands no streamer, synced_gpus or assistant_model to such functions.

    Raises:
        UnsupportedError: the config asks for assisted generation, or for what transformers has in other repositories.
    """
    from transformers.generation.utils import GENERATION_MODES_MAPPING

    mode = generation_config.get_generation_mode()
    name = GENERATION_MODES_MAPPING[mode]
    if mode == "assisted_generation" or not hasattr(type(model), name):
        raise UnsupportedError(f"generate() has no loop for {mode.value} that a custom_generate function can call.")
    processors = type(logits_processor)(fused_processor(p) or p for p in logits_processor)  # type: ignore[call-arg]
    return getattr(type(model), name)(
        model, input_ids, logits_processor=processors, generation_config=generation_config, **arguments
    )
