"""`Graphs` as the plain data that `aotkit/view/schema.py` describes: for the viewer, and for other programs."""

import operator
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Node

from aotkit.inspection.lines import expression, input_labels
from aotkit.inspection.memory import lifetimes
from aotkit.inspection.nodes import dtype_name, type_name
from aotkit.inspection.saved import (
    COPIED,
    recomputation_costs,
    recomputed_views,
    saved_bytes,
    saved_placeholders,
    saved_values,
    storage_bytes,
)
from aotkit.passes import (
    is_symbol,
    module_path,
    module_stack,
    operator_name,
    output_nodes,
    packet_name,
    size_hint,
    source_line,
)
from aotkit.text import SourceLine, printable
from aotkit.torch_private.dispatch import pytree
from aotkit.view import SCHEMA

if TYPE_CHECKING:
    from aotkit.inspection.graphs import Graphs

HELD = ("output", "saved", "tangent", "gradient", "temporary")
# Reductions without torch.Tag.reduction.
_NORMALISATIONS = ("softmax", "norm", "nll_loss", "cumsum", "cumprod", "logsumexp")
_CREATIONS = ("full", "zeros", "ones", "empty", "arange", "iota", "scalar_tensor", "full_like", "zeros_like")


def as_json(graphs: "Graphs") -> dict[str, Any]:
    """What a compilation made, as dicts, lists, strings, numbers and None."""
    return _Data(graphs).all()


