"""What the lowerings of operators build with: values of nodes in the type that an operator computes in, and constants.

Half precision is computed with in float32, and rounded where the graph converts it, at the results of the graph, and
where an operator is not continuous: there a value that was saved and the same value recomputed must compare alike.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from aotkit.backends.fusion_definition.engine import Definition, Engine
from aotkit.errors import CompileError

DTYPES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Int",
    torch.int32: "Int32",
    torch.bool: "Bool",
}


class Declined(Exception):
    """A lowering does not take a node; the message says why."""


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of this type are computed."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def dtype_of(node: Node) -> torch.dtype:
    """The type that the graph gives a tensor."""
    return node.meta["val"].dtype  # type: ignore[no-any-return]


def shape_of(node: Node) -> list[int]:
    """The sizes of a tensor."""
    return list(node.meta["val"].shape)


class Builder:
    """The values of a graph's nodes, while its definition is built.

    Attributes:
        ops: the definition's operations.
        indexes: whether these read by index.
    """

    def __init__(self, engine: Engine, definition: Definition) -> None:
        self.ops, self.indexes = definition.ops, engine.indexes
        self._engine, self._definition = engine, definition
        self._types = {dtype: getattr(engine.DataType, name) for dtype, name in DTYPES.items()}
        self._dtypes = {datatype: dtype for dtype, datatype in self._types.items()}
        self._values: dict[Node, tuple[Any, ...]] = {}
        self._casts: dict[tuple[Any, torch.dtype], tuple[Any, Any]] = {}

    def type(self, dtype: torch.dtype) -> Any:
        """The engine's name of a type."""
        return self._types[dtype]

    def put(self, node: Node, value: Any) -> None:
        """Keep the value of a node: one for each tensor that it returns.

        Raises:
            CompileError: the engine computes it in a type that is neither the graph's nor the one to compute that in.
        """
        values = value if isinstance(value, tuple | list) else (value,)
        described = node.meta["val"] if isinstance(value, tuple | list) else (node.meta["val"],)
        for got, want in zip(values, described, strict=True):
            if self._dtypes[got.dtype()] not in (want.dtype, computed_in(want.dtype)):
                name = self._engine.name
                raise CompileError(f"{name} computes {node.target} in {got.dtype()} where the graph has {want.dtype}")
        self._values[node] = tuple(values)

    def input(self, like: Tensor, strides: Sequence[int], device: str) -> Any:
        """The next input; kernels of another device get a tensor on the CPU as a number."""
        on_cpu = like.device.type == "cpu" and device != "cpu"
        return self._definition.define_tensor(
            sizes=list(like.shape),
            strides=list(strides),
            dtype=self.type(like.dtype),
            static_sizes=True,
            is_cpu=on_cpu,
        )

    def values(self, node: Node) -> tuple[Any, ...]:
        """The tensors that a node returns."""
        return self._values[node]

    def part(self, node: Node, index: int) -> Any:
        """One of them."""
        return self._values[node][index]

    def value(self, node: Node) -> Any:
        """A tensor as it is: of the graph's type, or of the one in which that is computed."""
        return self.part(node, 0)

    def operand(self, x: Any, dtype: torch.dtype) -> Any:
        """A node's tensor, or a number, in a type."""
        return self._cast(self.value(x), dtype) if isinstance(x, Node) else self.constant(x, dtype)

    def rounded(self, x: Any, dtype: torch.dtype) -> Any:
        """The same, rounded to the graph's type before: for operators that are not continuous."""
        return self._cast(self.stored(x), dtype) if isinstance(x, Node) else self.constant(x, dtype)

    def stored(self, node: Node) -> Any:
        """A tensor in the graph's own type."""
        return self._cast(self.value(node), dtype_of(node))

    def constant(self, number: Any, dtype: torch.dtype) -> Any:
        """A number of a type: without one, nvFuser would take Python's numbers for float64 and int64.

        Raises:
            Declined: the type does not hold it.
        """
        if dtype.is_floating_point:
            number = float(number)
        elif dtype is torch.bool:
            number = bool(number)
        elif number != int(number) or not torch.iinfo(dtype).min < number <= torch.iinfo(dtype).max:
            raise Declined(f"{number} is no {dtype}")
        else:
            number = int(number)
        return self._definition.define_scalar(number, dtype=self.type(dtype))

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if value.dtype() == self.type(dtype):
            return value
        key = id(value), dtype
        if key not in self._casts:
            if dtype is torch.bool:  # to which nvFuser converts by cutting off the fraction
                cast = self.ops.ne(value, self.constant(0, self._dtypes[value.dtype()]))
            else:
                cast = self.ops.cast(value, self.type(dtype))
            self._casts[key] = value, cast  # the value too, so that its id stays its own
        return self._casts[key][1]


class Nothing:
    """Stands for an engine where a lowering is only asked whether it takes a node, and for all that is the engine's."""

    indexes = False

    def __getattr__(self, name: str) -> "Nothing":
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> "Nothing":
        return self


class Rehearsal(Builder):
    """A builder for one node alone: whatever that reads is an input."""

    def __init__(self, engine: Engine, definition: Definition, device: str) -> None:
        super().__init__(engine, definition)
        self._device = device
        self._inputs: dict[tuple[Node, int], Any] = {}

    def part(self, node: Node, index: int) -> Any:
        """An input."""
        if (node, index) not in self._inputs:
            described = node.meta["val"]
            like = described[index] if isinstance(described, tuple | list) else described
            self._inputs[node, index] = self.input(like, like.stride(), self._device)
        return self._inputs[node, index]
