"""One autograd node straight around compiled graphs: in C++ where that is built, else in Python."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from aotkit.errors import UnsupportedError
from aotkit.interfaces import Boxed
from aotkit.runtime.backward import SECOND_DERIVATIVE
from aotkit.runtime.trampolines import outside_dynamo
from aotkit.torch_private import native
from aotkit.torch_private.switches import DisableAutocast, is_autocast_on, is_deterministic
from aotkit.torch_private.tensors import is_view, tensor_guard


def differentiable(run: Boxed, backward: "BackwardCalls", outputs: int) -> Callable[[list[Tensor]], Sequence[Any]]:
    """Calls of a forward graph as a node of autograd: in C++ where that is built, else in Python."""
    if (library := native.library()) is not None:
        numbers = tuple(backward.tangents), tuple(backward.differentiated)
        return library.Differentiable(run, backward, outputs, *numbers)  # type: ignore[no-any-return]
    return _differentiable_in_python(run, backward, outputs)


def _differentiable_in_python(
    run: Boxed, backward: "BackwardCalls", outputs: int
) -> Callable[[list[Tensor]], Sequence[Any]]:
    constants = sorted(set(range(outputs)) - set(backward.tangents))

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

        @staticmethod
        @outside_dynamo
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


class Layout(NamedTuple):
    """What a backward graph expects of a tangent."""

    shape: Sequence[int]
    stride: Sequence[int]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Gradients:
    """What a backward graph takes and gives.

    Attributes:
        tangents: for each tangent, the output that it belongs to.
        layouts: of the tangents.
        given: for each input of the function, whether it has a gradient.
        uses: from `unused_gradients`.
    """

    tangents: Sequence[int]
    layouts: Sequence[Layout]
    given: Sequence[bool]
    uses: Sequence[frozenset[int]] | None


class BackwardCalls:
    """Calls of a backward graph.

    Attributes:
        tangents: for each tangent, the output it belongs to.
        differentiated: the inputs that get gradients.
        run: takes a list of saved values and tangents, which it may empty; returns a gradient, or None, for each input.
        accepts: whether tangents are as those of the last call were. Then C++ calls `run` itself, if no switch is on.
    """

    def __init__(self, run: Boxed, gradients: Gradients, name: str) -> None:
        self.tangents = gradients.tangents
        self._count = len(gradients.given)
        self.differentiated = [i for i, is_given in enumerate(gradients.given) if is_given]
        self.run = run
        self._uses = gradients.uses
        self._name = name
        self._expected = gradients.layouts
        self.accepts: Callable[..., bool] = lambda *_: False
        self._deterministic = is_deterministic()

    def gradients(self, values: list[Any], incoming: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """A gradient, or None, for each input; empties the list of saved values."""
        if torch.is_grad_enabled() or (is_deterministic() and not self._deterministic):
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
        if is_autocast_on():
            with DisableAutocast():
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

    def _coerced(self, tangent: Any, expected: Layout) -> Any:
        """A tangent with the strides that the graph was traced with."""
        size, stride, dtype, device = expected
        if tangent is None:
            return torch.empty_strided(size, stride, dtype=dtype, device=device).zero_()
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
        return torch.empty_strided(size, stride, dtype=dtype, device=device).copy_(tangent)

    def _without_unused(self, gradients: Sequence[Any], incoming: Sequence[Any]) -> Sequence[Any]:
        """None for an input if no output that depends on it took part in the backward pass, as in eager."""
        absent = {i for i in self.tangents if incoming[i] is None}
        assert self._uses is not None
        if not absent:
            return gradients
        return [None if used and used <= absent else g for g, used in zip(gradients, self._uses, strict=True)]