class _Data:
    """The parts of it; nodes go by their step, and their source lines are numbered as they come."""

    def __init__(self, graphs: "Graphs") -> None:
        self._graphs = graphs
        self._alive = lifetimes(graphs)
        self._steps = self._alive.steps
        self._index = {node: i for i, node in enumerate(self._steps)}
        self._labels = input_labels(graphs)
        self._costs = recomputation_costs(graphs)
        self._again = set(recomputed_views(graphs))
        self._values = saved_values(graphs)
        self._saved = saved_placeholders(graphs)
        self._classes = [class_of(node) for node in self._steps]
        self._modules: dict[Node, str] = {}
        self._sources: dict[SourceLine, int] = {}
        self._regions = self._described_regions()
        self._region_of = {(r["graph"], name): i for i, r in enumerate(self._regions) for name in r["nodes"]}
        self._kernels = self._described_kernels()
        self._kernels_of: dict[int, list[int]] = defaultdict(list)
        for number, kernel in enumerate(self._kernels or ()):
            for i in kernel["nodes"]:
                self._kernels_of[i].append(number)

    def all(self) -> dict[str, Any]:
        graphs, alive = self._graphs, self._alive
        nodes = [self._node(node) for node in self._steps]
        live = alive.live_bytes(HELD)
        others = [value for value in self._values if value.dtype is not None and value.kind != "activation"]
        modules = {printable(path): printable(name) for node in self._steps for path, name in module_stack(node)}
        return {
            "schema": SCHEMA,
            "name": printable(graphs.name),
            "backend": printable(graphs.backend),
            "partition": printable(graphs.partition),
            "torch": torch.__version__,
            "nodes": nodes,
            "modules": modules,
            "sources": [{**asdict(source), "file": _file_name(source.file)} for source in self._sources],
            "saved": self._described_saved(),
            "storages": [
                {"bytes": s.memory.nbytes, "held": s.held, "first": s.first, "last": s.last} for s in alive.storages
            ],
            "memory": {"live": live, "saved": alive.live_bytes(["saved"])},
            "outputs": self._outputs(),
            "regions": self._regions,
            "kernels": self._kernels,
            "totals": {
                "saved_bytes": saved_bytes(graphs),
                "alive_bytes": storage_bytes(others),
                "recomputed": sum(node["role"] == "recomputed" for node in nodes),
                "views_again": sum(node["role"] == "view again" for node in nodes),
                "peak_bytes": max(live, default=0),
                "measured_peak_bytes": None if graphs.kernels is None else graphs.kernels.peak,
            },
        }

    def _graph(self, node: Node) -> str:
        return "forward" if node.graph is self._graphs.forward.graph else "backward"

    def _node(self, node: Node) -> dict[str, Any]:
        graph, i = self._graph(node), self._index[node]
        source, divided = source_line(node), self._graphs.regions.get(graph)
        reasons = zip(divided.backends, divided.outside.get(node.name, ()), strict=False) if divided else ()
        saved, cost = self._saved.get(node), self._costs.get(node)
        is_input, place = node.op == "placeholder", {read: f"%{i}" for i, read in enumerate(node.all_input_nodes)}
        return {
            "graph": graph,
            "name": node.name,
            "operator": "" if is_input else operator_name(node),
            "target": "" if is_input else str(node.target),
            "expression": "" if is_input else expression(node),
            "call": "" if is_input else expression(node, place.__getitem__),
            "class": self._classes[i],
            "role": self._role(node, graph),
            "label": self._labels.get(saved.storage if saved else node.name, "") if is_input else "",
            "inputs": [self._index[read] for read in node.all_input_nodes],
            "type": type_name(node.meta.get("val")),
            "tensors": _tensors(node),
            "storages": self._alive.of_node[node],
            "source": None if source is None else self._sources.setdefault(source, len(self._sources)),
            "module": self._module(node),
            "region": self._region_of.get((graph, node.name)),
            "outside": [f"{printable(backend)}: {printable(reason)}" for backend, reason in reasons],
            "kernels": self._kernels_of.get(i, []),
            "cost": None if cost is None else asdict(cost),
        }

    def _role(self, node: Node, graph: str) -> str:
        if node.op == "placeholder":
            return "input" if graph == "forward" else "saved" if node in self._saved else "tangent"
        return "recomputed" if node in self._costs else "view again" if node in self._again else ""

    def _module(self, node: Node) -> str:
        """A sum of gradients of one value belongs to the module around the one that the last of them comes from."""
        path = printable(module_path(node))
        if not path and node.meta.get("is_gradient_acc"):
            last = max(node.all_input_nodes, key=lambda read: self._index[read])
            path = self._modules[last].rpartition(".")[0]
        self._modules[node] = path
        return path

    def _described_saved(self) -> list[dict[str, Any]]:
        placeholders = {value.name: node for node, value in self._saved.items()}
        forward = {node.name: node for node in self._graphs.forward.graph.nodes}
        rows = []
        for value in self._values:
            placeholder = placeholders.get(value.name)
            holder = placeholder if value.reason == COPIED else None  # the copy is not in forward's graph
            storages = self._alive.of_node[holder or forward[value.name]]
            rows.append(
                {
                    "name": value.name,
                    "kind": value.kind,
                    "node": self._index[forward[value.name]],
                    "placeholder": None if placeholder is None else self._index[placeholder],
                    "readers": [] if placeholder is None else sorted(self._readers(placeholder)),
                    "storage": storages[0] if storages else None,
                    "bytes": value.nbytes,
                    "reason": value.reason,
                }
            )
        return rows

    def _readers(self, node: Node) -> set[int]:
        """The nodes that read a value, or a view of it."""
        found: set[int] = set()
        for user in node.users:
            if (i := self._index.get(user)) is not None:
                found |= self._readers(user) if self._classes[i] == "view" else {i}
        return found

    def _outputs(self) -> dict[str, list[int | None]]:
        found = {"forward": output_nodes(self._graphs.forward)[: self._graphs.num_outputs]}
        if self._graphs.backward is not None:
            found["backward"] = output_nodes(self._graphs.backward)
        index = {None: None} | self._index
        return {graph: [index[node] for node in nodes] for graph, nodes in found.items()}

    def _described_regions(self) -> list[dict[str, Any]]:
        return [
            {
                "graph": graph,
                "backend": printable(region.backend),
                "nodes": list(region.nodes),
                "failure": None if region.failure is None else printable(region.failure),
            }
            for graph, divided in self._graphs.regions.items()
            for region in divided.regions
        ]

    def _described_kernels(self) -> list[dict[str, Any]] | None:
        if self._graphs.kernels is None:
            return None
        # After partitioning, torch may put other nodes in the place of random ones: those have no index.
        named = {(self._graph(node), node.name): i for node, i in self._index.items()}
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
            for one in self._graphs.kernels.kernels
        ]


def class_of(node: Node) -> str:
    """What kind of work it is, for colours and filters: `class` of a node.

    "matmul" are matrix products, convolutions and attention. Whatever makes no new memory is a "view".
    """
    from aotkit.passes import flops, is_random, is_view

    if node.op == "placeholder":
        return "input"
    if is_symbol(node):
        return "size"
    name, tags = packet_name(node), getattr(node.target, "tags", ())
    if node.op == "get_attr" or name in _CREATIONS:
        return "constant"
    if node.target is operator.getitem or is_view(node):
        return "view"
    if is_random(node):
        return "random"
    if flops(node):
        return "matmul"
    if torch.Tag.reduction in tags or any(part in name for part in _NORMALISATIONS):
        return "reduction"
    return "pointwise" if torch.Tag.pointwise in tags else "other"


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
    parts, here = PurePath(path).parts, Path.cwd().parts
    return "/".join(parts[len(here) :] if parts[: len(here)] == here else parts[-2:])
