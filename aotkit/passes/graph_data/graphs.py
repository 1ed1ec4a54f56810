"""A whole graph as data, and back."""

import keyword
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.nn import Module

from aotkit.passes.changing_inputs import COPY
from aotkit.passes.constants import constant_data, constant_from, constant_of
from aotkit.passes.graph_data.values import BY_NAME, NotData, Reader, Tables, Writer
from aotkit.passes.new_storages import IS_NEW_STORAGE
from aotkit.passes.nodes import IN_KERNELS
from aotkit.passes.output_strides import PROMISED
from aotkit.passes.regions import regions_data, regions_of
from aotkit.torch_private.fake_tensors import outside_fake_mode
from aotkit.torch_private.fx import graph_module

# What aotkit, backends and partitioners read of nodes. `val` and the stacks are written in ways of their own.
NOTES = (
    "seq_nr", "partitioner_tag", "original_aten", "is_gradient_acc", "desc", "recompute", "saved_because",
    "recompute_seconds", "ac_graph_id", "has_backward_hook", IN_KERNELS, COPY, IS_NEW_STORAGE, PROMISED,
    "user_visible_output_idxs",
)  # fmt: skip
OF_GRAPHS = ("memory_limited", "choice_seconds")
NOTHING = ""  # in place of what a node does not have: no value is written as that
CALL, INPUT, HELD, OUTPUT = "call_function", "placeholder", "get_attr", "output"
# What reading raises where data are none of a graph's.
WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def graph_data(gm: GraphModule, tables: Tables | None = None) -> dict[str, Any] | None:
    """A graph as dicts, lists, strings, numbers and None, for `graph_of`: nodes, subgraphs, what is known of values.

    None for a graph with open sizes, one that holds generators or other tensors than small constants, and one that
    calls what is not torch's. Of what is noted of nodes all is kept that aotkit reads: see `NOTES`.

    Args:
        tables: takes what graphs of one record share; the caller keeps their `data`. By default, the graph has its own.
    """
    shared = Tables() if tables is None else tables
    try:
        found = _graph_data(gm, shared)
    except NotData:
        return None
    return found if tables is not None else {**found, "tables": shared.data()}


def graph_of(data: Mapping[str, Any], tables: Mapping[str, Any] | None = None) -> GraphModule:
    """The graph of such data. What it knows of values are fake tensors, of a mode of its own.

    Nothing of the data becomes code but the names of nodes and of what it holds, which are identifiers, and numbers and
    strings as Python writes them.

    Args:
        tables: that it shares with others, as data.

    Raises:
        ValueError: the data are none of a graph's, or name what such a graph may not call.
    """
    with _refusing():
        return _graph_of(data, data["tables"] if tables is None else tables)


def values_data(values: Sequence[Any], tables: Tables) -> dict[str, Any] | None:
    """Inputs of a graph, fake tensors and numbers, as data for `values_of`; None where they are none."""
    write = Writer(tables)
    try:
        return {"values": write.entries(values), "storages": write.storages}
    except NotData:
        return None


def values_of(data: Mapping[str, Any], tables: Mapping[str, Any]) -> list[Any]:
    """The values of such data.

    Raises:
        ValueError: they are no such.
    """
    with _refusing():
        found: list[Any] = Reader(tables, data["storages"]).value(data["values"])
        return found


@contextmanager
def _refusing() -> Iterator[None]:
    """Where data are read."""
    try:
        with outside_fake_mode():
            yield
    except WRONG as e:
        raise ValueError(f"these are not the data of a graph: {type(e).__name__}: {e}") from e


def _graph_data(gm: GraphModule, tables: Tables) -> dict[str, Any]:
    write = Writer(tables)
    held: dict[str, Any] = {}
    rows = []
    for number, node in enumerate(gm.graph.nodes):
        rows.append(_row(node, write))
        write.nodes[node] = number
        if node.op == HELD:
            held[node.target] = _held_data(gm, node, tables)
    of_graph = {key: write.value(gm.meta[key]) for key in OF_GRAPHS if key in gm.meta}
    if "regions" in gm.meta:
        of_graph["regions"] = regions_data(gm.meta["regions"])
    return {"nodes": rows, "storages": write.storages, "held": held, "meta": of_graph}


