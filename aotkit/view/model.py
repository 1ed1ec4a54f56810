"""`Graphs` as plain data: what the viewer shows, and what other programs can read.

Sizes are in bytes, times in seconds. Nodes, storages, sources, regions and kernels go by their index in the lists
below, but for `nodes` of a region, which are names. A node's index is also its step: the nodes of forward come first,
then those of backward, each in the order of the program, without the outputs.

* `schema`: 1. Keys may be added to it; a change of meaning gets another number.
* `name`, `backend`, `partition`, `torch`: what was compiled, by whom, and torch's version.
* `nodes`: for each
    * `graph`: "forward" or "backward"; `name`; `operator`, such as "mul"; `target`, such as "aten.mul.Tensor";
      `expression`: with its arguments; `call`: the same with `%0`, `%1`, ... for the nodes that it reads. All four
      are "" of an input. `inputs`: the nodes that it reads.
    * `class`: "matmul" (convolutions and attention, too), "pointwise", "reduction", "random", "view", "constant",
      "size" (a symbolic number), "input" or "other".
    * `role`: "input" (of forward), "saved" or "tangent" (inputs of backward), "recomputed" or "view again" (in
      backward, where forward has computed the same), else "". `label`: the user's name of an input.
    * `type`: dtype and shape as text; `tensors`: `dtype`, `shape` (numbers, names of open sizes) and `bytes` of
      each tensor; `storages`: where they lie.
    * `source`; `module`: path of the innermost module, "layers.0.linear", or "".
    * `region`: which one it is in, or None; `outside`: for each backend that takes parts of graphs, why it is in
      none. None and [] where the graph is not divided.
    * `kernels`: those that compute it, several where they all do so for themselves. [] of inputs, of views, of what
      nothing needs, and where kernels are not known.
    * `cost`: of what is recomputed, `nbytes` moved, `flops` and the partitioner's estimate of `seconds`, or None.
* `modules`: path -> name of the class, for each module that is called.
* `sources`: `file` (below the working directory, else its last two parts), `line`, `code`, `function` of the user's.
* `saved`: in forward's order, what it keeps for backward: `name`; `kind`: "activation", or what the caller holds
  anyway ("input", "view of input", "output", "view of output"), or "symbolic size"; `node` in forward;
  `placeholder` in backward; `readers`: what reads it there, or a view of it; `storage`; `bytes` of that; `reason`. A
  copy that the compiler keeps of what the caller holds is an activation; its storage is that of the placeholder.
* `storages`: `bytes`; `held`: as "input", "constant", "output", "saved", "tangent", "gradient" or "temporary";
  `first` and `last` step at which it is alive.
* `memory`: for each step the bytes alive while it runs, `live` in all, and `saved` those of saved activations.
  Inputs and constants do not count. It is what the graphs say, run node by node as by `nop`: fused kernels hold less,
  and operators that take memory for themselves, such as convolutions, more. What is really held, `kernels` have.
* `outputs`: for "forward" and "backward", which nodes they return; saved values are not among them.
* `regions`: `graph`, `backend`, `nodes`, and `failure`, if it runs as it is.
* `kernels`: what the backend launches, in order: `graph`, `name`, `language`, `nodes`, `launches` on the device (None
  if its compiler does not tell), `why` it is not fused with others, `seconds` and `peak_bytes`: as measured, its time
  and the most that is held from the end of the kernel before to its own, without inputs; None if it could not be told
  apart. None where kernels are not known: compiling alone does not tell them, but the graphs of `explain` have them.
* `totals`: `saved_bytes` (distinct storages of saved activations), `alive_bytes` (of all else that is saved),
  `recomputed` and `views_again` (numbers of nodes), `peak_bytes` (the most of `memory.live`), `measured_peak_bytes`
  (the most that the backend's kernels hold, as measured, without inputs; None where kernels are not known).

A size that depends on data is None, and counts as 0 in storages and totals.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Node

from aotkit.inspection.costs import Cost, recomputation_costs
from aotkit.inspection.lines import expression, input_labels
from aotkit.inspection.modules import module_path, module_stack
from aotkit.inspection.nodes import dtype_name, operator_name, output_nodes, size_hint, type_name
from aotkit.inspection.saved import recomputed_views, saved_bytes, saved_placeholders, saved_values, storage_bytes
from aotkit.inspection.source import SourceLine, source_line
from aotkit.text import printable
from aotkit.torch_private.dispatch import pytree
from aotkit.view.classes import class_of
from aotkit.view.lifetimes import Lifetimes, lifetimes
from aotkit.view.schema import SCHEMA

if TYPE_CHECKING:
    from aotkit.graphs import Graphs

HELD = ("output", "saved", "tangent", "gradient", "temporary")


def as_json(graphs: "Graphs") -> dict[str, Any]:
    """What a compilation made, as dicts, lists, strings, numbers and None: schema 1, which this module describes."""
    alive = lifetimes(graphs)
    index = {node: i for i, node in enumerate(alive.steps)}
    sources: dict[SourceLine, int] = {}
    regions = _regions(graphs)
    kernels = _kernels(graphs, index)
    described = _Described(graphs, alive, index, sources, regions, kernels or ())
    nodes = [described.node(node) for node in alive.steps]
    saved = _saved(graphs, alive, index, nodes)
    live = alive.live_bytes(HELD)
    values = [value for value in saved_values(graphs) if value.dtype is not None and value.kind != "activation"]
    return {
        "schema": SCHEMA,
        "name": printable(graphs.name),
        "backend": printable(graphs.backend),
        "partition": printable(graphs.partition),
        "torch": torch.__version__,
        "nodes": nodes,
        "modules": _modules(alive.steps),
        "sources": [{**asdict(source), "file": _file_name(source.file)} for source in sources],
        "saved": saved,
        "storages": [
            {"bytes": s.memory.nbytes, "held": s.held, "first": s.first, "last": s.last} for s in alive.storages
        ],
        "memory": {"live": live, "saved": alive.live_bytes(["saved"])},
        "outputs": _outputs(graphs, index),
        "regions": regions,
        "kernels": kernels,
        "totals": {
            "saved_bytes": saved_bytes(graphs),
            "alive_bytes": storage_bytes(values),
            "recomputed": sum(node["role"] == "recomputed" for node in nodes),
            "views_again": sum(node["role"] == "view again" for node in nodes),
            "peak_bytes": max(live, default=0),
            "measured_peak_bytes": None if graphs.kernels is None else graphs.kernels.peak,
        },
    }


class _Described:
    """Nodes as data; adds their source lines to `sources`."""

    def __init__(
        self,
        graphs: "Graphs",
        alive: Lifetimes,
        index: Mapping[Node, int],
        sources: dict[SourceLine, int],
        regions: Sequence[Mapping[str, Any]],
        kernels: Sequence[Mapping[str, Any]],
    ) -> None:
        self._graphs, self._alive, self._index, self._sources = graphs, alive, index, sources
        self._labels = input_labels(graphs)
        self._costs = recomputation_costs(graphs)
        self._again = set(recomputed_views(graphs))
        self._saved = saved_placeholders(graphs)
        self._modules: dict[Node, str] = {}
        self._region = {(r["graph"], name): i for i, r in enumerate(regions) for name in r["nodes"]}
        self._kernels: dict[int, list[int]] = defaultdict(list)
        for number, kernel in enumerate(kernels):
            for i in kernel["nodes"]:
                self._kernels[i].append(number)

    def node(self, node: Node) -> dict[str, Any]:
        graph = "forward" if node.graph is self._graphs.forward.graph else "backward"
        source, divided = source_line(node), self._graphs.regions.get(graph)
        reasons = divided.outside.get(node.name, ()) if divided else ()
        backends = divided.backends if divided else ()
        saved = self._saved.get(node)
        is_input, place = node.op == "placeholder", {read: f"%{i}" for i, read in enumerate(node.all_input_nodes)}
        return {
            "graph": graph,
            "name": node.name,
            "operator": "" if is_input else operator_name(node),
            "target": "" if is_input else str(node.target),
            "expression": "" if is_input else expression(node),
            "call": "" if is_input else expression(node, place.__getitem__),
            "class": class_of(node),
            "role": self._role(node, graph),
            "label": self._labels.get(saved.storage if saved else node.name, "") if is_input else "",
            "inputs": [self._index[i] for i in node.all_input_nodes],
            "type": type_name(node.meta.get("val")),
            "tensors": _tensors(node),
            "storages": self._alive.of_node[node],
            "source": None if source is None else self._sources.setdefault(source, len(self._sources)),
            "module": self._module(node),
            "region": self._region.get((graph, node.name)),
            "outside": [f"{printable(b)}: {printable(r)}" for b, r in zip(backends, reasons, strict=False)],
            "kernels": self._kernels.get(self._index[node], []),
            "cost": _cost(self._costs.get(node)),
        }

    def _role(self, node: Node, graph: str) -> str:
        if node.op == "placeholder":
            return "input" if graph == "forward" else "saved" if node in self._saved else "tangent"
        return "recomputed" if node in self._costs else "view again" if node in self._again else ""

    def _module(self, node: Node) -> str:
        """A sum of gradients of one value belongs to the module around the one that the last of them comes from."""
        path = printable(module_path(node))
        if not path and node.meta.get("is_gradient_acc"):
            last = max(node.all_input_nodes, key=lambda i: self._index[i])
            path = self._modules[last].rpartition(".")[0]
        self._modules[node] = path
        return path


def _cost(cost: Cost | None) -> dict[str, Any] | None:
    return None if cost is None else asdict(cost)


def _tensors(node: Node) -> list[dict[str, Any]]:
    values = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)]
    return [
        {
            "dtype": dtype_name(value.dtype),
            "shape": [size if isinstance(size, int) else str(size) for size in value.shape],
            "bytes": size_hint(value.numel() * value.element_size()),
        }
        for value in values
    ]


def _file_name(path: str) -> str:
    """The path from the working directory, else its last two parts: who gets to see it learns no more."""
    parts = PurePath(path).parts
    here = Path.cwd().parts
    return "/".join(parts[len(here) :] if parts[: len(here)] == here else parts[-2:])


def _modules(steps: Sequence[Node]) -> dict[str, str]:
    return {printable(path): printable(name) for node in steps for path, name in module_stack(node)}


def _regions(graphs: "Graphs") -> list[dict[str, Any]]:
    return [
        {
            "graph": graph,
            "backend": printable(region.backend),
            "nodes": list(region.nodes),
            "failure": None if region.failure is None else printable(region.failure),
        }
        for graph, divided in graphs.regions.items()
        for region in divided.regions
    ]


def _kernels(graphs: "Graphs", index: Mapping[Node, int]) -> list[dict[str, Any]] | None:
    if graphs.kernels is None:
        return None
    # After partitioning, torch may put other nodes in the place of random ones: those have no index.
    named = {("backward" if n.graph is not graphs.forward.graph else "forward", n.name): i for n, i in index.items()}
    return [
        {
            "graph": one.role,
            "name": printable(one.kernel.name),
            "language": printable(one.kernel.language),
            "nodes": [named[key] for name in one.operations if (key := (one.role, name)) in named],
            "launches": one.kernel.launches,
            "why": printable(one.why),
            "seconds": one.seconds,
            "peak_bytes": one.peak,
        }
        for one in graphs.kernels.kernels
    ]


def _saved(
    graphs: "Graphs", alive: Lifetimes, index: Mapping[Node, int], nodes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    placeholders = {value.name: node for node, value in saved_placeholders(graphs).items()}
    forward = {node.name: node for node in graphs.forward.graph.nodes}
    rows = []
    for value in saved_values(graphs):
        placeholder = placeholders.get(value.name)
        holder = placeholder if value.name in graphs.copied else None  # the copy is not in forward's graph
        storages = alive.of_node[holder or forward[value.name]]
        rows.append(
            {
                "name": value.name,
                "kind": value.kind,
                "node": index[forward[value.name]],
                "placeholder": None if placeholder is None else index[placeholder],
                "readers": [] if placeholder is None else _readers(placeholder, index, nodes),
                "storage": storages[0] if storages else None,
                "bytes": value.nbytes,
                "reason": value.reason,
            }
        )
    return rows


def _readers(node: Node, index: Mapping[Node, int], nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """The nodes that read a value, or a view of it."""
    found: dict[int, None] = {}
    for user in node.users:
        if user in index:
            is_view = nodes[index[user]]["class"] == "view"
            found.update(dict.fromkeys(_readers(user, index, nodes) if is_view else [index[user]]))
    return sorted(found)


def _outputs(graphs: "Graphs", index: Mapping[Node, int]) -> dict[str, list[int | None]]:
    found = {"forward": output_nodes(graphs.forward)[: graphs.num_outputs]}
    if graphs.backward is not None:
        found["backward"] = output_nodes(graphs.backward)
    return {graph: [None if node is None else index[node] for node in nodes] for graph, nodes in found.items()}
