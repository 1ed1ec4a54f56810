"""What Inductor stores in the middle of a kernel's work: not the bits of random numbers.

A value that is read twice gets memory of its own if it takes more than 30 operations. The bits of random numbers take
about 30, and each step of them reads the one before twice: they would be stored half done, 4 bytes for each element,
and read by each kernel that finishes them. To compute them again reads nothing. What is computed of them and of a
tensor may be stored, as ever.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch._inductor.ir import Pointwise, StorageBox
from torch._inductor.virtualized import V

_should_realize_on_reuse = StorageBox.should_realize_on_reuse


@contextmanager
def without_stored_random_bits() -> Iterator[None]:
    """For the time of compiling a graph. What other threads compile meanwhile gets the same."""
    with patch.object(StorageBox, "should_realize_on_reuse", _should_realize):
        yield


def _should_realize(box: Any, users: int, **keywords: Any) -> bool:
    if users > 1 and _is_of_numbers(box.data):
        # A frozen dataclass.
        object.__setattr__(box.data, "inner_fn", _once(box.data.inner_fn))
        return False
    return _should_realize_on_reuse(box, users, **keywords)


def _is_of_numbers(value: Any) -> bool:
    """Whether all that is read for integers is numbers, such as the seed of a call."""
    if not isinstance(value, Pointwise) or value.get_dtype().is_floating_point:
        return False
    return all(len(V.graph.get_buffer(name).get_size()) == 0 for name in value.get_read_names())


def _once(compute: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    """The same function, which a handler of operators calls once for each of several reads of one element.

    Without that, a chain of values that each read the one before twice is gone through twice as often with each.
    """
    last: tuple[Any, list[Any], Any] = None, [], None

    def computed(index: Sequence[Any]) -> Any:
        nonlocal last
        handler = V.get_ops_handler()
        if last[0] is not handler or last[1] != list(index):
            last = handler, list(index), compute(index)
        return last[2]

    return computed
