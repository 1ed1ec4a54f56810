"""Kernels as text: their loops, and a line for each node, by the names that the generated code has for them.

`i0`, `i1`, ... are positions along axes, rows first; `b0`, `b1`, ... buffers: inputs in their order, then what is
written.
"""

from collections.abc import Mapping, Sequence

from aotkit.backends.fuser.kernels import Kernel
from aotkit.backends.fuser.loops import Node, Strides
from aotkit.backends.fuser.plan import Plan
from aotkit.backends.fuser.schedule import Schedule
from aotkit.backends.fuser.values import below


def printed(plan: Plan, kernel: Kernel, schedule: Schedule, name: str, places: Mapping[int, Sequence[int]]) -> str:
    """One kernel: how it is laid out, its nodes in the order of their operands, what it writes, and in which places."""
    return _Printer(plan, kernel, schedule, name, places).text()


class _Printer:
    def __init__(
        self, plan: Plan, kernel: Kernel, schedule: Schedule, name: str, places: Mapping[int, Sequence[int]]
    ) -> None:
        self._plan, self._kernel, self._schedule, self._name = plan, kernel, schedule, name
        self._places = places
        self._axes = {axis: f"i{n}" for n, axis in enumerate((*schedule.rows, *schedule.inner))}
        if kernel.partial_axis is not None:
            self._axes.setdefault(kernel.partial_axis, "part")
        self._names: dict[Node, str] = {}

    def text(self) -> str:
        k = self._kernel
        lines = [*self._layout(), *map(self._node, below(k.anchors))]
        for store in k.stores:
            kind = "result" if self._plan.buffers[store.buffer - self._plan.inputs].result else "temporary"
            if able := self._places.get(store.buffer):
                kind += f", in the memory of {' or '.join(f'b{n}' for n in able)} if nothing else needs that"
            lines.append(
                f"store {self._names[store.node]} {self._place(store.buffer, store.axes, store.offset)} : {kind}"
            )
        for part in k.partials:
            lines.append(f"store {self._names[part.node]} {self._place(part.buffer, part.axes, 0)} : part of a sum")
        return "\n  ".join(lines)

    def _layout(self) -> list[str]:
        k, s = self._kernel, self._schedule
        lines = [f"{self._name}: {s.heading}"]
        if s.rows:
            lines.append(f"rows {self._sizes(s.rows)}")
        if s.inner:
            lines.append(f"{'within a row' if s.rows else 'all'} {self._sizes(s.inner)}")
        if k.inner is not None and not s.whole:
            lines[-1] += ", in chunks" if k.shares == 1 else f", shared by {k.shares} programs"
        if k.summed:
            lines.append(f"added up over {self._sizes([a for a in s.rows if a in k.summed])} by {s.programs} programs")
        return lines

    def _sizes(self, axes: "tuple[int, ...] | list[int]") -> str:
        return ", ".join(f"{self._axes[axis]} = {self._plan.loops.sizes[axis]}" for axis in axes)

    def _node(self, node: Node) -> str:
        args = [self._names[x] for x in node.args]
        name = self._names[node] = f"%{len(self._names)}"
        axes = " ".join(self._axes[axis] for axis in self._axes if axis in node.axes)
        return f"{name} = {self._expression(node, args)} : {str(node.type).removeprefix('torch.')} [{axes}]"

    def _expression(self, node: Node, args: list[str]) -> str:
        match node.kind:
            case "load":
                buffer, steps, strides, offset = node.data
                guards = args[len(steps) :]
                place = self._place(buffer, strides, offset, list(zip(args, steps, strict=False)))
                where = f" where {' '.join(guards)}" if guards else ""
                return f"load {place}{where}"
            case "scalar":
                return f"scalar n{node.data}"
            case "constant":
                return f"constant {node.data}"
            case "index":
                return f"index {self._sum(*node.data)}"
            case "reduction":
                name, over = node.data
                return f"{name} {args[0]} over {' '.join(self._axes[axis] for axis in self._axes if axis in over)}"
        return f"{node.data} {' '.join(args)}"

    def _place(self, buffer: int, strides: Strides, offset: int, chosen: Sequence[tuple[str, int]] = ()) -> str:
        return f"b{buffer}[{self._sum(strides, offset, chosen)}]"

    def _sum(self, strides: Strides, offset: int, chosen: Sequence[tuple[str, int]] = ()) -> str:
        """A place; `chosen` are positions that are values, and their strides."""
        named = [*((self._axes[axis], stride) for axis, stride in strides), *chosen]
        terms = [name + (f" * {stride}" if stride != 1 else "") for name, stride in named]
        return " + ".join([*terms, *([str(offset)] if offset or not terms else [])])
