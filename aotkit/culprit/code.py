"""Graphs, tensors and compilers as Python source."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.culprit.parts import compiler_of
from aotkit.culprit.result import NotFound
from aotkit.interfaces import Backend
from aotkit.registry import BACKENDS, get_backend

_INDENT = "    "


def graph_code(gm: GraphModule) -> str:
    """The body of a function that has made `graph`, and returns a module of these nodes.

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
    lines.append(f"return torch.fx.GraphModule({{{', '.join(constants)}}}, graph)")
    return "\n".join(_INDENT + line for line in lines)


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
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.layout, torch.memory_format)):
        return repr(value)
    raise NotFound(f"{value!r} cannot be written as source")


def seeded_code(names: Sequence[str], inputs: Sequence[Tensor], seed: int) -> str:
    """The body of a function that returns random tensors like these."""
    lines = [f"generator = torch.Generator().manual_seed({seed})"]
    return _inputs_code(lines, names, inputs, _random)


def literal_code(names: Sequence[str], inputs: Sequence[Tensor]) -> str:
    """The body of a function that returns tensors of exactly these values."""
    return _inputs_code([], names, inputs, _literal)


def _inputs_code(
    lines: list[str], names: Sequence[str], inputs: Sequence[Tensor], values: Callable[[Tensor], str]
) -> str:
    items = [f"    {_strided(values(x), x)},  # {name}" for name, x in zip(names, inputs, strict=True)]
    return "\n".join(_INDENT + line for line in [*lines, "return [", *items, "]"])


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


def compiler_code(name: str, backend: Backend, attribute: str) -> str:
    """The body of a function that returns the compiler of a backend."""
    compiler = compiler_of(backend, attribute)
    attribute = attribute if getattr(backend, attribute) is not None else "fw_compiler"
    if (name.startswith("dynamo:") or BACKENDS.is_installed(name)) and _is_named(name, attribute, compiler):
        return f"{_INDENT}return aotkit.get_backend({name!r}).{attribute}"
    module, path = getattr(compiler, "__module__", ""), getattr(compiler, "__qualname__", "")
    if module not in ("", "__main__") and _found(module, path) is compiler:
        return f"{_INDENT}import {module}\n\n{_INDENT}return {module}.{path}"
    return f"{_INDENT}raise SystemExit('FILL IN: return the graph compiler of backend {name} here')"


def _is_named(name: str, attribute: str, compiler: Any) -> bool:
    return name.startswith("dynamo:") or getattr(get_backend(name), attribute) == compiler


def _found(module: str, path: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
