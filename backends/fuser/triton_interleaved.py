"""Pairs of loads and of stores whose elements take turns in memory: read and written as one, and parted in registers.

Each alone would take every second element, and a thread would read and write one at a time.
"""

from collections.abc import Iterable
from typing import Any

from aotkit.backends.fuser.kernels import Kernel, Store
from aotkit.backends.fuser.loops import Node, Strides
from aotkit.backends.fuser.schedule import Schedule
from aotkit.backends.fuser.values import below


def turns_of_loads(kernel: Kernel, schedule: Schedule) -> dict[Node, tuple[Node, Node]]:
    """The two loads of a pair -> the pair: that of even places, that of odd ones."""
    plain = [n for n in below(kernel.anchors) if n.kind == "load" and not n.args]
    return _turns(((n, n.data[0], n.data[2], n.data[3]) for n in plain), schedule)


def turns_of_stores(kernel: Kernel, schedule: Schedule) -> dict[Store, tuple[Store, Store]]:
    """The same for stores."""
    walked = {*schedule.rows, *schedule.inner}
    whole = [x for x in kernel.stores if {a for a, _ in x.axes} == walked]
    return _turns(((x, x.buffer, x.axes, x.offset) for x in whole), schedule)


def _turns(accesses: Iterable[tuple[Any, int, Strides, int]], schedule: Schedule) -> dict[Any, tuple[Any, Any]]:
    found: dict[Any, tuple[Any, Any]] = {}
    if len(schedule.inner) != 1:
        return found
    inner = schedule.inner[0]
    at = {(buffer, strides, offset): x for x, buffer, strides, offset in accesses if (inner, 2) in strides}
    for (buffer, strides, offset), even in at.items():
        if offset % 2 == 0 and (odd := at.get((buffer, strides, offset + 1))) is not None:
            found[even] = found[odd] = even, odd
    return found
