"""`aotkit.frontier`: what each way to partition one function costs in memory and time, by the graphs that come out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from aotkit.benchmark.choice import judged_if_possible
from aotkit.benchmark.evaluation import evaluate
from aotkit.benchmark.partitioners import families, registered_partitioners
from aotkit.benchmark.report import Outcome, Table, in_a_line
from aotkit.benchmark.timing import Tell, silent
from aotkit.capture import Randomness, Recipe, recipe_of
from aotkit.compiled import function_of
from aotkit.compiler import Capture, compile
from aotkit.errors import AotkitError, TraceError
from aotkit.interfaces import Partitioner
from aotkit.joint import Joint, classify, partition_copy
from aotkit.partitioners.rematerialization.devices import Device, device_of
from aotkit.partitioners.rematerialization.values import values_of
from aotkit.passes import copy_graph
from aotkit.registry import BackendSpec, get_backend
from aotkit.text import bytes_name
from aotkit.torch_private.dispatch import tree_leaves

FRACTIONS = tuple(tenths / 10 for tenths in range(10, -1, -1))
EXPLANATION = (
    "Memory without inputs and parameters. limit: of what the family takes without one. saved: from forward to "
    "backward, outputs apart. peak: most that is alive at a time, operator by operator, outputs and gradients "
    "included; fused: if all between matrix products and the like is one kernel. ms: estimated time of the fused "
    "kernels of forward and backward. GFLOP again: matrix products, convolutions and attention that backward repeats. "
    "best in: no row has less of this memory in the same time, nor takes less time with the same. impossible: so are "
    "smaller limits, which are left out."
)


@dataclass
class Point(Outcome):
    """One partition.

    Attributes:
        partition: the partitioner's name, or that of a family of partitioners with a limit each.
        limit: a fraction of what the family takes without one; None: it has none.
        saved_bytes, peak_bytes, fused_peak_bytes, seconds, repeated_flops: see `benchmark.evaluation.Evaluation`.
        problem: why there is no such partition; the numbers then mean nothing.
        impossible: whether that is because no partition keeps within the limit.
    """

    partition: str
    limit: float | None = None
    saved_bytes: int = 0
    peak_bytes: int = 0
    fused_peak_bytes: int = 0
    seconds: float = 0.0
    repeated_flops: int = 0

    @property
    def label(self) -> str:
        return self.partition if self.limit is None else f"{self.partition} {self.limit}"


@dataclass
class Frontier(Table):
    """Partitions of one joint graph, in memory and estimated time.

    Attributes:
        name: the function's.
        backend: whose decompositions the joint graph has.
        device: what time is estimated for.
    """

    heading = ("partition", "limit", "saved", "peak", "fused peak", "ms", "GFLOP again", "best in")
    words = ("partition", "best in")

    name: str
    backend: str
    device: Device
    points: list[Point] = field(default_factory=list, repr=False)

    def best(self, memory: str) -> list[Point]:
        """The points on the Pareto frontier: for less of this memory they take more time than any other, or as much.

        Args:
            memory: "saved", "peak" or "fused_peak".
        """
        points = [p for p in self.points if p.problem is None]
        places = [(getattr(p, f"{memory}_bytes"), round(p.seconds, 9)) for p in points]
        return [
            point
            for point, own in zip(points, places, strict=True)
            if not any(other[0] <= own[0] and other[1] <= own[1] and other != own for other in places)
        ]

    def json(self) -> dict[str, Any]:
        """Everything that was found, of types that the json module takes: bytes, seconds, FLOP."""
        points = [{**asdict(point), "best": best} for point, best in self._best_in()]
        head = {"schema": 1, "torch": torch.__version__, "name": self.name, "backend": self.backend}
        return {**head, "device": asdict(self.device), "points": points}

    def plot(self, axes: Any = None) -> Any:
        """Draw saved bytes and peak against estimated time, with a line for each family.

        Args:
            axes: two of matplotlib's, to draw on; None: those of a new figure.

        Returns:
            The two axes; `[0].figure` is the figure.

        Raises:
            UnavailableError: matplotlib is not installed.
        """
        from aotkit.benchmark.plots import plot_frontier

        return plot_frontier(self, axes)

    def title(self) -> str:
        speed = f"{self.device.bandwidth / 1e9:,.0f} GB/s and {self.device.flops / 1e9:,.0f} GFLOP/s"
        return f"{self.name}: operators of backend {self.backend}, time estimated for {speed}"

    def _notes(self) -> list[str]:
        return [EXPLANATION, *(f"{p.label}: {p.problem}" for p in self.points if p.problem)]

    def _cells(self) -> Iterable[Sequence[str]]:
        for point, best in self._best_in():
            limit = "" if point.limit is None else str(point.limit)
            if point.problem is not None:
                yield point.partition, limit, point.word
                continue
            yield (
                point.partition,
                limit,
                *map(bytes_name, (point.saved_bytes, point.peak_bytes, point.fused_peak_bytes)),
                f"{point.seconds * 1e3:,.3f}",
                f"{point.repeated_flops / 1e9:,.2f}" if point.repeated_flops else "",
                ", ".join(best),
            )

    def _best_in(self) -> list[tuple[Point, list[str]]]:
        best = {memory: self.best(memory) for memory in ("saved", "peak")}
        return [(p, [memory for memory, found in best.items() if p in found]) for p in self.points]


def frontier(
    fn: Callable[..., Any],
    /,
    *args: Any,
    backend: BackendSpec = "auto",
    device: Device | None = None,
    capture: Capture = "auto",
    random: Randomness = "shared",
    progress: Tell = silent,
    **kwargs: Any,
) -> Frontier:
    """Cut the joint graph of `fn(*args, **kwargs)` with every partitioner and budget, and judge what comes out.

    Args:
        backend: as for `compile`; only its decompositions and its joint pass matter, nothing is compiled.
        device: what time is estimated for; None: the one of the arguments, which is measured.
        capture: as for `compile`; with "dynamo" the function runs forward once.
        random: as for `compile`.
        progress: called with a line of text before each thing that takes long.

    Raises:
        TraceError: the function is no single graph, or has no backward pass.
    """
    recipe = recipe_of(fn, backend, "default", dynamic=False, random=random)
    recipe = recipe.for_inputs([*tree_leaves((args, kwargs)), *(fn.parameters() if isinstance(fn, nn.Module) else ())])
    progress(f"{recipe.name}: tracing")
    joint = _traced(recipe, args, kwargs, capture)
    device = device or device_of(values_of(joint.gm, classify(joint.gm, joint.num_outputs)))
    partitions: dict[str, tuple[Point, Partitioner]] = {}
    for name, partition in registered_partitioners().items():
        partitions[name] = Point(name), partition
    for family, within in families(device).items():
        partitions |= {f"{family} {limit}": (Point(family, limit), within(limit)) for limit in FRACTIONS}

    def judge(name: str) -> Point:
        progress(f"{recipe.name}: {name}")
        return _judged(*partitions[name], joint, device)

    return Frontier(recipe.name, recipe.backend_name, device, list(judged_if_possible(partitions, judge)))


def _traced(recipe: Recipe, args: Sequence[Any], kwargs: dict[str, Any], capture: Capture) -> Joint:
    """The joint graph that `compile` would hand to the partitioner for such a call; nothing is compiled.

    Raises:
        TraceError: there is none, or several.
    """
    found: list[Joint] = []

    def keep(joint: GraphModule, joint_inputs: Any, /, **keywords: Any) -> tuple[GraphModule, GraphModule]:
        found.append(Joint(copy_graph(joint), joint_inputs, keywords))
        return recipe.partition(joint, joint_inputs, **keywords)

    run = get_backend("nop").fw_compiler
    backend = replace(recipe.backend, fw_compiler=run, bw_compiler=None, inference_compiler=None)
    compiled: Any = compile(
        recipe.fn, backend=backend, partition=keep, check=False, capture=capture, random=recipe.random
    )
    function_of(compiled).graphs(*args, **kwargs)
    if not found:
        raise TraceError(
            f"{recipe.name!r} has no backward pass for these inputs, so there is nothing to partition. Pass a tensor "
            "that requires gradients, with gradients enabled."
        )
    return found[-1]


def _judged(point: Point, partition: Partitioner, joint: Joint, device: Device) -> Point:
    """The same point with what a partitioner makes of a joint graph, or why it fails."""
    try:
        found = evaluate(*partition_copy(partition, joint), joint.num_outputs, {"device": device})
    except Exception as e:
        point.fail(e)
        if isinstance(e, AotkitError):
            point.problem = in_a_line(e)  # which says all
        return point
    if found.redrawn:
        return replace(point, problem=f"wrong gradients: backward draws {found.redrawn} random value(s) anew")
    numbers = ("saved_bytes", "peak_bytes", "fused_peak_bytes", "repeated_flops")
    return replace(point, seconds=found.seconds["device"], **{name: getattr(found, name) for name in numbers})
