"""What keeps `generate` from repeating n-grams, without waiting for the device: transformers' logits processors, fused.

A window is n tokens that stand side by side. Where all but the last of them are a sequence's newest n - 1 tokens, the
last one may not follow. Results are those of transformers' `NoRepeatNGramLogitsProcessor` and
`EncoderNoRepeatNGramLogitsProcessor` to the bit, except that ids outside of the vocabulary forbid nothing.
"""

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

from aotkit.torch_private.dispatch import dispatch_modes


class FusedNoRepeatNGram:
    """No n-gram occurs twice: for `generate(logits_processor=[FusedNoRepeatNGram(3)])`.

    Args:
        ngram_size: n, at least 1.

    Raises:
        ValueError: n is none.
    """

    def __init__(self, ngram_size: int) -> None:
        self.ngram_size = _size(ngram_size)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores with -inf for tokens that may not follow.

        Args:
            input_ids: [rows, tokens], of 32 or 64 bits.
            scores: [rows, vocabulary].

        Raises:
            ValueError: rows do not fit.
        """
        if input_ids.shape[-1] < self.ngram_size:
            return scores
        return without(scores, input_ids.unfold(1, self.ngram_size, 1), input_ids)


class FusedEncoderNoRepeatNGram:
    """No n-gram of other sequences occurs, such as an encoder's input or a prompt.

    Args:
        encoder_ngram_size: n, at least 1.
        encoder_input_ids: [sequences, tokens] or [tokens]; each sequence is for as many rows of scores, as for beams.

    Raises:
        ValueError: n is none.
    """

    def __init__(self, encoder_ngram_size: int, encoder_input_ids: Tensor) -> None:
        self.ngram_size = _size(encoder_ngram_size)
        ids = (encoder_input_ids[None] if encoder_input_ids.dim() == 1 else encoder_input_ids).clone()
        none = ids.new_empty(len(ids), 0, self.ngram_size)
        self._windows = none if ids.shape[1] < self.ngram_size else ids.unfold(1, self.ngram_size, 1)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """As `FusedNoRepeatNGram`'s."""
        if self._windows.device != scores.device:
            self._windows = self._windows.to(scores.device)
        if input_ids.shape[-1] < self.ngram_size - 1:
            return scores.clone()
        return without(scores, self._windows, input_ids)

    @classmethod
    def of_windows(cls, windows: Tensor) -> "FusedEncoderNoRepeatNGram":
        """Of n-grams that are written out: [sequences, n-grams, n]."""
        processor = cls(windows.shape[-1], windows.new_empty(len(windows), 0))
        processor._windows = windows
        return processor


def without(scores: Tensor, windows: Tensor, ids: Tensor) -> Tensor:
    """Scores with -inf for the last token of each window that begins with the last tokens of ids.

    Args:
        scores: [rows, vocabulary].
        windows: [sequences, windows, n], where each sequence is for as many rows.
        ids: [rows, tokens].

    Raises:
        ValueError: rows do not fit.
    """
    if len(ids) != len(scores) or len(scores) % max(1, len(windows)):
        raise ValueError(f"rows do not fit: {len(scores)} of scores, {len(ids)} of ids, {len(windows)} sequences.")
    if not scores.numel() or not windows.shape[1]:
        return scores.clone()
    if _launches(scores) and windows.is_cuda and ids.is_cuda:
        from aotkit.nn.ngram_kernel import forbid

        result = scores.clone(memory_format=torch.contiguous_format)
        with torch.cuda.device(scores.device):
            forbid(result, windows, ids)
        return result
    return _by_operators(scores, windows, ids)


def _by_operators(scores: Tensor, windows: Tensor, ids: Tensor) -> Tensor:
    """Each element is copied once; what may follow anyway is written to one behind the last row."""
    rows, vocabulary = scores.shape
    sequences, _, size = windows.shape
    each = rows // sequences
    newest = ids[:, ids.shape[1] + 1 - size :].view(sequences, each, size - 1)
    token = windows[:, None, :, -1]
    forbidden = (token >= 0) & (token < vocabulary)
    for i in range(size - 1):
        forbidden = forbidden & (windows[:, None, :, i] == newest[:, :, i, None])
    first = torch.arange(0, scores.numel(), vocabulary, device=scores.device).view(sequences, each, 1)
    places = torch.where(forbidden, first + token, scores.numel())
    flat = torch.cat([scores.reshape(-1), scores.new_zeros(1)])
    return flat.scatter_(0, places.flatten(), -torch.inf)[:-1].view(rows, vocabulary)


def _launches(scores: Tensor) -> bool:
    """Whether a kernel of Triton's runs: not while something is traced, nor where gradients are asked for."""
    if torch.compiler.is_compiling() or not scores.is_cuda or type(scores) is not Tensor or dispatch_modes():
        return False
    return not (scores.requires_grad and torch.is_grad_enabled()) and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _size(size: Any) -> int:
    if not isinstance(size, int) or size <= 0:
        raise ValueError(f"the size of an n-gram is an integer of at least 1, not {size!r}.")
    return size
