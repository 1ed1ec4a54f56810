"""Kernels as Triton code."""

from collections.abc import Sequence

import torch

from aotkit.backends.fuser.kernels import Kernel, Partial, Store
from aotkit.backends.fuser.loops import Loops, Node, Strides
from aotkit.backends.fuser.operations import IN_FLOAT, OPERATIONS, REDUCTIONS, TYPES, constant, neutral, reciprocal
from aotkit.backends.fuser.pairs import Pair, paired
from aotkit.backends.fuser.schedule import Schedule
from aotkit.backends.fuser.templates import count, number
from aotkit.backends.fuser.triton_pairs import UPDATES
from aotkit.backends.fuser.values import below
from aotkit.errors import CompileError

HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice

from aotkit.backends.fuser.triton_functions import erf, larger, product, remainder, smaller, tanh
"""


class Writer:
    """Writes one kernel.

    Values that do not vary within a row are written outside of the loop over its chunks.

    Attributes:
        accesses: loads, and stores but of parts, in the order of the code.
    """

    def __init__(self, loops: Loops, kernel: Kernel, schedule: Schedule) -> None:
        self._loops, self._kernel, self._schedule = loops, kernel, schedule
        self._lines: list[str] = []
        self._depth = 1
        self._names: dict[Node, str] = {}
        self._in_loop: set[Node] | None = None  # what is named within a loop alone
        self._count = 0
        self._pairs: dict[Node, Pair] = {}
        self.buffers: dict[int, str] = {}
        self.accesses: list[Node | Store] = []
        self.scalars: dict[int, str] = {}
        wide = max([loops.size(kernel.domain), *(loops.extent(*form) for form in kernel.forms())]) >= 2**31
        self._index = "tl.int64" if wide else "tl.int32"
        self._numbered = {axis: f"i{n}" for n, axis in enumerate((*schedule.rows, *schedule.inner))}
        if kernel.shares > 1 and kernel.partial_axis is not None:
            self._numbered[kernel.partial_axis] = "tl.program_id(1)"

    def text(self) -> str:
        """The kernel's lines, with marks around what follows from sizes; it gets `buffers`, then `scalars`."""
        k, s = self._kernel, self._schedule
        rows, summed = self._loops.size(s.rows), count(self._loops.size(k.summed))
        blocks, programs = count(-(-self._loops.size(k.summed) // s.row_block)), count(s.programs)
        self._line(f"zero = tl.zeros([1, 1], {self._index})")
        self._line(f"r0 = tl.arange(0, {s.inner_block})[None, :].to({self._index})")
        if k.summed:
            self._line(f"kept, part = tl.program_id(0) // {programs}, tl.program_id(0) % {programs}")
            accumulators = [(p, f"sum{n}") for n, p in enumerate(k.partials)]
            for p, name in accumulators:
                width = s.inner_block if p.node.args[0].axes & frozenset(s.inner) else 1
                self._line(f"{name} = tl.zeros([1, {width}], {TYPES[p.node.type]})")
            self._whole_row()
            anchors = [*k.reductions, *(x.node for x in k.stores), *(p.node.args[0] for p in k.partials)]
            for n in [n for n in below(anchors) if not n.axes & frozenset(s.rows)]:
                self._value(n)  # is the same for all rows
            stages = f", num_stages={s.stages}" if s.stages > 1 else ""
            self._line(f"for block in tl.range(part, {blocks}, {programs}{stages}):")
            self._depth += 1
            self._line(f"x0 = (zero + block) * {s.row_block} + tl.arange(0, {s.row_block})[:, None]")
            self._line(f"x, xm = x0 + (zero + kept) * {summed}, x0 < {summed}")
            self._body(accumulators)
            self._depth -= 1
            self._finish_sums(accumulators)
        else:
            if s.rows:
                self._line(f"x = (zero + {self._row_program()}) * {s.row_block} + tl.arange(0, {s.row_block})[:, None]")
                self._line(f"xm = x < {count(rows)}")
            self._body([])
        return "\n".join(self._lines) + "\n"

    def _chunks(self) -> str:
        return count(-(-self._loops.size(self._schedule.inner) // self._schedule.inner_block))

    def _row_program(self) -> str:
        """The number of a program's rows; where nothing is reduced, a program has a part of them alone."""
        return "tl.program_id(0)" if self._kernel.inner is not None else f"tl.program_id(0) // {self._chunks()}"

    def _body(self, accumulators: Sequence[tuple[Partial, str]]) -> None:
        s = self._schedule
        self._positions(s.rows, "x")
        if s.whole:
            if not self._kernel.summed:
                self._whole_row()
            for store in self._kernel.stores:
                self._store(store)
            for partial, name in accumulators:
                self._add(partial, name)
            return
        self._passes()

    def _whole_row(self) -> None:
        size = self._loops.size(self._schedule.inner)
        self._line("r = r0")
        self._line(f"rm = r < {number(size)}")
        self._positions(self._schedule.inner, "r")

    def _passes(self) -> None:
        """Loops over the chunks of a row: each reduction after those that it needs, each store as early as may be."""
        k, s = self._kernel, self._schedule
        reductions = k.reductions
        parts = [p for p in k.partials if not k.summed]
        self._pairs = paired([*reductions, *(p.node for p in parts)])
        when: dict[Node, int] = {}
        for n in below([*reductions, *(x.node for x in (*k.stores, *parts))]):
            when[n] = max((when[x] for x in n.args), default=0) + (n in reductions and n not in self._pairs)
        within = [x for x in k.stores if _spans(x, s)]
        for step in range(1 + max([when[n] for n in (*reductions, *(x.node for x in within))], default=0)):
            sums = [n for n in reductions if when[n] == step + 1]
            ends = [p for p in parts if when[p.node] == step]
            stores = [x for x in within if when[x.node] == step]
            if sums or ends or stores:
                self._hoist([*sums, *(p.node for p in ends), *(x.node for x in stores)], when, step)
                self._loop([*sums, *(p.node for p in ends)], stores)
            for p in ends:
                self._store_part(p)
        for store in k.stores:
            if store not in within:
                self._store(store)

    def _hoist(self, nodes: Sequence[Node], when: dict[Node, int], step: int) -> None:
        """Write what is the same for a whole row before the loop over its chunks."""
        inner = frozenset(self._schedule.inner)
        for n in below(nodes):
            if n.kind != "reduction" and when[n] <= step and not n.axes & inner and self._is_outside(n):
                self._value(n)

    def _is_outside(self, node: Node) -> bool:
        return all(n in self._names or not n.axes & frozenset(self._schedule.inner) for n in below([node]))

    def _loop(self, reductions: Sequence[Node], stores: Sequence[Store]) -> None:
        k, s = self._kernel, self._schedule
        size = self._loops.size(s.inner)
        firsts = {pair.first for n, pair in self._pairs.items() if n in reductions}
        alone = [n for n in reductions if n not in self._pairs and n not in firsts]
        single = {n: self._accumulator(neutral(n.data[0], n.type), n) for n in alone}
        pairs = [self._pairs[n] for n in reductions if n in self._pairs]
        one_each = {pair.first: pair for pair in pairs}.values()
        updates = {pair.first: UPDATES[pair.kind](pair.of, self._accumulators(pair)) for pair in one_each}
        if k.inner is None:  # a chunk for each program
            chunk = f"tl.program_id(0) % {self._chunks()}" if s.rows else "tl.program_id(0)"
            self._line(f"r = r0 + (zero + {chunk}) * {s.inner_block}")
        else:
            share, end = number(k.share), number(size)
            start, end = ("0", end) if k.shares == 1 else ("start", f"min(start + {share}, {end})")
            if k.shares > 1:
                self._line(f"start = tl.program_id(1) * {share}")
            counts = [u.of.type for u in updates.values() if u.counts]
            counted = max(counts, key=lambda t: t.itemsize, default=None)
            if counted is not None:
                times = f"({end} - {start} - r0 + {s.inner_block - 1}) // {s.inner_block}"
                self._line(f"counted = tl.maximum({times}, 0).to({TYPES[counted]})")
            self._line(f"for chunk in tl.range({start}, {end}, {s.inner_block}):")
            self._depth += 1
            if counted is not None:
                self._line(f"seen = ((zero + chunk - {start}) // {s.inner_block} + 1).to({TYPES[counted]})")
            self._line("r = r0 + chunk")
        self._in_loop = set()
        self._line(f"rm = r < {number(size)}")
        if k.inner is not None and self._loops.sizes[s.inner[-1]] % s.inner_block == 0:
            self._positions(s.inner[:-1], f"(chunk // {number(self._loops.sizes[s.inner[-1]])})")
            self._positions(s.inner[-1:], f"(r0 + chunk % {number(self._loops.sizes[s.inner[-1]])})")
        else:
            self._positions(s.inner, "r")
        for n, name in single.items():
            self._line(f"{name} = {REDUCTIONS[n.data[0]][1].format(name, self._masked(n.args[0], n))}")
        for update in updates.values():
            mask = "rm" if self._inner_mask() else None
            for line in update.each(self._value(update.of), mask):
                self._line(line)
        for store in stores:
            self._store(store)
        if k.inner is not None:
            self._depth -= 1
        for n in self._in_loop:
            del self._names[n]
        self._in_loop = None
        for n, name in single.items():
            self._names[n] = self._named(f"{REDUCTIONS[n.data[0]][2].format(name, 1)}[:, None]")
        for first, update in updates.items():
            self._names[first] = self._named(update.first())
        for pair in pairs:
            self._names[pair.second] = self._named(updates[pair.first].second(self._value(pair.center)))

    def _accumulator(self, start: str, like: Node) -> str:
        s = self._schedule
        return self._named(f"tl.full([{s.row_block}, {s.inner_block}], {start}, {TYPES[like.type]})")

    def _accumulators(self, pair: Pair) -> list[str]:
        return [self._accumulator(start, pair.first) for start in UPDATES[pair.kind].starts]

    def _named(self, text: str) -> str:
        name = self._new()
        self._line(f"{name} = {text}")
        return name

    # Values.

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
        chosen = "".join(f" + {name} * {number(step)}" for name, step in zip(values, steps, strict=False))
        inner = any(a in self._schedule.inner for a, _ in strides)
        outer = any(a in self._schedule.rows for a, _ in strides)
        masks += ["rm"] * (inner and self._inner_mask()) + ["xm"] * (outer and self._row_mask())
        other = f", mask={' & '.join(masks)}, other=0" if masks else ""
        self.accesses.append(node)
        text = f"tl.load({self._buffer(buffer)} + ({self._address(strides, offset)} + zero{chosen}){other})"
        return f"{text}.to(tl.int1)" if node.type is torch.bool else text

    def _address(self, strides: Strides, offset: int) -> str:
        terms = [self._numbered[a] + (f" * {number(stride)}" if stride != 1 else "") for a, stride in strides]
        return " + ".join([*terms, *([number(offset) if offset else "0"] if offset or not terms else [])])

    def _store(self, store: Store) -> None:
        value = self._value(store.node)
        s = self._schedule
        spans = _spans(store, s)
        masks = ["rm"] * (spans and self._inner_mask()) + ["xm"] * self._row_mask()
        walked = (*s.rows, *(s.inner if spans else ()))
        masks += [f"({self._numbered[a]} == 0)" for a in walked if a not in dict(store.axes)]
        shape = f"[{s.row_block}, {s.inner_block if spans else 1}]"
        self.accesses.append(store)
        self._write(store.buffer, self._address(store.axes, store.offset), value, shape, masks)

    def _write(self, buffer: int, address: str, value: str, shape: str, masks: Sequence[str]) -> None:
        mask = f", mask={' & '.join(masks)}" if masks else ""
        zeros = f"tl.zeros({shape}, {self._index})"
        place = f"{self._buffer(buffer)} + ({address} + {zeros})"
        self._line(f"tl.store({place}, tl.broadcast_to({value}, {shape.strip('[]')}){mask})")

    def _add(self, partial: Partial, name: str) -> None:
        value = self._value(partial.node.args[0])
        if self._row_mask():
            value = f"tl.where(xm, {value}, 0)"
        rows = self._schedule.row_block
        width = self._schedule.inner_block if partial.node.args[0].axes & (self._kernel.inner or frozenset()) else 1
        self._line(f"{name} += tl.sum(tl.broadcast_to({value}, {rows}, {width}), 0)[None, :]")

    def _finish_sums(self, accumulators: Sequence[tuple[Partial, str]]) -> None:
        k, s = self._kernel, self._schedule
        self._line(f"x = (zero + kept) * {count(self._loops.size(k.summed))}")
        self._positions(s.rows, "x")
        for partial, name in accumulators:
            (_, step), *axes = partial.axes
            spans = bool(partial.node.args[0].axes & (k.inner or frozenset()))
            shape = f"[1, {s.inner_block if spans else 1}]"
            address = f"part * {number(step)} + {self._address(tuple(axes), 0)}"
            self._write(partial.buffer, address, name, shape, ["rm"] * (spans and self._inner_mask()))

    def _store_part(self, partial: Partial) -> None:
        (_, step), *axes = partial.axes
        address = f"tl.program_id(1) * {number(step)} + {self._address(tuple(axes), 0)}"
        shape = f"[{self._schedule.row_block}, 1]"
        self._write(partial.buffer, address, self._names[partial.node], shape, ["xm"] * self._row_mask())

    def _inner_mask(self) -> bool:
        return self._loops.size(self._schedule.inner) % self._schedule.inner_block != 0

    def _row_mask(self) -> bool:
        count = self._loops.size(self._kernel.summed or self._schedule.rows)
        return count % self._schedule.row_block != 0

    # Text.

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


def _spans(store: Store, schedule: Schedule) -> bool:
    """Whether a tensor has the inner axes."""
    return any(axis in schedule.inner for axis, _ in store.axes) or not schedule.inner
