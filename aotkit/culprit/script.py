"""A wrong graph as a Python program."""

import sys
from typing import Any

import torch

from aotkit import aot
from aotkit.culprit.code import compiler_code, graph_code, literal_code, seeded_code
from aotkit.culprit.parts import compiler_of
from aotkit.culprit.result import Culprit, NotFound
from aotkit.culprit.trials import Trial, Trials, replay
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
from aotkit.culprit import replay


def build_graph():
    graph = torch.fx.Graph()
{graph}


def make_inputs():
{inputs}


def find_compiler():
{compiler}


if __name__ == "__main__":
    torch.manual_seed(0)
    report = replay(build_graph(), make_inputs(), find_compiler())
    print(report)
    sys.exit(0 if report.passed else 1)
'''


def script_of(culprit: Culprit, recipe: Recipe, trials: Trials, trial: Trial) -> str | None:
    """A program that reproduces a trial, as was tried; None if the graph, or its large inputs, cannot be written.

    Random inputs are tried first, then the ones of the trial.
    """
    try:
        return _script(culprit, recipe, trials, trial)
    except NotFound:
        return None


def _script(culprit: Culprit, recipe: Recipe, trials: Trials, trial: Trial) -> str | None:
    title = f"Backend {recipe.backend_name!r} computes {culprit.node} ({culprit.operator}) of a {culprit.part} wrongly."
    where = f"\n\nIt comes from {culprit.line}: {culprit.line.code}" if culprit.line else ""
    names = [n.name for n in trial.gm.graph.find_nodes(op="placeholder")]
    makers = [seeded_code(names, trial.inputs, seed) for seed in SEEDS]
    if sum(x.numel() for x in trial.inputs) <= MOST_ELEMENTS:
        makers.append(literal_code(names, trial.inputs))
    for inputs in makers:
        script = _TEMPLATE.format(
            title=(title + where).replace("\\", "\\\\").replace('"""', "'''"),
            torch=torch.__version__,
            python=sys.version.split()[0],
            graph=graph_code(trial.gm),
            inputs=inputs,
            compiler=compiler_code(recipe.backend_name, recipe.backend, trials.part.compiler),
        )
        if _reproduces(script, compiler_of(recipe.backend, trials.part.compiler)):
            return script
    return None


def _reproduces(script: str, compiler: Any) -> bool:
    names: dict[str, Any] = {"__name__": "reproduction"}
    exec(compile(script, "<reproduction>", "exec"), names)
    with aot.random_state():
        torch.manual_seed(0)
        try:
            return not replay(names["build_graph"](), names["make_inputs"](), compiler).passed
        except Exception:  # an operator may reject random numbers
            return False
