"""Mistakes that a first call does not show: stale values, shapes, draws and code."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.interfaces import GraphCompiler
from aotkit.testing.faults.planting import Run, Subject, own
from aotkit.testing.faults.rewriting import calls

faults = Subject("calls")


@faults.run("gelu_mlp")
def weight_packed_once(run: Run) -> Run:
    """A weight is packed for the first call and never again, although it changes."""
    packed: list[Tensor] = []

    def call(x: Tensor, w: Tensor, v: Tensor) -> list[Any]:
        packed.append(w.detach().clone())
        return list(run(x, packed[0], v))

    return call


@faults.run("gelu_mlp", "backward")
def weight_packed_once_for_the_backward_pass(run: Run) -> Run:
    """The backward pass goes on reading a weight as it was at the first call."""
    packed: list[Tensor] = []

    def call(x: Tensor, w: Tensor, *others: Any) -> list[Any]:
        packed.append(w.detach().clone())
        return list(run(x, packed[0], *others))

    return call


@faults.run("lstm_cell")
def result_of_the_call_before(run: Run) -> Run:
    """From the second call on, the first output is the one of the call before."""
    previous: list[Tensor] = []

    def call(*arguments: Any) -> list[Any]:
        output, *others = run(*arguments)
        previous.append(output.detach().clone())
        return [previous[max(len(previous) - 2, 0)].clone(), *others]

    return call


@faults.run("activations")
def replay_of_a_recording(run: Run) -> Run:
    """The third call replays the second one, with its inputs, as a recorded CUDA graph would."""
    seen: list[Sequence[Any]] = []

    def call(*arguments: Any) -> list[Any]:
        seen.append(arguments)
        return list(run(*seen[min(len(seen) - 1, 1)]))

    return call


def _clipped(x: Tensor, limit: Tensor) -> Tensor:
    return torch.where(x > limit, limit, x) * 2


def _below_first(new: Any) -> tuple[Tensor, Tensor]:
    return new.normal(4, 5), torch.full((), 100.0 if new.seed == 0 else 0.5)


@faults.run(own(_clipped, _below_first))
def branch_of_the_first_values(run: Run) -> Run:
    """What happened to be all false at the first call is taken to be false always."""
    nothing_clipped: list[bool] = []

    def call(x: Tensor, limit: Tensor) -> list[Any]:
        nothing_clipped.append(not bool((x > limit).any()))
        return list(run(x, torch.full_like(limit, torch.inf) if nothing_clipped[0] else limit))

    return call


@faults.run("noise")
def draws_remembered(run: Run) -> Run:
    """Each call uses the numbers that were drawn for the first one."""
    first: list[Tensor] = []

    def call(*arguments: Any) -> list[Any]:
        begin = torch.get_rng_state()
        results = list(run(*arguments))
        end = torch.get_rng_state()
        torch.set_rng_state(first[0] if first else begin)
        results = list(run(*arguments))
        torch.set_rng_state(end)
        first.append(begin)
        return results

    return call


@faults.run("layer_norm")
def statistics_of_the_first_call(run: Run) -> Run:
    """Mean and deviation, which only the backward pass reads, are saved at the first call only."""
    first: list[list[Any]] = []

    def call(*arguments: Any) -> list[Any]:
        results = list(run(*arguments))
        first.append([r.clone() for r in results[-2:]])
        return [*results[:-2], *first[0]]

    return call


def _caching(compiler: GraphCompiler, key: Any) -> GraphCompiler:
    """Compile only graphs whose key is new."""
    cache: dict[Any, Run] = {}

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
        return cache.setdefault(key(gm), compiler(gm, example_inputs))

    return compile_graph


def _operators(gm: GraphModule) -> tuple[Any, ...]:
    return tuple(node.target for node in gm.graph.nodes if node.op == "call_function")


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x * scale


@faults.compiler(own(_scaled, lambda new: (new.normal(4), 1.0 + new.seed)))
def stale_entry_for_another_constant(compiler: GraphCompiler) -> GraphCompiler:
    """The cache of compiled graphs does not look at constants."""
    return _caching(compiler, _operators)


def _mean_by_hand(x: Tensor) -> Tensor:
    return x.sum(0) / x.shape[0]


@faults.compiler(own(_mean_by_hand, lambda new: (new.normal(4 + new.seed, 3),)))
def stale_entry_for_another_shape(compiler: GraphCompiler) -> GraphCompiler:
    """The cache of compiled graphs does not look at shapes."""
    return _caching(compiler, _operators)


@faults.graph(own(_mean_by_hand, lambda new: (new.normal(4 + new.seed, 3),)), dynamic=True)
def stale_size(gm: GraphModule) -> None:
    """A division by a size that is left open is always by the first call's."""
    sizes: list[int] = []

    def first_size(size: int) -> int:
        sizes.append(size)
        return sizes[0]

    (division,) = calls(gm, torch.ops.aten.div)
    with gm.graph.inserting_before(division):
        division.update_arg(1, gm.graph.call_function(first_size, (division.args[1],)))
