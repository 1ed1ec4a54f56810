"""Partitioners on models of real sizes: what each saves, the memory and time of its graphs, and how long it takes."""

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from aotkit.benchmark.capture import joint_graph
from aotkit.benchmark.evaluation import evaluate
from aotkit.benchmark.kernels import DEVICES
from aotkit.benchmark.models import MODELS
from aotkit.benchmark.outcome import judged_if_possible
from aotkit.benchmark.partitioners_report import PartitionersReport, Row
from aotkit.benchmark.transformers_models import single_sequences
from aotkit.interfaces import Decompositions, Partitioner
from aotkit.joint import Joint, partition_copy
from aotkit.partitioners.rematerialization.devices import Device
from aotkit.recipe import Randomness
from aotkit.registry import get_partitioner, partitioner_status
from aotkit.torch_private.aotautograd import memory_budget
from aotkit.torch_private.fake_tensors import fake_tensors

FRACTIONS = {
    "min_cut budget": (0.9, 0.7, 0.5, 0.3, 0.1, 0.0),
    "nx_min_cut budget": (1.0, 0.9, 0.7, 0.5, 0.3, 0.1),
    "nx_min_cut peak": (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3),
}


def all_partitioners() -> dict[str, Partitioner]:
    """Name of a row -> partitioner: all that are registered and can be had, and each family under budgets."""
    rows = registered_partitioners()
    for family, within in families(DEVICES["A100"]).items():
        rows |= {f"{family} {fraction}": within(fraction) for fraction in FRACTIONS[family]}
    return rows


def registered_partitioners() -> dict[str, Partitioner]:
    """Name -> partitioner, of all that are registered and can be had."""
    return {name: get_partitioner(name) for name, problem in partitioner_status().items() if problem is None}


def families(device: Device) -> dict[str, Callable[[float], Partitioner]]:
    """Name -> from a fraction of what the family uses without a limit, the partitioner that keeps within that.

    Args:
        device: what ours estimate time for.
    """
    from aotkit.partitioners.nx_min_cut import budget, peak

    return {
        "min_cut budget": min_cut_within,
        "nx_min_cut budget": lambda fraction: budget(fraction, device),
        "nx_min_cut peak": lambda fraction: peak(fraction, device),
    }


def min_cut_within(fraction: float) -> Partitioner:
    """torch's min-cut under `torch._functorch.config.activation_memory_budget`."""

    def partition(
        joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        with memory_budget(fraction):
            return get_partitioner("min_cut")(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)

    return partition


def decomposition_table(name: str) -> Decompositions:
    """ "inductor": what the backend `inductor` decomposes; "none": nothing."""
    if name == "none":
        return {}
    from aotkit.backends.inductor_graphs.compiling import decompositions

    return decompositions()


def compare(
    models: Iterable[str],
    partitioners: Mapping[str, Partitioner],
    *,
    decompositions: str = "inductor",
    random: Randomness = "shared",
    progress: Callable[[str], None] | None = None,
) -> PartitionersReport:
    """Cut the joint graph of each model with each partitioner, and judge the graphs that come out.

    Args:
        models: keys of `MODELS`.
        partitioners: by the names of their rows.
        decompositions: "inductor" or "none".
        random: as for `compile`.
        progress: called with a line of text before each thing that takes long.
    """
    tell = progress or (lambda text: None)
    table = decomposition_table(decompositions)
    report = PartitionersReport(torch.__version__, decompositions, random)
    for model in models:
        tell(f"{model}: tracing")
        try:
            joint = joint_of(model, table, random)
        except ImportError as e:
            report.rows.append(Row(model, problem=f"needs transformers 5: pip install 'transformers>=5' ({e})"))
            continue

        def judge(name: str, model: str = model, joint: Joint = joint) -> Row:
            tell(f"{model}: {name}")
            return judged(Row(model, name), partitioners[name], joint)

        report.rows += judged_if_possible(partitioners, judge)
    return report


def joint_of(model: str, decompositions: Decompositions, random: Randomness = "shared") -> Joint:
    """The joint graph of one of `MODELS`, which takes no memory for its tensors.

    Raises:
        ImportError: transformers is missing or too old for it.
    """
    with fake_tensors():
        module, inputs = MODELS[model]()
    with single_sequences():
        return joint_graph(module.train(), inputs, decompositions=decompositions, random=random)


def judged(row: Row, partition: Partitioner, joint: Joint) -> Row:
    """Fill a row: what a partitioner makes of a joint graph, or why it fails."""

    def timed(gm: GraphModule, *args: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
        gc.collect()  # what others have left behind is not its work
        start = time.process_time()
        parts = partition(gm, *args, **keywords)
        row.seconds = time.process_time() - start
        row.choice_seconds = gm.meta.get("choice_seconds")
        return parts

    try:
        forward, backward = partition_copy(timed, joint)
        row.nodes = len(joint.gm.graph.nodes)
        row.evaluation = evaluate(forward, backward, joint.num_outputs)
    except Exception as e:
        row.fail(e)
    return row
