"""A wrong graph as a Python program."""

import enum
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from aotkit.checking import CheckReport
from aotkit.culprit.parts import compiler_of, input_names
from aotkit.culprit.replay import replay, replay_partition
from aotkit.culprit.result import Culprit, NotFound
from aotkit.culprit.search import Wrong
from aotkit.joint import JOINT_TAGS
from aotkit.random import random_state

if TYPE_CHECKING:
    from aotkit.capture import Recipe

# Values of more elements are not written into a script.
MOST_ELEMENTS = 4096
SEEDS = (0, 1)
_INDENT = "    "

_TEMPLATE = '''"""{title}

Exits with 1 while that is so, with 0 when it is right. torch {torch}, Python {python}.
"""

import operator  # noqa: F401  (graphs with operators of several results need it)
import sys

import torch

import aotkit
from aotkit.culprit import {replay}


def build_graph():
    graph = torch.fx.Graph()
{graph}


def make_inputs():
{inputs}


def find_{kind}():
{plugin}


if __name__ == "__main__":
    torch.manual_seed(0)
    report = {replay}(build_graph(), make_inputs(), find_{kind}(){options})
    print(report)
    sys.exit(0 if report.passed else 1)
'''


# What hands a graph to a plug-in of each kind, and compares; and the notes on its nodes that such a plug-in reads.
_KINDS: dict[str, tuple[Callable[..., CheckReport], Sequence[str]]] = {
    "compiler": (replay, ()),
    "partitioner": (replay_partition, JOINT_TAGS),
}


def compiler_script(culprit: Culprit, recipe: "Recipe", attribute: str, wrong: Wrong) -> str | None:
    """A program that reproduces a wrong compilation, by the compiler in this attribute of the backend."""
    name, backend, function = recipe.backend_name, recipe.backend, compiler_of(recipe.backend, attribute)
    attribute = attribute if getattr(backend, attribute) is not None else "fw_compiler"
    code = _code(recipe.compiler_by_name(attribute, function), function, f"the graph compiler of backend {name!r}")
    title = f"Backend {name!r} computes {culprit.node} ({culprit.operator}) of a {culprit.part} wrongly."
    return _script("compiler", function, code, title + _origin(culprit), wrong)


def partitioner_script(culprit: Culprit, recipe: "Recipe", wrong: Wrong) -> str | None:
    """A program that reproduces a wrong partition."""
    name, function = recipe.partition_name, recipe.partition
    code = _code(recipe.partitioner_by_name(), function, f"the partitioner {name!r}")
    where = f"at {culprit.node}" if culprit.node else "in what the two parts return"
    title = f"Partitioner {name!r} cuts a joint graph wrongly, {where}."
    return _script("partitioner", function, code, title + _origin(culprit), wrong)


def _origin(culprit: Culprit) -> str:
    return f"\n\nIt comes from {culprit.line}: {culprit.line.code}" if culprit.line else ""


def _code(named: str | None, function: Any, what: str) -> str:
    """The body of a function that returns a plug-in, which is `what` in words.

    Args:
        named: source that finds it by its name; None if an installed package provides no such name.
    """
    if named is not None:
        return f"    return {named}"
    module, path = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    if module not in ("", "__main__") and found is function:
        return f"    import {module}\n\n    return {module}.{path}"
    message = f"FILL IN: return {what} here"
    return f"    raise SystemExit({message!r})"


def _script(kind: str, function: Any, code: str, title: str, wrong: Wrong) -> str | None:
    """The program as was tried; None if the graph, or its large inputs, cannot be written.

    Random inputs are tried first, then those for which it was wrong. `code` is the body of a function that returns the
    plug-in.
    """
    names = input_names(wrong.gm)
    replaying, tags = _KINDS[kind]
    options = {"num_fwd_outputs": wrong.num_fwd_outputs} if kind == "partitioner" else {}
    seeds = [*SEEDS, None] if sum(x.numel() for x in wrong.inputs) <= MOST_ELEMENTS else SEEDS
    try:
        graph = graph_code(wrong.gm, tags)
        makers = [inputs_code(names, wrong.inputs, seed) for seed in seeds]
    except NotFound:
        return None
    for inputs in makers:
        script = _TEMPLATE.format(
            title=title.replace("\\", "\\\\").replace('"""', "'''"),
            torch=torch.__version__,
            python=sys.version.split()[0],
            graph=graph,
            inputs=inputs,
            kind=kind,
            plugin=code,
            replay=replaying.__name__,
            options="".join(f", {name}={value}" for name, value in options.items()),
        )
        if _is_wrong(script, lambda *case: replaying(*case, function, **options)):
            return script
    return None


def _is_wrong(script: str, replaying: Callable[[GraphModule, Sequence[Tensor]], CheckReport]) -> bool:
    """Whether the program exits with 1."""
    names: dict[str, Any] = {"__name__": "reproduction"}
    exec(compile(script, "<reproduction>", "exec"), names)
    with random_state():
        torch.manual_seed(0)
        try:
            return not replaying(names["build_graph"](), names["make_inputs"]()).passed
        except Exception:  # an operator may reject random numbers
            return False


def graph_code(gm: GraphModule, tags: Sequence[str]) -> str:
    """The body of a function that has made `graph`, and returns a module of these nodes, with these notes on them.

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
