"""The intermediate representation: nodes over numbered axes.

Six kinds of nodes: `load`, `scalar` (a number on the CPU), `constant`, `index` (a position), `operation`, `reduction`.
A node has a value for each position along its axes; a view is a matter of strides, and broadcasting of absent axes.
Equal nodes are one node.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from aotkit.backends.fuser.axes import Axis
from aotkit.backends.fuser.values import Value, below, spread
from aotkit.errors import CompileError

Strides = tuple[tuple[int, int], ...]  # axis and stride, the slowest first


@dataclass(frozen=True, eq=False)
class Node:
    """One value.

    Attributes:
        data: of a load: number of the buffer, strides of positions that are values, strides, offset; of an index:
            strides, offset; of an operation: its name; of a reduction: its name and axes; else the number, or the
            number of the input.
        args: operands; of a load: positions that are values, then where it may be read, if not everywhere.
        axes: along which it varies.
    """

    kind: str
    type: torch.dtype
    args: tuple["Node", ...]
    data: Any
    axes: frozenset[int]

    def does(self, name: str) -> bool:
        """Whether it is the operation of this name."""
        return self.kind == "operation" and self.data == name


@dataclass(frozen=True)
class Result:
    """A node that is stored, as a tensor or as a piece of one.

    Attributes:
        axes: of the tensor or the piece, along some of which the node may not vary.
        size, stride: of the tensor.
        number: of the tensor, among those that are returned.
        offset: of a piece.
    """

    node: Node
    axes: Strides
    size: tuple[int, ...]
    stride: tuple[int, ...]
    number: int
    offset: int = 0
    is_piece: bool = False


@dataclass
class Loops:
    """Nodes over axes, each once.

    Attributes:
        sizes: of the axes.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    _known: dict[Any, Node] = field(default_factory=dict)

    def axis(self, size: int) -> int:
        """A new axis."""
        number = len(self.sizes)
        self.sizes[number] = size
        return number

    def size(self, axes: Iterable[int]) -> int:
        return math.prod(self.sizes[axis] for axis in axes)

    def dense(self, axes: Sequence[int]) -> Strides:
        """Strides of a dense tensor with these axes, the slowest first."""
        strides, step = [], 1
        for axis in reversed(axes):
            strides.append((axis, step))
            step *= self.sizes[axis]
        return tuple(reversed(strides))

    def extent(self, strides: Strides, offset: int) -> int:
        """How far from its beginning a tensor is read, in elements."""
        return abs(offset) + sum((self.sizes[a] - 1) * abs(stride) for a, stride in strides)

    def node(self, kind: str, dtype: torch.dtype, args: Sequence[Node] = (), data: Any = None) -> Node:
        """The node of this description.

        Raises:
            CompileError: it multiplies a value that does not vary with itself, over an axis.
        """
        if kind == "reduction":
            name, over = data
            (arg,) = args
            if still := over - arg.axes:
                arg = self._repeated(name, arg, self.size(still))
            if not over & arg.axes:
                return arg
            over &= arg.axes
            if name == "sum" and (found := self._chosen(arg, over) or self._count(arg, over)) is not None:
                return found
            args, data = (arg,), (name, over)
        elif kind == "operation" and data == "cast" and args[0].type == dtype:
            return args[0]
        elif kind == "operation" and data == "cast" and args[0].kind == "constant":
            number = torch.tensor(args[0].data, dtype=args[0].type).to(dtype).item()
            return self.node("constant", dtype, (), number)
        key = kind, dtype, tuple(args), data
        if (found := self._known.get(key)) is None:
            found = self._known[key] = Node(kind, dtype, tuple(args), data, _axes(kind, args, data))
        return found

    def operation(self, name: str, *args: Node) -> Node:
        dtype = torch.bool if name in ("ge", "lt", "logical_and") else args[-1].type
        return self.node("operation", dtype, args, name)

    def constant(self, number: float, dtype: torch.dtype) -> Node:
        return self.node("constant", dtype, (), number)

    def _chosen(self, arg: Node, over: frozenset[int]) -> Node | None:
        """A sum of which all but one term are 0, because a position has to be a given one: that term."""
        if arg.kind != "operation":
            return None
        if arg.data == "mul":  # by what is the same for all terms
            for x, y in (arg.args, reversed(arg.args)):
                if not y.axes & over and (found := self._chosen(x, over)) is not None:
                    return self.operation("mul", found, y)
        if arg.data != "where" or len(over) != 1:
            return None
        (axis,), (test, value, other) = over, arg.args
        if test.kind != "operation" or test.data != "eq" or other.kind != "constant" or other.data != 0:
            return None
        position, wanted = test.args
        if position.kind != "index" or position.data != (((axis, 1),), 0) or axis in wanted.axes:
            return None
        low, high = self.constant(0, wanted.type), self.constant(self.sizes[axis], wanted.type)
        inside = self.operation("logical_and", self.operation("ge", wanted, low), self.operation("lt", wanted, high))
        return self.operation("where", inside, self._at(value, axis, wanted, inside, {}), other)

    def _count(self, arg: Node, over: frozenset[int]) -> Node | None:
        """How often something holds, in 32 bits where they are enough."""
        if not arg.does("cast") or arg.type is not torch.int64 or arg.args[0].type is not torch.bool:
            return None
        if self.size(over) >= 2**31:
            return None
        narrow = self.node("operation", torch.int32, arg.args, "cast")
        count = self.node("reduction", torch.int32, (narrow,), ("sum", over))
        return self.node("operation", torch.int64, (count,), "cast")

    def _at(self, node: Node, axis: int, position: Node, inside: Node, done: dict[Node, Node]) -> Node:
        """A node where an axis has this position, which is a value."""
        if axis not in node.axes:
            return node
        if node not in done:
            args = [self._at(x, axis, position, inside, done) for x in node.args]
            if node.kind not in ("load", "index"):
                done[node] = self.node(node.kind, node.type, args, node.data)
                return done[node]
            *rest, strides, offset = node.data
            step = dict(strides).get(axis, 0)
            left = tuple(term for term in strides if term[0] != axis)
            if node.kind == "index":
                term = self.operation("mul", position, self.constant(step, position.type))
                rest_of_it = self.node("index", node.type, (), (left, offset))
                done[node] = self.operation("add", rest_of_it, self.node("operation", node.type, (term,), "cast"))
            else:
                buffer, steps = rest
                positions, guards = args[: len(steps)], args[len(steps) :]
                guard = self.operation("logical_and", *guards, inside) if guards else inside
                if step:
                    positions, steps = [*positions, position], (*steps, step)
                done[node] = self.node("load", node.type, (*positions, guard), (buffer, steps, left, offset))
        return done[node]

    def _repeated(self, name: str, node: Node, times: int) -> Node:
        """What reducing as many equal values gives."""
        if name in ("max", "min"):
            return node
        if name != "sum":
            raise CompileError(f"{name} of {times} equal values")
        number = self.node("constant", node.type, (), float(times) if node.type.is_floating_point else times)
        return self.node("operation", node.type, (node, number), "mul")

    def rebuilt(self, node: Node, args: list[Node]) -> Node:
        """The same of these operands."""
        return node if args == list(node.args) else self.node(node.kind, node.type, args, node.data)

    def replaced(self, node: Node, by: Mapping[Node, Node], done: dict[Node, Node]) -> Node:
        """A node in which others are replaced."""
        if (found := by.get(node) or done.get(node)) is None:
            found = done[node] = self.rebuilt(node, [self.replaced(x, by, done) for x in node.args])
        return found


