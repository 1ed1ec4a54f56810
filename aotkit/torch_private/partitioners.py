"""functorch's partitioners, and the functions that they consist of."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module

_patching = threading.RLock()
FORCED = {
    "force_save_collectives": "collective communication",
    "force_save_effectful_ops": "side effect",
    "force_save_bw_mutation_src": "the backward pass changes its input in place",
}


@functools.cache
def _torchs() -> Any:
    """The module, whose signatures differ between torch's versions. It imports Inductor: a second."""
    from torch._functorch import partitioners

    return partitioners


@functools.cache
def _originals() -> tuple[Any, Any]:
    """What stands there before others are put in its place."""
    return _torchs()._extract_graph_with_inputs_outputs, _torchs().choose_saved_values_set


def extract(*args: Any, **keywords: Any) -> Any:
    """torch's function for a part of a joint graph."""
    return _originals()[0](*args, **keywords)


def choose_saved_values(*args: Any, **keywords: Any) -> Any:
    """torch's `choose_saved_values_set`."""
    return _originals()[1](*args, **keywords)


def must_be_in_backward(node: Node) -> bool:
    """Whether a node belongs to the backward graph, whatever reads it."""
    return bool(_torchs()._must_be_in_backward(node))


def must_be_in_forward(node: Node) -> bool:
    """Whether a node belongs to the forward graph, whatever reads it."""
    return bool(_torchs()._must_be_in_forward(node))


def is_of_backward(node: Node) -> bool:
    """Whether a node was traced in the backward pass."""
    return bool(_torchs()._has_tag_is_backward(node))


def is_tangent(node: Node) -> bool:
    """Whether an input of a joint graph is a tangent."""
    return bool(_torchs()._is_tangent(node))


def input_for_output(node: Node, known: Any) -> Node | None:
    """The input that a copy at the end of a graph writes into."""
    return _torchs()._find_input_for_invalid_output(node, known)  # type: ignore[no-any-return]


def tag_forced(joint: GraphModule, how: str) -> None:
    """Have torch tag the nodes that must be saved, in one of the ways of `FORCED`."""
    getattr(_torchs(), how)(joint)


def must_recompute(node: Node) -> bool:
    """Whether `torch.utils.checkpoint` inside the function asked to recompute this node."""
    return bool(_torchs().must_recompute(node))


def is_unique(node: Node) -> bool:
    """Whether an operator gives something else each time, whatever its arguments."""
    from torch._functorch.compile_utils import get_aten_target

    return get_aten_target(node) in _unique()


@functools.cache
def _unique() -> set[Any]:
    from torch._functorch.compile_utils import rand_ops

    return {*rand_ops, torch.ops.aten.empty}  # memory that is not initialised is as good as random


def changes_in_place(node: Node) -> bool:
    """Whether an operator changes a tensor."""
    from torch._inductor.pattern_matcher import is_mutation_op

    return bool(is_mutation_op(node))


def draws_matter() -> bool:
    """Whether draws that nobody reads are no dead code: to torch, a backend need not draw eager's numbers."""
    if not torch._guards.TracingContext.try_get():
        return True
    from torch._inductor import config

    return bool(config.fallback_random)


def complete_checkpoint_tags(joint: GraphModule) -> None:
    """Have torch complete what `torch.utils.checkpoint` noted on the nodes."""
    if _torchs().has_recomputable_ops(joint):
        _torchs().cleanup_recompute_tags(joint, is_default_partition=False)


def classified(joint: GraphModule, num_fwd_outputs: int, extract: Callable[..., Any]) -> Any:
    """What torch knows of the nodes of a joint graph.

    Args:
        extract: in place of torch's function for a part of the graph.
    """
    with extracting_by(extract):
        return _torchs().classify_nodes(joint, [], num_fwd_outputs)


def split_modules(
    joint: GraphModule,
    saved: Sequence[Node],
    symbols: Sequence[Node],
    num_fwd_outputs: int,
    extract: Callable[..., Any],
) -> tuple[GraphModule, GraphModule]:
    """(forward, backward) with these values saved, and without code.

    Args:
        symbols: saved symbolic numbers.
        extract: in place of torch's function for a part of the graph.
    """
    is_opaque = getattr(_torchs(), "is_opaque_node", None)  # torch 2.13
    opaque = [node for node in saved if is_opaque and is_opaque(node)]
    values = [node for node in saved if node not in opaque]
    more = {"saved_opaque_nodes": opaque} if is_opaque else {}
    with extracting_by(extract), _use_lazy_graph_module(True):  # torch generates code after each of its passes
        return _torchs()._extract_fwd_bwd_modules(  # type: ignore[no-any-return]
            joint, values, saved_sym_nodes=symbols, num_fwd_outputs=num_fwd_outputs, **more
        )


def replay_draws(
    joint: GraphModule, forward: GraphModule, backward: GraphModule, num_symbols: int
) -> tuple[GraphModule, GraphModule]:
    """Have draws that `torch.utils.checkpoint` repeats give the same numbers in the backward graph."""
    if _torchs().has_recomputable_rng_ops(joint):
        forward, backward = _torchs().functionalize_rng_ops(joint, forward, backward, num_symbols)
    return forward, backward


def thread_generators(gm: GraphModule, *, is_backward: bool) -> GraphModule:
    """Hand the states of generators through a graph, where higher-order operators draw."""
    return _torchs().thread_graphsafe_rng_from_hops(gm, is_backward=is_backward)  # type: ignore[no-any-return]


@contextmanager
def extracting_by(extract_part: Callable[..., Any]) -> Iterator[None]:
    """For the time of one call, torch's functions in this thread extract parts with this one."""
    thread = threading.get_ident()

    def extract_here(*args: Any, **keywords: Any) -> Any:
        return (extract_part if threading.get_ident() == thread else extract)(*args, **keywords)

    with _patched(_extract_graph_with_inputs_outputs=extract_here):
        yield


@contextmanager
def recomputing(operators: Collection[Any]) -> Iterator[None]:
    """For the time of one call, torch's min-cut takes these operators for fusible ones that it may compute again.

    Its own list has none but torch's. Other threads that partition meanwhile get them too.
    """
    lists = _torchs().get_default_op_list
    packets = [operator.overloadpacket for operator in operators]

    def longer() -> Any:
        known = lists()
        more = {name: getattr(known, name).union(packets) for name in ("fusible_ops", "recomputable_ops")}
        return dataclasses.replace(known, **more)

    with _patched(get_default_op_list=longer):
        yield


@contextmanager
def mended(merge_equal: Callable[..., Any], choose_saved: Callable[..., Any]) -> Iterator[Any]:
    """For the time of one call, torch's partitioners use these functions in two places; gives these partitioners.

    Another thread that partitions meanwhile gets them too, which can only save it from the same mistakes.
    """
    with (
        _patched(fx_graph_cse=merge_equal, choose_saved_values_set=choose_saved),
        _use_lazy_graph_module(True),  # torch generates code after each of its passes
    ):
        yield _torchs()


@contextmanager
def _patched(**functions: Hashable) -> Iterator[None]:
    with _patching:
        _originals()
        before = {name: getattr(_torchs(), name) for name in functions}
        vars(_torchs()).update(functions)
        try:
            yield
        finally:
            vars(_torchs()).update(before)
