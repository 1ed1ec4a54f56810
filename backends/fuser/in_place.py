"""Results in the memory of what their kernel is the last to read.

That is safe where each element is read by who writes it, before that: as a value that what is written is computed of.
Which loads come before a store is a matter of the code that is written; so each target lists what its code accesses.
Whether anybody else needs what is read is known when a call gets there: `launches.py`.
"""

from collections import defaultdict
from collections.abc import Sequence

from aotkit.backends.fuser.dependence import direct
from aotkit.backends.fuser.kernels import Kernel, Store
from aotkit.backends.fuser.loops import Node
from aotkit.backends.fuser.values import below


def overwritable(kernel: Kernel, accesses: Sequence[Node | Store], one_thread: bool) -> dict[int, list[int]]:
    """For each buffer that a kernel stores: those that it reads in whose memory it may be stored, if there are any.

    Args:
        accesses: loads and stores, in the order of the kernel's code. Within a loop, no two steps have an element in
            common.
        one_thread: whether all that is done with an element one thread does, in this order.
    """
    loads: dict[int, list[Node]] = defaultdict(list)
    for x in accesses:
        if isinstance(x, Node):
            loads[x.data[0]].append(x)
    found = {}
    for store in kernel.stores:
        after = accesses[accesses.index(store) :]
        able = [n for n, read in loads.items() if _is_read_first(kernel, read, store, after, one_thread)]
        if kernel.shares == 1 and not store.is_piece and {a for a, _ in store.axes} == kernel.domain and able:
            found[store.buffer] = able
    return found


def _is_read_first(
    kernel: Kernel, loads: Sequence[Node], store: Store, after: Sequence[Node | Store], one_thread: bool
) -> bool:
    """Whether all loads of a buffer are of what is stored in its place, and done by then.

    Args:
        after: accesses from the store on.
    """
    load, *again = loads
    _, _, strides, offset = load.data
    needed = set(below([store.node]))
    if load.args or offset or load.type is not store.node.type or dict(strides) != dict(store.axes):
        return False
    if load not in needed or any(other is not load for other in again) or load in after:
        return False
    if one_thread or not again:
        return True
    # In one walk over a row, what is loaded once is there for all. What an earlier walk has loaded it has done with if
    # this one needs what that has computed.
    others = [n for n in kernel.anchors if n is not store.node and not (n.kind == "reduction" and n in needed)]
    return load not in direct(x for n in others for x in (n.args if n.kind == "reduction" else [n]))
