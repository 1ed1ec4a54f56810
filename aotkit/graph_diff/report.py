"""A `GraphDiff` as titles and tables of text, which text, Markdown and HTML show in their ways."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from aotkit.graph_diff.records import Fused, Fusion, Operation, Pair, Saved, is_kept_alike
from aotkit.inspection.costs import total_cost
from aotkit.inspection.kernels import operators
from aotkit.inspection.nodes import bytes_name
from aotkit.text import printable

if TYPE_CHECKING:
    from aotkit.graph_diff.result import GraphDiff

T = TypeVar("T", Operation, Saved)
TOTALS = {
    "saved_bytes": "saved activations",
    "alive_bytes": "saved, but alive anyway",
    "peak_bytes": "peak of live memory",
    "forward": "operations of forward",
    "backward": "operations of backward",
    "recomputed": "recomputed operations",
    "views_again": "views taken again",
}
COUNTED = ("", "A", "B", "B - A")
SAVED_IN_BOTH = ("in A", "in B", "type in A", "type in B", "bytes in A", "bytes in B", "line")


@dataclass(frozen=True)
class Row:
    """Cells of text, and the nodes of A and of B that they are about."""

    cells: tuple[str, ...]
    a: tuple[int, ...] = ()
    b: tuple[int, ...] = ()


@dataclass(frozen=True)
class Section:
    """A title over a table. One that is folded is no difference: its rows are shown on demand, if at all."""

    title: str
    columns: tuple[str, ...] = ()
    rows: Sequence[Row] = ()
    folded: bool = False


def headings(diff: "GraphDiff") -> list[str]:
    """`A  f: backend nop, partition default, torch 2.13.0, 7 kernels`, and the same of B; kernels where known."""
    return [
        printable(
            f"{side}  {data['name']}: backend {data['backend']}, partition {data['partition']}, torch {data['torch']}"
            + ("" if data["kernels"] is None else f", {_count(len(data['kernels']), 'kernel')}")
        )
        for side, data in (("A", diff.a), ("B", diff.b))
    ]


def sections(diff: "GraphDiff") -> list[Section]:
    """All that there is to say, without what is empty."""
    verdict = [Section("no difference, but for the names of nodes")] if diff.identical else []
    found = [
        *_saved(diff.saved),
        *_recomputed(diff.recomputed),
        *_operations(diff),
        _regions(diff),
        _kernels(diff),
        _inputs(diff),
        _outputs(diff),
    ]
    return [*verdict, _totals(diff), *(_printable(section) for section in found if section.rows)]


def _printable(section: Section) -> Section:
    """The graphs may come from a file that `Graphs.json()` did not write."""
    return replace(section, rows=[replace(row, cells=tuple(map(printable, row.cells))) for row in section.rows])


def _totals(diff: "GraphDiff") -> Section:
    def row(name: str) -> Row:
        a, b = diff.totals[name]
        text: Callable[[int], str] = bytes_name if name.endswith("bytes") else str
        return Row((TOTALS[name], text(a), text(b), _change(a, b, text)))

    return Section("totals", COUNTED, [row(name) for name in TOTALS])


def _saved(saved: Sequence[Pair[Saved]]) -> Iterator[Section]:
    for side, pairs in _only(saved).items():
        alone = [(pair, one) for pair in pairs if (one := pair.a or pair.b)]
        rows = [
            _row((one.name, one.type, bytes_name(one.nbytes), one.reason or one.kind, _line(pair)), [pair])
            for pair, one in alone
        ]
        title = f"saved only in {side}: {_storages([one for _, one in alone])}"
        yield Section(title, ("name", "type", "bytes", "why", "line"), rows)
    for alike, title in ((False, "saved in both, not alike"), (True, "saved in both")):
        both = [(pair, pair.a, pair.b) for pair in saved if pair.a and pair.b and is_kept_alike(pair) == alike]
        rows = [
            _row((a.name, b.name, a.type, b.type, bytes_name(a.nbytes), bytes_name(b.nbytes), _line(pair)), [pair])
            for pair, a, b in both
        ]
        yield Section(f"{title}: {_storages([a for _, a, _ in both])}", SAVED_IN_BOTH, rows, folded=alike)


def _recomputed(recomputed: Sequence[Pair[Operation]]) -> Iterator[Section]:
    parts = {f"only in {side}": pairs for side, pairs in _only(recomputed).items()}
    parts["in both"] = [pair for pair in recomputed if pair.a and pair.b]
    for where, pairs in parts.items():
        rows = [_row((_names(group), _cost(group), _line(group[0])), group) for group in _by_line(pairs)]
        title = f"recomputed {where}: {_cost(pairs)}"
        yield Section(title, ("operations", "cost", "line"), rows, folded=where == "in both")


def _operations(diff: "GraphDiff") -> Iterator[Section]:
    counts = [Row((name, str(a), str(b), _change(a, b, str))) for name, (a, b) in diff.operators.items()]
    yield Section("operators of which one has more", COUNTED, counts)
    in_a, in_b = _only(diff.only).values()
    rows = [_row((*map(_names, _only(group).values()), _line(group[0])), group) for group in _by_line(diff.only)]
    title = f"operations: {len(in_a)} only in A, {len(in_b)} only in B"
    yield Section(title, ("only in A", "only in B", "line"), rows)
    for here, there in (("forward", "backward"), ("backward", "forward")):
        moved = [pair for pair in diff.moved if pair.a and pair.a.graph == here]
        rows = [_row((_names(group), _line(group[0])), group) for group in _by_line(moved)]
        title = f"in {here} of A, in {there} of B: {_count(len(moved), 'operation')}"
        yield Section(title, ("operations", "line"), rows)
    changed = [(pair, pair.a, pair.b) for pair in diff.changed if pair.a and pair.b]
    rows = [
        _row((*(f"{one.expression or one.name}: {one.type}" for one in (a, b)), _line(pair)), [pair])
        for pair, a, b in changed
    ]
    title = f"with other arguments, or of another type: {len(changed)}"
    yield Section(title, ("in A", "in B", "line"), rows)


def _regions(diff: "GraphDiff") -> Section:
    def regions(side: Sequence[Fused]) -> str:
        return ", ".join(f"{one.backend} {one.graph}: {_count(len(one.nodes), 'operation')}" for one in side)

    def alone(side: Sequence[Fused], nodes: Sequence[Any]) -> str:
        return operators([nodes[i]["operator"] for one in side for i in one.alone])

    rows = [
        _group_row((regions(f.a), regions(f.b), alone(f.a, diff.a["nodes"]), alone(f.b, diff.b["nodes"])), f)
        for f in diff.fusions
    ]
    columns = ("regions of A", "regions of B", "fused in A alone", "fused in B alone")
    return Section(_fused_differently(diff.fusions, "region"), columns, rows)


def _kernels(diff: "GraphDiff") -> Section:
    def kernels(side: Sequence[Fused], nodes: Sequence[Any]) -> str:
        """`add x3, cos | mm`: those of one operation are the last, together."""
        named = [[nodes[i]["operator"] for i in one.nodes] for one in side]
        fused = [operators(names) for names in named if len(names) > 1]
        alone = operators([name for names in named if len(names) == 1 for name in names])
        return " | ".join([*fused, *([f"one by one: {alone}"] if alone else [])])

    rows = [
        _group_row(
            (
                ", ".join(dict.fromkeys(one.graph for one in (*f.a, *f.b))),
                kernels(f.a, diff.a["nodes"]),
                kernels(f.b, diff.b["nodes"]),
            ),
            f,
        )
        for f in diff.kernels
    ]
    return Section(_fused_differently(diff.kernels, "kernel"), ("graph", "kernels of A", "kernels of B"), rows)


def _fused_differently(fusions: Sequence[Fusion], noun: str) -> str:
    a, b = sum(len(f.a) for f in fusions), sum(len(f.b) for f in fusions)
    return f"fused differently: {_count(a, noun)} of A, {_count(b, noun)} of B"


def _group_row(cells: tuple[str, ...], fusion: Fusion) -> Row:
    a, b = (tuple(i for one in side for i in one.nodes) for side in (fusion.a, fusion.b))
    return Row(cells, a, b)


def _inputs(diff: "GraphDiff") -> Section:
    rows = [
        _row((side, one.role, one.name, one.type), [pair])
        for side, pairs in _only(diff.inputs).items()
        for pair in pairs
        if (one := pair.a or pair.b)
    ]
    return Section("inputs of one alone", ("", "role", "name", "type"), rows)


def _outputs(diff: "GraphDiff") -> Section:
    def described(data: Mapping[str, Any], node: int | None) -> str:
        return "nothing" if node is None else f"{data['nodes'][node]['expression']}: {data['nodes'][node]['type']}"

    rows = [
        Row(
            (f"{one.graph} {one.position}", described(diff.a, one.a), described(diff.b, one.b)),
            *(() if node is None else (node,) for node in (one.a, one.b)),
        )
        for one in diff.outputs
    ]
    return Section(f"outputs computed otherwise: {len(rows)}", ("", "in A", "in B"), rows)


def _line(pair: Pair[Operation] | Pair[Saved]) -> str:
    """`model.py:28  x = self.norm(x)`, as A has it."""
    one = pair.a or pair.b
    return f"{one.source}  {one.code}".strip() if one else ""


def _by_line(pairs: Iterable[Pair[Operation]]) -> list[list[Pair[Operation]]]:
    """Those of the same line of source together; it may have moved in its file."""
    groups: dict[str, list[Pair[Operation]]] = {}
    for pair in pairs:
        one = pair.a or pair.b
        groups.setdefault(one.code or one.source if one else "", []).append(pair)
    return list(groups.values())


def _only(pairs: Sequence[Pair[T]]) -> dict[str, list[Pair[T]]]:
    return {"A": [pair for pair in pairs if pair.b is None], "B": [pair for pair in pairs if pair.a is None]}


def _row(cells: tuple[str, ...], pairs: Sequence[Pair[Operation]] | Sequence[Pair[Saved]]) -> Row:
    a = tuple(i for pair in pairs if pair.a for i in pair.a.nodes)
    return Row(cells, a, tuple(i for pair in pairs if pair.b for i in pair.b.nodes))


def _names(pairs: Iterable[Pair[Operation]]) -> str:
    return operators([one.operator for pair in pairs if (one := pair.a or pair.b)])


def _cost(pairs: Sequence[Pair[Operation]]) -> str:
    """`20 operations, 1.2 MiB moved, 4 views`: as B has them, where both do."""
    found = [one for pair in pairs if (one := pair.b or pair.a)]
    costs = [one.cost for one in found if one.cost is not None]
    views = len(found) - len(costs)
    parts = [f"{_count(len(costs), 'operation')}, {total_cost(costs)}"] if costs else []
    return ", ".join([*parts, *([_count(views, "view")] if views else [])])


def _storages(saved: Sequence[Saved]) -> str:
    """`3 storages, 8.0 KiB; 2 alive anyway`."""
    sizes = [one.nbytes or 0 for one in saved if one.kind == "activation"]
    others = len(saved) - len(sizes)
    text = f"{_count(len(sizes), 'storage')}, {bytes_name(sum(sizes))}"
    return text + (f"; {others} alive anyway" if others else "")


def _change(a: int, b: int, text: Callable[[int], str]) -> str:
    return f"{'+' if b > a else '-'}{text(abs(b - a))}" if a != b else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
