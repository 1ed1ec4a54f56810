"""Which operations stand together on one side, in a region or in a kernel, and not on the other."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from aotkit.graph_diff.matching import Data
from aotkit.graph_diff.records import Fused, Fusion

Place = tuple[int, int]  # side, position
Pairs = Sequence[tuple[int, int]]


def different_regions(a: Data, b: Data, pairs: Pairs) -> list[Fusion]:
    """The regions without an equal one on the other side, each with those that it shares operations with.

    Equal are those of one backend with the same operations.

    Args:
        pairs: nodes of A and of B that are the same operation.
    """
    return _different((_regions(a), _regions(b)), pairs)


def different_kernels(a: Data, b: Data, pairs: Pairs) -> list[Fusion]:
    """The same of kernels, whatever they are called, if both sides know theirs.

    Kernels of one operation are told only next to one that fuses it: what one side computes alone is no fusion.
    """
    if a["kernels"] is None or b["kernels"] is None:
        return []
    found = _different((_kernels(a), _kernels(b)), pairs)
    return [fusion for fusion in found if any(len(one.nodes) > 1 for one in (*fusion.a, *fusion.b))]


def _regions(data: Data) -> list[Fused]:
    members: dict[int, list[int]] = defaultdict(list)
    for i, node in enumerate(data["nodes"]):
        if node["region"] is not None:
            members[node["region"]].append(i)
    return [
        Fused(region["graph"], tuple(members[i]), backend=region["backend"]) for i, region in enumerate(data["regions"])
    ]


def _kernels(data: Data) -> list[Fused]:
    return [Fused(kernel["graph"], tuple(kernel["nodes"]), kernel=kernel["name"]) for kernel in data["kernels"]]


def _different(sides: tuple[Sequence[Fused], Sequence[Fused]], pairs: Pairs) -> list[Fusion]:
    of_a = {j: i for i, j in pairs}

    def operation(side: int, node: int) -> int:
        """Its node in A; a negative number if B alone has it."""
        return of_a.get(node, ~node) if side else node

    contents = {
        (side, i): frozenset(operation(side, node) for node in one.nodes)
        for side in (0, 1)
        for i, one in enumerate(sides[side])
    }
    keys = {place: (*_who(sides, place), inside) for place, inside in contents.items()}
    both = set.intersection(*({key for (s, _), key in keys.items() if s == side} for side in (0, 1)))
    anywhere = [frozenset[int]().union(*(c for (s, _), c in contents.items() if s == side)) for side in (0, 1)]

    def fused(side: int, i: int) -> Fused:
        one = sides[side][i]
        return replace(one, alone=tuple(n for n in one.nodes if operation(side, n) not in anywhere[1 - side]))

    left = {place: inside for place, inside in contents.items() if keys[place] not in both}
    return [
        Fusion(*(tuple(fused(*place) for place in group if place[0] == side) for side in (0, 1)))
        for group in _connected(left)
    ]


def _who(sides: Sequence[Sequence[Fused]], place: Place) -> tuple[str, str]:
    one = sides[place[0]][place[1]]
    return one.graph, one.backend


def _connected(left: Mapping[Place, frozenset[int]]) -> Iterator[list[Place]]:
    """The places that hang together by common operations, each such group in order."""
    places: dict[int, list[Place]] = defaultdict(list)
    for place, operations in left.items():
        for operation in operations:
            places[operation].append(place)
    seen: set[Place] = set()
    for start in left:
        group, waiting = [], [start]
        while waiting:
            if (place := waiting.pop()) not in seen:
                seen.add(place)
                group.append(place)
                waiting += [other for operation in left[place] for other in places[operation]]
        if group:
            yield sorted(group)
