"""Values of a kernel as Triton code, a line for each, and what it reads and writes."""

from collections.abc import Sequence

import torch

from aotkit.backends.fuser import limits
from aotkit.backends.fuser.kernels import Kernel, Store
from aotkit.backends.fuser.loops import Loops, Node, Strides
from aotkit.backends.fuser.neighbours import read_at_a_time
from aotkit.backends.fuser.operations import (
    IN_FLOAT,
    OPERATIONS,
    REDUCTIONS,
    TYPES,
    constant,
    neutral,
    reciprocal,
)
from aotkit.backends.fuser.schedule import Schedule
from aotkit.backends.fuser.templates import count, number
from aotkit.backends.fuser.triton_interleaved import turns_of_loads, turns_of_stores
from aotkit.errors import CompileError


class Values:
    """Writes lines, and remembers what there is.

    Attributes:
        buffers, scalars: names by number, in the order of arguments.
        accesses: loads, and stores but of parts, in the order of the code.
    """

    def __init__(self, loops: Loops, kernel: Kernel, schedule: Schedule) -> None:
        self._loops, self._kernel, self._schedule = loops, kernel, schedule
        self._lines: list[str] = []
        self._depth = 1
        self._names: dict[Node, str] = {}
        self._in_loop: set[Node] | None = None  # what is named within a loop alone
        self._count = 0
        self.buffers: dict[int, str] = {}
        self.accesses: list[Node | Store] = []
        self.scalars: dict[int, str] = {}
        self._eviction: dict[Node, str] = {}  # of loads in the loop that is written
        self._begin = "0"  # where a chunk of a row begins
        self._turns = turns_of_loads(kernel, schedule)
        self._stores_by_turns = turns_of_stores(kernel, schedule)
        wide = max([loops.size(kernel.domain), *(loops.extent(*form) for form in kernel.forms())]) >= 2**31
        self._index = "tl.int64" if wide else "tl.int32"
        self._numbered = {axis: f"i{n}" for n, axis in enumerate((*schedule.rows, *schedule.inner))}
        if kernel.shares > 1 and kernel.partial_axis is not None:
            self._numbered[kernel.partial_axis] = "tl.program_id(1)"

    def _named(self, text: str) -> str:
        name = self._new()
        self._line(f"{name} = {text}")
        return name

    def _value(self, node: Node) -> str:
        """The name of a value, which is written first if it is not there."""
        if node in self._names:
            return self._names[node]
        name = self._names[node] = self._named(self._expression(node))
        if self._in_loop is not None:
            self._in_loop.add(node)
        return name

    def _expression(self, node: Node) -> str:
        match node.kind:
            case "load":
                return self._load(node)
            case "scalar" if node.type is torch.float64:  # Triton's arguments are of 32 bits
                raise CompileError("a float64 number on the CPU")
            case "scalar":
                name = self.scalars.setdefault(node.data, f"n{node.data}")
                return f"tl.full([1, 1], 0, {TYPES[node.type]}) + {name}.to({TYPES[node.type]})"
            case "constant":
                return constant(node.data, node.type)
            case "index":
                return f"({self._address(*node.data)} + zero).to({TYPES[node.type]})"
            case "reduction":
                if not self._schedule.whole:
                    raise AssertionError("a reduction of chunks that no loop before this one has computed")
                value = self._masked(node.args[0], node)
                return f"{REDUCTIONS[node.data[0]][2].format(value, 1)}[:, None]"
        args = [self._value(x) for x in node.args]
        if node.data == "cast":
            return f"{args[0]}.to({TYPES[node.type]})"
        if node.data == "eq" and (text := self._position_is(node)):
            return text
        if node.data == "truediv" and node.axes & frozenset(self._schedule.inner) and (by := reciprocal(node.args[1])):
            return f"{args[0]} * {by}"
        if node.data in ("maximum", "minimum") and not node.type.is_floating_point:
            return f"tl.{node.data}({args[0]}, {args[1]})"
        table = IN_FLOAT if node.type is torch.float32 and node.data in IN_FLOAT else OPERATIONS
        if node.data not in table:
            raise CompileError(f"the fuser has no {node.data}")
        return table[node.data].format(*args, t=TYPES[node.type])

    def _position_is(self, node: Node) -> str | None:
        """A comparison of positions with one number for each row, in as few bits as positions have."""
        position, other = node.args
        if position.kind != "index" or self._index != "tl.int32" or other.axes & frozenset(self._schedule.inner):
            return None
        strides, offset = position.data
        wanted = self._value(other)
        last = count(self._loops.extent(strides, offset))
        known = f"tl.where(({wanted} >= 0) & ({wanted} <= {last}), {wanted}, -1).to(tl.int32)"
        return f"({self._address(strides, offset)} + zero) == {known}" if offset >= 0 else None

    def _masked(self, value: Node, reduction: Node) -> str:
        """A value, and what changes nothing where there is none."""
        name = self._value(value)
        if not self._inner_mask():
            return name
        return f"tl.where(rm, {name}, {neutral(reduction.data[0], reduction.type)})"

    def _load(self, node: Node) -> str:
        buffer, steps, strides, offset = node.data
        values = [self._value(x) for x in node.args]
        masks = values[len(steps) :]
        short = [x.type is torch.int32 for x in node.args]
        places = [f"{v}.to({self._index})" if is_short else v for v, is_short in zip(values, short, strict=True)]
        chosen = "".join(f" + {at} * {number(step)}" for at, step in zip(places, steps, strict=False))
        inner = any(a in self._schedule.inner for a, _ in strides)
        outer = any(a in self._schedule.rows for a, _ in strides)
        masks += ["rm"] * (inner and self._inner_mask()) + ["xm"] * (outer and self._row_mask())
        other = f", mask={' & '.join(masks)}, other=0" if masks else ""
        self.accesses.append(node)
        if node in self._turns:
            return self._load_by_turns(*self._turns[node], node, xm="xm" * (outer and self._row_mask()))
        if inner and node in self._eviction and self._schedule.stages > 1:
            other += f', eviction_policy="{self._eviction[node]}"'
        place = f"{self._address(strides, offset)} + zero{chosen}"
        width = min(self._schedule.inner_block, read_at_a_time(self._loops, node, self._schedule.inner))
        if width > 1:  # chunks begin at multiples of it
            last = self._schedule.inner[-1]
            rest = self._address(tuple(term for term in strides if term[0] != last), offset)
            near = f"tl.multiple_of({self._numbered[last]} + zero{chosen}, (1, {width}))"
            place = f"{rest} + tl.max_contiguous({near}, (1, {width}))"
        if inner and not outer and self._is_far(node):
            place += f" + tl.zeros([{self._schedule.row_block}, {self._schedule.inner_block}], {self._index})"
        text = f"tl.load({self._buffer(buffer)} + ({place}){other})"
        return f"{text}.to(tl.int1)" if node.type is torch.bool else text

    def _is_far(self, node: Node) -> bool:
        """Whether one row of a tile would be in other threads than rows of the tile: it would go by shared memory."""
        s = self._schedule
        threads, vector = 32 * s.warps, limits.VECTOR // node.type.itemsize
        is_tile = s.row_block > 1 and (s.whole or self._kernel.inner is None)
        return is_tile and s.inner_block < threads * vector

    def _load_by_turns(self, even: Node, odd: Node, node: Node, xm: str) -> str:
        """Both of a pair; the name of one of them."""
        place, rm = self._both(even.data[0], even.data[2], even.data[3])
        masks = " & ".join(filter(None, [rm, xm]))
        rows = self._schedule.row_block if any(a in self._schedule.rows for a, _ in even.data[2]) else 1
        text = f"tl.load({place}{f', mask={masks}, other=0' if masks else ''})"
        names = {x: self._new() for x in (even, odd)}
        parted = f"tl.split(tl.reshape({text}, ({rows}, {self._schedule.inner_block}, 2)))"
        self._line(f"{names[even]}, {names[odd]} = {parted}")
        for x, name in names.items():
            self._names[x] = f"{name}.to(tl.int1)" if x.type is torch.bool else name
            if self._in_loop is not None:
                self._in_loop.add(x)
        return self._names[node]

    def _both(self, buffer: int, strides: Strides, offset: int) -> tuple[str, str]:
        """Where both of a pair are in memory, and what holds where they are."""
        s = self._schedule
        rest = tuple(term for term in strides if term[0] not in s.inner)
        self._line(f"both = tl.arange(0, {2 * s.inner_block})[None, :].to({self._index}) + 2 * ({self._begin})")
        rm = f"(both < 2 * {number(self._loops.size(s.inner))})" if self._inner_mask() else ""
        return f"{self._buffer(buffer)} + ({self._address(rest, offset)} + both)", rm

    def _address(self, strides: Strides, offset: int) -> str:
        inner = self._schedule.inner
        dense = [(a, stride * strides[-1][1]) for a, stride in self._loops.dense(inner)] if strides else None
        named = [(self._numbered[a], stride) for a, stride in strides]
        if len(inner) > 1 and list(strides[-len(inner) :]) == dense:  # of which what is contiguous is plain to see
            named[-len(inner) :] = [("r", strides[-1][1])]
        terms = [name + (f" * {number(stride)}" if stride != 1 else "") for name, stride in named]
        return " + ".join([*terms, *([number(offset) if offset else "0"] if offset or not terms else [])])

    def _store(self, store: Store) -> None:
        s = self._schedule
        if store in self._stores_by_turns:
            self._store_by_turns(*self._stores_by_turns[store], store)
            return
        value = self._value(store.node)
        is_wide = spans(store, s)
        masks = ["rm"] * (is_wide and self._inner_mask()) + ["xm"] * self._row_mask()
        walked = (*s.rows, *(s.inner if is_wide else ()))
        masks += [f"({self._numbered[a]} == 0)" for a in walked if a not in dict(store.axes)]
        shape = f"[{s.row_block}, {s.inner_block if is_wide else 1}]"
        self.accesses.append(store)
        self._write(store.buffer, self._address(store.axes, store.offset), value, shape, masks)

    def _store_by_turns(self, even: Store, odd: Store, store: Store) -> None:
        """Both of a pair, when it is the last one's turn."""
        if store is not max(even, odd, key=self._kernel.stores.index):
            return
        s = self._schedule
        values = [f"tl.broadcast_to({self._value(x.node)}, {s.row_block}, {s.inner_block})" for x in (even, odd)]
        self.accesses += even, odd
        place, rm = self._both(even.buffer, even.axes, even.offset)
        masks = " & ".join(filter(None, [rm, "xm" * self._row_mask()]))
        value = f"tl.reshape(tl.join({', '.join(values)}), ({s.row_block}, {2 * s.inner_block}))"
        self._line(f"tl.store({place}, {value}{f', mask={masks}' if masks else ''})")

    def _write(self, buffer: int, address: str, value: str, shape: str, masks: Sequence[str]) -> None:
        mask = f", mask={' & '.join(masks)}" if masks else ""
        zeros = f"tl.zeros({shape}, {self._index})"
        place = f"{self._buffer(buffer)} + ({address} + {zeros})"
        self._line(f"tl.store({place}, tl.broadcast_to({value}, {shape.strip('[]')}){mask})")

    def _inner_mask(self) -> bool:
        return self._loops.size(self._schedule.inner) % self._schedule.inner_block != 0

    def _row_mask(self) -> bool:
        count = self._loops.size(self._kernel.summed or self._schedule.rows)
        return count % self._schedule.row_block != 0

    def _positions(self, axes: Sequence[int], flat: str) -> None:
        """The position along each axis, from that in all."""
        for n, (axis, below_it) in enumerate(self._loops.dense(axes)):
            text = flat if below_it == 1 else f"{flat} // {number(below_it)}"
            if n:
                text = f"({text}) % {number(self._loops.sizes[axis])}"
            self._line(f"{self._numbered[axis]} = {text}")

    def _buffer(self, number: int) -> str:
        return self.buffers.setdefault(number, f"b{number}")

    def _new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)


def spans(store: Store, schedule: Schedule) -> bool:
    """Whether a tensor has the inner axes."""
    return any(axis in schedule.inner for axis, _ in store.axes) or not schedule.inner
