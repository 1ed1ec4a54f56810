"""Mistakes that a first call does not show: stale values, shapes, draws and code."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from aotkit.interfaces import GraphCompiler
from aotkit.testing.case import Case
from aotkit.testing.faults import rewriting
from aotkit.testing.faults.planting import Run, Subject

faults = Subject("calls")


@faults.run("gelu_mlp")
def weight_packed_once(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """A weight is packed for the first call and never again, although it changes."""
    x, w, *others = arguments
    kept.append(w.detach().clone())
    return run(x, kept[0], *others)


@faults.run("gelu_mlp", "backward")
def weight_packed_once_for_the_backward_pass(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """The backward pass goes on reading a weight as it was at the first call."""
    return weight_packed_once(run, arguments, kept)


@faults.run("lstm_cell")
def result_of_the_call_before(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """From the second call on, the first output is the one of the call before."""
    output, *others = run(*arguments)
    kept.append(output.detach().clone())
    return [kept[max(len(kept) - 2, 0)].clone(), *others]


@faults.run("activations")
def replay_of_a_recording(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """The third call replays the second one, with its inputs, as a recorded CUDA graph would."""
    kept.append(arguments)
    return run(*kept[min(len(kept) - 1, 1)])


clipped = Case.of(
    "clipped",
    lambda x, limit: torch.where(x > limit, limit, x) * 2,
    lambda new: (new.normal(4, 5), torch.full((), 100.0 if new.seed == 0 else 0.5)),
)


@faults.run(clipped)
def branch_of_the_first_values(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """What happened to be all false at the first call is taken to be false always."""
    x, limit = arguments
    kept.append(not bool((x > limit).any()))
    return run(x, torch.full_like(limit, torch.inf) if kept[0] else limit)


@faults.run("noise")
def draws_remembered(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """Each call uses the numbers that were drawn for the first one."""
    kept.append(torch.get_rng_state())
    run(*arguments)
    end = torch.get_rng_state()
    torch.set_rng_state(kept[0])
    results = run(*arguments)
    torch.set_rng_state(end)
    return results


@faults.run("layer_norm")
def statistics_of_the_first_call(run: Run, arguments: list[Any], kept: list[Any]) -> Sequence[Any]:
    """Mean and deviation, which only the backward pass reads, are saved at the first call only."""
    results = run(*arguments)
    kept.append([r.clone() for r in results[-2:]])
    return [*results[:-2], *kept[0]]


@faults.compiler(Case.of("scaled", lambda x, scale: x * scale, lambda new: (new.normal(4), 1.0 + new.seed)))
def stale_entry_for_another_constant(compiler: GraphCompiler) -> GraphCompiler:
    """The cache of compiled graphs does not look at constants."""
    cache: dict[tuple[Any, ...], Run] = {}

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Run:
        operators = tuple(node.target for node in gm.graph.nodes if node.op == "call_function")
        return cache.setdefault(operators, compiler(gm, example_inputs))

    return compile_graph


mean = Case.of("mean_by_hand", lambda x: x.sum(0) / x.shape[0], lambda new: (new.normal(4 + new.seed, 3),))


@faults.compiler(mean)
def stale_entry_for_another_shape(compiler: GraphCompiler) -> GraphCompiler:
    """The cache of compiled graphs does not look at shapes."""
    return stale_entry_for_another_constant(compiler)


@faults.graph(mean, dynamic=True)
def stale_size(gm: GraphModule) -> None:
    """A division by a size that is left open is always by the first call's."""
    sizes: list[int] = []

    def first_size(size: int) -> int:
        sizes.append(size)
        return sizes[0]

    (division,) = rewriting.calls(gm, torch.ops.aten.div)
    with gm.graph.inserting_before(division):
        division.update_arg(1, gm.graph.call_function(first_size, (division.args[1],)))
