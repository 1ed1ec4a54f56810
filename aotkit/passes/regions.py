"""How a graph is divided among backends that take parts of it, by the names of nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Region:
    """Operations of a graph that one backend compiles together. All is given by the names of nodes.

    Attributes:
        backend: the name of the backend that compiles them.
        digest: the same for regions that compute the same of inputs of the same kind: see `by_region(instead=...)`.
        nodes: in the order of the graph; constants that it computes for itself are not among them.
        failure: why its compiler failed, or its first run, so that it runs as it is; None if they did not.
    """

    backend: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    failure: str | None = None
    digest: str = ""


@dataclass(frozen=True)
class Regions:
    """How a graph is divided among backends that take parts of it.

    Attributes:
        backends: their names, in the order in which they choose.
        regions: in the order in which they run.
        outside: operation that runs as it is -> why it is in no region, for each backend.
    """

    backends: tuple[str, ...]
    regions: tuple[Region, ...]
    outside: Mapping[str, tuple[str, ...]]


def regions_data(regions: Regions) -> dict[str, Any]:
    """The same as dicts, lists and strings."""
    return {
        "backends": [*regions.backends],
        "regions": [[r.backend, [*r.nodes], [*r.inputs], [*r.outputs], r.failure, r.digest] for r in regions.regions],
        "outside": {name: [*why] for name, why in regions.outside.items()},
    }


def regions_of(data: Mapping[str, Any]) -> Regions:
    """What such data are of."""
    regions = (
        Region(backend, tuple(nodes), tuple(inputs), tuple(outputs), failure, digest)
        for backend, nodes, inputs, outputs, failure, digest in data["regions"]
    )
    outside = {name: tuple(why) for name, why in data["outside"].items()}
    return Regions(tuple(data["backends"]), tuple(regions), outside)
