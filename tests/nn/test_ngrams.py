"""Logits processors against repeated n-grams: to the bit what transformers' compute, without waiting for the device."""

import collections

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from aotkit.nn import FusedEncoderNoRepeatNGram, FusedNoRepeatNGram, fused_processor
from tests.nn.ngram_cases import SIZES, calls, encoder_calls, ids_of, same_bits, scores_of
from tests.with_triton import run

theirs = pytest.importorskip("transformers.generation.logits_process")


def test_it_forbids_what_transformers_forbids(device):
    for size, ids, scores in calls():
        ids, scores = ids.to(device), scores.to(device)
        before = scores.clone()
        found = FusedNoRepeatNGram(size)(ids, scores)
        same_bits(found, theirs.NoRepeatNGramLogitsProcessor(size)(ids, scores))
        same_bits(scores, before)


@pytest.mark.parametrize("rows", [256, 1024])
def test_many_rows(rows, device):
    ids, scores = torch.randint(0, 20, (rows, 64), device=device), torch.randn(rows, 333, device=device)
    found = FusedNoRepeatNGram(2)(ids, scores)
    same_bits(found, theirs.NoRepeatNGramLogitsProcessor(2)(ids, scores))
    assert found.isinf().any()


def test_it_forbids_what_transformers_forbids_of_an_encoders_input(device):
    for size, encoder_ids, ids, scores in encoder_calls():
        arguments = [t.to(device) for t in (encoder_ids, ids, scores)]
        of_transformers = theirs.EncoderNoRepeatNGramLogitsProcessor(size, arguments[0])
        expected = of_transformers(*arguments[1:])
        same_bits(FusedEncoderNoRepeatNGram(size, arguments[0])(*arguments[1:]), expected)
        same_bits(fused_processor(of_transformers)(*arguments[1:]), expected)


def test_one_sequence_may_come_without_a_batch():
    ids, scores = torch.tensor([[0, 1]]), torch.zeros(1, 5)
    found = FusedEncoderNoRepeatNGram(2, torch.tensor([3, 1, 4]))(ids, scores)
    assert found.tolist() == [[0, 0, 0, 0, -torch.inf]]


def test_later_changes_of_the_sequences_change_nothing():
    encoder_ids, ids, scores = torch.tensor([[3, 1]]), torch.tensor([[3]]), torch.zeros(1, 4)
    processor = FusedEncoderNoRepeatNGram(2, encoder_ids)
    encoder_ids.zero_()
    assert processor(ids, scores).tolist() == [[0, -torch.inf, 0, 0]]


def test_ids_that_are_none_forbid_nothing():
    ids = torch.tensor([[-100, -1, 4, -100]])
    assert FusedNoRepeatNGram(1)(ids, torch.zeros(1, 4)).tolist() == [[0, 0, 0, 0]]
    assert FusedEncoderNoRepeatNGram(1, ids)(ids, torch.zeros(1, 4)).tolist() == [[0, 0, 0, 0]]


def test_inputs_may_lie_anywhere_in_memory():
    ids, scores = ids_of(40, 6).t(), scores_of(6, vocabulary=14)[:, ::2]
    same_bits(FusedNoRepeatNGram(2)(ids, scores), theirs.NoRepeatNGramLogitsProcessor(2)(ids, scores))


def test_gradients_flow_to_what_is_allowed():
    ids, scores = ids_of(3, 30), torch.randn(3, 7, requires_grad=True)
    found, expected = FusedNoRepeatNGram(2)(ids, scores), theirs.NoRepeatNGramLogitsProcessor(2)(ids, scores)
    cotangent = torch.randn(3, 7)
    (gradient,) = torch.autograd.grad(found, scores, cotangent)
    assert torch.equal(gradient, torch.autograd.grad(expected, scores, cotangent)[0])
    assert (gradient == 0).any()


@pytest.mark.parametrize("rows_each", [1, 2])
def test_nothing_depends_on_values(rows_each):
    """Fake tensors have none, so what asks for one fails."""
    encoder_ids, ids, scores = ids_of(2, 9), ids_of(2 * rows_each, 6), scores_of(2 * rows_each)

    def process(encoder_ids, ids, scores):
        return FusedEncoderNoRepeatNGram(3, encoder_ids)(ids, FusedNoRepeatNGram(2)(ids, scores))

    gm = make_fx(process, tracing_mode="fake")(encoder_ids, ids, scores)
    same_bits(gm(encoder_ids, ids, scores), process(encoder_ids, ids, scores))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")  # torch 2.11, as it is set
def test_a_gpu_is_not_waited_for():
    encoder_ids, ids, scores = (t.cuda() for t in (ids_of(2, 9), ids_of(6, 90), scores_of(6)))
    processors = [FusedNoRepeatNGram(2), FusedEncoderNoRepeatNGram(3, encoder_ids)]
    expected = [p(ids, scores) for p in processors]  # and compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [p(ids, scores) for p in processors]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(found, expected, strict=True):
        same_bits(a, b)


class Counting(FlopCounterMode):
    """The operators of a call, and the bytes of the largest tensor."""

    def __init__(self):
        super().__init__(display=False)
        self.operators, self.largest = collections.Counter(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operators[func] += 1
        self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result


def counted(tokens, size=4):
    ids, scores = ids_of(2, tokens), scores_of(2)
    with Counting() as counting:
        FusedNoRepeatNGram(size)(ids, scores)
    return counting


def test_each_length_runs_the_same_operators():
    """None of which is compiled."""
    first = counted(40).operators
    assert all(counted(tokens).operators == first for tokens in (41, 42, 64, 100))


@pytest.mark.parametrize("size", SIZES)
def test_memory_is_that_of_the_tokens_for_any_size(size):
    assert counted(1000, size).largest <= 2 * 1000 * 8


def test_what_is_no_processor_of_these_is_none():
    assert isinstance(fused_processor(theirs.NoRepeatNGramLogitsProcessor(4)), FusedNoRepeatNGram)
    assert fused_processor(theirs.TemperatureLogitsWarper(0.5)) is None
    assert fused_processor(FusedNoRepeatNGram(4)) is None


@pytest.mark.parametrize("size", [0, -1, 2.0, None])
def test_a_wrong_size_fails_at_once(size):
    with pytest.raises(ValueError, match=f"integer of at least 1, not {size}"):
        FusedNoRepeatNGram(size)
    with pytest.raises(ValueError, match=f"integer of at least 1, not {size}"):
        FusedEncoderNoRepeatNGram(size, torch.zeros(1, 4, dtype=torch.int64))


def test_rows_that_do_not_fit_are_an_error():
    with pytest.raises(ValueError, match="7 of scores, 7 of ids, 2 sequences"):
        FusedEncoderNoRepeatNGram(2, ids_of(2, 5))(ids_of(7, 5), scores_of(7))
    with pytest.raises(ValueError, match="4 of scores, 3 of ids"):
        FusedNoRepeatNGram(2)(ids_of(3, 5), scores_of(4))


@pytest.mark.sweep
def test_its_kernel_in_the_interpreter():
    run("pytest", "-q", "-p", "no:cacheprovider", "tests/nn/interpreted/test_ngram_kernel.py", TRITON_INTERPRET="1")


@pytest.mark.sweep
def test_its_kernel_compiles_for_a_gpu_that_is_not_there(tmp_path):
    """And neither Triton nor transformers is imported before it is needed."""
    run("tests.nn.interpreted.compiled", TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