def rewritten(
    results: Sequence[Result], rule: Callable[[Node, list[Node]], Node]
) -> tuple[list[Result], dict[Node, Node]]:
    """The results, with what a rule makes of each node and its new operands; and what new nodes have been before."""
    done: dict[Node, Node] = {}
    for n in below(r.node for r in results):
        done[n] = rule(n, [done[x] for x in n.args])
    return [replace(r, node=done[r.node]) for r in results], {new: old for old, new in done.items() if new is not old}


def _axes(kind: str, args: Sequence[Node], data: Any) -> frozenset[int]:
    found = frozenset(axis for x in args for axis in x.axes)
    if kind in ("load", "index"):
        found |= {axis for axis, _ in data[-2]}
    return found - data[1] if kind == "reduction" else found


def lowered(outputs: Sequence[Value]) -> tuple[Loops, list[Result]]:
    """Nodes of what a definition returns; axes that are walked together everywhere become one."""
    values = list(below(outputs))
    strides = [dict(spread(v.data[-2])) for v in values if v.kind in ("load", "index")]
    tensors = [_stored(v) for v in outputs]
    strides += [dict(axes) for axes, _ in tensors]
    over = [{leaf for axis in v.data[1] for leaf in axis.leaves()} for v in values if v.kind == "reduction"]
    merged, sizes = _merged(strides, over)
    loops = Loops()
    numbers: dict[Axis, int] = {}

    def number(axis: Axis) -> int:
        if axis not in numbers:
            numbers[axis] = loops.axis(sizes.get(axis, axis.size))
        return numbers[axis]

    def kept(terms: Iterable[tuple[Axis, int]]) -> Strides:
        total: dict[int, int] = {}
        for axis, stride in terms:
            if axis not in merged:
                total[number(axis)] = total.get(number(axis), 0) + stride
        return tuple(sorted(total.items(), key=lambda term: -abs(term[1])))

    done: dict[Value, Node] = {}
    for v in values:
        args, data = [done[x] for x in v.args], v.data
        if v.kind in ("load", "index"):
            *rest, terms, offset = data
            data = *rest, kept(spread(terms)), offset
        elif v.kind == "reduction":
            leaves = [leaf for axis in data[1] for leaf in axis.leaves()]
            data = data[0], frozenset(number(axis) for axis in leaves if axis not in merged)
        done[v] = loops.node(v.kind, v.type, args, data)
    forms = zip(outputs, tensors, strict=True)
    results = [Result(done[v], kept(axes), v.shape, stride, n) for n, (v, (axes, stride)) in enumerate(forms)]
    return loops, results


