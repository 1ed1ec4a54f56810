"""The ways in which rows are walked, on small tensors: with small limits, each takes the one that a large one takes."""

import re

import pytest
import torch
from torch.nn import functional as F

from aotkit.backends.fuser.pairs import paired
from tests.backends.interpreted.comparing import IS_INTERPRETED, agree, engine_for, fused, train

SMALL_LIMITS = {
    "LONGEST_WHOLE_ROW": 32, "SHORT_ROW": 32, "SHORT_COLUMN": 16, "FEWEST_ROWS": 4, "ONE_PROGRAM": 0, "CHUNK": 16,
    "TILE": 64, "SIDE": 8, "MULTIPROCESSORS": 2, "PROGRAMS": 4, "RESIDENT": 1, "PART": 64, "WIDTH": 16,
    "SHARED_COLUMN": 16, "LONG_PIECE": 4,
}  # fmt: skip


def ways(region):
    """What the kernels of a region do."""
    compiled = fused(region)
    if not IS_INTERPRETED:
        yield from ways_in_cpp(compiled)
        return
    for kernel, launch in zip(compiled.plan.kernels, compiled.launches, strict=True):
        way = launch.schedule
        if kernel.inner is None:
            yield "tiles" if way.rows else "flat"
        else:
            yield "whole rows" if way.whole else "chunks"
        if kernel.shares > 1:
            yield "shared rows"
            yield from (pair.kind for pair in paired([p.node for p in kernel.partials]).values())
        elif kernel.inner is not None and not way.whole:
            yield from (pair.kind for pair in paired(kernel.reductions).values())
        if kernel.summed:
            yield "column sums"
            if way.programs < compiled.plan.loops.size(kernel.summed) // way.row_block:
                yield "several blocks of rows"
        if way.row_block > 1:
            yield "several rows"


def ways_in_cpp(compiled):
    for kernel, launch in zip(compiled.plan.kernels, compiled.launches, strict=True):
        way = launch.schedule
        yield "flat" if kernel.inner is None else "columns" if way.lane in way.rows else "rows"
        if kernel.shares > 1:
            yield f"shared {'columns' if way.lane in way.rows else 'rows'}"
        if kernel.summed:
            yield "column sums"
            if way.programs > 1:
                yield "several blocks of rows"
        if "hold(h" in launch.code:
            yield "held"
        if "wholes<" in launch.code:
            yield "several vectors"
        if re.search("at \\+ LANES.*\n.*first", launch.code):
            yield "the rest of a row"


def rand(*shape, shift=0.0):
    return (torch.randn(shape) + shift).requires_grad_()


SMALL, SHARED = {}, {}


def case(cases, *expected, **inputs):
    """Registers a function with what its kernels do; inputs are shapes, or functions that make one."""

    def register(fn):
        cases[fn.__name__] = fn, inputs.values(), expected
        return fn

    return register


def arguments(inputs):
    return [make() if callable(make) else rand(*make) for make in inputs]


@case(SMALL, "chunks", "exponentials", x=(3, 39))
def softmax_of_long_rows(x):
    return x.softmax(-1)


@case(SMALL, "whole rows", "several rows", x=(70, 7))
def softmax_of_short_rows(x):
    return x.softmax(-1)


@case(SMALL, "chunks", "exponentials", x=(71,))
def softmax_of_one_row(x):
    return x.softmax(-1)


@case(SMALL, "chunks", "exponentials", "several rows", x=(3, 39, 9))
def softmax_of_columns(x):
    return x.softmax(1)


@case(SMALL, "chunks", "exponentials", x=(6, 39))
def masked_softmax(x):
    return torch.where(x > 0, x, -torch.inf).softmax(-1)


@case(SMALL, "chunks", "squares", x=lambda: rand(7, 39, shift=100), weight=(39,), bias=(39,))
def layer_norm_of_long_rows(x, weight, bias):
    return F.layer_norm(x, (39,), weight, bias)


@case(SMALL, "column sums", "several blocks of rows", x=lambda: rand(40, 23, shift=100), weight=(23,), bias=(23,))
def layer_norm(x, weight, bias):
    return F.layer_norm(x, (23,), weight, bias)


@case(SMALL, "column sums", x=(5, 8, 9), scale=(5, 9), shift=(5, 9))
def adaptive_layer_norm(x, scale, shift):
    return F.layer_norm(x, (9,)) * (1 + scale[:, None]) + shift[:, None]


