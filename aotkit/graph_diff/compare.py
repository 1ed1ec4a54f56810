"""`diff`: what differs between two graphs, as `Graphs.json()` has them."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from aotkit.graph_diff.groups import different_kernels, different_regions
from aotkit.graph_diff.matching import Data, Type, is_operation, paired, types, values
from aotkit.graph_diff.records import Operation, Output, Pair
from aotkit.graph_diff.result import GraphDiff
from aotkit.graph_diff.storages import saved_storages, source_of
from aotkit.graphs import Graphs
from aotkit.inspection import Cost
from aotkit.view.schema import require_graphs

TOTALS = ("saved_bytes", "alive_bytes", "recomputed", "views_again", "peak_bytes")
AGAIN = ("recomputed", "view again")


def diff(a: Graphs | Mapping[str, Any], b: Graphs | Mapping[str, Any]) -> GraphDiff:
    """What B saves, recomputes, computes and fuses otherwise than A.

    Args:
        a, b: `Graphs`, or what `json.load` reads where `Graphs.json()` was written, maybe under another torch.

    Raises:
        TypeError, ValueError: it is neither; the message names the first thing that is wrong in it.
    """
    return compared(_data(a, "A"), _data(b, "B"))


def compared(a: Data, b: Data) -> GraphDiff:
    """The same for two that `Graphs.json()` returned, or that `require_graphs` has found to be such data."""
    data = a, b
    numbers = values(*data)
    items = [_items(*side) for side in zip(data, numbers, strict=True)]
    inputs = _paired(items, lambda item: item.role in ("input", "tangent"))
    first = _paired(items, lambda item: item.is_operation and item.role not in AGAIN)
    again = _paired(items, lambda item: item.role in AGAIN)
    both = [(i, j) for i, j in (*inputs, *first, *again) if i and j]
    same = [(i.node, j.node) for i, j in both]

    def described(pairs: Iterable[Match]) -> list[Pair[Operation]]:
        found = [Pair(_operation(data[0], i), _operation(data[1], j)) for i, j in pairs]
        return sorted(found, key=lambda pair: min(one.node for one in (pair.a, pair.b) if one))

    return GraphDiff(
        *data,
        totals=_totals(data, items),
        operators=_operators(*data),
        saved=saved_storages(data, numbers),
        recomputed=described(again),
        only=described((i, j) for i, j in first if i is None or j is None),
        moved=described((i, j) for i, j in both if i.graph != j.graph),
        changed=described((i, j) for i, j in both if i.computes != j.computes),
        fusions=different_regions(*data, same),
        kernels=different_kernels(*data, same),
        inputs=described((i, j) for i, j in inputs if i is None or j is None),
        outputs=_outputs(data, numbers),
        values={"a": numbers[0], "b": numbers[1]},
    )


def _data(graphs: Graphs | Mapping[str, Any], name: str) -> Data:
    if isinstance(graphs, Graphs):
        return graphs.json()
    if not isinstance(graphs, Mapping):
        raise TypeError(f"diff compares Graphs or the data of Graphs.json(), not {type(graphs).__name__}")
    require_graphs(graphs, name)
    return graphs


@dataclass(frozen=True, eq=False)
class _Item:
    """A node as it is compared. Those of equal values may still compute it otherwise, where they are only similar."""

    node: int
    value: int
    graph: str
    role: str
    computes: tuple[str, tuple[int, ...], Type]
    is_operation: bool


Items = Sequence[_Item]
Match = tuple[_Item | None, _Item | None]


def _items(data: Data, numbers: Sequence[int]) -> Items:
    kinds = types(data)
    return [
        _Item(
            node=i,
            value=numbers[i],
            graph=node["graph"],
            role=node["role"],
            computes=(node["call"], tuple(numbers[j] for j in node["inputs"]), kinds[i]),
            is_operation=is_operation(node),
        )
        for i, node in enumerate(data["nodes"])
    ]


def _paired(sides: Sequence[Items], chosen: Callable[[_Item], bool]) -> list[Match]:
    """Those that compute the same value, in the same graph if possible."""
    a, b = ([item for item in items if chosen(item)] for items in sides)

    def in_graph(item: _Item) -> Hashable:
        return item.graph, item.value

    def anywhere(item: _Item) -> Hashable:
        return item.value

    found = paired(a, b, in_graph, anywhere)
    return list(found)


def _operation(data: Data, item: _Item | None) -> Operation | None:
    if item is None:
        return None
    node = data["nodes"][item.node]
    cost = node["cost"]
    source, code = source_of(data, node)
    return Operation(
        node=item.node,
        graph=node["graph"],
        name=node["label"] or node["name"],
        operator=node["operator"],
        kind=node["class"],
        role=node["role"],
        type=node["type"],
        expression=node["expression"],
        source=source,
        code=code,
        module=node["module"],
        cost=None if cost is None else Cost(cost["nbytes"], cost["flops"], cost["seconds"]),
    )


def _totals(data: Sequence[Data], sides: Sequence[Items]) -> dict[str, tuple[int, int]]:
    def count(items: Items, graph: str) -> int:
        return sum(item.is_operation and item.graph == graph for item in items)

    a, b = (
        {name: side["totals"][name] for name in TOTALS}
        | {graph: count(items, graph) for graph in ("forward", "backward")}
        for side, items in zip(data, sides, strict=True)
    )
    return {name: (a[name], b[name]) for name in a}


def _operators(a: Data, b: Data) -> dict[str, tuple[int, int]]:
    of_a, of_b = (Counter(node["operator"] for node in data["nodes"] if is_operation(node)) for data in (a, b))
    return {name: (of_a[name], of_b[name]) for name in sorted(of_a | of_b) if of_a[name] != of_b[name]}


def _outputs(data: Sequence[Data], numbers: Sequence[Sequence[int]]) -> list[Output]:
    found = []
    for graph in ("forward", "backward"):
        places = zip_longest(*(side["outputs"].get(graph, []) for side in data))
        for position, nodes in enumerate(places):
            a, b = (None if i is None else of[i] for i, of in zip(nodes, numbers, strict=True))
            if a != b:
                found.append(Output(graph, position, *nodes))
    return found
