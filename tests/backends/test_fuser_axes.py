"""The axes that tensors share in the backend `fuser`, and the nodes over them."""

import pytest
import torch

from aotkit.backends.fuser.axes import Axes, Conflict, fresh, leaves
from aotkit.backends.fuser.definition import FusionDefinition
from aotkit.backends.fuser.loops import Loops, lowered
from aotkit.backends.fuser.values import below
from aotkit.errors import CompileError


def sizes(dims):
    return [[axis.size for axis in leaves(axes)] for axes in dims]


def flat(dims):
    return leaves(axis for axes in dims for axis in axes)


def test_a_dimension_of_1_has_no_axis():
    assert sizes(fresh([3, 1, 4])) == [[3], [], [4]]


def test_equal_sizes_become_one_axis():
    (a,), (b,) = fresh([12]), fresh([12])
    Axes().unify(a, b)
    assert leaves(a) == leaves(b)


def test_an_axis_is_split_where_the_other_tensor_has_two():
    (a,), pair = fresh([12]), fresh([3, 4])
    Axes().unify(a, flat(pair))
    assert [x.size for x in leaves(a)] == [3, 4]
    assert leaves(a) == flat(pair)


def test_both_are_split_where_neither_is_a_part_of_the_other():
    first, second = fresh([6, 4]), fresh([2, 12])
    Axes().unify(flat(first), flat(second))
    assert [x.size for x in flat(first)] == [2, 3, 4]
    assert flat(first) == flat(second)


def test_sizes_that_do_not_split_change_nothing():
    first, second = fresh([4, 6, 2]), fresh([6, 4, 2])
    before = [flat(first), flat(second)]
    with pytest.raises(CompileError, match="does not split"):
        Axes().unify(flat(first), flat(second))
    assert [flat(first), flat(second)] == before


@pytest.mark.parametrize("shapes", [([4, 4], [4, 4]), ([12, 12], [3, 4, 12])])
def test_a_tensor_that_would_have_an_axis_twice_changes_nothing(shapes):
    axes = Axes()
    square, other = axes.known(fresh(shapes[0])), axes.known(fresh(shapes[1]))
    axes.unify(square[0], other[:-1][0] if len(other) == 2 else flat(other[:-1]))
    before = [flat(square), flat(other)]
    with pytest.raises(Conflict):
        axes.unify(square[1], flat(other[:1]) if len(other) == 2 else flat(other[:-1]))
    assert [flat(square), flat(other)] == before


def test_a_view_has_the_same_axes():
    dims = fresh([3, 4, 5])
    found = Axes().regroup(dims, [12, 1, 5])
    assert sizes(found) == [[3, 4], [], [5]]
    assert flat(found) == flat(dims)


def test_a_view_that_splits_a_dimension():
    dims = fresh([12, 5])
    assert sizes(Axes().regroup(dims, [3, 2, 2, 5])) == [[3], [2], [2], [5]]
    assert [x.size for x in flat(dims)] == [3, 2, 2, 5]


def test_a_view_across_the_ends_of_axes_is_refused():
    with pytest.raises(CompileError):
        Axes().regroup(fresh([5, 24]), [6, 4, 5])


def tensor(fd, *shape, strides=None):
    strides = torch.empty(shape, device="meta").stride() if strides is None else strides
    return fd.define_tensor(sizes=shape, strides=strides, dtype=torch.float32, static_sizes=True, is_cpu=False)


def test_equal_nodes_are_one():
    loops = Loops()
    axis = loops.axis(8)
    x = loops.node("load", torch.float32, (), (0, (), ((axis, 1),), 0))
    assert x is loops.node("load", torch.float32, (), (0, (), ((axis, 1),), 0))
    assert loops.node("operation", torch.float32, (x,), "sin") is loops.node("operation", torch.float32, (x,), "sin")
    assert loops.node("operation", torch.float32, (x,), "sin") is not loops.node(
        "operation", torch.float32, (x,), "cos"
    )


def test_a_cast_to_the_same_type_is_none():
    loops = Loops()
    x = loops.node("constant", torch.float32, (), 1.0)
    assert loops.node("operation", torch.float32, (x,), "cast") is x


def test_a_reduction_of_equal_values_is_a_multiplication():
    loops = Loops()
    axis, other = loops.axis(8), loops.axis(5)
    x = loops.node("load", torch.float32, (), (0, (), ((axis, 1),), 0))
    total = loops.node("reduction", torch.float32, (x,), ("sum", frozenset([other])))
    assert (total.kind, total.data, total.args[1].data) == ("operation", "mul", 5.0)
    assert loops.node("reduction", torch.float32, (x,), ("max", frozenset([other]))) is x
    with pytest.raises(CompileError, match="prod of 5 equal values"):
        loops.node("reduction", torch.float32, (x,), ("prod", frozenset([other])))


def loads(results):
    return [n for n in below(r.node for r in results) if n.kind == "load"]


def strides(load):
    return load.data[-2]


def test_axes_that_are_walked_together_are_one():
    fd = FusionDefinition()
    fd.add_output(fd.ops.add(tensor(fd, 3, 4, 5), tensor(fd, 3, 4, 5)))
    loops, (result,) = lowered(fd.outputs)
    assert [loops.sizes[axis] for axis, _ in result.axes] == [60]


def test_a_broadcast_keeps_axes_apart():
    fd = FusionDefinition()
    fd.add_output(fd.ops.add(tensor(fd, 3, 4, 5), tensor(fd, 5)))
    loops, (result,) = lowered(fd.outputs)
    assert [loops.sizes[axis] for axis, _ in result.axes] == [12, 5]


def test_a_reduction_keeps_axes_apart():
    fd = FusionDefinition()
    fd.add_output(fd.ops.sum(tensor(fd, 3, 4, 5), [1, 2], False))
    loops, (result,) = lowered(fd.outputs)
    assert (result.node.kind, sorted(loops.sizes.values())) == ("reduction", [3, 20])


def test_a_view_and_its_tensor_are_the_same_loads():
    fd = FusionDefinition()
    x = tensor(fd, 12, 5)
    fd.add_output(fd.ops.sin(fd.ops.reshape(x, [3, 20])))
    fd.add_output(fd.ops.cos(x))
    assert len(set(loads(lowered(fd.outputs)[1]))) == 1


def test_a_tensor_and_its_transpose_are_two_loads():
    fd = FusionDefinition()
    x = tensor(fd, 7, 7)
    fd.add_output(fd.ops.add(x, fd.ops.permute(x, [1, 0])))
    _, results = lowered(fd.outputs)
    (first, second) = set(loads(results))
    assert dict(strides(first)) == {axis: 8 - stride for axis, stride in strides(second)}


def test_an_expanded_dimension_is_not_walked_by_its_load():
    fd = FusionDefinition()
    fd.add_output(fd.ops.sin(tensor(fd, 4, 6, strides=(0, 1))))
    loops, (result,) = lowered(fd.outputs)
    (load,) = loads([result])
    assert [loops.sizes[axis] for axis, _ in strides(load)] == [6]
    assert result.stride == (6, 1)


def test_a_part_is_a_load_with_an_offset():
    fd = FusionDefinition()
    fd.add_output(fd.ops.sin(fd.ops.slice(tensor(fd, 10, 6), [2, 0], [7, 6])))
    (load,) = loads(lowered(fd.outputs)[1])
    assert load.data[-1] == 12
