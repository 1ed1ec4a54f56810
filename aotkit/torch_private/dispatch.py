"""The dispatcher and pytrees: what operators are, what they consist of, and modes that see each of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

# Nested containers, flat and back.
pytree = _pytree
tree_leaves, tree_map = _pytree.tree_leaves, _pytree.tree_map
dispatch_modes = _get_current_dispatch_mode_stack

# While it lasts, composite operators consist of what they do in eager, and not of what torch's Python rules say.
AsInEager = torch._C._DisablePythonDispatcher
RESIZES = {f: name for name, f in vars(torch._C._nn).items() if "upsample_" in name}  # of images

__all__ = [
    "RESIZES",
    "AsInEager",
    "OpOverload",
    "OperatorMode",
    "core_decompositions",
    "correct_recurrent_layers",
    "dispatch_modes",
    "is_composite",
    "pytree",
    "pytree_children",
    "tree_leaves",
    "tree_map",
    "wrap_others",
]


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees each operator, but none of what those of higher order (`cond`, `flex_attention`) are made of."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def operator(self, func: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What an operator gives under the mode, as `__torch_dispatch__` has it."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs or {})
        return self.operator(func, types, args, kwargs or {})


def pytree_children(spec: Any) -> Sequence[Any]:
    """The structures inside a structure."""
    children = getattr(spec, "_children", None)
    return spec.children_specs if children is None else children  # type: ignore[no-any-return]


def is_composite(operator: OpOverload) -> bool:
    """Whether an operator consists of others, with derivatives of their own."""
    name = operator.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def wrap_others(types: Sequence[type]) -> bool:
    """Whether some of these types, of an operator's tensors, are made of other tensors, as DTensor is."""
    return any(hasattr(kind, "__tensor_flatten__") for kind in types)


def core_decompositions(more: Sequence[Any]) -> dict[Any, Callable[..., Any]]:
    """Those into the core set of ATen's operators, and those of `more` operators, which the core set has.

    None of random operators: what they decompose into draws other numbers.
    """
    from torch._decomp import core_aten_decompositions, get_decompositions

    table = {**core_aten_decompositions(), **get_decompositions(more)}
    return {op: f for op, f in table.items() if torch.Tag.nondeterministic_seeded not in op.tags}


@contextmanager
def correct_recurrent_layers() -> Iterator[None]:
    """While a function is traced, decompose stacked RNNs, LSTMs and GRUs one layer at a time, with dropout between.

    torch's own decomposition leaves dropout out, and torch 2.11's gives final states another shape.
    """
    from torch._decomp import decompositions

    original = decompositions._rnn_helper
    decompositions._rnn_helper = _layer_by_layer(original)
    try:
        yield
    finally:
        decompositions._rnn_helper = original


def _layer_by_layer(stack: Callable[..., Any]) -> Callable[..., Any]:
    def layers(
        sequence: Tensor,
        hidden: Sequence[Any],
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
        layer: Callable[..., Any],
    ) -> tuple[Tensor, list[Any]]:
        sequence = sequence.transpose(0, 1) if batch_first else sequence
        directions = 2 if bidirectional else 1
        last: list[Any] = []
        for i in range(num_layers):
            if i > 0 and train and dropout != 0:
                sequence = torch.dropout(sequence, dropout, train=True)
            own = slice(i * directions, (i + 1) * directions)
            args = hidden[own], params[own], has_biases, 1, 0.0, train, bidirectional, False, layer
            sequence, after = stack(sequence, *args)
            last += map(_shaped_like, after, hidden[own])
        return (sequence.transpose(0, 1) if batch_first else sequence), last

    return layers


def _shaped_like(state: Any, before: Any) -> Any:
    """A layer's final state in the shape of its first; torch 2.11 returns those of an LSTM with one dimension more."""
    if isinstance(state, tuple):
        return tuple(map(_shaped_like, state, before))
    return state if state.shape == before.shape else state.reshape(before.shape)
