"""Faults of the trace: a graph that, run by PyTorch's own operators one by one, computes something else than eager."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit import aot
from aotkit.aot.computed import Computed
from aotkit.checking import Plan, at_once, checksum, pieces, run_on_copies
from aotkit.culprit.reference import Reference
from aotkit.culprit.result import Culprit
from aotkit.inspection import producer, source_line

# Numbers of a sketch. Each is a sum of all elements with other weights: rounding changes it as much as it changes an
# element, and two different tensors agree in all of them by an accident that none of us will see.
SUMS = 4
ROUNDING = 64  # in units of the type's precision: what a trace may round otherwise, as in another order of factors
MOST_ROUNDING = 0.1


def wrong_trace(
    gm: GraphModule, inputs: Sequence[Tensor], random: Sequence[Tensor], run_eager: Callable[[], object]
) -> Culprit:
    """The first operation whose value eager computes nowhere, of those that make a result wrong.

    A trace may take another way to the same results, by values that eager does not have: an operator that eager has a
    kernel for, writes that become copies. So it is looked at from the results backwards, as far as values are unknown.

    Args:
        gm: the graph as traced, of forward and backward.
        inputs: of the graph.
        random: the states of the random generators.
        run_eager: runs the function forward and backward in eager, on the same inputs.
    """
    eager = Computed(_sketch)
    with eager:
        run_eager()
    known = _Known(eager.seen)
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and isinstance(n.meta.get("val"), Tensor)]
    reference = Reference(gm, inputs, nodes, keep=lambda value: known.has(_sketch(value)))
    with aot.random_state(), aot.without_autocast(), torch.no_grad():
        aot.set_random_states(random)
        plan = Plan(aot.generators_of(gm))
        run_on_copies(at_once(lambda tensors: reference.run(*tensors)), inputs, plan)
    # Eager's dropout keeps another mask: what eager has one result of, it has run.
    ran = {producer(n) for n in nodes if reference.values[n]}
    unknown = {n for n in nodes if not reference.values[n] and producer(n) not in ran}
    leading = _before(gm.graph.output_node().all_input_nodes, unknown)
    for node in nodes:
        if node in leading and unknown.isdisjoint(producer(node).all_input_nodes):
            difference = "eager computes what it reads, and nowhere its value"
            return Culprit("trace", node.name, str(producer(node).target), source_line(node), difference)
    return Culprit("trace")


def _before(nodes: Iterable[Node], among: set[Node]) -> set[Node]:
    """Those among these nodes, and what leads to them within the same."""
    found: set[Node] = set()
    queue = list(nodes)
    while queue:
        if (node := queue.pop()) in among and node not in found:
            found.add(node)
            queue += producer(node).all_input_nodes
    return found


Kind = tuple[Any, ...]  # the dtype first
Sketch = tuple[Kind, tuple[float, ...]]


def _sketch(value: Tensor) -> Sketch:
    """The kind of a tensor, with its norm and sums that depend on all elements; whole numbers are of their own kind."""
    kind = value.dtype, tuple(value.shape)
    if not value.is_floating_point() or value.is_meta or value.layout is not torch.strided:
        return (*kind, checksum(value)), ()
    sums, square, start = [0.0] * SUMS, 0.0, 0
    for (part,) in pieces(value.detach()):
        flat = part.double().nan_to_num(0.0, 0.0, 0.0)
        places = torch.arange(start, start + flat.numel(), dtype=torch.float64, device=flat.device)
        for i in range(SUMS):
            sums[i] += float((flat * (places * (i + 1) + i).cos()).sum())
        square += float((flat * flat).sum())
        start += flat.numel()
    return kind, (math.sqrt(square), *sums)


class _Known:
    """Tensors that have been seen, but for rounding."""

    def __init__(self, sketches: Iterable[Sketch]) -> None:
        self._by_kind: dict[Kind, list[tuple[float, ...]]] = defaultdict(list)
        for kind, numbers in sketches:
            self._by_kind[kind].append(numbers)

    def has(self, sketch: Sketch) -> bool:
        kind, numbers = sketch
        if not numbers:
            return kind in self._by_kind
        share = min(ROUNDING * torch.finfo(kind[0]).eps, MOST_ROUNDING)
        others = self._by_kind.get(kind, ())
        return any(all(abs(a - b) <= share * numbers[0] for a, b in zip(numbers, o, strict=True)) for o in others)
