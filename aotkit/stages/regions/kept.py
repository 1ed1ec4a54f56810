"""A divided graph that an earlier process has compiled, made again of its data."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aotkit.interfaces import Boxed
from aotkit.passes import graph_of
from aotkit.stages.calls import Product, boxed_call
from aotkit.stages.graph_launches import Sequential, Step

Load = Callable[[Mapping[str, Any], Mapping[str, Path]], Boxed]


def load(loads: Mapping[str, Load], data: Mapping[str, Any], files: Mapping[str, Path]) -> Boxed:
    """The function that `Sequential.data`, or `Tried.data` of a whole graph, tells of.

    Args:
        loads: of each backend, by name; it gets the graph of a region with its own data.
    """
    if "parts" not in data:
        return boxed_call(_part(loads, data, files).run)
    steps = []
    for part in data["parts"]:
        product = _part(loads, part, {name: files[file] for name, file in part["files"].items()})
        run = boxed_call(product.run)
        steps.append(Step(product, run, part["takes"], part["frees"], slice(*part["gives"])))
    return Sequential(steps, [None] * data["values"], data["constants"], data["where"])


def _part(loads: Mapping[str, Load], data: Mapping[str, Any], files: Mapping[str, Path]) -> Product:
    graph = graph_of(data["graph"])
    if data["by"] is None:
        return Product(graph, graph)
    return Product(loads[data["by"]]({**data["own"], "graph": data["graph"]}, files), graph)
