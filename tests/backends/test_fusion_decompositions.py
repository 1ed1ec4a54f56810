"""What operators become for backends that take definitions."""

import pytest
import torch
from torch.nn import functional as F

import aotkit
from aotkit.backends.fusion_definition.decompositions import added_by_index, lowered_decompositions

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


IMAGES = {
    "dense": torch.randn(2, 3, 12, 8),
    "channels last": torch.randn(2, 3, 12, 8).to(memory_format=torch.channels_last),
    "one image": torch.randn(3, 12, 8),
}


@pytest.mark.thinned
@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize(
    "resized",
    [
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, (3, 4), (3, 4)),
        lambda x: F.adaptive_avg_pool2d(x, (6, 2)),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.interpolate(x[None] if x.dim() == 3 else x, scale_factor=2, mode="nearest"),
        lambda x: F.interpolate(x[None] if x.dim() == 3 else x, (36, 8), mode="nearest"),
    ],
    ids=["pairs", "oblong", "adaptive", "all", "twice", "rows three times"],
)
def test_equal_windows_are_views(image, resized):
    """With ATen's strides, so that convolutions after it see the memory that they see in eager."""
    x = IMAGES[image].clone().requires_grad_()
    assert not [name for name in map(str, targets(resized, x)) if "pool" in name or "upsample" in name]
    fast = aotkit.compile(resized, backend="fuser")
    assert fast.check(x).passed
    found, expected = fast(x), resized(x)
    assert found.stride() == expected.stride()


def test_other_windows_stay_whole():
    x = torch.randn(1, 2, 7, 9, requires_grad=True)
    assert aten.avg_pool2d.default in targets(lambda x: F.avg_pool2d(x, 2), x)
    assert aten.avg_pool2d.default in targets(lambda x: F.avg_pool2d(x, 3, stride=1, padding=1), x)
    assert aten.upsample_nearest2d.default in targets(lambda x: F.interpolate(x, (10, 12)), x)


def test_nothing_is_before_the_first_keys_of_a_cache():
    """What is joined with nothing is not copied; what is changed afterwards is."""
    x, nothing = torch.randn(3, 4, requires_grad=True), torch.tensor([])
    assert not {aten.cat.default, aten.clone.default} & targets(lambda x: torch.cat([nothing, x.exp()]) @ x.t(), x)
    assert aten.cat.default in targets(lambda x: torch.cat([torch.empty(0, 4), x]) * 2, x.double())


def test_a_copy_of_a_result_stays_one():
    def both(x):
        y = x.sin()
        return y, y.clone().cos()

    x = torch.randn(4, requires_grad=True)
    fast = aotkit.compile(both, backend="fuser", partition="default")
    y, z = fast(x)
    with torch.no_grad():
        y.zero_()
    z.sum().backward()
    expected = x.detach().requires_grad_()
    both(expected)[1].sum().backward()
    torch.testing.assert_close(x.grad, expected.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dim", "shape"), [(0, (5,)), (1, (2, 3)), (-1, ())])
def test_what_is_added_up_by_index(dim, shape, dtype):
    x, dim = torch.zeros(4, 6, 5, dtype=dtype), dim % 3
    indices = torch.randint(-x.shape[dim], x.shape[dim], shape)
    values = torch.randn(*x.shape[:dim], *shape, *x.shape[dim + 1 :]).to(dtype)
    expected = x.double()
    for at, i in enumerate(indices.flatten()):
        expected.select(dim, int(i)).add_(
            values.double().flatten(dim, dim + len(shape) - 1).select(dim, at) if shape else values
        )
    torch.testing.assert_close(added_by_index(x, dim, indices, values), expected.to(dtype))
