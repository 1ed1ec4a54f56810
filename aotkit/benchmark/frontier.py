"""`frontier`: what each way to partition one function costs in memory and time, by the graphs that come out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule

from aotkit.benchmark.evaluation import evaluate
from aotkit.benchmark.frontier_report import Frontier, Point
from aotkit.benchmark.outcome import in_a_line, judged_if_possible
from aotkit.benchmark.partitioners import families, registered_partitioners
from aotkit.compiled import Capture, function_of
from aotkit.compiler import compile
from aotkit.errors import AotkitError, BudgetError, TraceError
from aotkit.interfaces import Partitioner
from aotkit.joint import Joint, classify, partition_copy
from aotkit.partitioners.rematerialization.devices import Device, device_of
from aotkit.partitioners.rematerialization.values import values_of
from aotkit.passes import copy_graph
from aotkit.recipe import Randomness, Recipe, recipe_of
from aotkit.registry import BackendSpec, get_backend

FRACTIONS = tuple(tenths / 10 for tenths in range(10, -1, -1))


def frontier(
    fn: Callable[..., Any],
    /,
    *args: Any,
    backend: BackendSpec = "auto",
    device: Device | None = None,
    capture: Capture = "auto",
    random: Randomness = "shared",
    progress: Callable[[str], None] | None = None,
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
    tell = progress or (lambda text: None)
    recipe = recipe_of(fn, backend, "default", dynamic=False, random=random)
    tell(f"{recipe.name}: tracing")
    joint = traced(recipe, args, kwargs, capture)
    device = device or device_of(values_of(joint.gm, classify(joint.gm, joint.num_outputs)))
    found = Frontier(recipe.name, recipe.backend_name, device)
    candidates = [(Point(name), partition) for name, partition in registered_partitioners().items()]
    for family, within in families(device).items():
        candidates += [(Point(family, fraction), within(fraction)) for fraction in FRACTIONS]
    by_label = {point.label: (point, partition) for point, partition in candidates}

    def judge(label: str) -> Point:
        tell(f"{recipe.name}: {label}")
        return judged(*by_label[label], joint, device)

    found.points += judged_if_possible(by_label, judge)
    return found


def traced(recipe: Recipe, args: Sequence[Any], kwargs: dict[str, Any], capture: Capture) -> Joint:
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


def judged(point: Point, partition: Partitioner, joint: Joint, device: Device) -> Point:
    """The same point with what a partitioner makes of a joint graph, or why it fails."""
    try:
        found = evaluate(*partition_copy(partition, joint), joint.num_outputs, {"device": device})
    except AotkitError as e:
        return replace(point, problem=in_a_line(e), impossible=isinstance(e, BudgetError))
    except Exception as e:
        return replace(point, problem=f"{type(e).__name__}: {in_a_line(e)}")
    if found.redrawn:
        return replace(point, problem=f"wrong gradients: backward draws {found.redrawn} random value(s) anew")
    return replace(
        point,
        saved_bytes=found.saved_bytes,
        peak_bytes=found.peak_bytes,
        fused_peak_bytes=found.fused_peak_bytes,
        seconds=found.seconds["device"],
        repeated_flops=found.repeated_flops,
    )
