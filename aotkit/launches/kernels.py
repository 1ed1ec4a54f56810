"""What a compiled function launches: kernels in order, what is in each, the memory that it moves, and its time."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from aotkit.inspection import Graphs, SourceLine, kernels_text, traffic
from aotkit.launches.timed_runs import Times, timed
from aotkit.passes import operator_name, producer, source_line
from aotkit.stages import Kernel, Product, Regions, computes
from aotkit.text import sum_known

NOT_NEEDED = "no kernel computes it: nothing needs it, or it equals another value"


@dataclass(frozen=True)
class Launched:
    """One kernel of a graph.

    Attributes:
        role: "forward" or "backward".
        kernel: as its compiler tells.
        operations: names of the nodes that it computes, in the order of the graph.
        operators: their short names.
        sources: the user's lines that these come from.
        read, written: bytes of distinct memory that cross its edges, by the graph; None if a size depends on data.
        seconds: the median of a few runs; None if it could not be timed apart from others.
        peak: the most bytes that are held from the end of the kernel before it to its own, measured; what forward is
            given does not count. None if it could not be told apart.
        why: why it is not fused with others.
    """

    role: str
    kernel: Kernel
    operations: tuple[str, ...]
    operators: tuple[str, ...]
    sources: tuple[SourceLine, ...]
    read: int | None
    written: int | None
    seconds: float | None
    peak: int | None
    why: str

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second, read and written."""
        if self.read is None or self.written is None or not self.seconds:
            return None
        return (self.read + self.written) / self.seconds


@dataclass(frozen=True)
class Kernels:
    """All that a compiled function launches; `print` it.

    Attributes:
        graphs: what was compiled.
        kernels: in the order in which they run, forward first.
        left_out: "forward" and "backward" -> operation that no kernel computes -> why.
        seconds: "forward" and "backward" -> the median of a few runs of it all; empty if it could not be timed.
        failure: why it could not.
        peak: the most bytes that forward and backward hold at once, measured; what forward is given does not count.
            None if it could not be measured, as under a profiler.
        made_up: whether it ran on other inputs, of the sizes that it was traced with.
        device: that it runs on, as torch calls it.
        copying: bytes per second, read and written, of a copy on that device; None if nothing was timed.
    """

    graphs: Graphs
    kernels: tuple[Launched, ...]
    left_out: Mapping[str, Mapping[str, str]]
    seconds: Mapping[str, float]
    failure: str | None
    peak: int | None
    made_up: bool
    device: str
    copying: float | None

    def of(self, role: str) -> list[Launched]:
        """Those of one graph."""
        return [kernel for kernel in self.kernels if kernel.role == role]

    def launches(self, role: str) -> int | None:
        """How many there are altogether; None if a compiler does not tell."""
        return sum_known(kernel.kernel.launches for kernel in self.of(role))

    def share(self, kernel: Launched) -> float | None:
        """Of the device's copy bandwidth that a kernel reaches. More than 1 is in the caches."""
        return kernel.bandwidth / self.copying if kernel.bandwidth is not None and self.copying else None

    def __str__(self) -> str:
        return kernels_text(self)


def kernels_of(graphs: Graphs, products: Mapping[str, Product], inputs: Sequence[Any]) -> Kernels:
    """Run the graphs a few times, and put together what each launches.

    Args:
        products: "forward" and "backward" -> what its compiler made of it.
        inputs: of the forward graph.
    """
    products = {role: products[role] for role in ("forward", "backward") if role in products}
    times = timed(graphs, products, inputs)
    launched: list[Launched] = []
    left_out = {}
    for role, product in products.items():
        told = times.told[role]
        inside = _operations(product.graph, told)
        left_out[role] = _left_out(product.graph, inside)
        launched += _launched(role, product.graph, told, inside, times, graphs.regions.get(role))
    return Kernels(
        graphs, tuple(launched), left_out, times.seconds, times.failure, times.peak, times.made_up, str(times.device),
        _copying(times),
    )  # fmt: skip


def _operations(gm: GraphModule, told: Sequence[Kernel]) -> list[tuple[str, ...]]:
    """The operations of the graph in each kernel.

    One that is in no kernel has been merged into what reads it, such as a product into an addition: it is where that
    is.
    """
    nodes = [n for n in gm.graph.nodes if computes(n)]
    homes: dict[str, set[int]] = defaultdict(set)
    for i, kernel in enumerate(told):
        for name in kernel.operations:
            homes[name].add(i)
    for node in reversed(gm.graph.nodes):
        if node.op == "call_function" and node.name not in homes:
            homes[node.name] = set().union(*(homes[user.name] for user in node.users if user.op != "output"))
    return [tuple(n.name for n in nodes if i in homes[n.name]) for i in range(len(told))]


def _left_out(gm: GraphModule, inside: Sequence[tuple[str, ...]]) -> dict[str, str]:
    found = set(itertools.chain(*inside))
    return {n.name: NOT_NEEDED for n in gm.graph.nodes if computes(n) and n.name not in found}


def _launched(
    role: str,
    gm: GraphModule,
    told: Sequence[Kernel],
    inside: Sequence[tuple[str, ...]],
    times: Times,
    regions: Regions | None,
) -> list[Launched]:
    nodes = {n.name: n for n in gm.graph.nodes}
    seconds, peaks = times.kernels.get(role, {}), times.peaks.get(role, {})
    found = []
    for i, (kernel, own, (read, written)) in enumerate(zip(told, inside, traffic(gm, inside), strict=True)):
        lines = dict.fromkeys(line for name in own if (line := source_line(nodes[name])) is not None)
        operators = tuple(operator_name(producer(nodes[name])) for name in own)
        why = kernel.why or _why_outside(own, regions)
        found.append(
            Launched(role, kernel, own, operators, tuple(lines), read, written, seconds.get(i), peaks.get(i), why)
        )
    return found


def _why_outside(operations: Sequence[str], regions: Regions | None) -> str:
    """Why backends that take parts of graphs have not taken an operation, or failed on its region."""
    if regions is None or len(operations) != 1:
        return ""
    (name,) = operations
    reasons = [f"{b}: {why}" for b, why in zip(regions.backends, regions.outside.get(name, ()), strict=False)]
    reasons += [f"{r.backend} failed: {r.failure}" for r in regions.regions if r.failure and name in r.nodes]
    return "; ".join(reasons)


def _copying(times: Times) -> float | None:
    if times.failure is not None:
        return None
    from aotkit.partitioners.rematerialization.devices import measured

    return measured(times.device, torch.float32).bandwidth