@case(SMALL, "chunks", "exponentials", x=(10, 71), target=lambda: torch.randint(71, (10,)))
def cross_entropy(x, target):
    return F.cross_entropy(x, target, label_smoothing=0.1) + 1e-2 * x.logsumexp(-1).square().mean()


@case(SMALL, "chunks", "exponentials", x=(37, 37), target=lambda: torch.arange(37))
def cross_entropies_of_rows_and_columns(x, target):
    return F.cross_entropy(x, target) + F.cross_entropy(x.t(), target)


@case(SMALL, "column sums", x=(3, 8, 3, 5), weight=(8,), bias=(8,))
def group_norm(x, weight, bias):
    return F.silu(F.group_norm(x, 4, weight, bias))


@case(SMALL, "chunks", "squares", x=(3, 6, 4, 4), weight=(6,), bias=(6,))
def group_norm_whose_channels_are_chunks(x, weight, bias):
    return F.silu(F.group_norm(x, 2, weight, bias))


@case(SMALL, "chunks", "squares", x=(3, 10, 2, 4), weight=(10,), bias=(10,))
def group_norm_whose_channels_are_halves_of_chunks(x, weight, bias):
    return F.group_norm(x, 2, weight, bias).sin()


@case(SMALL, "chunks", "squares", x=(3, 4, 3, 5), weight=(4,), bias=(4,))
def batch_norm(x, weight, bias):
    return F.relu(F.batch_norm(x, None, None, weight, bias, training=True))


@case(SMALL, "chunks", "squares", x=(3, 4, 5, 9))
def instance_norm(x):
    return F.leaky_relu(F.instance_norm(x))


@case(SMALL, "chunks", "exponentials", x=(37, 37))
def with_its_transpose(x):
    return x + x.t() * 2 + x.softmax(0)


@case(SMALL, "chunks", "exponentials", x=(10, 39))
def rows_and_columns(x):
    return x.softmax(-1) * x.sum(0)


@case(SMALL, x=(2, 3, 5, 8), cos=(5, 8), sin=(5, 8))
def rotary_embedding(x, cos, sin):
    return x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin


@case(SMALL, "column sums", x=(40, 7), weight=(7,))
def norm_and_scale(x, weight):
    return x / x.norm(dim=-1, keepdim=True) * weight


@case(SMALL, "tiles", x=(17, 17))
def rows_plus_columns(x):
    return x + x.t()


@case(SMALL, x=(4, 7), index=lambda: torch.randint(7, (4, 1)))
def chosen_of_rows(x, index):
    return (x.exp().gather(1, index) * x).sin()


@case(SMALL, x=(5, 24), state=(5, 8))
def cell_of_gates(x, state):
    a, b, c = x.chunk(3, -1)
    return torch.sigmoid(a) * state + torch.tanh(b) * torch.sigmoid(c)


@case(SMALL, x=(37, 24), bias=(24,))
def gate_with_bias(x, bias):
    a, b = (x + bias).chunk(2, -1)
    return F.silu(a) * b


@case(SMALL, x=(2, 6, 4, 5))
def shifted_windows(x):
    return torch.roll(x, (-2, 3), (1, 2)).sin()


@case(SMALL, x=(5, 37, 9), mask=lambda: (torch.rand(5, 37) < 0.5).float())
def mean_of_what_a_mask_leaves(x, mask):
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


@case(SMALL, x=(19, 9), y=(37, 9))
def distances(x, y):
    return (x[:, None] - y).square().sum(-1)


