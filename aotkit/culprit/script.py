"""A wrong graph as a Python program."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit import aot
from aotkit.checking import CheckReport
from aotkit.culprit.attempts import Wrong
from aotkit.culprit.code import graph_code, inputs_code
from aotkit.culprit.parts import compiler_of, input_names
from aotkit.culprit.replay import replay, replay_partition
from aotkit.culprit.result import Culprit, NotFound
from aotkit.recipe import Recipe
from aotkit.registry import BACKENDS, PARTITIONERS, get_backend, get_partitioner

# Values of more elements are not written into a script.
MOST_ELEMENTS = 4096
SEEDS = (0, 1)

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
    "partitioner": (replay_partition, aot.JOINT_TAGS),
}


def compiler_script(culprit: Culprit, recipe: Recipe, attribute: str, wrong: Wrong) -> str | None:
    """A program that reproduces a wrong compilation.

    Args:
        attribute: the one of the backend that has the compiler.
    """
    name, backend, function = recipe.backend_name, recipe.backend, compiler_of(recipe.backend, attribute)
    attribute = attribute if getattr(backend, attribute) is not None else "fw_compiler"
    is_named = name.startswith("dynamo:") or (
        BACKENDS.is_installed(name) and getattr(get_backend(name), attribute) == function
    )
    named = f"aotkit.get_backend({name!r}).{attribute}" if is_named else None
    code = _code(named, function, f"the graph compiler of backend {name!r}")
    title = f"Backend {name!r} computes {culprit.node} ({culprit.operator}) of a {culprit.part} wrongly."
    return _script("compiler", function, code, title + _origin(culprit), wrong)


def partitioner_script(culprit: Culprit, recipe: Recipe, wrong: Wrong) -> str | None:
    """A program that reproduces a wrong partition."""
    name, function = recipe.partition_name, recipe.partition
    is_named = PARTITIONERS.is_installed(name) and get_partitioner(name) == function
    named = f"aotkit.get_partitioner({name!r})" if is_named else None
    code = _code(named, function, f"the partitioner {name!r}")
    where = f"at {culprit.node}" if culprit.node else "in what the two parts return"
    title = f"Partitioner {name!r} cuts a joint graph wrongly, {where}."
    return _script("partitioner", function, code, title + _origin(culprit), wrong)


def _origin(culprit: Culprit) -> str:
    return f"\n\nIt comes from {culprit.line}: {culprit.line.code}" if culprit.line else ""


def _code(named: str | None, function: Any, what: str) -> str:
    """The body of a function that returns a plug-in.

    Args:
        named: source that finds it by its name; None if an installed package provides no such name.
        what: it in words.
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

    Random inputs are tried first, then those for which it was wrong.

    Args:
        function: the plug-in.
        code: the body of a function that returns it.
        title: what is wrong.
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
    with aot.random_state():
        torch.manual_seed(0)
        try:
            return not replaying(names["build_graph"](), names["make_inputs"]()).passed
        except Exception:  # an operator may reject random numbers
            return False
