"""What is worth trying where nobody says: first backends, then more around the best of them."""

from collections.abc import Iterator, Sequence

from aotkit.capture import default_backend
from aotkit.registry import AUTO, backend_status, list_partitioners, named_backends
from aotkit.tuning.candidates import Candidate

NOT_TRIED = ("print",)  # it prints graphs
LAST = ("nop",)  # runs what eager runs; only where calls are dear it is ahead
PEAKS = (0.9, 0.8, 0.7, 0.6, 0.5)
GRAPHS = "cudagraphs:"


def backends(device: str) -> tuple[list[Candidate], dict[str, str]]:
    """Eager and all backends of this machine, the most promising first; and why others cannot run here, by name."""
    status = {name: reason for name, reason in backend_status().items() if name not in NOT_TRIED}
    best = [name for name in default_backend(device).names if name in status]
    names = dict.fromkeys([*best, *(n for n in status if n not in LAST), *LAST])
    found = [Candidate(None), *(Candidate({"backend": name}) for name in names if status.get(name, "") is None)]
    return found, {name: reason for name, reason in status.items() if reason is not None}


def around(best: Sequence[Candidate], objective: str, device: str) -> Iterator[Candidate]:
    """Variants of the best candidates: the rest of graphs for the default backend, CUDA graphs, other partitions."""
    own = [candidate for candidate in best if candidate.options is not None]
    rest = default_backend(device).names
    for candidate in own:
        name = candidate.backend
        if takes_parts(candidate) and name not in rest:
            yield Candidate({"backend": [name, *rest]})
        if device == "cuda" and not name.startswith(GRAPHS):
            yield Candidate({"backend": f"{GRAPHS}{name}"})
    for candidate in own:
        for partition in list_partitioners():
            if partition != "min_cut":  # which "auto" is
                yield Candidate({**(candidate.options or {}), "partition": partition})
    if objective != "time":
        from aotkit.partitioners import nx_min_cut

        for limit in PEAKS:
            yield from (Candidate({**(c.options or {}), "partition": nx_min_cut.peak(limit)}) for c in own[:1])


def takes_parts(candidate: Candidate) -> bool:
    """Whether it divides graphs among backends."""
    if candidate.options is None or candidate.backend == AUTO:
        return False
    several = named_backends(candidate.listed)
    return len(several) > 1 or several[0][1].declines is not None


def with_another(base: Candidate, digest: str, others: Sequence[str]) -> Iterator[Candidate]:
    """The same candidate where one kind of region is compiled by another backend."""
    return (Candidate(base.options, {**base.instead, digest: name}) for name in others)
