"""Which operations are compiled together in one graph, and not in the other."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from aotkit.graph_diff.matching import Data
from aotkit.graph_diff.result import Fused, Fusion

Region = tuple[str, int]  # side, index


def different_fusions(a: Data, b: Data, pairs: Iterable[tuple[int, int]]) -> list[Fusion]:
    """The regions without an equal one on the other side, each with those that it shares operations with.

    Equal are those of one backend with the same operations.

    Args:
        pairs: nodes of A and of B that are the same operation.
    """
    partner = {"a": dict(pairs)}
    partner["b"] = {j: i for i, j in partner["a"].items()}
    data, other = {"a": a, "b": b}, {"a": "b", "b": "a"}
    members = {side: _members(data[side]) for side in data}
    touching: dict[Region, set[Region]] = {}
    alone: dict[Region, tuple[int, ...]] = {}
    for side, regions in members.items():
        opposite = data[other[side]]["nodes"]
        for index, nodes in regions.items():
            there = {node: partner[side].get(node) for node in nodes}
            inside = {
                n: opposite[m]["region"]
                for n, m in there.items()
                if m is not None and opposite[m]["region"] is not None
            }
            touching[side, index] = {(other[side], region) for region in inside.values()}
            alone[side, index] = tuple(node for node in nodes if node not in inside)

    def fused(region: Region) -> Fused:
        side, index = region
        facts = data[side]["regions"][index]
        return Fused(facts["graph"], facts["backend"], tuple(members[side][index]), alone[region])

    found = []
    for group in _connected(touching):
        fusion = Fusion(*(tuple(fused(r) for r in group if r[0] == side) for side in ("a", "b")))
        if not _is_same(fusion):
            found.append(fusion)
    return found


def _is_same(fusion: Fusion) -> bool:
    if len(fusion.a) != 1 or len(fusion.b) != 1:
        return False
    (a,), (b,) = fusion.a, fusion.b
    return (a.graph, a.backend) == (b.graph, b.backend) and not a.alone and not b.alone


def _members(data: Data) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for i, node in enumerate(data["nodes"]):
        if node["region"] is not None:
            found[node["region"]].append(i)
    return found


def _connected(touching: dict[Region, set[Region]]) -> Iterator[list[Region]]:
    """The parts of a graph that hang together, each in order."""
    seen: set[Region] = set()
    for start in touching:
        group, waiting = [], [start]
        while waiting:
            if (region := waiting.pop()) not in seen:
                seen.add(region)
                group.append(region)
                waiting += touching[region]
        if group:
            yield sorted(group)
