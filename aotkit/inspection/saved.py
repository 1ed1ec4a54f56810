"""What forward keeps in memory for backward, and what backward computes again."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from aotkit.inspection.nodes import bytes_moved, memory_of, storage_roots
from aotkit.passes import (
    asked_to_recompute,
    is_operation,
    is_symbol,
    operator_name,
    output_nodes,
    placeholders,
    producer,
    size_hint,
    source_line,
)
from aotkit.text import SourceLine, printable
from aotkit.view import Cost

if TYPE_CHECKING:
    from aotkit.inspection.graphs import Graphs

MOST_READERS = 2
COPIED = "the compiler keeps a copy in another layout"


@dataclass(frozen=True)
class SavedValue:
    """One value that forward returns for backward.

    Attributes:
        name: of the forward graph's node.
        kind: "activation", "input", "view of input", "output", "view of output" or "symbolic size". A copy of what the
            caller holds is an activation.
        dtype: None unless it is a tensor.
        shape: may hold symbolic sizes.
        nbytes: bytes of the whole storage that the value keeps alive, with the symbolic sizes of the trace;
            None if the graph does not say.
        storage: name of the first node in that storage; equal for values that share memory.
        operator: short name of the operator that computed the value; "" for an input.
        reason: why the partitioner saves it, if it says so (see `Partitioner`); else what reads it in backward. "" for
            what is no activation: the caller holds that anyway.
        source: the user's line that it comes from.
    """

    name: str
    kind: str
    dtype: torch.dtype | None
    shape: tuple[int | torch.SymInt, ...]
    nbytes: int | None
    storage: str
    operator: str
    reason: str
    source: SourceLine | None


def saved_values(graphs: "Graphs") -> list[SavedValue]:
    """The values that forward returns beyond `graphs.num_outputs`, in that order."""
    roots = storage_roots(graphs.forward)
    kept = kept_outputs(graphs)
    kept_storages = {roots[node] for node in kept}
    by_placeholder = _readers(graphs.backward)
    readers = {node: by_placeholder[placeholder] for node, placeholder in _taken(graphs)}

    def kind(node: Node) -> str:
        root = roots[node]
        if is_symbol(node):
            return "symbolic size"
        if root.op == "placeholder":
            return "input" if node is root else "view of input"
        if root in kept_storages:
            return "output" if node in kept else "view of output"
        return "activation"

    values = [_saved_value(node, kind(node), roots[node], readers.get(node, ())) for node in saved_nodes(graphs)]
    copied = kept_as_copies(graphs, values)
    return [_copy(value) if value.name in copied else value for value in values]


def saved_bytes(graphs: "Graphs") -> int:
    """Bytes of memory that only backward needs: each storage that holds a saved activation, once.

    Inputs, outputs and views of them are not counted: the caller holds them anyway. Nor is a value whose size depends
    on data: its `nbytes` is None.
    """
    return storage_bytes([value for value in saved_values(graphs) if value.kind == "activation"])


def storage_bytes(values: Sequence[SavedValue]) -> int:
    """Bytes of the distinct storages of `values`; a storage of unknown size counts as none."""
    return sum({value.storage: value.nbytes or 0 for value in values}.values())


def saved_nodes(graphs: "Graphs") -> list[Node]:
    """Those of forward whose values it returns for backward."""
    return [node for node in output_nodes(graphs.forward)[graphs.num_outputs :] if node is not None]


def saved_placeholders(graphs: "Graphs") -> dict[Node, SavedValue]:
    """For each placeholder of backward that takes a saved value, that value."""
    values = {value.name: value for value in saved_values(graphs)}
    return {placeholder: values[node.name] for node, placeholder in _taken(graphs)}


def kept_outputs(graphs: "Graphs") -> set[Node]:
    """The outputs that the caller holds. The new value of a mutated input is copied into the input and then freed."""
    outputs = output_nodes(graphs.forward)[: graphs.num_outputs]
    descriptions = graphs.forward.graph.output_node().meta.get("desc") or [None] * len(outputs)
    return {
        node
        for node, description in zip(outputs, descriptions, strict=False)
        if node is not None and type(description).__name__ != "InputMutationAOTOutput"
    }


def kept_as_copies(graphs: "Graphs", values: Sequence[SavedValue]) -> set[str]:
    """The names of saved values that the caller holds, but not in the layout in which the backward graph gets them.

    So a compiler keeps a copy of its own: Inductor does of the weights and images of convolutions.
    """
    held = {value.name for value in values if value.kind != "activation"}
    return {
        node.name
        for (node, placeholder), given in zip(_taken(graphs), graphs.backward_inputs, strict=False)
        if node.name in held and isinstance(given, Tensor) and _layout(given) != _layout(placeholder.meta["val"])
    }


def _layout(value: Tensor) -> list[int | None]:
    """Its strides, but for dimensions of one element, along which nothing is ever reached."""
    return [size_hint(stride) for size, stride in zip(value.shape, value.stride(), strict=True) if size_hint(size) != 1]


def _taken(graphs: "Graphs") -> list[tuple[Node, Node]]:
    """Each saved node of forward, and the placeholder of backward that takes it, in the order of these."""
    # Forward returns the symbolic sizes last, backward takes them first.
    nodes = sorted(saved_nodes(graphs), key=lambda node: not is_symbol(node))
    return list(zip(nodes, placeholders(graphs.backward), strict=False))


def _readers(backward: GraphModule | None) -> dict[Node, list[Node]]:
    """For each placeholder, the operations that read it or a view of it, in the order of the graph."""
    if backward is None:
        return {}
    roots = storage_roots(backward)
    readers: dict[Node, list[Node]] = defaultdict(list)
    for node in backward.graph.nodes:
        for source in dict.fromkeys(roots[i] for i in node.all_input_nodes):
            if roots[node] is not source:
                readers[source].append(node)
    return {placeholder: readers[roots[placeholder]] for placeholder in placeholders(backward)}


def _saved_value(node: Node, kind: str, root: Node, readers: Sequence[Node]) -> SavedValue:
    value = node.meta.get("val")
    tensor = value if isinstance(value, Tensor) else None
    storage = memory_of(value)
    # The annotation of nbytes() says int, but under symbolic shapes it is a SymInt.
    size: Any = None if storage is None else storage.nbytes()
    return SavedValue(
        name=node.name,
        kind=kind,
        dtype=None if tensor is None else tensor.dtype,
        shape=() if tensor is None else tuple(tensor.shape),
        nbytes=0 if is_symbol(node) else None if size is None else size_hint(size),
        storage=root.name,
        operator="" if node.op == "placeholder" else operator_name(producer(node)),
        reason=_reason(node, readers) if kind == "activation" else "",
        source=source_line(node),
    )


def _copy(value: SavedValue) -> SavedValue:
    assert value.dtype is not None
    nbytes = size_hint(math.prod(value.shape) * value.dtype.itemsize)
    return replace(value, kind="activation", nbytes=nbytes, storage=value.name, reason=COPIED)


def _reason(node: Node, readers: Sequence[Node]) -> str:
    for said in (node, producer(node)):
        if "saved_because" in said.meta:
            return printable(str(said.meta["saved_because"]))
    names = ", ".join(reader.name for reader in readers[:MOST_READERS])
    more = f" and {len(readers) - MOST_READERS} more" if len(readers) > MOST_READERS else ""
    return f"read by {names}{more}" if readers else ""


def recomputed(graphs: "Graphs") -> list[Node]:
    """The operations of backward whose result forward had computed already; see `recomputed_views` for views.

    Two operations are the same if operator and arguments are, whatever the nodes are called. So what a derivative
    formula computes again, as `sin` and `cos` do in `x.sin() + x.cos()`, counts like what the partitioner chose.
    """
    return [node for node, is_view in _computed_twice(graphs) if not is_view]


def recomputed_views(graphs: "Graphs") -> list[Node]:
    """The views that backward takes again: they cost neither memory nor a kernel."""
    return [node for node, is_view in _computed_twice(graphs) if is_view]


# What there is in the place of torch.utils.checkpoint.
INSTEAD = "without its marks, partition nx_min_cut.peak(limit) chooses what to recompute for a peak that you give"


def checkpointed(graphs: "Graphs") -> list[Node]:
    """Those of `recomputed` that `torch.utils.checkpoint` asks for: its marks leave the partitioner no choice."""
    return [node for node in recomputed(graphs) if asked_to_recompute(node)]


def recomputation_costs(graphs: "Graphs") -> dict[Node, Cost]:
    """What each operation of backward costs that forward had done already, in the order of the graph."""
    return {node: _cost(node) for node in recomputed(graphs)}


def _cost(node: Node) -> Cost:
    from aotkit.passes import flops

    is_described = all("val" in n.meta for n in (node, *node.all_input_nodes))
    return Cost(bytes_moved(node), flops(node) if is_described else 0, node.meta.get("recompute_seconds"))


def _computed_twice(graphs: "Graphs") -> Iterator[tuple[Node, bool]]:
    """What forward has computed and backward computes again, and whether it is a view."""
    if graphs.backward is None:
        return
    table: dict[Any, int] = {}
    forward = _number_values(graphs.forward, table, {})
    names = {node.name: number for node, number in forward.items()}
    given = {node: names[value.name] for node, value in saved_placeholders(graphs).items()}
    known, roots = set(forward.values()), storage_roots(graphs.backward)
    for node, number in _number_values(graphs.backward, table, given).items():
        if is_operation(node) and number in known:
            yield node, roots[node] is not node


def _number_values(gm: GraphModule, table: dict[Any, int], given: dict[Node, int]) -> dict[Node, int]:
    """A number for each node, equal for equal operators and arguments; `table` holds those given so far."""
    numbers: dict[Node, int] = {}
    for node in gm.graph.nodes:
        if node in given:
            numbers[node] = given[node]
            continue
        tags = getattr(node.target, "tags", ())
        if node.op != "call_function" or torch.Tag.nondeterministic_seeded in tags:
            key: Any = (node.op, node.name if node.op != "get_attr" else node.target)
        else:
            key = (node.target, str(map_arg((node.args, node.kwargs), lambda arg: f"%{numbers[arg]}")))
        numbers[node] = table.setdefault(key, len(table))
    return numbers
