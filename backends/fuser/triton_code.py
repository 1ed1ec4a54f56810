"""Kernels as Triton code."""

from collections.abc import Sequence

import torch

from aotkit.backends.fuser import limits
from aotkit.backends.fuser.dependence import direct
from aotkit.backends.fuser.kernels import Kernel, Partial, Store
from aotkit.backends.fuser.loops import Loops, Node
from aotkit.backends.fuser.operations import REDUCTIONS, TYPES, neutral
from aotkit.backends.fuser.pairs import Pair, paired
from aotkit.backends.fuser.schedule import Schedule
from aotkit.backends.fuser.templates import count, number
from aotkit.backends.fuser.triton_pairs import UPDATES
from aotkit.backends.fuser.triton_values import Values, spans
from aotkit.backends.fuser.values import below

HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice

from aotkit.backends.fuser.triton_functions import erf, larger, product, remainder, smaller, tanh
"""


class Writer(Values):
    """Writes one kernel.

    Values that do not vary within a row are written outside of the loop over its chunks.
    """

    def __init__(self, loops: Loops, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(loops, kernel, schedule)
        self._pairs: dict[Node, Pair] = {}

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
            self._read_ahead()
            for store in self._kernel.stores:
                self._store(store)
            for partial, name in accumulators:
                self._add(partial, name)
            return
        self._passes()

    def _read_ahead(self) -> None:
        """What of rows fits into registers is on its way before the first reduction, for which warps wait."""
        s, room = self._schedule, limits.READ_AHEAD
        if not self._kernel.reductions or s.stages > 1:
            return
        rows, inner = frozenset(s.rows), frozenset(s.inner)
        loads = [n for n in below(self._kernel.anchors) if n.kind == "load" and n.axes & rows]
        for n in sorted(loads, key=lambda n: bool(n.axes & inner)):  # one number for each row costs nothing
            if not any(x.kind == "reduction" for x in below(n.args)):
                tile = s.row_block * (s.inner_block if n.axes & inner else 1)
                room -= -(-tile // (32 * s.warps)) * n.type.itemsize
                if room >= 0:
                    self._value(n)

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
        within = [x for x in k.stores if spans(x, s)]
        walks = []
        for step in range(1 + max([when[n] for n in (*reductions, *(x.node for x in within))], default=0)):
            sums = [n for n in reductions if when[n] == step + 1]
            ends = [p for p in parts if when[p.node] == step]
            stores = [x for x in within if when[x.node] == step]
            walks.append((step, [*sums, *(p.node for p in ends)], stores, ends))
        # A row that is walked again stays in the cache until then.
        read = [{n for n in direct(_operands(sums, stores)) if n.kind == "load"} for _, sums, stores, _ in walks]
        for i, (step, sums, stores, ends) in enumerate(walks):
            before, after = (set().union(*loads) for loads in (read[:i], read[i + 1 :]))
            self._eviction = {n: "evict_last" if n in after else "evict_first" for n in read[i] & (before | after)}
            if sums or stores:
                self._hoist([*sums, *(x.node for x in stores)], when, step)
                self._loop(sums, stores)
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
        firsts = {pair.first for n, pair in self._pairs.items() if n in reductions}
        alone = [n for n in reductions if n not in self._pairs and n not in firsts]
        single = {n: self._accumulator(neutral(n.data[0], n.type), n) for n in alone}
        pairs = [self._pairs[n] for n in reductions if n in self._pairs]
        one_each = {pair.first: pair for pair in pairs}.values()
        updates = {pair.first: UPDATES[pair.kind](pair.of, self._accumulators(pair)) for pair in one_each}
        if k.inner is None:  # a chunk for each program
            chunk = f"tl.program_id(0) % {self._chunks()}" if s.rows else "tl.program_id(0)"
            self._begin = f"(zero + {chunk}) * {s.inner_block}"
            self._line(f"r = r0 + {self._begin}")
        else:
            counted = [u.of.type for u in updates.values() if u.counts]
            self._begin_loop(max(counted, key=lambda t: t.itemsize, default=None))
        self._in_loop = set()
        self._line(f"rm = r < {number(self._loops.size(s.inner))}")
        last = self._loops.size(s.inner[-1:])
        if k.inner is not None and len(s.inner) > 1 and last % s.inner_block == 0:  # others are one number for a chunk
            self._positions(s.inner[:-1], f"((zero + chunk) // {number(last)})")
            self._line(f"{self._numbered[s.inner[-1]]} = r % {number(last)}")
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

    def _begin_loop(self, counted: torch.dtype | None) -> None:
        """The head of a loop over chunks, in which they are counted for numbers of this type."""
        k, s = self._kernel, self._schedule
        share, end = number(k.share), number(self._loops.size(s.inner))
        start, end = ("0", end) if k.shares == 1 else ("start", f"min(start + {share}, {end})")
        if k.shares > 1:
            self._line(f"start = tl.program_id(1) * {share}")
        if counted is not None:
            times = f"({end} - {start} - r0 + {s.inner_block - 1}) // {s.inner_block}"
            self._line(f"counted = tl.maximum({times}, 0).to({TYPES[counted]})")
        stages = f", num_stages={s.stages}" if s.stages > 1 else ""
        self._line(f"for chunk in tl.range({start}, {end}, {s.inner_block}{stages}):")
        self._depth += 1
        if counted is not None:
            self._line(f"seen = ((zero + chunk - {start}) // {s.inner_block} + 1).to({TYPES[counted]})")
        self._begin = "chunk"
        self._line("r = r0 + chunk")

    def _accumulator(self, start: str, like: Node) -> str:
        s = self._schedule
        return self._named(f"tl.full([{s.row_block}, {s.inner_block}], {start}, {TYPES[like.type]})")

    def _accumulators(self, pair: Pair) -> list[str]:
        return [self._accumulator(start, pair.first) for start in UPDATES[pair.kind].starts]

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
            is_wide = bool(partial.node.args[0].axes & (k.inner or frozenset()))
            shape = f"[1, {s.inner_block if is_wide else 1}]"
            address = f"part * {number(step)} + {self._address(tuple(axes), 0)}"
            self._write(partial.buffer, address, name, shape, ["rm"] * (is_wide and self._inner_mask()))

    def _store_part(self, partial: Partial) -> None:
        (_, step), *axes = partial.axes
        address = f"tl.program_id(1) * {number(step)} + {self._address(tuple(axes), 0)}"
        shape = f"[{self._schedule.row_block}, 1]"
        self._write(partial.buffer, address, self._names[partial.node], shape, ["xm"] * self._row_mask())


def _operands(sums: Sequence[Node], stores: Sequence[Store]) -> list[Node]:
    """What a walk over a row computes, but for reductions."""
    return [*(n.args[0] for n in sums), *(x.node for x in stores)]
