"""All operators that nvFuser takes, and why it does not take a node."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from aotkit.backends.fusion_definition.builder import DTYPES, Declined, Rehearsal
from aotkit.backends.fusion_definition.pointwise import POINTWISE, Lowering
from aotkit.backends.fusion_definition.reductions import REDUCTIONS
from aotkit.backends.fusion_definition.shapes import SHAPES

TABLE: dict[Any, Lowering] = {**POINTWISE, **REDUCTIONS, **SHAPES}
MOST_DIMENSIONS = 8
REHEARSAL = Rehearsal()


def declining(device: str) -> Callable[[Node], str | None]:
    """A `Backend.declines` for the kernels of a device type, such as `cuda`.

    The lowering of the node runs without building anything, so the answer is what building would say.
    """

    def declines(node: Node) -> str | None:
        if node.op != "call_function" or node.target not in TABLE:
            return "nvFuser has no such operator" if node.op == "call_function" else f"a node of kind {node.op}"
        if (reason := _unknown_value(node, device)) is not None:
            return reason
        try:
            TABLE[node.target](REHEARSAL, node, *node.args, **node.kwargs)
        except Declined as e:
            return str(e)
        return None

    return declines


def _unknown_value(node: Node, device: str) -> str | None:
    """Why a tensor that the node reads or returns is none of nvFuser's."""
    whole = node.args[:1] if node.target is operator.getitem else ()  # of several, the node takes one
    for x in (node, *(x for x in node.all_input_nodes if x not in whole)):
        value = x.meta.get("val")
        for part in value if isinstance(value, tuple | list) else (value,):
            if (reason := _unknown(part, device)) is not None:
                return reason
    return None


def _unknown(value: Any, device: str) -> str | None:
    if not isinstance(value, Tensor):
        return "a number that is computed" if value is not None else "a value that is not described"
    if value.layout is not torch.strided or value.dtype not in DTYPES:
        return f"nvFuser has no tensors of {value.dtype if value.layout is torch.strided else value.layout}"
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
