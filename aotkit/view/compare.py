"""What differs between two graphs, as `Graphs.json()` has them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from aotkit.text import SourceLine
from aotkit.view.matching import Data, is_operation, paired, types, values
from aotkit.view.records import Cost, Fused, Fusion, Operation, Output, Pair, Saved
from aotkit.view.result import GraphDiff

TOTALS = ("saved_bytes", "alive_bytes", "recomputed", "views_again", "peak_bytes")
AGAIN = ("recomputed", "view again")
Numbers = Sequence[int]
Same = Sequence[tuple[int, int]]


class _Item(NamedTuple):
    """A node as it is compared. Those of equal values may still compute it otherwise, where they are only similar."""

    operation: Operation
    value: int
    computes: Hashable
    counts: bool


Match = tuple[_Item | None, _Item | None]


def compared(a: Data, b: Data) -> GraphDiff:
    """What B saves, recomputes, computes and fuses otherwise than A.

    Args:
        a, b: what `Graphs.json()` returned, or `require_graphs` has found to be such data.
    """
    data = a, b
    numbers = values(*data)
    items = [_items(*side) for side in zip(data, numbers, strict=True)]
    inputs = _paired(items, lambda item: item.operation.role in ("input", "tangent"))
    first = _paired(items, lambda item: item.counts and item.operation.role not in AGAIN)
    again = _paired(items, lambda item: item.operation.role in AGAIN)
    both = [(i, j) for i, j in (*inputs, *first, *again) if i and j]
    same = [(i.operation.node, j.operation.node) for i, j in both]
    return GraphDiff(
        *data,
        totals=_totals(data, items),
        operators=_operators(items),
        saved=_saved(data, numbers),
        recomputed=_described(again),
        only=_described((i, j) for i, j in first if i is None or j is None),
        moved=_described((i, j) for i, j in both if i.operation.graph != j.operation.graph),
        changed=_described((i, j) for i, j in both if i.computes != j.computes),
        fusions=list(_different([_regions(side) for side in data], same)),
        kernels=_different_kernels(data, same),
        inputs=_described((i, j) for i, j in inputs if i is None or j is None),
        outputs=_outputs(data, numbers),
        values={"a": numbers[0], "b": numbers[1]},
    )


def _items(data: Data, numbers: Numbers) -> list[_Item]:
    """One for each node."""
    return [
        _Item(
            _operation(data, i),
            numbers[i],
            (node["call"], tuple(numbers[j] for j in node["inputs"]), kind),
            is_operation(node),
        )
        for i, (node, kind) in enumerate(zip(data["nodes"], types(data), strict=True))
    ]


def _operation(data: Data, i: int) -> Operation:
    node = data["nodes"][i]
    cost = node["cost"]
    return Operation(
        node=i,
        name=node["label"] or node["name"],
        kind=node["class"],
        cost=None if cost is None else Cost(cost["nbytes"], cost["flops"], cost["seconds"]),
        **{key: node[key] for key in ("graph", "operator", "role", "type", "expression", "module")},
        **_source(data, node),
    )


def _source(data: Data, node: Data) -> dict[str, str]:
    """`source`, `model.py:28`, and the `code` of that line; "" if the node has none."""
    if node["source"] is None:
        return {"source": "", "code": ""}
    found = data["sources"][node["source"]]
    source = SourceLine(found["file"], found["line"], found["code"], found["function"])
    return {"source": str(source), "code": source.code}


def _paired(sides: Sequence[Sequence[_Item]], chosen: Callable[[_Item], bool]) -> list[Match]:
    """Those that compute the same value, in the same graph if possible."""
    a, b = (filter(chosen, items) for items in sides)
    found = paired(a, b, lambda item: (item.operation.graph, item.value), lambda item: item.value)
    return list(found)


def _described(pairs: Iterable[Match]) -> list[Pair[Operation]]:
    found = [Pair(i and i.operation, j and j.operation) for i, j in pairs]
    return sorted(found, key=lambda pair: min(one.node for one in (pair.a, pair.b) if one))


def _totals(data: Sequence[Data], sides: Sequence[Sequence[_Item]]) -> dict[str, tuple[int, int]]:
    counts = [Counter(item.operation.graph for item in items if item.counts) for items in sides]
    a, b = ({name: side["totals"][name] for name in TOTALS} for side in data)
    found = {name: (a[name], b[name]) for name in TOTALS}
    return found | {graph: (counts[0][graph], counts[1][graph]) for graph in ("forward", "backward")}


def _operators(sides: Sequence[Sequence[_Item]]) -> dict[str, tuple[int, int]]:
    a, b = (Counter(item.operation.operator for item in items if item.counts) for items in sides)
    return {name: (a[name], b[name]) for name in sorted(a | b) if a[name] != b[name]}


def _outputs(data: Sequence[Data], numbers: Sequence[Numbers]) -> list[Output]:
    found = []
    for graph in ("forward", "backward"):
        places = zip_longest(*(side["outputs"].get(graph, []) for side in data))
        for position, nodes in enumerate(places):
            a, b = (None if i is None else of[i] for i, of in zip(nodes, numbers, strict=True))
            if a != b:
                found.append(Output(graph, position, *nodes))
    return found


class _Storage(NamedTuple):
    """`holds` is what is computed into it, `value` what is saved of it, maybe a view."""

    holds: Hashable
    value: int
    saved: Saved


def _saved(data: Sequence[Data], numbers: Sequence[Numbers]) -> list[Pair[Saved]]:
    """What either saves, storage by storage: activations first, the largest on top.

    Storages are the same if the same value is computed into them; or else, if the same view of them is saved.
    """
    a, b = (_storages(*side) for side in zip(data, numbers, strict=True))
    pairs = paired(a, b, lambda storage: storage.holds, lambda storage: storage.value)
    return sorted((Pair(one and one.saved, other and other.saved) for one, other in pairs), key=_order)


def _order(pair: Pair[Saved]) -> tuple[bool, int]:
    sides = [one for one in (pair.a, pair.b) if one]
    return all(one.kind != "activation" for one in sides), -max(one.nbytes or 0 for one in sides)


def _storages(data: Data, numbers: Numbers) -> Iterator[_Storage]:
    roots: dict[Hashable, Hashable] = {}
    for i, node in enumerate(data["nodes"]):
        for position, storage in enumerate(node["storages"]):
            roots.setdefault(storage, (numbers[i], position))
    rows: dict[Hashable, list[Any]] = defaultdict(list)
    for row in data["saved"]:
        rows[("size", row["node"]) if row["storage"] is None else row["storage"]].append(row)
    for storage, together in rows.items():
        row = together[0]
        node, value = data["nodes"][row["node"]], numbers[row["node"]]
        saved = Saved(
            nodes=tuple(row["node"] for row in together),
            name=node["label"] or row["name"],
            type=node["type"],
            kind=row["kind"],
            nbytes=row["bytes"],
            reason=row["reason"],
            **_source(data, node),
        )
        yield _Storage(roots.get(storage, value), value, saved)


def _different_kernels(data: Sequence[Data], same: Same) -> list[Fusion]:
    """As for regions, whatever kernels are called, if both sides know theirs.

    Kernels of one operation are told only next to one that fuses it: what one side computes alone is no fusion.
    """
    if any(side["kernels"] is None for side in data):
        return []
    kernels = [[Fused(k["graph"], tuple(k["nodes"]), kernel=k["name"]) for k in side["kernels"]] for side in data]
    return [f for f in _different(kernels, same) if any(len(one.nodes) > 1 for one in (*f.a, *f.b))]


def _regions(data: Data) -> list[Fused]:
    members: dict[int, list[int]] = defaultdict(list)
    for i, node in enumerate(data["nodes"]):
        if node["region"] is not None:
            members[node["region"]].append(i)
    return [Fused(r["graph"], tuple(members[i]), backend=r["backend"]) for i, r in enumerate(data["regions"])]


def _different(sides: Sequence[Sequence[Fused]], same: Same) -> Iterator[Fusion]:
    """The regions without an equal one on the other side, each with those that it shares operations with.

    Equal are those of one backend with the same operations.

    Args:
        same: nodes of A and of B that are the same operation.
    """
    import networkx

    of_a = {j: i for i, j in same}
    # By their nodes in A; by negative numbers if B alone has them.
    operations = [
        [one.nodes for one in sides[0]],
        [tuple(of_a.get(node, ~node) for node in one.nodes) for one in sides[1]],
    ]
    anywhere = [set(chain(*side)) for side in operations]
    contents = [
        [(one.graph, one.backend, frozenset(inside)) for one, inside in zip(*side, strict=True)]
        for side in zip(sides, operations, strict=True)
    ]
    both = set(contents[0]).intersection(contents[1])
    shared = networkx.Graph()  # (side, position) - operations
    for side in (0, 1):
        for i, (one, inside) in enumerate(zip(sides[side], operations[side], strict=True)):
            if contents[side][i] not in both:
                alone = (node for node, op in zip(one.nodes, inside, strict=True) if op not in anywhere[1 - side])
                shared.add_node((side, i), fused=replace(one, alone=tuple(alone)))
                shared.add_edges_from(((side, i), operation) for operation in inside)
    for group in networkx.connected_components(shared):
        places = sorted(place for place in group if isinstance(place, tuple))
        yield Fusion(*(tuple(shared.nodes[p]["fused"] for p in places if p[0] == side) for side in (0, 1)))
