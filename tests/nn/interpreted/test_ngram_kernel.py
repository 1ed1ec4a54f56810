"""The kernel of n-grams in Triton's interpreter; tests/nn/test_ngrams.py runs this in a process that has Triton."""

import torch

from aotkit.nn import FusedEncoderNoRepeatNGram, FusedNoRepeatNGram
from aotkit.nn.ngram_kernel import NUMBERS, forbid, kernel
from tests.nn.ngram_cases import calls, encoder_calls, same_bits


def test_it_forbids_what_operators_forbid():
    for size, ids, scores in calls():
        ids[:, ids.shape[1] // 2] = -1
        ids[:, ids.shape[1] // 3] = scores.shape[1]
        if ids.shape[1] >= size:
            found = scores.clone()
            forbid(found, ids.unfold(1, size, 1), ids)
            same_bits(found, FusedNoRepeatNGram(size)(ids, scores))


def test_of_other_sequences():
    for size, encoder_ids, ids, scores in encoder_calls():
        if ids.shape[1] >= size - 1 and encoder_ids.shape[1] >= size:
            windows, found = encoder_ids.unfold(1, size, 1), scores.clone()
            written_out = scores.clone()
            forbid(found, windows, ids)
            forbid(written_out, windows.contiguous(), ids)
            same_bits(found, FusedEncoderNoRepeatNGram(size, encoder_ids)(ids, scores))
            same_bits(written_out, found)


def test_tensors_may_lie_anywhere_in_memory():
    ids, scores = torch.randint(0, 3, (40, 6)).t(), torch.randn(6, 7)
    found = scores.clone()
    forbid(found, ids.unfold(1, 2, 1), ids)
    same_bits(found, FusedNoRepeatNGram(2)(ids, scores))


def test_no_number_makes_triton_compile_anew():
    numbers = [name for name in kernel.arg_names if name not in ("scores", "windows", "ids")]
    assert sorted(numbers) == sorted(NUMBERS)
