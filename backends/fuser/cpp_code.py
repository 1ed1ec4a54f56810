"""Kernels as C++ code.

A kernel is a function of a range of tasks. A task is a row, or a block of columns, or a part of either; it walks what
is within a row, once for each step of reductions. Vectors lie along rows, or across them, where columns are next to
each other in memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

from aotkit.backends.fuser.cpp_operations import ELEMENTS, LANES, REDUCTIONS, neutral
from aotkit.backends.fuser.cpp_schedule import CHUNK, MOST_LANES, VECTORS, Schedule
from aotkit.backends.fuser.cpp_values import Values
from aotkit.backends.fuser.cpp_walks import Walk, reductions_of, spans, walks
from aotkit.backends.fuser.in_place import overwritable
from aotkit.backends.fuser.kernels import Kernel, Partial
from aotkit.backends.fuser.loops import Loops, Node
from aotkit.backends.fuser.values import below

AHEAD = 256  # elements
FOLDED = 64  # sums are added up in so many steps, then those: errors stay small


class Writer(Values):
    """Writes one kernel."""

    def __init__(self, loops: Loops, kernel: Kernel, schedule: Schedule, name: str) -> None:
        super().__init__(loops, kernel, schedule)
        self._name = name
        self._across = schedule.lane in schedule.rows
        self._along = schedule.lane in schedule.inner
        self._others = [a for a in schedule.inner if a != schedule.lane]
        size = schedule.block if self._across else loops.sizes[self._lane] if self._along else 1
        self._run = -(-size // MOST_LANES) * MOST_LANES  # elements along the axis of vectors, in whole vectors
        self._row_size = loops.size(self._others) * self._run
        self._walks = walks(kernel, schedule, 8 * self._row_size)
        self._reductions = set(reductions_of(kernel))
        self._arrays: dict[Node, str] = {}  # of values that are held
        self._sums: dict[Partial, str] = {}
        self._wanted: list[Node] = []  # what the walk that is written needs

    def text(self) -> str:
        """The kernel, whose arguments are `buffers`."""
        k, s = self._kernel, self._schedule
        for n in [n for walk in self._walks for n in walk.held]:
            self._arrays[n] = self._array("h", n.type)
        for p in k.partials if k.summed else ():
            self._sums[p] = self._array("s", p.node.type) if self._spans(p) else self._new("s")
        self._hoist(k.anchors)
        with self._scope("for (int64_t task = begin; task < end; ++task)"):
            self._task()
        written = {x.buffer for x in (*k.stores, *k.partials)}
        types = {n: self._types[n] if n in written else f"const {self._types[n]}" for n in self.buffers}
        self.in_place = overwritable(k, self.accesses, one_thread=True)  # their memory may be the same
        shared = {n for stored, able in self.in_place.items() for n in (stored, *able)}
        most = f"threads < {s.threads} ? threads : {s.threads}"
        lines = [
            f'extern "C" void {self._name}({", ".join(f"{t}* b{n}" for n, t in types.items())}, int64_t threads) {{',
            f"  in_parallel({most}, {s.tasks}, [=](int64_t begin, int64_t end) {{",
            *(f"    {t}*{'' if n in shared else ' __restrict'} p{n} = b{n};" for n, t in types.items()),
            "    const whole there{};",
            *self._lines,
            "  });",
            "}",
        ]
        return "\n".join(lines) + "\n"

    def _spans(self, partial: Partial) -> bool:
        """Whether there is a sum for each element of a row, not for the row."""
        return spans(self._kernel, self._schedule, partial.node.args[0].axes)

    def _array(self, kind: str, dtype: torch.dtype) -> str:
        name = self._new(kind)
        self._line(f"alignas(64) {ELEMENTS[LANES[dtype]]} {name}[{self._row_size}];")
        return name

    # Tasks.

    def _task(self) -> None:
        """Which one it is, from its number: the part, the block and the position along each axis of rows."""
        k, s = self._kernel, self._schedule
        size = self._loops.sizes[self._lane] if s.lane is not None else 1
        blocks = -(-size // s.block)
        self._line("int64_t rest = task;")
        if (parts := max(k.shares, s.programs)) > 1 or k.partials:
            self._line(f"const int64_t part = rest % {parts};")
            self._line(f"rest /= {parts};")
        if blocks == 1:
            self._line(f"const int64_t from = 0, to_end = {size};")
        else:
            self._line(f"const int64_t from = rest % {blocks} * {s.block};")
            self._line(f"const int64_t to_end = from + {s.block} < {size} ? from + {s.block} : {size};")
            self._line(f"rest /= {blocks};")
        outer = s.rows if k.inner is not None else s.inner
        self._positions([a for a in outer if a != s.lane and a not in k.summed], "rest")
        if k.summed:
            self._summed_rows()
        else:
            self._row()

    def _summed_rows(self) -> None:
        """Rows of which a task adds up values: after the last one, it writes the sums."""
        k, s = self._kernel, self._schedule
        for p, name in self._sums.items():
            text = f"memset({name}, 0, sizeof({name}));" if self._spans(p) else f"{LANES[p.node.type]} {name} = {{}};"
            self._line(text)
        self._hoist(k.anchors)
        count = self._loops.size(k.summed)
        each = -(-count // s.programs)
        with self._scope(f"for (int64_t row = part * {each}; row < (part + 1) * {each} && row < {count}; ++row)"):
            self._positions([a for a in s.rows if a in k.summed], "row")
            self._row()
            for p, name in self._sums.items():
                if not self._spans(p):
                    self._line(f"{name} = {name} + {self._value(p.node.args[0])};")
        self._wanted = []
        for p, name in self._sums.items():
            (_, step), *axes = p.axes
            if not self._spans(p):
                self._put(p.buffer, p.node, tuple(axes), 0, name, f"part * {step}")
                continue
            with self._loops_over(self._others), self._vectors("from", "to_end"):
                value = f"held<{LANES[p.node.type]}>({name} + {self._place_in_row()}, there)"
                self._put(p.buffer, p.node, tuple(axes), 0, value, f"part * {step}")

    def _row(self) -> None:
        """All walks, and what there is one of for each row."""
        k, s = self._kernel, self._schedule
        for walk in self._walks:
            self._walk(walk)
        rest = [x for x in k.stores if not spans(k, s, dict(x.axes))]
        parts = [p for p in k.partials if not k.summed]
        if not rest and not parts:
            return
        with self._vectors("from", "to_end") if self._across else nullcontext():
            for store in rest:
                self._store(store)
            for p in parts:
                (_, step), *axes = p.axes
                self._put(p.buffer, p.node, tuple(axes), 0, self._value(p.node), f"part * {step}")

    # Walks.

    def _walk(self, walk: Walk) -> None:
        self._wanted = [*walk.anchors, *walk.held]
        self._hoist(self._wanted)
        if self._across:
            self._row_values()
        names = {n: self._new("a") for n in walk.sums}
        for n, name in names.items():
            kind = f"{n.data[0]}_of<{LANES[n.type]}>"
            self._line(f"{kind} {name}{f'[{self._run} / LANES]' if self._across else ''}{{}};")
        steps = self._new("steps") if any(n.data[0] == "sum" for n in walk.sums) else ""
        if steps:
            self._line(f"int64_t {steps} = 0;")
        with self._loops_within():
            if self._along:
                self._along_row(walk, names, steps)
            else:
                with self._vectors("from", "to_end") if self._across else nullcontext():
                    self._body(walk, {n: f"{name}[v]" if self._across else name for n, name in names.items()})
                self._fold(names, steps)
        for n, name in names.items():
            if self._across:
                self._names[n] = f"{name}[v].value()"
            else:
                value = f"{name}.value()"
                self._names[n] = self._named(f"together({value}, {_joining(n)})" if self._along else value)
        self._held |= {n: self._arrays[n] for n in walk.held}

    def _fold(self, names: dict[Node, str], steps: str) -> None:
        """From time to time, add to sums what has been added up since the last time."""
        if steps:
            each = "for (auto& a : {}) a.fold();" if self._across else "{}.fold();"
            folds = " ".join(each.format(name) for n, name in names.items() if n.data[0] == "sum")
            self._line(f"if (++{steps} % {FOLDED} == 0) {{ {folds} }}")

    def _along_row(self, walk: Walk, names: dict[Node, str], steps: str) -> None:
        """Along the axis of vectors; where something is reduced, a chunk at a time."""
        start, end = "from", "to_end"
        if self._kernel.shares > 1 and not self._others:
            start, end = self._new("start"), self._new("end")
            multiple = VECTORS * MOST_LANES
            each = -(-self._loops.sizes[self._lane] // (self._kernel.shares * multiple)) * multiple
            self._line(f"const int64_t {start} = part * {each} < to_end ? part * {each} : to_end;")
            self._line(f"const int64_t {end} = {start} + {each} < to_end ? {start} + {each} : to_end;")
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
            self._fold(names, steps)

    def _body(self, walk: Walk, accumulators: dict[Node, str]) -> None:
        """What is done with each vector."""
        for n, name in accumulators.items():
            value = self._value(n.args[0])
            if self._along:
                self._line(f"reduce({name}, {value}, {neutral(n.data[0], n.type)}, there, {_joining(n)});")
            else:
                self._line(f"{name}.add({value});")
        for n in walk.held:
            self._line(f"hold({self._arrays[n]} + {self._place_in_row()}, {self._value(n)}, there);")
        for store in walk.stores:
            self._store(store)
        for p in walk.added:
            place = f"{self._sums[p]} + {self._place_in_row()}"
            before = f"held<{LANES[p.node.type]}>({place}, there)"
            self._line(f"hold({place}, {before} + {self._value(p.node.args[0])}, there);")
        if self._along and walk is self._walks[-1] and self._loops.size(self._kernel.domain) > AHEAD**2:
            self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Have in the cache what the first walk of the next row reads; or, where there is one walk, what it reads soon.

        The processor's own guesses end with each page, and while it computes it does not look far ahead.
        """
        row = self._schedule.rows[-1] if len(self._walks) > 1 and self._schedule.rows else None
        for n in below(self._walks[0].anchors):
            if n.kind == "load" and not n.args and (self._lane, 1) in n.data[-2] and n.axes >= {row} - {None}:
                buffer, _, strides, offset = n.data
                place = self._address(strides, offset + (AHEAD if row is None else dict(strides)[row]))
                self._line(f"fetch({self._buffer(buffer, n.type)} + {place}, there);")

    def _row_values(self) -> None:
        """Arrays of what there is one of for each column, and the walk needs."""
        found: dict[Node, None] = {}
        pending, seen = list(self._wanted), set[Node]()
        while pending:
            n = pending.pop()
            if n in seen:
                continue
            seen.add(n)
            if n.axes & self._schedule.within and n not in self._reductions:
                pending += n.args
            elif n not in self._names and n.kind == "operation":
                found[n] = None
        names = {n: self._new("c") for n in found}
        for n, name in names.items():
            self._line(f"{LANES[n.type]} {name}[{self._run} / LANES];")
        if names:
            with self._vectors("from", "to_end"):
                for n, name in names.items():
                    self._line(f"{name}[v] = {self._value(n)};")
        self._names |= {n: f"{name}[v]" for n, name in names.items()}

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
    def _loops_within(self) -> Iterator[None]:
        """Over the axes within a row but that of vectors; of a shared row, a part of them."""
        shares = self._kernel.shares
        if self._kernel.inner is None or not self._others:
            yield
        elif shares == 1:
            with self._loops_over(self._others):
                yield
        else:
            size = self._loops.size(self._others)
            each = -(-size // shares)
            with self._scope(f"for (int64_t n = part * {each}; n < (part + 1) * {each} && n < {size}; ++n)"):
                self._positions(self._others, "n")
                self._hoist(self._wanted)
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
    def _vectors(self, start: str, end: str) -> Iterator[None]:
        """Along the axis of vectors; the last one may not be whole."""
        if self._schedule.lane is None:
            with self._scope(""):
                self._line("const first there{1};")
                yield
            return
        at, size, body = self._numbered[self._lane], self._loops.sizes[self._lane], self._new("body")
        with self._scope(f"auto {body} = [&](int64_t {at}, auto there) __attribute__((always_inline))"):
            if self._across:
                self._line(f"const int64_t v = ({at} - from) / LANES;")
            self._known.add(self._lane)
            yield
        self._lines[-1] += ";"
        vectors = self._schedule.vectors
        several = vectors * MOST_LANES
        with self._scope(""):
            self._line(f"int64_t at = {start};")
            if self._along and size >= several:
                count = f"{vectors} * LANES"
                self._line(f"for (; at + {count} <= {end}; at += {count}) {body}(at, wholes<{vectors}>{{}});")
            if not self._along or size < several or size % several:
                self._line(f"for (; at + LANES <= {end}; at += LANES) {body}(at, whole{{}});")
            if size % MOST_LANES:
                self._line(f"if (at < {end}) {body}(at, first{{(int)({end} - at)}});")

    def _positions(self, axes: Sequence[int], flat: str) -> None:
        """The position along each axis, from that in all."""
        for n, (axis, below_it) in enumerate(self._loops.dense(axes)):
            text = flat if below_it == 1 else f"{flat} / {below_it}"
            if n:
                text = f"({text}) % {self._loops.sizes[axis]}"
            self._line(f"const int64_t {self._numbered[axis]} = {text};")
            self._known.add(axis)

    def _place_in_row(self) -> str:
        """The place of a vector in an array of a row."""
        place = "0"
        for axis in self._others:
            name = self._numbered[axis]
            place = name if place == "0" else f"({place} * {self._loops.sizes[axis]} + {name})"
        lane = self._numbered[self._lane] + (" - from" if self._across else "")
        return lane if place == "0" else f"{place} * {self._run} + {lane}"


def _joining(reduction: Node) -> str:
    """A function of two values that a reduction takes together."""
    return f"[](auto x, auto y) {{ return {REDUCTIONS[reduction.data[0]][1].format('x', 'y')}; }}"
