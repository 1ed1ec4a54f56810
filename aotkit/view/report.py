"""A `GraphDiff` as titles and tables of text."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from aotkit.text import bytes_name, counted, operators, printable
from aotkit.view.records import Fused, Fusion, Operation, Pair, Saved, total_cost

if TYPE_CHECKING:
    from aotkit.view.result import GraphDiff

T = TypeVar("T", Operation, Saved)
Pairs = Sequence[Pair[Operation]]
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
            + ("" if data["kernels"] is None else f", {counted(len(data['kernels']), 'kernel')}")
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
    rows = [_counts(title, diff.totals[name], bytes_name if "bytes" in name else str) for name, title in TOTALS.items()]
    return Section("totals", COUNTED, rows)


def _counts(name: str, numbers: tuple[int, int], text: Callable[[int], str] = str) -> Row:
    a, b = numbers
    change = f"{'+' if b > a else '-'}{text(abs(b - a))}" if a != b else ""
    return Row((name, text(a), text(b), change))


def _saved(saved: Sequence[Pair[Saved]]) -> Iterator[Section]:
    for side, pairs in _only(saved).items():
        rows = [
            _row([pair], one.name, one.type, bytes_name(one.nbytes), one.reason or one.kind, _line(pair))
            for pair, one in ((pair, pair.one) for pair in pairs)
        ]
        yield Section(f"saved only in {side}: {_storages(pairs)}", ("name", "type", "bytes", "why", "line"), rows)
    for alike, title in ((False, "saved in both, not alike"), (True, "saved in both")):
        both = [(pair, a, b) for pair, a, b in _both(saved) if is_kept_alike(pair) == alike]
        rows = [
            _row([pair], a.name, b.name, a.type, b.type, bytes_name(a.nbytes), bytes_name(b.nbytes), _line(pair))
            for pair, a, b in both
        ]
        yield Section(f"{title}: {_storages([pair for pair, _, _ in both])}", SAVED_IN_BOTH, rows, folded=alike)


def is_kept_alike(pair: Pair[Saved]) -> bool:
    """Whether both sides save it, in as many bytes; as an activation in both, or in neither."""
    if pair.a is None or pair.b is None:
        return False
    return pair.a.nbytes == pair.b.nbytes and (pair.a.kind == "activation") == (pair.b.kind == "activation")


def _recomputed(recomputed: Pairs) -> Iterator[Section]:
    parts = {f"only in {side}": pairs for side, pairs in _only(recomputed).items()}
    parts["in both"] = [pair for pair, _, _ in _both(recomputed)]
    for where, pairs in parts.items():
        rows = [_row(group, _names(group), _cost(group), _line(group[0])) for group in _by_line(pairs)]
        title = f"recomputed {where}: {_cost(pairs)}"
        yield Section(title, ("operations", "cost", "line"), rows, folded=where == "in both")


def _operations(diff: "GraphDiff") -> Iterator[Section]:
    counts = [_counts(name, numbers) for name, numbers in diff.operators.items()]
    yield Section("operators of which one has more", COUNTED, counts)
    in_a, in_b = _only(diff.only).values()
    rows = [_row(group, *map(_names, _only(group).values()), _line(group[0])) for group in _by_line(diff.only)]
    title = f"operations: {len(in_a)} only in A, {len(in_b)} only in B"
    yield Section(title, ("only in A", "only in B", "line"), rows)
    for here, there in (("forward", "backward"), ("backward", "forward")):
        moved = [pair for pair in diff.moved if pair.one.graph == here]
        rows = [_row(group, _names(group), _line(group[0])) for group in _by_line(moved)]
        title = f"in {here} of A, in {there} of B: {counted(len(moved), 'operation')}"
        yield Section(title, ("operations", "line"), rows)
    rows = [
        _row([pair], *(f"{one.expression or one.name}: {one.type}" for one in (a, b)), _line(pair))
        for pair, a, b in _both(diff.changed)
    ]
    yield Section(f"with other arguments, or of another type: {len(rows)}", ("in A", "in B", "line"), rows)


def _regions(diff: "GraphDiff") -> Section:
    def regions(side: Sequence[Fused]) -> str:
        return ", ".join(f"{one.backend} {one.graph}: {counted(len(one.nodes), 'operation')}" for one in side)

    def alone(side: Sequence[Fused], nodes: Sequence[Any]) -> str:
        return operators([nodes[i]["operator"] for one in side for i in one.alone])

    rows = [
        _fused(f, regions(f.a), regions(f.b), alone(f.a, diff.a["nodes"]), alone(f.b, diff.b["nodes"]))
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

    rows = []
    for f in diff.kernels:
        graphs = ", ".join(dict.fromkeys(one.graph for one in (*f.a, *f.b)))
        rows.append(_fused(f, graphs, kernels(f.a, diff.a["nodes"]), kernels(f.b, diff.b["nodes"])))
    return Section(_fused_differently(diff.kernels, "kernel"), ("graph", "kernels of A", "kernels of B"), rows)


def _fused_differently(fusions: Sequence[Fusion], noun: str) -> str:
    a, b = sum(len(f.a) for f in fusions), sum(len(f.b) for f in fusions)
    return f"fused differently: {counted(a, noun)} of A, {counted(b, noun)} of B"


def _inputs(diff: "GraphDiff") -> Section:
    rows = [
        _row([pair], side, pair.one.role, pair.one.name, pair.one.type)
        for side, pairs in _only(diff.inputs).items()
        for pair in pairs
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


def _row(pairs: Sequence[Pair[T]], *cells: str) -> Row:
    a = tuple(i for pair in pairs if pair.a for i in pair.a.nodes)
    return Row(cells, a, tuple(i for pair in pairs if pair.b for i in pair.b.nodes))


def _fused(fusion: Fusion, *cells: str) -> Row:
    return Row(cells, *(tuple(i for one in side for i in one.nodes) for side in (fusion.a, fusion.b)))


def _only(pairs: Sequence[Pair[T]]) -> dict[str, list[Pair[T]]]:
    return {"A": [pair for pair in pairs if pair.b is None], "B": [pair for pair in pairs if pair.a is None]}


def _both(pairs: Sequence[Pair[T]]) -> list[tuple[Pair[T], T, T]]:
    return [(pair, pair.a, pair.b) for pair in pairs if pair.a and pair.b]


def _line(pair: Pair[T]) -> str:
    """`model.py:28  x = self.norm(x)`, as A has it."""
    return f"{pair.one.source}  {pair.one.code}".strip()


def _by_line(pairs: Pairs) -> list[Pairs]:
    """Those of the same line of source together; it may have moved in its file."""
    groups = defaultdict(list)
    for pair in pairs:
        groups[pair.one.code or pair.one.source].append(pair)
    return list(groups.values())


def _names(pairs: Pairs) -> str:
    return operators([pair.one.operator for pair in pairs])


def _cost(pairs: Pairs) -> str:
    """`20 operations, 1.2 MiB moved, 4 views`: as B has them, where both do."""
    found = [(pair.b or pair.one).cost for pair in pairs]
    costs = [cost for cost in found if cost is not None]
    views = len(found) - len(costs)
    parts = [f"{counted(len(costs), 'operation')}, {total_cost(costs)}"] if costs else []
    return ", ".join([*parts, *([counted(views, "view")] if views else [])])


def _storages(saved: Iterable[Pair[Saved]]) -> str:
    """`3 storages, 8.0 KiB; 2 alive anyway`, as A has them."""
    found = [pair.one for pair in saved]
    sizes = [one.nbytes or 0 for one in found if one.kind == "activation"]
    others = len(found) - len(sizes)
    text = f"{counted(len(sizes), 'storage')}, {bytes_name(sum(sizes))}"
    return text + (f"; {others} alive anyway" if others else "")
