"""How much memory a forward graph and its backward graph hold at once."""

from collections import Counter
from collections.abc import Collection, Sequence

from aotkit.benchmark.dataflow import Step
from aotkit.inspection import Memory


def peak_bytes(
    forward: Sequence[Step],
    backward: Sequence[Step],
    *,
    saved: Collection[Memory],
    tangents: Collection[Memory],
    kept: Collection[Memory],
    in_place: bool = False,
) -> int:
    """The most bytes that are alive while the steps run one after the other, first those of forward.

    All that a step reads and writes is alive while it runs; what it writes stays until the last step that reads it has
    run. What no step writes, such as inputs and parameters, does not count: it is alive anyway.

    Args:
        saved: alive at least until backward begins.
        tangents: alive from when backward begins; they do count.
        kept: alive to the end, such as outputs and gradients.
        in_place: whether a step writes into what it is the last to read, as Inductor's kernels do: into memory of the
            same size that a step has written before, but not into tangents. Those of libraries never do.
    """
    moments: list[tuple[Collection[Memory], Collection[Memory], bool]] = [(saved, tangents, False)]
    moments[:0] = [(step.sources, step.writes, in_place and not step.alone) for step in forward]
    moments += [(step.sources, step.writes, in_place and not step.alone) for step in backward]
    last = {memory: i for i, (reads, writes, _) in enumerate(moments) for memory in (*reads, *writes)}
    last.update(dict.fromkeys(kept, len(moments)))
    alive: set[Memory] = set()
    now = most = 0
    for i, (reads, writes, reuses) in enumerate(moments):
        replaced = {memory for memory in reads if last[memory] == i and memory in alive}.difference(tangents)
        alive.update(writes)
        now += sum(memory.nbytes for memory in writes)
        most = max(most, now - (_common_bytes(replaced, writes) if reuses else 0))
        over = {memory for memory in (*reads, *writes) if last[memory] == i and memory in alive}
        alive -= over
        now -= sum(memory.nbytes for memory in over)
    return most


def _common_bytes(old: Collection[Memory], new: Collection[Memory]) -> int:
    """How many bytes of the new ones can have the places of old ones of the same size."""
    sizes, wanted = (Counter(memory.nbytes for memory in group) for group in (old, new))
    return sum(nbytes * count for nbytes, count in (sizes & wanted).items())
