"""Which memory either graph saves for backward."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotkit.graph_diff.matching import Data, paired
from aotkit.graph_diff.records import Pair, Saved
from aotkit.inspection import SourceLine


def saved_storages(data: Sequence[Data], numbers: Sequence[Sequence[int]]) -> list[Pair[Saved]]:
    """What either saves, storage by storage: activations first, the largest on top.

    Storages are the same if the same value is computed into them; or else, if the same view of them is saved.
    """

    def holds(storage: _Storage) -> Hashable:
        return storage.holds

    def value(storage: _Storage) -> Hashable:
        return storage.value

    a, b = (list(_storages(*side)) for side in zip(data, numbers, strict=True))
    pairs = paired(a, b, holds, value)
    found = [Pair(one.saved if one else None, other.saved if other else None) for one, other in pairs]
    return sorted(found, key=_order)


def source_of(data: Data, node: Data) -> tuple[str, str]:
    """`model.py:28` and the code of that line; "" if the node has none."""
    if node["source"] is None:
        return "", ""
    found = data["sources"][node["source"]]
    source = SourceLine(found["file"], found["line"], found["code"], found["function"])
    return str(source), source.code


@dataclass(frozen=True, eq=False)
class _Storage:
    """`holds` is what is computed into it, `value` what is saved of it, maybe a view."""

    holds: Hashable
    value: int
    saved: Saved


def _storages(data: Data, numbers: Sequence[int]) -> Iterator[_Storage]:
    roots: dict[Hashable, Hashable] = {}
    for i, node in enumerate(data["nodes"]):
        for position, storage in enumerate(node["storages"]):
            roots.setdefault(storage, (numbers[i], position))
    rows: dict[Hashable, list[Mapping[str, Any]]] = {}
    for row in data["saved"]:
        rows.setdefault(("size", row["node"]) if row["storage"] is None else row["storage"], []).append(row)
    for storage, together in rows.items():
        row = together[0]
        node, value = data["nodes"][row["node"]], numbers[row["node"]]
        source, code = source_of(data, node)
        saved = Saved(
            nodes=tuple(row["node"] for row in together),
            name=node["label"] or row["name"],
            type=node["type"],
            kind=row["kind"],
            nbytes=row["bytes"],
            reason=row["reason"],
            source=source,
            code=code,
        )
        yield _Storage(roots.get(storage, value), value, saved)


def _order(pair: Pair[Saved]) -> tuple[bool, int]:
    sides = [one for one in (pair.a, pair.b) if one]
    return all(one.kind != "activation" for one in sides), -max(one.nbytes or 0 for one in sides)
