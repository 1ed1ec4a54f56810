"""All operators that are taken, and why a node is not."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from aotkit.backends.fusion_definition.builder import DTYPES, Builder, Declined, Nothing, Rehearsal
from aotkit.backends.fusion_definition.engine import Engine
from aotkit.backends.fusion_definition.indexing import INDEXING
from aotkit.backends.fusion_definition.open_sizes import with_hints
from aotkit.backends.fusion_definition.pointwise import POINTWISE, Lowering
from aotkit.backends.fusion_definition.reductions import REDUCTIONS
from aotkit.backends.fusion_definition.shapes import SHAPES
from aotkit.errors import CompileError

TABLE: dict[Any, Lowering] = {**POINTWISE, **REDUCTIONS, **SHAPES, **INDEXING}
MOST_DIMENSIONS = 8
aten = torch.ops.aten


def lowered(builder: Builder, node: Node) -> Any:
    """The values of a node: one, or a tuple.

    Raises:
        Declined: its lowering does not take it.
    """
    return TABLE[node.target](builder, node, *node.args, **node.kwargs)


def declining(device: str, name: str, engine: Engine | None = None) -> Callable[[Node], str | None]:
    """A `Backend.declines` for the kernels of a device type, such as `cuda`.

    Args:
        name: of the engine.
        engine: one that builds without a device: it is asked as well, by a definition of the node alone, where sizes
            are open of those while tracing. Without one, the lowering of the node runs and builds nothing, so the
            answer is what building would say, and sizes must be fixed.
    """
    nothing: Any = Nothing()

    def declines(node: Node) -> str | None:
        if engine is not None and node.op == "call_function":
            if (found := with_hints(node)) is None:
                return "sizes that data decide, or numbers that do not follow from sizes"
            node = found
        if (reason := unknown(node, device, name)) is not None:
            return reason
        try:
            if engine is None:
                lowered(Rehearsal(nothing, nothing, device), node)
            else:
                _rehearse(engine, node, device)
        except (Declined, CompileError) as e:
            return str(e)
        return None

    return declines


def _rehearse(engine: Engine, node: Node, device: str) -> None:
    with engine.definition() as definition:
        builder = Rehearsal(engine, definition, device)
        builder.put(node, lowered(builder, node))
        for value in builder.values(node):
            definition.add_output(value)


def unknown(node: Node, device: str, name: str) -> str | None:
    """Why there is no lowering for a node, or no value for a tensor that it reads or returns."""
    if node.op != "call_function":
        return f"a node of kind {node.op}"
    return f"{name} has no such operator" if node.target not in TABLE else _unknown_value(node, device, name)


def _unknown_value(node: Node, device: str, name: str) -> str | None:
    whole = node.args[:1] if node.target is operator.getitem else ()  # of several, the node takes one
    for x in (node, *(x for x in node.all_input_nodes if x not in whole)):
        value = x.meta.get("val")
        for part in value if isinstance(value, tuple | list) else (value,):
            if (reason := _unknown(part, device, name)) is not None:
                return reason
    return None


def _unknown(value: Any, device: str, name: str) -> str | None:
    if not isinstance(value, Tensor):
        return "a number that is computed" if value is not None else "a value that is not described"
    if value.layout is not torch.strided or value.dtype not in DTYPES:
        return f"{name} has no tensors of {value.dtype if value.layout is torch.strided else value.layout}"
    if not all(isinstance(size, int) for size in (*value.shape, *value.stride())):
        return "sizes are symbols; compile with dynamic=False"
    if value.numel() == 0:
        return "a tensor without elements"
    if value.dim() > MOST_DIMENSIONS:
        return f"more than {MOST_DIMENSIONS} dimensions"
    if value.device.type != device and not (value.device.type == "cpu" and value.dim() == 0):
        return f"a tensor on {value.device}"
    return None


def text_of(node: Node, names: dict[Node, str]) -> str:
    """A node as text that is the same for equal nodes of different graphs; `names` has those of its operands."""

    def named(x: Any) -> str:
        return repr(map_arg(x, lambda n: names[n]))

    values = node.meta["val"]
    kinds = [f"{v.dtype}{list(v.shape)}" for v in (values if isinstance(values, tuple | list) else (values,))]
    return f"{node.target}({named(node.args)}, {named(node.kwargs)}): {', '.join(kinds)}"
