"""Hand one graph to a compiler or a partitioner, and compare what becomes of it with the reference."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.checking import Baseline, Budget, CheckReport, Plan, at_once, checker, run_on_copies
from aotkit.culprit.parts import Part, Reference, input_names
from aotkit.interfaces import GraphCompiler, Partitioner
from aotkit.joint import partition_alone, tangents_of
from aotkit.passes import copy_graph, generators_of
from aotkit.random import random_state, set_random_states
from aotkit.stages import compile_with_chunks
from aotkit.torch_private.aotautograd import compile_alone
from aotkit.torch_private.switches import without_autocast


def replay(
    gm: GraphModule, inputs: Sequence[Tensor], compiler: GraphCompiler, limit: Budget | None = None
) -> CheckReport:
    """Compile one graph, and compare what it computes with its operators run one by one; the check is aotkit's own.

    Random operators draw the same numbers in both. The graph is left as it is. How results are laid out is up to the
    compiler: they may be of the middle of a graph.

    Args:
        limit: time of which the check takes its own.
    """
    with as_graphs_run():
        with random_state():
            compile_graph = functools.partial(compile_with_chunks, None, "the compiler", compiler)
            run = compile_alone(compile_graph, copy_graph(gm), inputs)

        def compiled(tensors: list[Tensor]) -> Any:
            return list(run(tensors) if getattr(run, "_boxed_call", False) else run(*tensors))

        def whole(tensors: list[Tensor]) -> Any:
            return list(Reference(gm).run(*tensors))

        return compared("the compiled graph", gm, inputs, compiled, whole, limit)


def replay_partition(
    joint: GraphModule,
    inputs: Sequence[Tensor],
    partition: Partitioner,
    num_fwd_outputs: int,
    limit: Budget | None = None,
) -> CheckReport:
    """Partition one joint graph, and compare what the two parts compute with the whole; the check is aotkit's own.

    All three are run operator by operator. Random operators draw the same numbers. The graph is left as it is.

    Args:
        inputs: primals, then tangents.
        num_fwd_outputs: how many of the graph's outputs are the function's; the others are gradients.
        limit: time of which the check takes its own.
    """
    num_primals = len(inputs) - len(tangents_of(joint))
    with as_graphs_run():
        with random_state():
            forward, backward = partition_alone(partition, copy_graph(joint), inputs, num_fwd_outputs)

        def cut(tensors: list[Tensor]) -> list[Any]:
            results = Reference(forward).run(*tensors[:num_primals])
            gradients = Reference(backward).run(*results[num_fwd_outputs:], *tensors[num_primals:])
            return _apart([*results[:num_fwd_outputs], *gradients])

        def whole(tensors: list[Tensor]) -> list[Any]:
            return _apart(Reference(joint).run(*tensors))

        return compared("the partition", joint, inputs, cut, whole, limit)


def compared(
    subject: str,
    gm: GraphModule,
    inputs: Sequence[Tensor],
    compiled: Callable[[list[Tensor]], Any],
    whole: Callable[[list[Tensor]], Any],
    limit: Budget | None,
) -> CheckReport:
    """The check of what was made of a graph, which `compiled` runs; `whole` runs the graph itself."""
    plan = Plan(generators_of(gm))
    want = run_on_copies(at_once(whole), inputs, plan)
    budget = limit or Budget(None)
    baseline = Baseline(input_names(gm), at_once(whole), inputs, want, plan, layouts=False, budget=budget)
    return checker.check(subject, at_once(compiled), baseline)


def values_of(part: Part, nodes: Iterable[Node], keep: Callable[[Any], Any] = lambda value: value) -> dict[Node, Any]:
    """The reference's values of nodes, or what is kept of them."""
    reference = Reference(part.gm, nodes, keep)
    with as_graphs_run(part.random):
        plan = Plan(generators_of(part.gm))
        run_on_copies(at_once(lambda tensors: reference.run(*tensors)), part.inputs, plan)
    return reference.values


@contextmanager
def as_graphs_run(random: Sequence[Tensor] = ()) -> Iterator[None]:
    """Without autograd and autocast, which graphs have in them; from these states of the random generators, if any."""
    with random_state(), without_autocast(), torch.no_grad():
        if random:
            set_random_states(random)
        yield


def _apart(results: Sequence[Any]) -> list[Any]:
    """Each in memory of its own: what shares memory is up to AOTAutograd."""
    return [value.clone() if isinstance(value, Tensor) else value for value in results]
