"""The trusted reference: a graph's operators, one by one, in eager mode."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from aotkit.torch_private.dispatch import pytree

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


class Reference(Interpreter):
    """Runs a graph. Given wider inputs than it was made for, it computes in float64 throughout.

    A graph names the types that its operators convert to, so it would else fall back from float64, or mix types.

    Args:
        inputs: tensors of the types that the graph was made for.
        kept: nodes whose values are to be kept.
        keep: what of a value is kept; all of it by default.

    Attributes:
        values: of the kept nodes, after a run.
    """

    def __init__(
        self,
        gm: GraphModule,
        inputs: Sequence[Tensor],
        kept: Iterable[Node] = (),
        keep: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        super().__init__(gm)
        self._dtypes = [x.dtype for x in inputs]
        self._wide = False
        self._kept = set(kept)
        self._keep = keep
        self.values: dict[Node, Any] = {}

    def run(self, *inputs: Any, **options: Any) -> Any:
        """The graph's outputs."""
        given = [x.dtype for x in inputs]
        self._wide = any(g is _WIDE.get(d) for g, d in zip(given, self._dtypes, strict=True))
        return super().run(*inputs, **options)

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n in self._kept:
            self.values[n] = self._keep(value)
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._wide:
            args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = super().get_attr(target, args, kwargs)
        return value.to(_WIDE.get(value.dtype, value.dtype)) if self._wide and isinstance(value, Tensor) else value


def _widened(value: Any) -> Any:
    return _WIDE.get(value, value) if isinstance(value, torch.dtype) else value
