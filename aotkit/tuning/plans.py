"""What a candidate compiles, to know before they are timed that two are the same."""

from collections.abc import Hashable, Sequence

from aotkit.inspection import Graphs
from aotkit.passes import digest


def plan(all_graphs: Sequence[Graphs]) -> Hashable:
    """Equal for partitions of a graph by which the same backends compile the same parts."""
    return tuple(_plan(graphs) for graphs in all_graphs)


def idle(all_graphs: Sequence[Graphs]) -> list[str]:
    """The backends that were offered parts of graphs and compile none."""
    divided = [regions for graphs in all_graphs for regions in graphs.regions.values()]
    busy = {one.backend for regions in divided for one in regions.regions if not one.failure}
    return list(dict.fromkeys(name for regions in divided for name in regions.backends if name not in busy))


def _plan(graphs: Graphs) -> Hashable:
    parts = {"forward": graphs.forward, "backward": graphs.backward}
    found = []
    for role, gm in parts.items():
        regions = graphs.regions.get(role)
        own = None if regions is None else tuple((one.backend, one.digest) for one in regions.regions)
        found.append((None if gm is None else digest(gm), own))
    return tuple(found)
