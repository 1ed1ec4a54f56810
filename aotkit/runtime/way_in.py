"""A short way into compiled graphs, for the plain case.

AOTAutograd's own wrappers prepare for aliased and mutated tensors, subclasses, effects and symbolic sizes on each call.
Where `why_not_lean` finds none of these, this module does the little that is left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.fx import GraphModule

from aotkit.interfaces import Boxed
from aotkit.runtime.autograd_node import BackwardCalls, Gradients, Layout, differentiable
from aotkit.runtime.backward import run_watched, unused_gradients
from aotkit.torch_private import native
from aotkit.torch_private.aotautograd_metadata import Compiled, why_not_lean, written_inputs
from aotkit.torch_private.autograd import set_grad_enabled
from aotkit.torch_private.switches import DisableAutocast, is_autocast_on


@dataclass
class CompiledGraphs:
    """What the compilers made of the graphs of one function.

    Attributes:
        forward: takes a list of the inputs, which it may empty; returns outputs, then saved values.
        backward: takes a list of saved values and tangents, which it may empty; returns gradients.
        forward_graph, backward_graph: what they were made from.
    """

    forward: Boxed
    forward_graph: GraphModule
    backward: Boxed | None = None
    backward_graph: GraphModule | None = None

    def modules(self) -> list[GraphModule]:
        """The graphs that there are."""
        return [gm for gm in (self.forward_graph, self.backward_graph) if gm is not None]


@dataclass(frozen=True)
class Plain:
    """All that a call of the plain case has to know of compiled graphs, but for these.

    Attributes:
        outputs: their number.
        views: those that are views, of memory that nothing else sees.
        written: the inputs that the forward graph changes.
        gradients: None without a backward graph.
    """

    outputs: int
    views: Sequence[int]
    written: Sequence[int]
    gradients: Gradients | None


class WayIn(NamedTuple):
    """How calls come to compiled graphs.

    Attributes:
        call: from a list of the inputs, which it may empty, to the outputs; under the switches that are in force now.
        detour: why it takes AOTAutograd's wrappers; None if it does not.
        tier: the language it is written in: "C++" or "Python".
        plain: what another process has to know to come to the same graphs as shortly; None with a detour.
    """

    call: Callable[[list[Tensor]], Sequence[Any]]
    detour: str | None
    tier: str
    plain: Plain | None


def way_in(compiled: Compiled, graphs: CompiledGraphs, uses: Sequence[frozenset[int]], inputs: int, name: str) -> WayIn:
    """The shortest way into compiled graphs that gives eager's results.

    Args:
        uses: from `gradient_uses`.
        inputs: the number of inputs.
        name: of the function, for messages.
    """
    unused = unused_gradients(uses, compiled)
    if (reason := why_not_lean(compiled, graphs.modules(), inputs)) is None:
        info = compiled.metadata.output_info
        views = [i for i, output in enumerate(info) if output.output_type.name == "unsafe_view_alias"]
        gradients = _gradients(graphs.backward_graph, compiled.tangents, unused) if graphs.backward_graph else None
        plain = Plain(len(info), views, written_inputs(compiled.metadata), gradients)
        return plain_way(graphs.forward, graphs.backward, plain, name)
    has_backward = graphs.backward is not None

    def wrapped(tensors: list[Tensor]) -> Sequence[Any]:
        return run_watched(compiled, tensors, name, unused, has_backward=has_backward)

    return WayIn(wrapped, reason, "Python", None)


def _gradients(gm: GraphModule, tangents: Sequence[int], uses: Sequence[frozenset[int]] | None) -> Gradients:
    (output,) = gm.graph.find_nodes(op="output")
    expected = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")[-len(tangents) :]]
    layouts = [Layout(tuple(t.shape), t.stride(), t.dtype, t.device) for t in expected]
    return Gradients(tangents, layouts, [gradient is not None for gradient in output.args[0]], uses)


def plain_way(run: Boxed, backward: Boxed | None, plain: Plain, name: str) -> WayIn:
    """The way into graphs of the plain case, whichever process compiled them.

    Args:
        run, backward: the compiled graphs.
        name: of the function, for messages.
    """
    if plain.written:
        run = _counted(run, plain.written)
    if plain.views:
        run = _without_views(run, plain.views)
    if is_autocast_on():  # the graph has its casts already
        run = _without_autocast(run)
    if backward is not None and plain.gradients is not None:
        tier = "C++" if native.library() is not None else "Python"
        calls = BackwardCalls(backward, plain.gradients, name)
        return WayIn(differentiable(run, calls, plain.outputs), None, tier, plain)
    return WayIn(_without_gradients(run) if torch.is_grad_enabled() else run, None, "Python", plain)


def _counted(run: Boxed, written: Sequence[int]) -> Boxed:
    """Autograd counts the changes of each tensor, and kernels do not tell it."""

    def call(inputs: list[Any]) -> Sequence[Any]:
        changed = [inputs[i] for i in written]
        results = run(inputs)
        increment_version(changed)
        return results

    return call


def _without_views(run: Boxed, views: Sequence[int]) -> Boxed:
    """Autograd must not take outputs for views of something: their bases are not to be seen."""

    def call(inputs: list[Any]) -> Sequence[Any]:
        results = list(run(inputs))
        for i in views:
            if results[i]._is_view():
                results[i] = torch.ops.aten._unsafe_view(results[i], results[i].shape)
        return results

    return call


def _without_gradients(run: Boxed) -> Boxed:
    """For calls with gradients enabled, as the guards see to."""

    def call(inputs: list[Any]) -> Sequence[Any]:
        try:
            set_grad_enabled(False)
            return run(inputs)
        finally:
            set_grad_enabled(True)

    return call


def _without_autocast(run: Boxed) -> Boxed:
    def call(inputs: list[Any]) -> Sequence[Any]:
        with DisableAutocast():
            return run(inputs)

    return call
