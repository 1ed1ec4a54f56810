"""What operators become for backends that take definitions."""

import pytest
import torch
from torch.nn import functional as F

import aotkit
from aotkit.backends.fusion_definition.decompositions import lowered_decompositions

aten = torch.ops.aten
RULES = lowered_decompositions()


@pytest.mark.parametrize(
    ("shape", "shifts", "dims"),
    [
        ((3, 4), [1], [0]),
        ((3, 4), [-5, 7], [0, 1]),
        ((3, 4), [5], []),
        ((3, 4), [3, -4], [0, 1]),
        ((2, 3, 4), [1, 2], [-1, -1]),
        ((5,), [-1], [0]),
    ],
)
def test_roll(shape, shifts, dims):
    for x in (torch.randn(shape), torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]):
        found = RULES[aten.roll.default](x, shifts, dims)
        assert torch.equal(found, torch.roll(x, shifts, dims))
        assert found.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("repeats", [[2, 3], [1, 2, 3], [0, 2], [1, 1]])
def test_repeat(repeats):
    x = torch.randn(3, 4)
    assert torch.equal(RULES[aten.repeat.default](x, repeats), x.repeat(repeats))
    assert torch.equal(RULES[aten.repeat.default](x[0, 0], repeats), x[0, 0].repeat(repeats))


def test_nothing_is_rolled_or_repeated():
    assert RULES[aten.roll.default](torch.empty(0, 3), [1], [0]) is NotImplemented
    assert RULES[aten.repeat.default](torch.empty(0, 3), [2, 2]) is NotImplemented


def targets(fn, *args):
    graphs = aotkit.extract(fn, *args, backend="fuser")
    return {n.target for gm in (graphs.forward, graphs.backward) for n in gm.graph.nodes}


def test_an_identity_matrix_is_counted_in_numbers_that_aten_has():
    """torch's own rule takes uint16 for 257 to 65535 rows, of which ATen has no `arange`."""
    x = torch.randn(300, 300, requires_grad=True)
    fast = aotkit.compile(lambda x: x.masked_fill(torch.eye(300, dtype=torch.bool), 0.0), backend="fuser")
    assert fast.check(x).passed
    assert aotkit.compile(lambda x: x + torch.eye(300, 5), backend="fuser").check(x[:, :5]).passed
    graphs = aotkit.extract(lambda x: x + torch.eye(300), x, backend="fuser")
    counted = [n.meta["val"].dtype for n in graphs.forward.graph.nodes if n.target is aten.arange.start_step]
    assert counted
    assert set(counted) <= {torch.int64, torch.int32}


@pytest.mark.parametrize(
    ("fn", "kept"),
    [
        (lambda x: F.pad(x, (1, 1), mode="reflect") * 2, {aten.reflection_pad1d.default}),
        (lambda x: F.pad(x, (1, 1), mode="reflect").exp(), {aten.reflection_pad1d_backward.default}),
        (lambda x: x.unfold(1, 4, 2).mean(-1), {aten.unfold_backward.default}),
        (lambda x: torch.zeros(4, 16).index_add(0, torch.tensor([1, 1, 3]), x) * 2, {aten.index_add.default}),
    ],
)
def test_what_aten_has_kernels_for_does_not_become_indices(fn, kept):
    found = targets(fn, torch.randn(3, 16, requires_grad=True))
    assert kept <= found
    assert not {aten.index.Tensor, aten.index_put.default} & found