def _held_data(gm: GraphModule, node: Node, tables: Tables) -> Any:
    """Of a subgraph or a constant."""
    inner = getattr(gm, str(node.target), None)
    if isinstance(inner, GraphModule):
        return _graph_data(inner, tables)
    if (constant := constant_of(gm, node)) is None:
        raise NotData(f"a graph holds a {type(inner).__name__}")
    return constant_data(constant)


def _row(node: Node, write: Writer) -> list[Any]:
    """Name, operation, target, arguments, value, stack trace, stack of modules, notes; without what lacks at the end.

    An input and an output have no target, what is held no arguments.
    """
    meta = node.meta
    target: Any = None
    if node.op == CALL:
        target = write.tables.target(node.target)
    elif node.op == HELD:
        target = node.target
    elif node.op not in (INPUT, OUTPUT):
        raise NotData(f"a graph has a {node.op}")
    trace, modules = meta.get("stack_trace"), meta.get("nn_module_stack")
    row = [
        node.name, node.op[0], target,
        [write.entries(node.args), *([write.value(node.kwargs)] if node.kwargs else ())],
        write.value(meta["val"]) if "val" in meta else NOTHING,
        write.trace(trace) if trace else NOTHING,
        write.modules(modules) if modules else NOTHING,
        *[_note(key, meta[key], write) if key in meta else NOTHING for key in NOTES],
    ]  # fmt: skip
    while row[-1] == NOTHING:
        row.pop()
    return row


def _note(key: str, value: Any, write: Writer) -> Any:
    if key == "saved_because":
        return write.value(str(value))  # which is how it is read
    try:
        return write.value(value)
    except NotData:
        if key == "original_aten":  # another library's, of which torch's operators have been made
            return NOTHING
        raise


def _graph_of(data: Mapping[str, Any], tables: Mapping[str, Any]) -> GraphModule:
    read = Reader(tables, data["storages"])
    held = {name: _held(inner, tables) for name, inner in data["held"].items()}
    for name in held:
        if not _is_identifier(name) or hasattr(Module, name):
            raise ValueError(f"{name!r} is no name of what a graph holds")
    graph = Graph()
    for row in data["nodes"]:
        _add(graph, row, read)
    (output,) = graph.find_nodes(op=OUTPUT)
    if output is not read.nodes[-1]:
        raise ValueError("a graph goes on after its output")
    gm = graph_module(held, graph)
    for key, value in data["meta"].items():
        gm.meta[key] = regions_of(value) if key == "regions" else read.value(value)
    return gm


def _held(data: Any, tables: Mapping[str, Any]) -> Any:
    if isinstance(data, Mapping):
        return _graph_of(data, tables)
    dtype, device, shape, digits = data
    return constant_from(BY_NAME[torch.dtype][dtype], torch.device(device), shape, digits)


def _add(graph: Graph, row: list[Any], read: Reader) -> None:
    name, op, target, (args, *kwargs), *notes = row
    if not _is_identifier(name):
        raise ValueError(f"{name!r} is no name of a node")
    keywords = read.value(*kwargs) if kwargs else {}
    if not all(map(_is_identifier, keywords)):
        raise ValueError(f"{[*keywords]} are no names of arguments")
    operation = {name[0]: name for name in (CALL, INPUT, HELD, OUTPUT)}[op]
    called: Any = read.target(target) if operation == CALL else target if operation == HELD else name
    node = graph.create_node(operation, called, name=name)  # with arguments, fx would look for open sizes in them
    node.args = tuple(read.value(args))
    if keywords:
        node.kwargs = keywords
    if node.name != name:
        raise ValueError(f"the name {name!r} is not free")
    read.nodes.append(node)
    for (key, how), note in zip(_READ_NOTES, notes, strict=False):
        if note != NOTHING:
            node.meta[key] = how(read, note)


_READ_NOTES = (
    ("val", Reader.value),
    ("stack_trace", Reader.trace),
    ("nn_module_stack", Reader.shared),
    *((key, Reader.value) for key in NOTES),
)


def _is_identifier(name: Any) -> bool:
    """Whether a name is that and nothing else where it gets into the code of a graph."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
