"""How wide loads are whose positions are chosen: each claim is held against the positions themselves."""

import pytest
import torch

from aotkit.backends.fuser.loops import Loops
from aotkit.backends.fuser.neighbours import read_at_a_time

INTEGER = torch.int64


def rotated(loops, axis, half, size, offset=0):
    """Where the other half is: `size - half` elements before, or `half` after."""
    index = loops.node("index", INTEGER, (), (((axis, 1),), offset))
    test = loops.operation("lt", index, loops.constant(half + offset, INTEGER))
    return loops.operation("where", test, loops.constant(size - half, INTEGER), loops.constant(-half, INTEGER))


def load(loops, strides, positions, steps):
    return loops.node("load", torch.float32, tuple(positions), (0, tuple(steps), strides, 0))


def value(loops, node, at):
    """Of a node of positions, at positions along axes."""
    if node.kind == "constant":
        return node.data
    if node.kind == "index":
        strides, offset = node.data
        return sum(at[axis] * stride for axis, stride in strides) + offset
    args = [value(loops, x, at) for x in node.args]
    operations = {
        "lt": lambda a, b: a < b, "ge": lambda a, b: a >= b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
        "eq": lambda a, b: a == b, "where": lambda test, a, b: a if test else b, "add": lambda a, b: a + b,
        "logical_and": lambda a, b: a and b, "cast": lambda a: a,
    }  # fmt: skip
    return operations[node.data](*args)


def holds(loops, node, inner, width):
    """Whether each group of so many elements lies side by side, from a multiple of it on."""
    _, steps, _, _ = node.data
    size = loops.size(inner)
    places = []
    for flat in range(size):
        at, rest = {}, flat
        for axis in reversed(inner):
            at[axis], rest = rest % loops.sizes[axis], rest // loops.sizes[axis]
        chosen = sum(step * value(loops, x, at) for x, step in zip(node.args, steps, strict=False))
        places.append(at[inner[-1]] + chosen)
    groups = [places[i : i + width] for i in range(0, size, width)]
    return all(g[0] % width == 0 and g == list(range(g[0], g[0] + len(g))) for g in groups)


@pytest.mark.parametrize(
    ("half", "size", "width"), [(64, 128, 16), (8, 16, 8), (4, 8, 4), (6, 12, 2), (5, 10, 1), (3, 8, 1), (4, 20, 4)]
)
def test_halves_that_change_places_are_read_in_words_that_divide_them(half, size, width):
    loops = Loops()
    axis = loops.axis(size)
    node = load(loops, ((axis, 1),), [rotated(loops, axis, half, size)], [1])
    assert read_at_a_time(loops, node, (axis,)) == width
    assert holds(loops, node, (axis,), width)


@pytest.mark.parametrize("comparison", ["lt", "ge", "le", "gt", "eq"])
@pytest.mark.parametrize("bound", [7, 8, 9, 16, 31])
@pytest.mark.parametrize("offset", [0, 8, -4])
@pytest.mark.parametrize("step", [1, 2, 8])
def test_what_is_said_of_a_choice_is_so(comparison, bound, offset, step):
    loops = Loops()
    axis = loops.axis(48)
    index = loops.node("index", INTEGER, (), (((axis, 1),), offset))
    test = loops.node("operation", torch.bool, (index, loops.constant(bound, INTEGER)), comparison)
    chosen = loops.operation("where", test, loops.constant(16, INTEGER), loops.constant(-4, INTEGER))
    node = load(loops, ((axis, 1),), [chosen], [step])
    assert holds(loops, node, (axis,), read_at_a_time(loops, node, (axis,)))


@pytest.mark.parametrize("last", [16, 12, 6, 5])
def test_groups_do_not_cross_the_end_of_the_innermost_axis(last):
    loops = Loops()
    outer, axis = loops.axis(3), loops.axis(last)
    position = loops.constant(16, INTEGER)
    node = load(loops, ((outer, last), (axis, 1)), [position], [1])
    width = read_at_a_time(loops, node, (outer, axis))
    assert width == last & -last
    assert holds(loops, node, (outer, axis), width)


def test_elements_that_are_not_neighbours_are_read_one_by_one():
    loops = Loops()
    axis = loops.axis(128)
    position = rotated(loops, axis, 64, 128)
    assert read_at_a_time(loops, load(loops, ((axis, 2),), [position], [1]), (axis,)) == 1
    unknown = loops.node("load", INTEGER, (), (1, (), ((axis, 1),), 0))
    assert read_at_a_time(loops, load(loops, ((axis, 1),), [unknown], [1]), (axis,)) == 1
