"""Graphs and tensors as Python source."""

import enum
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.culprit.result import NotFound

_INDENT = "    "


def graph_code(gm: GraphModule, tags: Sequence[str] = ()) -> str:
    """The body of a function that has made `graph`, and returns a module of these nodes.

    Args:
        tags: which of the notes on the nodes it makes, too.

    Raises:
        NotFound: a node holds something that has no source.
    """
    lines, constants = [], []
    for node in gm.graph.nodes:
        if node.op == "output":
            lines.append(f"graph.output({_value(node.args[0])})")
            continue
        target = repr(node.target) if isinstance(node.target, str) else _target(node.target)
        arguments = [f'"{node.op}"', target, _value(node.args), _value(node.kwargs), repr(node.name)]
        lines.append(f"{node.name} = graph.create_node({', '.join(arguments)})")
        if node.op == "get_attr":
            constants.append(f"{node.target!r}: {_constant(getattr(gm, str(node.target), None))}")
    lines += _tag_lines(gm, tags)
    lines.append(f"return torch.fx.GraphModule({{{', '.join(constants)}}}, graph)")
    return "\n".join(_INDENT + line for line in lines)


def _tag_lines(gm: GraphModule, tags: Sequence[str]) -> list[str]:
    """The nodes with the same note together."""
    tagged: dict[tuple[str, str], list[str]] = {}
    for node in gm.graph.nodes:
        for tag in (tag for tag in tags if tag in node.meta):
            tagged.setdefault((tag, _value(node.meta[tag])), []).append(node.name)
    lines = []
    for (tag, value), names in tagged.items():
        lines += [f"for node in [{', '.join(names)}]:", f"    node.meta[{tag!r}] = {value}"]
    return lines


def _target(target: Any) -> str:
    if hasattr(target, "overloadpacket"):
        return f"torch.ops.{target}"
    if getattr(target, "__module__", "") == "_operator":
        return f"operator.{target.__name__}"
    raise NotFound(f"a call of {target!r} cannot be written as source")


def _constant(value: Any) -> str:
    if not isinstance(value, Tensor):
        raise NotFound("a graph inside the graph cannot be written as source")
    return _strided(_literal(value), value)


def _value(value: Any) -> str:
    """The source of an argument of a node."""
    if isinstance(value, Node):
        return value.name
    if isinstance(value, (list, tuple)):
        items = ", ".join(map(_value, value))
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": "torch.inf", "-inf": "-torch.inf"}.get(str(value), "torch.nan")
    if isinstance(value, enum.Enum):
        return f"{type(value).__module__}.{value}"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.layout, torch.memory_format)):
        return repr(value)
    raise NotFound(f"{value!r} cannot be written as source")


def inputs_code(names: Sequence[str], inputs: Sequence[Tensor], seed: int | None) -> str:
    """The body of a function that returns random tensors like these; without a seed, exactly these."""
    start = [] if seed is None else [f"generator = torch.Generator().manual_seed({seed})"]
    values = _literal if seed is None else _random
    items = [f"    {_strided(values(x), x)},  # {name}" for name, x in zip(names, inputs, strict=True)]
    return "\n".join(_INDENT + line for line in [*start, "return [", *items, "]"])


def _strided(flat: str, like: Tensor) -> str:
    moved = flat if like.device.type == "cpu" else f'{flat}.to("{like.device}")'
    if like.is_contiguous():
        return moved if like.dim() == 1 else f"{moved}.view({tuple(like.shape)})"
    return f"{moved}.as_strided({tuple(like.shape)}, {like.stride()})"


def _flat(tensor: Tensor) -> Tensor:
    """All elements of the memory that a tensor spans."""
    spans = [(n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    size = 1 + sum(spans) if tensor.numel() else 0
    return tensor.resolve_conj().resolve_neg().as_strided((size,), (1,)).cpu()


def _random(tensor: Tensor) -> str:
    flat = _flat(tensor)
    n, dtype = flat.numel(), flat.dtype
    if dtype is torch.bool:
        return f"(torch.rand({n}, generator=generator) < 0.5)"
    if dtype.is_floating_point or dtype.is_complex:
        # The generator has no numbers of the smallest types.
        drawn = dtype if dtype.itemsize >= 4 else torch.float32
        values = f"torch.randn({n}, generator=generator, dtype={drawn})"
        return values if drawn is dtype else f"{values}.to({dtype})"
    low, high = (int(flat.min()), int(flat.max())) if n else (0, 0)
    return f"torch.randint({low}, {high + 1}, ({n},), generator=generator, dtype={dtype})"


def _literal(tensor: Tensor) -> str:
    flat = _flat(tensor)
    if flat.dtype.is_complex:
        parts = ", ".join(_literal(part.contiguous()) for part in (flat.real, flat.imag))
        return f"torch.complex({parts})"
    return f"torch.tensor({_value(flat.tolist())}, dtype={flat.dtype})"
