"""How much memory a forward graph and its backward graph hold at once."""

from collections.abc import Collection, Sequence

from aotkit.benchmark.dataflow import Memory, Step


def peak_bytes(
    forward: Sequence[Step],
    backward: Sequence[Step],
    *,
    saved: Collection[Memory],
    tangents: Collection[Memory],
    kept: Collection[Memory],
) -> int:
    """The most bytes that are alive while the steps run one after the other, first those of forward.

    All that a step reads and writes is alive while it runs; what it writes stays until the last step that reads it has
    run. What no step writes, such as inputs and parameters, does not count: it is alive anyway.

    Args:
        saved: alive at least until backward begins.
        tangents: alive from when backward begins; they do count.
        kept: alive to the end, such as outputs and gradients.
    """
    moments: list[tuple[Collection[Memory], Collection[Memory]]] = [(saved, tangents)]
    moments[:0] = [(step.sources, step.writes) for step in forward]
    moments += [(step.sources, step.writes) for step in backward]
    last = {memory: i for i, (reads, writes) in enumerate(moments) for memory in (*reads, *writes)}
    last.update(dict.fromkeys(kept, len(moments)))
    alive: set[Memory] = set()
    now = most = 0
    for i, (reads, writes) in enumerate(moments):
        alive.update(writes)
        now += sum(memory.nbytes for memory in writes)
        most = max(most, now)
        over = {memory for memory in (*reads, *writes) if last[memory] == i and memory in alive}
        alive -= over
        now -= sum(memory.nbytes for memory in over)
    return most
