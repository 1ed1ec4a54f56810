"""Which operations of a graph each kernel of its definition computes.

Kernels read reductions of others from temporary buffers, so their nodes are not those of the definition's loops. With
what is in those buffers in place of the loads they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from aotkit.backends.fuser.dependence import direct
from aotkit.backends.fuser.kernels import Kernel
from aotkit.backends.fuser.loops import Node, Result
from aotkit.backends.fuser.plan import Plan
from aotkit.backends.fuser.values import Value, below

COMPUTED = ("operation", "reduction", "index")


class Origins:
    """Of the operations of a graph, those that kernels compute.

    Args:
        outputs: of the definition.
        results: what they are in its loops.
        operations: by name, with the values that each returns.
    """

    def __init__(
        self,
        outputs: Sequence[Value],
        results: Sequence[Result],
        plan: Plan,
        operations: Mapping[str, Sequence[Value]],
    ) -> None:
        nodes = _nodes(outputs, results)
        self._operations = {
            name: {node for v in values if (node := nodes.get(_key(v))) is not None}
            for name, values in _owned(operations).items()
        }
        self._loops = plan.loops
        self._results = [buffer.result is not None for buffer in plan.buffers]
        self._inputs = plan.inputs
        self._held = {s.buffer: s.node for k in plan.kernels for s in k.stores if not self._is_result(s.buffer)}
        self._originals = plan.originals
        self._wholes = {buffer: results[number].node for number, buffer in plan.tensors.items()}
        self._done: dict[Node, Node] = {}
        self._of = {id(kernel): self._computed(kernel) for kernel in plan.kernels}

    def of(self, kernel: Kernel) -> tuple[str, ...]:
        """Names of the operations of which a kernel computes something, and of views of what it computes."""
        return tuple(name for name, nodes in self._operations.items() if nodes & self._of[id(kernel)])

    def _is_result(self, buffer: int) -> bool:
        return self._results[buffer - self._inputs]

    def _computed(self, kernel: Kernel) -> set[Node]:
        stored = {s.node for s in kernel.stores}  # an operation may return what it is given
        found = [n for n in below(kernel.anchors) if n.kind in COMPUTED or n in stored]
        pieces = [self._wholes[s.buffer] for s in kernel.stores if s.is_piece]
        placing = [n for n in direct(pieces) if n.kind == "index" or n.type is torch.bool or n.data == "where"]
        return {*placing, *map(self._original, (*found, *(p.of for p in kernel.partials)))}

    def _original(self, node: Node) -> Node:
        """The node of the definition's loops that a kernel's node computes."""
        if node not in self._done:
            self._done[node] = self._found(node)
        return self._done[node]

    def _found(self, node: Node) -> Node:
        if node.kind == "load" and node.data[0] in self._held:
            return self._original(self._held[node.data[0]])
        if (original := self._originals.get(node, node)) is not node:
            return self._original(original)
        return self._loops.rebuilt(node, list(map(self._original, node.args)))


def _owned(operations: Mapping[str, Sequence[Value]]) -> dict[str, list[Value]]:
    """The values that operations return, and all of which they are computed and no operation before them is."""
    seen: set[Any] = set()
    owned: dict[str, list[Value]] = {}
    for name, values in operations.items():
        own, pending = owned.setdefault(name, []), [*values]
        while pending:
            value = pending.pop()
            if value in values or (value.kind in COMPUTED and _key(value) not in seen):
                own.append(value)
            if _key(value) not in seen:
                seen.add(_key(value))
                pending += value.args
    return owned


def _nodes(outputs: Sequence[Value], results: Sequence[Result]) -> dict[Any, Node]:
    """The node of each value, as far as the one has the operands of the other; by `_key`."""
    found: dict[Any, Node] = {}
    pending = [(v, r.node) for v, r in zip(outputs, results, strict=True)]
    while pending:
        value, node = pending.pop()
        if _key(value) in found:
            continue
        found[_key(value)] = node
        if (value.kind, _name(value)) == (node.kind, _name(node)) and len(value.args) == len(node.args):
            pending += zip(value.args, node.args, strict=True)
        elif len(value.args) == 1:  # a conversion to its own type, or a reduction of equal values
            pending.append((value.args[0], node))
    return found


def _key(value: Value) -> Any:
    """The same for views of a value."""
    return value.kind, value.type, tuple(map(id, value.args)), value.data


def _name(x: "Value | Node") -> object:
    return x.data[0] if x.kind == "reduction" else x.data if x.kind == "operation" else None