def _stored(value: Value) -> tuple[list[tuple[Axis, int]], tuple[int, ...]]:
    """Where each element of a result goes: strides by axis, and by dimension, dense in the order that is asked for."""
    order = value.order or tuple(reversed(range(value.ndim)))
    stride, step = [0] * value.ndim, 1
    for dim in sorted(range(value.ndim), key=lambda d: order[d]):
        stride[dim] = step
        step *= value.shape[dim]
    result: list[tuple[Axis, int]] = []
    for axes, s in zip(value.dims, stride, strict=True):
        for axis in reversed(axes):
            result += [*spread(((axis, s),))]
            s *= axis.size
    return result, tuple(stride)


def _merged(strides: Sequence[dict[Axis, int]], over: Sequence[set[Axis]]) -> tuple[set[Axis], dict[Axis, int]]:
    """Outer axes that become part of an inner one, and the sizes of those.

    The outer one has to step by the whole inner one wherever one of both occurs.
    """
    merged: set[Axis] = set()
    sizes: dict[Axis, int] = {}
    forms = [dict(form) for form in strides]
    sets = [set(axes) for axes in over]
    changed = True
    while changed:
        changed = False
        pairs = list(dict.fromkeys((a, b) for form in forms for a in form for b in form if a is not b))
        for a, b in pairs:
            if a in merged or b in merged:
                continue
            n = sizes.get(b, b.size)
            together = all((a in s) == (b in s) for s in sets)
            if together and all((a in f) == (b in f) and f.get(a, 0) == n * f.get(b, 0) for f in forms):
                merged.add(a)
                sizes[b] = n * sizes.get(a, a.size)
                for form in forms:
                    form.pop(a, None)
                for group in sets:
                    group.discard(a)
                changed = True
    return merged, sizes
