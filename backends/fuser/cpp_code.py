"""Kernels as C++ code.

A kernel is a function of a range of tasks. A task is a row, or a block of columns, or a part of either; it walks the
axes within a row once for each step of reductions, and what is stored is stored in the first walk in which it is known.
In a row, vectors lie along it (`Rows`); where columns are reduced, across them (`Columns`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch

from aotkit.backends.fuser.cpp_operations import (
    COST, ELEMENTS, LANES, MEMORY, OPERATIONS, REDUCTIONS, converted, neutral, number,
)  # fmt: skip
from aotkit.backends.fuser.cpp_schedule import CHUNK, HELD, Schedule, anchors
from aotkit.backends.fuser.kernels import Kernel, Partial, Store
from aotkit.backends.fuser.loops import Loops, Node, Strides
from aotkit.backends.fuser.values import below
from aotkit.errors import CompileError

VECTORS = 4  # at a time
WORTH_HOLDING = 8  # additions, about, that computing a value anew takes
FOLDED = 64  # sums are added up in so many steps, then those: errors stay small


class Walk:
    """One walk over a row.

    Attributes:
        sums: reductions that it computes.
        stores: what it writes.
        added: what it adds to sums of rows.
        held: values that later walks need.
    """

    def __init__(self, sums: Sequence[Node], stores: Sequence[Store], added: Sequence[Partial]) -> None:
        self.sums, self.stores, self.added = list(sums), list(stores), list(added)
        self.held: list[Node] = []

    @property
    def anchors(self) -> list[Node]:
        return [*(n.args[0] for n in self.sums), *(s.node for s in self.stores), *(p.node.args[0] for p in self.added)]


class Writer:
    """Writes one kernel."""

    def __init__(self, loops: Loops, kernel: Kernel, schedule: Schedule, name: str) -> None:
        self._loops, self._kernel, self._schedule, self._name = loops, kernel, schedule, name
        self._lines: list[str] = []
        self._depth, self._count = 2, 0
        self._names: dict[Node, str] = {}
        self._held: dict[Node, str] = {}  # arrays
        self._filled: set[Node] = set()  # those of walks that are written
        self._wanted: list[Node] = []
        self._known: set[int] = set()  # axes whose positions are there
        self._numbered = {axis: f"i{n}" for n, axis in enumerate((*schedule.rows, *schedule.inner))}
        self.buffers: dict[int, str] = {}
        self._written: set[int] = {s.buffer for s in (*kernel.stores, *kernel.partials)}
        self._types: dict[int, str] = {}
        self._across = schedule.lane in schedule.rows
        self._walks = self._planned()

    def text(self) -> str:
        """The kernel, whose arguments are `buffers`."""
        s = self._schedule
        self._arrays()
        self._hoist(anchors(self._kernel))
        with self._scope(f"for (int64_t task = begin; task < end; ++task)"):
            rows = [a for a in s.rows if a != s.lane and a not in self._kernel.summed]
            if self._kernel.inner is None:
                rows = [a for a in s.inner if a != s.lane]
            self._task(rows)
        arguments = ", ".join(f"{t}* b{n}" for n, t in self._arguments())
        pointers = [f"    {t}* __restrict p{n} = b{n};" for n, t in self._arguments()]
        head = [
            f'extern "C" void {self._name}({arguments}, int64_t threads) {{',
            f"  in_parallel(threads < {s.threads} ? threads : {s.threads}, {s.tasks}, [=](int64_t begin, int64_t end) {{",
            "    const whole there{};", "    (void)there;",
        ]  # fmt: skip
        return "\n".join([*head, *pointers, *self._lines, "  });", "}"]) + "\n"

    def _arguments(self) -> Iterator[tuple[int, str]]:
        for n in self.buffers:
            yield n, self._types[n] if n in self._written else f"const {self._types[n]}"

    # What is walked when.

    def _planned(self) -> list[Walk]:
        """Each reduction after those that it needs, each store as early as may be."""
        k = self._kernel
        partial = [p for p in k.partials if k.summed]
        ends = [*(s.node for s in k.stores), *(p.node.args[0] for p in partial)]
        parts = [p.node for p in k.partials if not k.summed]  # of shared rows: reductions themselves
        reductions = [*k.reductions, *(n for n in parts if n not in k.reductions)]
        when: dict[Node, int] = {}
        for n in below([*reductions, *ends]):
            when[n] = max((when[x] for x in n.args), default=0) + (n in reductions)
        self._reductions, walks = set(reductions), list[Walk]()
        stores = [x for x in k.stores if self._spans(x.axes)]
        added = [p for p in partial if p.node.args[0].axes & frozenset(self._schedule.inner)]
        last = max([when[n] for n in (*reductions, *(x.node for x in stores), *(p.node.args[0] for p in added))], default=0)
        for step in range(last + 1):
            sums = [n for n in reductions if when[n] == step + 1]
            written = [x for x in stores if when[x.node] == step]
            adds = [p for p in added if when[p.node.args[0]] == step]
            if sums or written or adds:
                walks.append(Walk(sums, written, adds))
        self._hold(walks)
        return walks

    def _hold(self, walks: list[Walk]) -> None:
        """Which values a walk holds for a later one, as far as a thread has room."""
        inner = frozenset(self._schedule.inner)
        room = HELD - self._row_bytes * len([p for p in self._kernel.partials if self._kernel.summed])
        first: dict[Node, Walk] = {}
        cost: dict[Node, int] = {}
        for walk in walks:
            pending, seen = walk.anchors, set[Node]()
            while pending:
                n = pending.pop()
                if n in seen or not n.axes & inner or n in self._reductions:
                    continue
                if n in first and self._schedule.lane in n.axes and self._worth(n, cost) >= WORTH_HOLDING:
                    if n in first[n].held or room >= self._row_bytes:
                        room -= 0 if n in first[n].held else self._row_bytes
                        first[n].held += [] if n in first[n].held else [n]
                        continue
                seen.add(n)
                pending += n.args
            for n in seen:
                first.setdefault(n, walk)

    def _worth(self, node: Node, cost: dict[Node, int]) -> int:
        """Additions that computing a value takes, of what is constant within a row, about."""
        if node not in cost:
            own = 0
            if node.axes & frozenset(self._schedule.inner) and node not in self._reductions:
                own = sum(self._worth(x, cost) for x in node.args)
                own += COST.get(node.data, 1) if node.kind == "operation" else 1 + 10 * bool(node.args)
            cost[node] = own
        return cost[node]

    @cached_property
    def _run(self) -> int:
        """Elements of a row along the axis of vectors, or of a block of columns, with room for whole vectors."""
        s = self._schedule
        size = s.block if self._across else self._loops.sizes[s.lane] if s.lane in s.inner else 1
        return (size + 15) // 16 * 16

    @cached_property
    def _row_size(self) -> int:
        return self._loops.size(a for a in self._schedule.inner if a != self._schedule.lane) * self._run

    @property
    def _row_bytes(self) -> int:
        return 8 * self._row_size

    def _place_in_row(self) -> str:
        """The place of a vector in an array of a row."""
        text, s = "0", self._schedule
        for axis in s.inner:
            if axis != s.lane:
                text = f"({text} * {self._loops.sizes[axis]} + {self._numbered[axis]})" if text != "0" else self._numbered[axis]
        lane = "" if s.lane is None else f"{self._numbered[s.lane]} - from" if self._across else self._numbered[s.lane]
        return f"{text} * {self._run} + {lane or 0}" if text != "0" else lane or "0"

    def _arrays(self) -> None:
        for walk in self._walks:
            for n in walk.held:
                name = self._held[n] = self._new("h")
                self._array(name, n.type)
        self._sums: dict[Partial, str] = {}
        for p in self._kernel.partials if self._kernel.summed else ():
            name = self._sums[p] = self._new("s")
            if p.node.args[0].axes & frozenset(self._schedule.inner):
                self._array(name, p.node.type)

    def _array(self, name: str, dtype: torch.dtype) -> None:
        self._line(f"alignas(64) {ELEMENTS[LANES[dtype]]} {name}[{self._row_size}];")

    # Tasks.

    def _task(self, rows: Sequence[int]) -> None:
        k, s = self._kernel, self._schedule
        size = self._loops.sizes[s.lane] if s.lane is not None else 1
        blocks = -(-size // s.block)
        self._line("int64_t rest = task;")
        if k.shares > 1:
            self._line(f"const int64_t part = rest % {k.shares};\n      rest /= {k.shares};")
        if blocks > 1:
            self._line(f"const int64_t from = rest % {blocks} * {s.block};\n      rest /= {blocks};")
            self._line(f"const int64_t to_end = from + {s.block} < {size} ? from + {s.block} : {size};")
        elif s.lane is not None:
            self._line(f"const int64_t from = 0, to_end = {size};")
        if k.summed:
            self._line(f"const int64_t part = rest % {s.programs};\n      rest /= {s.programs};")
            self._positions(rows, "rest")
            self._summed_rows()
            return
        self._positions(rows, "rest")
        self._row()

    def _summed_rows(self) -> None:
        k, s = self._kernel, self._schedule
        count = self._loops.size(k.summed)
        for p, name in self._sums.items():
            if p.node.args[0].axes & frozenset(s.inner):
                self._line(f"memset({name}, 0, sizeof({name}));")
            else:
                self._line(f"{LANES[p.node.type]} {name} = {{}};")
        each = -(-count // s.programs)
        self._hoist(anchors(self._kernel))
        with self._scope(f"for (int64_t row = part * {each}; row < (part + 1) * {each} && row < {count}; ++row)"):
            self._positions([a for a in s.rows if a in k.summed], "row")
            self._row()
            for p, name in self._sums.items():
                if not p.node.args[0].axes & frozenset(s.inner):
                    self._line(f"{name} = {name} + {self._value(p.node.args[0])};")
        for p, name in self._sums.items():
            (_, step), *axes = p.axes
            if p.node.args[0].axes & frozenset(s.inner):
                with self._loops_over([a for a in s.inner if a != s.lane]), self._vectors("from", "to_end"):
                    self._put(p.buffer, p.node, tuple(axes), f"load({name} + {self._place_in_row()}, 1, there)", f"part * {step}")
            else:
                self._put(p.buffer, p.node, tuple(axes), name, f"part * {step}")

    def _row(self) -> None:
        """The walks of one task, and what there is one of for a row."""
        k = self._kernel
        for walk in self._walks:
            self._walk(walk)
        rest = [s for s in k.stores if not self._spans(s.axes)]
        parts = [p for p in k.partials if not k.summed]
        if not rest and not parts:
            return
        with self._columns():
            for store in rest:
                self._put(store.buffer, store.node, store.axes, self._value(store.node))
            for p in parts:
                (_, step), *axes = p.axes
                self._put(p.buffer, p.node, tuple(axes), self._value(p.node), f"part * {step}")

    @contextmanager
    def _columns(self) -> Iterator[None]:
        """For each vector of a block of columns; where rows are rows, once."""
        if self._across:
            with self._vectors("from", "to_end"):
                yield
        else:
            yield

    def _walk(self, walk: Walk) -> None:
        s, lane = self._schedule, self._schedule.lane
        others = [a for a in s.inner if a != lane]
        inner = frozenset(s.inner)
        wanted = [*walk.anchors, *walk.held]
        self._wanted = wanted
        self._hoist(wanted)
        if self._across:
            self._row_values(wanted)
        names = {n: self._new("a") for n in walk.sums}
        for n, name in names.items():
            kind = self._accumulator(n)
            self._line(f"{kind} {name}[{self._run} / LANES];" if self._across else f"{kind} {name};")
            if self._across:
                self._line(f"for (auto& a : {name}) a = {kind}{{}};")
        self._steps = self._new("steps")
        if any(n.data[0] == "sum" for n in walk.sums):
            self._line(f"int64_t {self._steps} = 0;")
        with self._shared_loops(others):
            if self._across or lane not in inner:
                with self._vectors("from", "to_end") if self._across else self._one():
                    self._body(walk, {n: f"{name}[v]" if self._across else name for n, name in names.items()})
                    folds = [name for n, name in names.items() if n.data[0] == "sum"]
                if folds:
                    fold = f"for (auto& a : {{}}) a.fold();" if self._across else "{}.fold();"
                    self._line(f"if (++{self._steps} % {FOLDED} == 0) {{ {' '.join(fold.format(x) for x in folds)} }}")
            else:
                self._runs(walk, names)
        for n, name in names.items():
            self._names[n] = f"{name}[v].value()" if self._across else self._named(self._reduced(n, name))
        self._filled.update(walk.held)

    def _runs(self, walk: Walk, names: dict[Node, str]) -> None:
        """Along a row, a chunk at a time."""
        s = self._schedule
        start, end = "from", "to_end"
        if self._kernel.shares > 1 and len(s.inner) == 1:
            each = -(-self._loops.sizes[s.inner[0]] // (self._kernel.shares * 64)) * 64
            self._line(f"const int64_t first_one = part * {each} < to_end ? part * {each} : to_end;")
            self._line(f"const int64_t last_one = first_one + {each} < to_end ? first_one + {each} : to_end;")
            start, end = "first_one", "last_one"
        if not walk.sums:
            with self._vectors(start, end):
                self._body(walk, {})
            return
        with self._scope(f"for (int64_t chunk = {start}; chunk < {end}; chunk += {CHUNK})"):
            self._line(f"const int64_t chunk_end = chunk + {CHUNK} < {end} ? chunk + {CHUNK} : {end};")
            inside = {n: self._new("r") for n in walk.sums}
            for n, name in inside.items():
                self._line(f"{LANES[n.type]} {name} = {neutral(n.data[0], n.type)};")
            with self._vectors("chunk", "chunk_end"):
                self._body(walk, inside)
            for n, name in inside.items():
                self._line(f"{names[n]}.add({name});")
                if n.data[0] == "sum":
                    self._line(f"if (++{self._steps} % {FOLDED} == 0) {names[n]}.fold();")

    def _accumulator(self, n: Node) -> str:
        return f"{n.data[0]}_of<{LANES[n.type]}>"

    def _reduced(self, n: Node, name: str) -> str:
        if self._schedule.lane not in self._schedule.inner:
            return f"{name}.value()"
        return f"together({name}.value(), [](auto x, auto y) {{ return {REDUCTIONS[n.data[0]][1].format('x', 'y')}; }})"

    def _body(self, walk: Walk, accumulators: dict[Node, str]) -> None:
        """What is done with each vector."""
        lane = self._schedule.lane
        runs = not self._across and lane in self._schedule.inner
        for n, name in accumulators.items():
            value = self._value(n.args[0])
            if runs:
                join = f"[](auto x, auto y) {{ return {REDUCTIONS[n.data[0]][1].format('x', 'y')}; }}"
                self._line(f"reduce({name}, {value}, {neutral(n.data[0], n.type)}, there, {join});")
            else:
                self._line(f"{name}.add({value});")
        for n in walk.held:
            self._line(f"hold({self._held[n]} + {self._place_in_row()}, {self._value(n)}, there);")
        for store in walk.stores:
            self._put(store.buffer, store.node, store.axes, self._value(store.node))
        if runs and walk is self._walks[-1] and len(self._walks) > 1 and self._schedule.rows:
            row = self._schedule.rows[-1]
            for n in below(self._walks[0].anchors):
                if n.kind == "load" and not n.args and {(lane, 1)} <= {*n.data[-2]} and row in n.axes:
                    next_row = n.data[-1] + dict(n.data[-2])[row]
                    self._line(f"fetch({self._buffer(n.data[0], n.type)} + {self._address(n.data[-2], next_row)}, there);")
        for p in walk.added:
            place = f"{self._sums[p]} + {self._place_in_row()}"
            self._line(f"hold({place}, held<{LANES[p.node.type]}>({place}, there) + {self._value(p.node.args[0])}, there);")

    def _row_values(self, wanted: Sequence[Node]) -> None:
        """Arrays of what there is one of for each column, and the walk needs."""
        inner = frozenset(self._schedule.inner)
        found: dict[Node, None] = {}
        pending, seen = list(wanted), set[Node]()
        while pending:
            n = pending.pop()
            if n in seen:
                continue
            seen.add(n)
            if n.axes & inner and n not in self._reductions:
                pending += n.args
            elif n not in self._names and n.kind == "operation":
                found[n] = None
        if not found:
            return
        names = {n: self._new("c") for n in found}
        for n, name in names.items():
            self._line(f"{LANES[n.type]} {name}[{self._run} / LANES];")
        with self._vectors("from", "to_end"):
            for n, name in names.items():
                self._line(f"{name}[v] = {self._value(n)};")
        for n, name in names.items():
            self._names[n] = f"{name}[v]"

    # Loops.

    @contextmanager
    def _scope(self, head: str) -> Iterator[None]:
        """A block, whose names end with it."""
        names, known = dict(self._names), set(self._known)
        self._line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self._line("}")
        self._names, self._known = names, known

    @contextmanager
    def _one(self) -> Iterator[None]:
        yield

    @contextmanager
    def _loops_over(self, axes: Sequence[int]) -> Iterator[None]:
        if not axes:
            yield
            return
        name = self._numbered[axes[0]]
        with self._scope(f"for (int64_t {name} = 0; {name} < {self._loops.sizes[axes[0]]}; ++{name})"):
            self._known.add(axes[0])
            self._hoist(self._wanted)
            with self._loops_over(axes[1:]):
                yield

    @contextmanager
    def _shared_loops(self, axes: list[int]) -> Iterator[None]:
        """Loops of axes within rows, of which a task may have a part."""
        if self._kernel.inner is None or not axes:
            yield
        elif self._kernel.shares == 1 or (self._schedule.lane in self._schedule.inner and len(axes) == 0):
            with self._loops_over(axes):
                yield
        else:
            size = self._loops.size(axes)
            each = -(-size // self._kernel.shares)
            with self._scope(f"for (int64_t place = part * {each}; place < (part + 1) * {each} && place < {size}; ++place)"):
                self._positions(axes, "place")
                self._hoist(self._wanted)
                yield

    @contextmanager
    def _vectors(self, start: str, end: str) -> Iterator[None]:
        """Along the axis of vectors; what is at the end may be no whole one."""
        s = self._schedule
        if s.lane is None:
            with self._scope(""):
                self._line("const first there{1};")
                yield
            return
        at, size = self._numbered[s.lane], self._loops.sizes[s.lane]
        body = self._new("body")
        names, known = dict(self._names), set(self._known)
        self._line(f"auto {body} = [&](int64_t {at}, auto there) __attribute__((always_inline)) {{")
        self._depth += 1
        if self._across:
            self._line(f"const int64_t v = ({at} - from) / LANES;\n{'  ' * self._depth}(void)v;")
        self._known.add(s.lane)
        yield
        self._depth -= 1
        self._line("};")
        self._names, self._known = names, known
        with self._scope(""):
            self._line(f"int64_t at = {start};")
            if not self._across and size >= VECTORS * 16:
                self._line(f"for (; at + {VECTORS} * LANES <= {end}; at += {VECTORS} * LANES) {body}(at, wholes<{VECTORS}>{{}});")
            if self._across or size < VECTORS * 16 or size % (VECTORS * 16):
                self._line(f"for (; at + LANES <= {end}; at += LANES) {body}(at, whole{{}});")
            if size % 16:
                self._line(f"if (at < {end}) {body}(at, first{{(int)({end} - at)}});")

    def _positions(self, axes: Sequence[int], flat: str) -> None:
        """The position along each axis, from that in all."""
        below_it = self._loops.size(axes)
        for n, axis in enumerate(axes):
            below_it //= self._loops.sizes[axis]
            text = flat if below_it == 1 else f"{flat} / {below_it}"
            if n:
                text = f"({text}) % {self._loops.sizes[axis]}"
            self._line(f"const int64_t {self._numbered[axis]} = {text};")
            self._known.add(axis)

    # Values.

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
        if node in self._filled:
            text = f"held<{LANES[node.type]}>({self._held[node]} + {self._place_in_row()}, there)"
        else:
            text = self._expression(node)
        self._names[node] = self._named(text)
        return self._names[node]

    def _named(self, text: str) -> str:
        name = self._new("v")
        self._line(f"const auto {name} = {text};")
        return name

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

    @property
    def _lane(self) -> int:
        return -1 if self._schedule.lane is None else self._schedule.lane

    def _load(self, node: Node) -> str:
        buffer, steps, strides, offset = node.data
        values = [self._value(x) for x in node.args]
        guards = values[len(steps) :]
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

    def _put(self, buffer: int, node: Node, axes: Strides, value: str, more: str = "") -> None:
        step = dict(axes).get(self._lane, 0)
        there = "there" if step else "first{1}"
        place = f"{self._buffer(buffer, node.type)} + {self._address(axes, 0)}{' + ' * bool(more)}{more}"
        self._line(f"store({place}, {step}, {there}, {value});")

    def _address(self, strides: Strides, offset: int) -> str:
        terms = [self._numbered[a] + (f" * {stride}" if stride != 1 else "") for a, stride in strides]
        return " + ".join([*terms, *([str(offset)] if offset or not terms else [])])

    def _spans(self, axes: Strides) -> bool:
        """Whether a tensor has the axes within a row."""
        return any(axis in self._schedule.inner for axis, _ in axes) or self._kernel.inner is None

    def _buffer(self, number: int, dtype: torch.dtype) -> str:
        self.buffers.setdefault(number, f"b{number}")
        self._types[number] = MEMORY[dtype]
        return f"p{number}"

    def _new(self, kind: str = "v") -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)
