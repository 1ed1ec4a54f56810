"""A short way into compiled graphs: one autograd node straight around them, for the plain case.

AOTAutograd's own wrappers prepare for aliased and mutated tensors, subclasses, effects and symbolic sizes on each call.
Where `why_not_lean` finds none of these, this module does the little that is left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.fx import GraphModule

from aotkit.aot import native
from aotkit.aot.backward import SECOND_DERIVATIVE, run_watched, unused_gradients
from aotkit.aot.tensors import tensor_guard
from aotkit.aot.tracing import Compiled
from aotkit.errors import UnsupportedError

Boxed = Callable[[list[Any]], Sequence[Any]]


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


class WayIn(NamedTuple):
    """How calls come to compiled graphs.

    Attributes:
        call: from a list of the inputs, which it may empty, to the outputs; under the switches that are in force now.
        detour: why it takes AOTAutograd's wrappers; None if it does not.
        tier: the language it is written in: "C++" or "Python".
    """

    call: Callable[[list[Tensor]], Sequence[Any]]
    detour: str | None
    tier: str


def way_in(compiled: Compiled, graphs: CompiledGraphs, uses: Sequence[frozenset[int]], inputs: int, name: str) -> WayIn:
    """The shortest way into compiled graphs that gives eager's results.

    Args:
        uses: from `gradient_uses`.
        inputs: the number of inputs.
        name: of the function, for messages.
    """
    unused = unused_gradients(uses, compiled)
    if (reason := why_not_lean(compiled.metadata, graphs, inputs)) is None:
        tier = "C++" if graphs.backward is not None and native.library() is not None else "Python"
        return WayIn(_lean(compiled, graphs, unused, name), None, tier)
    has_backward = graphs.backward is not None

    def wrapped(tensors: list[Tensor]) -> Sequence[Any]:
        return run_watched(compiled, tensors, name, unused, has_backward=has_backward)

    return WayIn(wrapped, reason, "Python")


def why_eager_outputs(metadata: Any) -> str | None:
    """Why no compiled graph can stand for a function with these outputs.

    Args:
        metadata: AOTAutograd's, of the function.
    """
    from torch._functorch._aot_autograd.schemas import OutputType

    if metadata is None or not torch.is_inference_mode_enabled():
        return None
    views = [info.base_idx for info in metadata.output_info if info.output_type is OutputType.alias_of_input]
    if any(metadata.input_info[i].requires_grad for i in views):
        # Eager's requires gradients unless it is detached. AOTAutograd's never does, and does not tell which is which.
        return "in inference mode, it returns a view of an input that requires gradients"
    return None


def why_not_lean(metadata: Any, graphs: CompiledGraphs, inputs: int) -> str | None:
    """Why a call has to take AOTAutograd's wrappers, or None if it need not.

    Args:
        metadata: AOTAutograd's, of the function.
        inputs: the number of its inputs.
    """
    from torch._dynamo import config
    from torch._functorch._aot_autograd.schemas import OutputType, SubclassCreationMeta

    if metadata is None:
        return "AOTAutograd told nothing about it"
    wrapped = (*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta, *metadata.subclass_tangent_meta)
    if any(isinstance(meta, SubclassCreationMeta) for meta in wrapped):
        return "an input, an output or a gradient is a tensor subclass around others"
    if config.compiled_autograd:
        return "compiled autograd is on, which knows AOTAutograd's nodes but not ours"
    if any(info.mutates_data or info.mutates_metadata for info in metadata.input_info):
        return "it mutates an input"
    plain = (OutputType.non_alias, OutputType.unsafe_view_alias)
    if not all(info.output_type in plain for info in metadata.output_info):
        return "an output is an input, or a view of an input or of another output"
    if not all(issubclass(info.raw_type, Tensor) for info in metadata.output_info):
        return "an output is a size that dynamic=True leaves open"
    if metadata.grad_enabled_mutation is not None:
        return "it changes the gradient mode"
    if metadata.tokens or metadata.num_backward_tokens or metadata.num_graphsafe_rng_states:
        return "it has ordered effects, or random generators of its own"
    if metadata.num_tensors_saved_with_no_vc_check:
        return "a custom operator saves tensors that it changes itself"
    promised = [*_values(graphs.forward_graph), *(_values(graphs.backward_graph) if graphs.backward_graph else ())]
    if any(isinstance(n, torch.SymInt) for v in promised if isinstance(v, Tensor) for n in v.shape):
        return "dynamic=True leaves sizes open"
    if not all(v is None or isinstance(v, Tensor) for v in promised):
        return "a value that is no tensor is saved for backward"
    if len(graphs.forward_graph.graph.find_nodes(op="placeholder")) != inputs:
        return "an input is passed twice"
    return None


def _values(gm: GraphModule) -> list[Any]:
    """What the results of a graph are, and its inputs."""
    (output,) = gm.graph.find_nodes(op="output")
    nodes = [*gm.graph.find_nodes(op="placeholder"), *output.args[0]]
    return [node.meta.get("val") if isinstance(node, torch.fx.Node) else node for node in nodes]


def _lean(
    compiled: Compiled, graphs: CompiledGraphs, unused: Sequence[frozenset[int]] | None, name: str
) -> Callable[[list[Tensor]], Sequence[Any]]:
    info = compiled.metadata.output_info
    run = graphs.forward
    if views := [i for i, output in enumerate(info) if output.output_type.name == "unsafe_view_alias"]:
        run = _without_views(run, views)
    if torch._C._is_any_autocast_enabled():  # the graph has its casts already
        run = _without_autocast(run)
    if graphs.backward is not None and graphs.backward_graph is not None:
        backward = _Backward(graphs.backward, graphs.backward_graph, compiled.tangents, unused, name)
        return _differentiable(run, backward, len(info))
    return _without_gradients(run) if torch.is_grad_enabled() else run


def _differentiable(run: Boxed, backward: "_Backward", outputs: int) -> Callable[[list[Tensor]], Sequence[Any]]:
    """Calls of a forward graph as a node of autograd: in C++ where that is built, else in Python."""
    if (library := native.library()) is not None:
        numbers = tuple(backward.tangents), tuple(backward.differentiated)
        return library.Differentiable(run, backward, outputs, *numbers)  # type: ignore[no-any-return]
    return _differentiable_in_python(run, backward, outputs)


def _differentiable_in_python(
    run: Boxed, backward: "_Backward", outputs: int
) -> Callable[[list[Tensor]], Sequence[Any]]:
    constants = sorted(set(range(outputs)) - set(backward.tangents))
    is_view = Tensor._is_view

    class Compiled(Function):
        @staticmethod
        def forward(ctx: Any, inputs: list[Tensor], *_: Tensor) -> Any:
            results = run(inputs)
            saved = results[outputs:]
            # A saved view would keep its base alive, and a saved view of an output the node itself.
            if any(map(is_view, saved)):
                saved = [t.detach() if is_view(t) else t for t in saved]
            ctx.save_for_backward(*saved)
            if constants:
                ctx.mark_non_differentiable(*(results[i] for i in constants))
                ctx._materialize_non_diff_grads = False
            ctx.set_materialize_grads(False)
            return tuple(results[:outputs])

        # Where a function that Dynamo captures runs the backward pass, Dynamo would look into this.
        @staticmethod
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *incoming: Tensor | None) -> Any:
            values = list(ctx.saved_tensors)
            ctx.maybe_clear_saved_tensors()  # unless the graph is retained; the compiled graph frees the values itself
            found = backward.gradients(values, incoming)
            return None, *[found[i] for i in backward.differentiated]

    # `Function.apply` itself only adds what functorch's transforms need.
    apply: Any = super(Function, Compiled).apply
    differentiated = backward.differentiated

    def call(inputs: list[Tensor]) -> Sequence[Any]:
        # Edges only to what gets a gradient: the others' nodes would run for nothing.
        return apply(inputs, *[inputs[i] for i in differentiated])  # type: ignore[no-any-return]

    if torch.is_grad_enabled():
        return call

    # The function itself enables gradients, and the guards see to it that it is called without.
    def enabling(inputs: list[Tensor]) -> Sequence[Any]:
        with torch.enable_grad():
            return call(inputs)

    return enabling


class _Backward:
    """Calls of a backward graph.

    Attributes:
        tangents: for each tangent, the output it belongs to.
        differentiated: the inputs that get gradients.
        run: takes a list of saved values and tangents, which it may empty; returns a gradient, or None, for each input.
        accepts: whether tangents are as those of the last call were. Then C++ calls `run` itself, if no switch is on.
    """

    def __init__(
        self, run: Boxed, gm: GraphModule, tangents: Sequence[int], uses: Sequence[frozenset[int]] | None, name: str
    ) -> None:
        self.tangents = tangents
        (output,) = gm.graph.find_nodes(op="output")
        self._count = len(output.args[0])
        self.differentiated = [i for i, gradient in enumerate(output.args[0]) if gradient is not None]
        self.run = run
        self._uses = uses
        self._name = name
        self._expected = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")[-len(tangents) :]]
        self.accepts: Callable[..., bool] = lambda *_: False
        self._deterministic = torch._C._get_deterministic_algorithms()

    def gradients(self, values: list[Any], incoming: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """A gradient, or None, for each input; empties the list of saved values."""
        if torch.is_grad_enabled() or (torch._C._get_deterministic_algorithms() and not self._deterministic):
            self._refuse()
        if all(tangent is None for tangent in incoming):  # as of another compiled call that has None for its input
            values.clear()
            return [None] * self._count
        tangents: Sequence[Any] = incoming if len(incoming) == 1 else [incoming[i] for i in self.tangents]
        if not self.accepts(*tangents):
            tangents = [self._coerced(t, expected) for t, expected in zip(tangents, self._expected, strict=True)]
            self.accepts = tensor_guard(tangents)
        values += tangents
        del tangents
        if torch._C._is_any_autocast_enabled():
            with torch._C._DisableAutocast():
                found = self.run(values)
        else:
            found = self.run(values)
        if self._uses is not None:
            found = self._without_unused(found, incoming)
        return found

    def _refuse(self) -> None:
        if torch.is_grad_enabled():
            raise UnsupportedError(SECOND_DERIVATIVE.format(repr(self._name)))
        raise UnsupportedError(
            f"torch.use_deterministic_algorithms was turned on between forward and backward of {self._name!r}, whose "
            "backward graph was compiled without. Turn it on before the forward."
        )

    def _coerced(self, tangent: Any, expected: Tensor) -> Any:
        """A tangent with the strides that the graph was traced with."""
        size, stride = expected.shape, expected.stride()
        if tangent is None:
            return torch.empty_strided(size, stride, dtype=expected.dtype, device=expected.device).zero_()
        if type(tangent) not in (Tensor, torch.nn.Parameter):
            # What waits for another process has a plain tensor to give: `AsyncCollectiveTensor`.
            coerce = getattr(tangent, "__coerce_same_metadata_as_tangent__", None)
            plain = coerce(None, Tensor) if coerce is not None else None
            if type(plain) is Tensor:
                return self._coerced(plain, expected)
            raise UnsupportedError(
                f"the backward of {self._name!r} was given a gradient of type {type(tangent).__name__}; its compiled "
                "graph takes plain tensors. Convert it, or call the uncompiled function, its `__wrapped__`."
            )
        if tangent.layout is not torch.strided:
            tangent = tangent.to_dense()
        elif tangent.stride() == stride and not (tangent.is_conj() or tangent.is_neg() or tangent._is_zerotensor()):
            return tangent
        return torch.empty_strided(size, stride, dtype=expected.dtype, device=expected.device).copy_(tangent)

    def _without_unused(self, gradients: Sequence[Any], incoming: Sequence[Any]) -> Sequence[Any]:
        """None for an input if no output that depends on it took part in the backward pass, as in eager."""
        absent = {i for i in self.tangents if incoming[i] is None}
        assert self._uses is not None
        if not absent:
            return gradients
        return [None if used and used <= absent else g for g, used in zip(gradients, self._uses, strict=True)]


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
    """For calls with gradients enabled, as the guards see to. `torch.no_grad` would cost a microsecond."""
    switch: Any = torch._C._set_grad_enabled

    def call(inputs: list[Any]) -> Sequence[Any]:
        try:
            switch(False)
            return run(inputs)
        finally:
            switch(True)

    return call


def _without_autocast(run: Boxed) -> Boxed:
    def call(inputs: list[Any]) -> Sequence[Any]:
        with torch._C._DisableAutocast():
            return run(inputs)

    return call
