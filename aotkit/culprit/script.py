"""A wrong graph as a Python program."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from aotkit.checking import CheckReport
from aotkit.culprit.code import graph_code, literal_code, seeded_code
from aotkit.culprit.cuts import Cut, replay_partition
from aotkit.culprit.plugins import PlugIn, compiler_plugin, partitioner_plugin
from aotkit.culprit.result import Culprit, NotFound
from aotkit.culprit.trials import Trial, replay
from aotkit.joint import JOINT_TAGS
from aotkit.random import random_state
from aotkit.recipe import Recipe

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


@dataclass(frozen=True)
class Reproduction:
    """What a script does.

    Attributes:
        title: what is wrong.
        gm, inputs: the graph, and what it was wrong for.
        tags: which of the notes on its nodes are written.
        plugin: what gets the graph.
        replay: the function of this package that hands it over and compares.
        options: more arguments of that.
    """

    title: str
    gm: GraphModule
    inputs: Sequence[Tensor]
    tags: Sequence[str]
    plugin: PlugIn
    replay: Any
    options: dict[str, int]

    def code(self, inputs: str) -> str:
        """The program.

        Raises:
            NotFound: the graph cannot be written.
        """
        return _TEMPLATE.format(
            title=self.title.replace("\\", "\\\\").replace('"""', "'''"),
            torch=torch.__version__,
            python=sys.version.split()[0],
            graph=graph_code(self.gm, self.tags),
            inputs=inputs,
            kind=self.plugin.kind,
            plugin=self.plugin.code,
            replay=self.replay.__name__,
            options="".join(f", {name}={value}" for name, value in self.options.items()),
        )

    def run(self, gm: GraphModule, inputs: Sequence[Tensor]) -> CheckReport:
        """What the program prints."""
        report: CheckReport = self.replay(gm, inputs, self.plugin.function, **self.options)
        return report


def compiler_script(culprit: Culprit, recipe: Recipe, attribute: str, trial: Trial) -> str | None:
    """A program that reproduces a wrong compilation.

    Args:
        attribute: the one of the backend that has the compiler.
    """
    title = f"Backend {recipe.backend_name!r} computes {culprit.node} ({culprit.operator}) of a {culprit.part} wrongly."
    plugin = compiler_plugin(recipe, attribute)
    return _script(Reproduction(title + _where(culprit), trial.gm, trial.inputs, (), plugin, replay, {}))


def partitioner_script(culprit: Culprit, recipe: Recipe, cut: Cut) -> str | None:
    """A program that reproduces a wrong partition."""
    where = f"at {culprit.node}" if culprit.node else "in what the two parts return"
    title = f"Partitioner {recipe.partition_name!r} cuts a joint graph wrongly, {where}."
    plugin, options = partitioner_plugin(recipe), {"num_fwd_outputs": cut.num_fwd_outputs}
    reproduction = Reproduction(
        title + _where(culprit), cut.joint, cut.inputs, JOINT_TAGS, plugin, replay_partition, options
    )
    return _script(reproduction)


def _where(culprit: Culprit) -> str:
    return f"\n\nIt comes from {culprit.line}: {culprit.line.code}" if culprit.line else ""


def _script(reproduction: Reproduction) -> str | None:
    """The program as was tried; None if the graph, or its large inputs, cannot be written.

    Random inputs are tried first, then those for which it was wrong.
    """
    names = [n.name for n in reproduction.gm.graph.find_nodes(op="placeholder")]
    try:
        makers = [seeded_code(names, reproduction.inputs, seed) for seed in SEEDS]
        if sum(x.numel() for x in reproduction.inputs) <= MOST_ELEMENTS:
            makers.append(literal_code(names, reproduction.inputs))
        scripts = [reproduction.code(inputs) for inputs in makers]
    except NotFound:
        return None
    return next((script for script in scripts if _reproduces(script, reproduction)), None)


def _reproduces(script: str, reproduction: Reproduction) -> bool:
    names: dict[str, Any] = {"__name__": "reproduction"}
    exec(compile(script, "<reproduction>", "exec"), names)
    with random_state():
        torch.manual_seed(0)
        try:
            return not reproduction.run(names["build_graph"](), names["make_inputs"]()).passed
        except Exception:  # an operator may reject random numbers
            return False
