"""Requirements on a partitioner: the graphs that it returns, next to the joint graph that it was given."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from aotkit.errors import CompileError
from aotkit.passes import copy_graph, is_random
from aotkit.registry import get_backend
from aotkit.testing.conformance.calls import inputs, mlp, normalized, results
from aotkit.testing.conformance.compare import assert_each, assert_equal
from aotkit.testing.conformance.contract import Run, run_once, watched
from aotkit.testing.conformance.requirements import Requirements, Subject

CUT = Requirements("cut")
RANDOM = Requirements("random")


@dataclass
class Split:
    """One joint graph, what the partitioner made of it, and a run of both parts.

    Attributes:
        forward, backward: what the partitioner returned.
        num_outputs: how many outputs of the forward graph are not saved values.
        runs: of the forward graph, with saved values among its results, and of the backward graph.
        error: raised by one of the runs.
    """

    joint: GraphModule
    forward: GraphModule
    backward: GraphModule
    num_outputs: int
    num_tangents: int
    runs: list[Run]
    error: CompileError | None = None


def split(subject: Subject, function: Callable[..., Any], *args: Tensor, dynamic: bool = False) -> Split:
    """Compile `function` with the partitioner, and run both graphs once, as they are."""
    found: list[Split] = []
    runs: list[Run] = []
    partition = subject.plug_in()

    def keep(joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any) -> Any:
        given = copy_graph(joint)
        parts = partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        # Copies: the core mends some of what a partitioner leaves.
        forward, backward = (copy_graph(p) if isinstance(p, GraphModule) else p for p in parts)
        found.append(Split(given, forward, backward, num_fwd_outputs, len(joint_inputs[1]), runs))
        return parts

    keep.__name__ = subject.name
    backend = watched(get_backend("nop"), "nop", runs)
    compiled = subject.compile(function, backend=backend, partition=keep, dynamic=dynamic)
    try:
        run_once(compiled, args)
    except CompileError as e:
        if not found:
            raise
        found[0].error = e
    assert len(found) == 1, f"the partitioner was called {len(found)} times for one function"
    return found[0]


FUNCTIONS: list[Callable[..., Any]] = [
    mlp,
    normalized,
    lambda x, w: (x @ w).cos().mean(0) * x.shape[0] + x.reshape(-1).sum(),  # gradients depend on sizes
    lambda x, w: (x.sin() @ w, w.detach().exp(), x.cos().sum()),  # the second has no gradient
    lambda x, w: x @ w,
    lambda x, w: x + w.sum(),
]
RANDOM_FUNCTIONS: list[Callable[..., Any]] = [
    lambda x, w: F.dropout(F.dropout(x.sin(), 0.3) @ w, 0.4).cos(),
    lambda x, w: (x * torch.randn_like(x)).sin() @ w * torch.rand(4, device=x.device).exp(),
]


def _splits(subject: Subject, functions: Sequence[Callable[..., Any]] = FUNCTIONS) -> list[Split]:
    return _cached_splits(subject, subject.plug_in(), tuple(functions))


@functools.lru_cache(maxsize=2)
def _cached_splits(subject: Subject, partition: Any, functions: tuple[Callable[..., Any], ...]) -> list[Split]:
    """By the partitioner itself, since a name may be registered anew."""
    return [split(subject, f, *inputs(subject), dynamic=dynamic) for f in functions for dynamic in (False, True)]


def _names(gm: GraphModule) -> list[str]:
    return [n.name for n in gm.graph.find_nodes(op="placeholder")]


@CUT
def returns_two_graphs(subject: Subject) -> None:
    """A partitioner returns a tuple of two well-formed GraphModules, (forward, backward)."""
    for s in _splits(subject):
        for gm in (s.forward, s.backward):
            assert isinstance(gm, GraphModule), f"it returned a {type(gm).__name__}"
            gm.graph.lint()


@CUT
def forward_takes_the_primals(subject: Subject) -> None:
    """The forward graph takes the primals, all of them, in the order of the joint graph; no tangent."""
    for s in _splits(subject):
        want = _names(s.joint)[: len(_names(s.joint)) - s.num_tangents]
        assert _names(s.forward) == want, f"the forward graph takes {_names(s.forward)}; the primals are {want}"


@CUT
def forward_returns_the_outputs(subject: Subject) -> None:
    """The forward graph returns the joint graph's outputs first, in its order."""
    for s in _splits(subject):
        want = _joint_results(s)[: s.num_outputs]
        assert_each(s.runs[0].results[: s.num_outputs], want, "output of the forward graph")