@case(SMALL, boxes=(71, 4))
def areas(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


@case(SHARED, "shared rows", x=(1030, 9))
def normalised_columns_of_a_mean(x):
    return (x - x.mean(0)) * torch.rsqrt(x.var(0) + 1e-5)


@case(SHARED, "shared rows", x=(9, 1003), y=(9, 1003))
def sums_of_rows_and_of_all(x, y):
    return (x * y).sum(1), x.sum(1), y.sum(1), (x - y).exp().mean()


@case(SHARED, "shared rows", x=(9, 1003))
def sum_of_all(x):
    return (x * x).sum()


@case(SHARED, "shared rows", x=(9, 1003), weight=(9,))
def weighed_sum_of_all(x, weight):
    return (x.square() * weight[:, None]).mean()


@case(SHARED, x=(2, 7 * 128))
def sums_of_rows_of_whole_packs(x):
    return (x * x).sum(1)


@case(SHARED, "shared rows", x=(1030, 9))
def sum_of_columns(x):
    return (x * x).sum(0)


@case(SHARED, "shared rows", x=(4500, 2))
def normalised_columns(x):
    return x / x.norm(dim=0)


@case(SHARED, "shared rows", x=(2, 8300))
def softmax_of_few_rows(x):
    return x.softmax(1)


@case(SHARED, "shared rows", "squares", x=(5, 2, 1650), weight=(2,), bias=(2,))
def batch_norm_of_few_channels(x, weight, bias):
    return F.batch_norm(x, None, None, weight, bias, training=True)


@case(SHARED, "shared rows", "squares", x=(2, 9000))
def layer_norm_of_few_rows(x):
    return F.layer_norm(x + 100, (9000,))


@case(SHARED, "shared rows", "squares", x=lambda: rand(2, 9000, 6).transpose(1, 2))
def channels_that_lie_side_by_side(x):
    return F.group_norm(x, 3)


@case(SHARED, "shared rows", x=(1030, 9), bias=(9,))
def bias_and_gelu(x, bias):
    return F.gelu(x + bias)


@case(SMALL, "flat", x=(5, 3, 2, 7))
def keys_of_groups_of_heads(x):
    return x.exp().sum(2), x.amax(1), x.amin(1)


@case(SMALL, "flat", x=(5, 2, 3, 8), cos=(5, 1, 1, 8), sin=(5, 1, 1, 8))
def rotated_and_added_up(x, cos, sin):
    a, b = x.chunk(2, -1)
    return (x * cos + torch.cat([-b, a], -1) * sin).sum(1)


def test_a_product_of_a_few_values():
    agree(lambda x: x.prod(1), torch.randn(5, 3, 7))


@pytest.mark.parametrize("name", SMALL)
def test_rows_and_chunks(name, limit):
    limit(**SMALL_LIMITS)
    fn, inputs, expected = SMALL[name]
    regions = train(fn, *arguments(inputs), engine=engine_for(name))
    found = {w for region in regions for w in ways(region)}
    assert not IS_INTERPRETED or {*expected} <= found


@pytest.mark.skipif(not IS_INTERPRETED, reason="about the registers of a GPU")
@pytest.mark.parametrize(("room", "is_added_up"), [(4 * 32, True), (2 * 32, False)])
def test_rows_are_added_up_where_there_are_registers_for_all_sums(limit, room, is_added_up):
    limit(**SMALL_LIMITS, HELD=room)  # of a row of 23 in a tile of 32, its gradient, and those of weight and bias
    fn, inputs, _ = SMALL["layer_norm"]
    regions = train(fn, *arguments(inputs))
    assert ("column sums" in {w for region in regions for w in ways(region)}) == is_added_up


@pytest.mark.parametrize("name", SHARED)
def test_rows_of_several_programs(name, limit):
    limit(SHORT_ROW=512, ONE_PROGRAM=0, SHARED_CHUNK=256, INTERLEAVED=4, FEWEST_ROWS=4, PART=512)
    fn, inputs, expected = SHARED[name]
    regions = train(fn, *arguments(inputs), engine=engine_for(name))
    found = {w for region in regions for w in ways(region)}
    assert not IS_INTERPRETED or {*expected} <= found


WAYS = {
    "flat", "rows", "columns", "shared rows", "shared columns", "column sums", "several blocks of rows", "held",
    "several vectors", "the rest of a row",
}  # fmt: skip


@pytest.mark.skipif(IS_INTERPRETED, reason="is of C++")
def test_all_ways_of_cpp_with_whole_vectors_and_what_is_left(limit):
    limit(CHUNK=64, WIDTH=32, PART=256, THREAD=256, SHARED_CHUNK=64)
    regions = train(
        lambda x, w, b: F.silu(F.layer_norm(x, (203,), w, b)), rand(80, 203, shift=10), rand(203), rand(203)
    )
    regions += train(lambda x: x.softmax(-1) * x.exp().sum(0), rand(30, 164))
    regions += train(lambda x: ((x * x).sum(), x.softmax(1), x.double().cos().mean(1)), rand(3, 70, 65))
    regions += train(lambda x: ((x * x).sum(0), (x.t() + 1).amax(1)), rand(1500, 5))
    assert {w for region in regions for w in ways(region)} == WAYS
