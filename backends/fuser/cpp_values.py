"""Values of a kernel as C++ code, a line for each."""

from collections.abc import Iterable

import torch

from aotkit.backends.fuser.cpp_operations import ELEMENTS, LANES, MEMORY, OPERATIONS, converted, number
from aotkit.backends.fuser.cpp_schedule import Schedule
from aotkit.backends.fuser.kernels import Kernel, Store
from aotkit.backends.fuser.loops import Loops, Node, Strides
from aotkit.backends.fuser.values import below
from aotkit.errors import CompileError


class Values:
    """Writes lines, and remembers what there is.

    Attributes:
        buffers: names by number, in the order of arguments.
        accesses: loads, and stores but of parts, in the order of the code.
    """

    def __init__(self, loops: Loops, kernel: Kernel, schedule: Schedule) -> None:
        self._loops, self._kernel, self._schedule = loops, kernel, schedule
        self._lines: list[str] = []
        self._depth, self._count = 2, 0
        self._names: dict[Node, str] = {}
        self._reductions: set[Node] = set()  # have names once they are walked
        self._held: dict[Node, str] = {}  # arrays of values, once these are there
        self._known: set[int] = set()  # axes whose positions are there
        self._numbered = {axis: f"i{n}" for n, axis in enumerate((*schedule.rows, *schedule.inner))}
        self._lane = -1 if schedule.lane is None else schedule.lane
        self._types: dict[int, str] = {}
        self.buffers: dict[int, str] = {}
        self.accesses: list[Node | Store] = []

    def _hoist(self, nodes: Iterable[Node]) -> None:
        """Write what does not vary along the axes that are still to be walked."""
        for n in below(nodes):
            if n not in self._names and n not in self._reductions and n.axes <= self._known and self._is_ready(n):
                self._value(n)

    def _is_ready(self, node: Node) -> bool:
        return all(x in self._names for x in node.args)

    def _value(self, node: Node) -> str:
        """The name of a value, which is written first if it is not there."""
        if node in self._names:
            return self._names[node]
        if node in self._held:
            text = f"held<{LANES[node.type]}>({self._held[node]} + {self._place_in_row()}, there)"
        else:
            text = self._expression(node)
        self._names[node] = self._named(text)
        return self._names[node]

    def _named(self, text: str) -> str:
        name = self._new("v")
        self._line(f"const auto {name} = {text};")
        return name

    def _place_in_row(self) -> str:
        raise NotImplementedError

    def _expression(self, node: Node) -> str:
        match node.kind:
            case "load":
                return self._load(node)
            case "constant":
                return number(node.data, node.type)
            case "index":
                strides, offset = node.data
                return self._index(strides, offset, node.type)
            case "scalar" | "reduction":
                raise AssertionError(f"a {node.kind} that is not there")
        args = [self._value(x) for x in node.args]
        if node.data == "cast":
            return converted(args[0], node.args[0].type, node.type)
        if node.data in ("lt", "le", "gt", "ge") and node.args[0].type is torch.bool:
            args.reverse()  # true is -1
        if node.data == "truediv" and self._lane in node.axes and self._lane not in node.args[1].axes:
            return f"over({args[0]}, {args[1]})"
        if node.data not in OPERATIONS:
            raise CompileError(f"the fuser has no {node.data}")
        lanes = LANES[node.type]
        return OPERATIONS[node.data].format(*args, t=lanes, e=ELEMENTS[lanes])

    def _index(self, strides: Strides, offset: int, dtype: torch.dtype) -> str:
        step = dict(strides).get(self._lane, 0)
        lanes = LANES[dtype] if dtype in (torch.int32, torch.int64) else "i64"
        element = ELEMENTS[lanes]
        start = self._address(strides, offset)
        text = f"places<{lanes}>({start}, {step}, there)" if step else f"all(({element})({start}))"
        return text if lanes == LANES[dtype] else f"to<{LANES[dtype]}>({text})"

    def _load(self, node: Node) -> str:
        buffer, steps, strides, offset = node.data
        values = [self._value(x) for x in node.args]
        guards = values[len(steps) :]
        self.accesses.append(node)
        place = f"{self._buffer(buffer, node.type)} + {self._address(strides, offset)}"
        step = dict(strides).get(self._lane, 0)
        if not values:
            return f"load({place}, {step}, there)"
        condition = guards[0] if guards else "all(true)"
        if not steps:
            return f"load_where({condition}, {place}, {step}, there)"
        at = [f"to<i64>({v}) * all((int64_t){by})" for v, by in zip(values, steps, strict=False)]
        at += [f"places<i64>(0, {step}, there)"] if step else []
        return f"gather({condition}, {place}, {' + '.join(at)}, there)"

    def _store(self, store: Store) -> None:
        value = self._value(store.node)
        self.accesses.append(store)
        self._put(store.buffer, store.node, store.axes, store.offset, value)

    def _put(self, buffer: int, node: Node, axes: Strides, offset: int, value: str, more: str = "") -> None:
        step = dict(axes).get(self._lane, 0)
        there = "there" if step else "first{1}"
        place = f"{self._buffer(buffer, node.type)} + {self._address(axes, offset)}{' + ' * bool(more)}{more}"
        self._line(f"store({place}, {step}, {there}, {value});")

    def _address(self, strides: Strides, offset: int) -> str:
        terms = [self._numbered[a] + (f" * {stride}" if stride != 1 else "") for a, stride in strides]
        return " + ".join([*terms, *([str(offset)] if offset or not terms else [])])

    def _buffer(self, number: int, dtype: torch.dtype) -> str:
        self.buffers.setdefault(number, f"b{number}")
        self._types[number] = MEMORY[dtype]
        return f"p{number}"

    def _new(self, kind: str = "v") -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)