@CUT
def backward_computes_the_gradients(subject: Subject) -> None:
    """The backward graph returns the joint graph's gradients, in its order, None where that has None."""
    for s in _splits(subject):
        want = _joint_results(s)[s.num_outputs :]
        assert_each(s.runs[1].results, want, "gradient of the backward graph")


@CUT
def saved_values_arrive_in_order(subject: Subject) -> None:
    """The backward graph takes the saved values in the forward graph's order, integers first, then the tangents."""
    for s in _splits(subject):
        integers = [v for v in _saved_nodes(s) if _is_symbol(v)]
        tensors = [v for v in _saved_nodes(s) if not _is_symbol(v)]
        want = [n.name for n in integers + tensors] + _names(s.joint)[len(_names(s.joint)) - s.num_tangents :]
        got = _names(s.backward)
        assert got == want, f"the backward graph takes {got}; saved values, then tangents are {want}"


@CUT
def every_saved_value_is_read(subject: Subject) -> None:
    """The backward graph reads each saved value: none stays in memory for nothing."""
    for s in _splits(subject):
        saved = s.backward.graph.find_nodes(op="placeholder")[: len(_saved_nodes(s))]
        dead = [n.name for n in saved if not n.users]
        assert not dead, f"saved, but not read by the backward graph: {', '.join(dead)}"


@CUT
def saves_nothing_twice(subject: Subject) -> None:
    """No value is saved twice."""
    for s in _splits(subject):
        names = [n.name for n in _saved_nodes(s)]
        twice = sorted({n for n in names if names.count(n) > 1})
        assert not twice, f"saved more than once: {', '.join(twice)}"


@CUT
def nothing_to_save(subject: Subject) -> None:
    """Where gradients are the tangents themselves, no tensor is saved."""
    s = split(subject, lambda x, y: x + y, *(inputs(subject)[0] for _ in range(2)))
    assert not _saved_nodes(s), f"the backward pass of an addition reads no value, but {len(_saved_nodes(s))} are saved"


@RANDOM
def drawn_once(subject: Subject) -> None:
    """Each random operator of the joint graph runs in one of the graphs, once: a second draw gives other numbers."""
    for s in _splits(subject, RANDOM_FUNCTIONS):
        want, forward, backward = (_draws(gm) for gm in (s.joint, s.forward, s.backward))
        repeated = sorted(set(forward) & set(backward))
        assert not repeated, f"random operators of the forward graph run again in the backward graph: {repeated}"
        got = len(forward) + len(backward)
        assert got == len(want), f"the joint graph draws {len(want)} times, both parts together {got} times"


@RANDOM
def drawn_in_the_same_order(subject: Subject) -> None:
    """Random operators keep the order of the joint graph, so that a seed gives eager's numbers."""
    for function in RANDOM_FUNCTIONS:
        compiled, args = subject.compile(function), inputs(subject)
        torch.manual_seed(7)
        want = results(function, args)
        torch.manual_seed(7)
        assert_equal(results(compiled, args), want, "with the same seed")


def _joint_results(s: Split) -> list[Any]:
    if s.error is not None:
        raise s.error
    primals, saved_and_tangents = (run.before for run in s.runs)
    tangents = saved_and_tangents[len(saved_and_tangents) - s.num_tangents :]
    return list(Interpreter(s.joint).run(*primals, *tangents))


def _saved_nodes(s: Split) -> list[Node]:
    return list(s.forward.graph.output_node().args[0][s.num_outputs :])  # type: ignore[index, arg-type]


def _is_symbol(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int)


def _draws(gm: GraphModule) -> list[str]:
    return [n.name for n in gm.graph.nodes if is_random(n)]
