"""The two plug-in contracts.

Names are AOTAutograd's own: the *joint* graph computes outputs and input gradients from *primals* (inputs) and
*tangents* (output gradients); a partitioner splits it into a *forward* graph, which also returns the *saved* values,
and a *backward* graph, which reads them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from torch.fx import GraphModule, Node

Boxed = Callable[[list[Any]], Sequence[Any]]  # takes a list of inputs, which it may empty


class GraphCompiler(Protocol):
    """Turn one ATen graph into a callable with the same positional inputs and the same sequence of outputs.

    The graph is the compiler's own to change. `example_inputs` are fake tensors (and symbolic integers under
    `dynamic=True`): read their shape, dtype, stride and device, not their values. No fake-tensor mode is active, so
    a compiler may create and compute on real tensors. A callable with the attribute `_boxed_call = True` takes one
    list instead, and may clear it to free its inputs early. One that is `aotkit.stages.Explained` tells what it
    launches; one with a method `launches` tells before any call how many launches from Python a call costs the host.
    """

    def __call__(
        self, gm: GraphModule, example_inputs: Sequence[Tensor], /
    ) -> Callable[..., Sequence[Tensor | None]]: ...


class Partitioner(Protocol):
    """Split the joint graph into (forward, backward).

    `joint_inputs` is `(primals, tangents)`, as fake tensors. The first `num_fwd_outputs` outputs of the joint graph
    are the function's, the others are the gradients of its primals. The forward graph returns those
    `num_fwd_outputs` values and then the saved ones; the backward graph takes the saved ones (integers first), then
    the tangents. torch's versions pass different further keywords, so accept `**kwargs`.

    What it leaves on nodes, `Graphs` show: in `meta["saved_because"]` of a saved one, the reason in a few words; in
    `meta["recompute_seconds"]` of one that backward repeats, what that should take. `joint.meta["choice_seconds"]` may
    be the CPU time of the choice; `meta["memory_limited"]` of both graphs, that memory matters more than allocations.
    """

    def __call__(
        self, joint: GraphModule, joint_inputs: Any, /, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]: ...


def always_available() -> str | None:
    """The `unavailable` of a backend that runs on any machine."""
    return None


Decompositions = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True)
class Backend:
    """A forward compiler, and what else the core should know about it.

    Attributes:
        fw_compiler: compiles the forward graph.
        bw_compiler: compiles the backward graph; None: the forward compiler does both.
        inference_compiler: compiles the graph of a call without gradients; None: the forward compiler does.
        decompositions: ATen operator -> function that rewrites it into simpler operators while tracing; or a
            function without arguments that returns such a table. One may return NotImplemented: the operator stays.
        joint_pass: changes the joint graph, or one without gradients, in place: `joint_pass(gm, (inputs, tangents))`.
        reuses_saved: whether backward graphs may write into saved values that nothing else reads; else they get copies.
        writes_inputs: whether compiled graphs may write, by `copy_` at their end, to inputs that the function changes.
        fixed_sizes: whether it compiles graphs of fixed sizes only. Then `dynamic=True` alone leaves sizes open.
        declines: why it cannot take an operation, or None. Where it is given, compilers get graphs of what they take.
        load: makes a function of what a compiled graph's `data()` gave elsewhere: see `docs/write_a_backend.md`.
        unavailable: why this machine cannot run the backend, or None if it can.
        horizontal: whether independent regions that read the same tensor should be one, with the views that they read.
        chunks: gives a backend that is better, where it is available, at graphs of what is computed in chunks of rows.
    """

    fw_compiler: GraphCompiler
    bw_compiler: GraphCompiler | None = None
    inference_compiler: GraphCompiler | None = None
    decompositions: Decompositions | Callable[[], Decompositions] = field(default_factory=dict, hash=False)
    joint_pass: Callable[[GraphModule, Any], None] | None = None
    reuses_saved: bool = False
    writes_inputs: bool = False
    fixed_sizes: bool = False
    declines: Callable[[Node], str | None] | None = None
    load: Callable[[Mapping[str, Any], Mapping[str, Path]], Boxed] | None = None
    unavailable: Callable[[], str | None] = always_available
    horizontal: bool = False
    chunks: Callable[[], "Backend"] | None = None
