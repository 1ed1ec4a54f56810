"""`Graphs` as plain data that outlive the process, and back: its graphs are rebuilt when somebody looks at them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch.fx import GraphModule

from aotkit.inspection.graphs import Graphs
from aotkit.passes import Tables, graph_data, graph_of, regions_data, regions_of, values_data, values_of

ROLES = ("forward", "joint", "backward")


def graphs_data(graphs: Graphs) -> dict[str, Any] | None:
    """All of a record but the kernels, as dicts, lists, strings, numbers and None, which `json.dumps` takes.

    None where a graph is not data: see `graph_data`.
    """
    tables = Tables()
    found: dict[str, Any] = {}
    for role in ROLES:
        if (gm := getattr(graphs, role)) is not None:
            found[role] = graph_data(gm, tables)
    backward_inputs = values_data(graphs.backward_inputs, tables)
    if None in (*found.values(), backward_inputs):
        return None
    return {
        "name": graphs.name,
        "backend": graphs.backend,
        "partition": graphs.partition,
        "num_outputs": graphs.num_outputs,
        "input_names": [*graphs.input_names],
        "regions": {role: regions_data(regions) for role, regions in graphs.regions.items()},
        "graphs": found,
        "backward_inputs": backward_inputs,
        "tables": tables.data(),
    }


def graphs_of(data: Mapping[str, Any]) -> Graphs:
    """The record of such data; what is wrong with a graph is told when one asks for that.

    Raises:
        ValueError: the data are no such.
    """
    return _LazyGraphs.of(data)


class _LazyGraphs(Graphs):
    """Whose graphs, and what the backward graph was compiled for, are data until somebody looks at them."""

    _data: Mapping[str, Any]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Graphs:
        made = cls.__new__(cls)
        try:
            regions = {role: regions_of(divided) for role, divided in data["regions"].items()}
            known = {key: data[key] for key in ("name", "backend", "partition", "num_outputs", "input_names")}
        except (AttributeError, LookupError, TypeError) as e:
            raise ValueError(f"these are not the data of graphs: {type(e).__name__}: {e}") from e
        vars(made).update(known, regions=regions, kernels=None, _data=data)
        return made

    def rebuilt(self, role: str) -> GraphModule | None:
        data = self._data["graphs"].get(role)
        return None if data is None else graph_of(data, self._data["tables"])

    forward: Any = cached_property(lambda self: self.rebuilt("forward"))
    joint: Any = cached_property(lambda self: self.rebuilt("joint"))
    backward: Any = cached_property(lambda self: self.rebuilt("backward"))
    backward_inputs: Any = cached_property(lambda self: values_of(self._data["backward_inputs"], self._data["tables"]))
