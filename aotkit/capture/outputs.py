"""The result of a function: what its graph computes of it, and what is put around that."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.capture.arguments import is_size, structure_of
from aotkit.capture.objects import is_constant
from aotkit.capture.refusals import EagerOnly
from aotkit.capture.watching import beyond_values
from aotkit.errors import TraceError
from aotkit.torch_private.dispatch import pytree, pytree_children
from aotkit.torch_private.fake_tensors import is_traced

_IN_JSON = (type(None), bool, int, float, str)
_COMPUTED = object()  # stands for a leaf that the graph computes


class Outputs:
    """The structure of a function's result: which leaves the graph computes, and the constants between them."""

    def __init__(self) -> None:
        self._leaves: list[Any] = []
        self._spec: Any = None

    def flatten(self, outputs: Any, inputs: Sequence[Any]) -> list[Any]:
        leaves, self._spec = pytree.tree_flatten(outputs, is_leaf=lambda value: isinstance(value, torch.Size))
        computed = []
        self._leaves = []
        for leaf in leaves:
            if is_traced(leaf):
                if isinstance(leaf, Tensor) and (what := beyond_values(leaf, inputs)):
                    raise TraceError(
                        f"the function returns a tensor of shape {list(leaf.shape)} to which it has given {what}; a "
                        "compiled graph would not. Use capture='dynamo'."
                    )
                self._leaves.append(_COMPUTED)
                computed.append(leaf)
            elif isinstance(leaf, torch.Size) and not is_size(leaf):
                raise TraceError(
                    "the function returns a torch.Size of sizes that dynamic=True leaves open. Return the numbers, or "
                    "use dynamic=False."
                )
            elif is_constant(leaf):
                self._leaves.append(leaf)
            elif isinstance(leaf, Tensor):
                raise TraceError(
                    f"the function returns a tensor of shape {list(leaf.shape)} that it neither computed nor received. "
                    "Pass it as an argument."
                )
            else:
                raise TraceError(
                    f"the function returns a {type(leaf).__name__}, which a compiled graph cannot rebuild. Return "
                    "tensors in tuples, lists, dicts or named tuples, or register the class with torch.utils._pytree."
                )
        return computed

    def as_data(self) -> dict[str, Any] | None:
        """For `Outputs.of` in another process; None if they hold what JSON cannot."""
        if not all(leaf is _COMPUTED or type(leaf) in _IN_JSON for leaf in self._leaves):
            return None
        try:
            structure = pytree.treespec_dumps(self._spec)
            again = pytree.treespec_loads(structure)
            # JSON has no tuples, and knows neither enumerations nor other numbers than Python's.
            is_same = again == self._spec and structure_of(again) == structure_of(self._spec)
        except (TypeError, NotImplementedError, EagerOnly):  # a container without a name that other processes know
            return None
        if not is_same:
            return None
        return {"structure": structure, "leaves": [[] if leaf is _COMPUTED else [leaf] for leaf in self._leaves]}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Outputs":
        """The same."""
        outputs = cls()
        outputs._leaves = [leaf[0] if leaf else _COMPUTED for leaf in data["leaves"]]
        outputs._spec = pytree.treespec_loads(data["structure"])
        return outputs

    def rebuilder(self) -> Callable[[Sequence[Any]], Any]:
        """A function from what the graph computes to the function's result."""
        leaves, spec = self._leaves, self._spec
        if leaves == [_COMPUTED] and spec.is_leaf():
            return operator.itemgetter(0)
        if (
            spec.type is tuple
            and all(child.is_leaf() for child in pytree_children(spec))
            and set(leaves) == {_COMPUTED}
        ):
            return tuple

        def rebuild(results: Sequence[Any]) -> Any:
            rest = iter(results)
            return pytree.tree_unflatten([next(rest) if leaf is _COMPUTED else leaf for leaf in leaves], spec)

        return rebuild
