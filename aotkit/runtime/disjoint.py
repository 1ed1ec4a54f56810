"""Whether inputs lie apart in memory: found out anew in each call only for those that do not stay where they are."""

import functools
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from aotkit.torch_private import native
from aotkit.torch_private.tensors import has_storage

Span = tuple[int, int]  # addresses
Place = tuple[int, int]  # the address of the first element, and the number of elements, which lie one after another


class _Known(NamedTuple):
    """What is known of the tensors that have stayed: parameters, buffers.

    Attributes:
        moved: from the inputs to the numbers of those that have stayed so far, and are elsewhere now.
        moving: numbers of the other tensors.
        begins, ends: of the storages of those that stay, in order.
        apart: whether these have nothing in common.
    """

    moved: Callable[[Sequence[Any]], list[int]]
    moving: list[int]
    begins: list[int]
    ends: list[int]
    apart: bool


class Apart:
    """Called with the inputs of a graph: whether no two of the tensors among them can share memory.

    Several threads may call it: what it knows is replaced as a whole.
    """

    def __init__(self) -> None:
        self._known: _Known | None = None

    def __call__(self, inputs: Sequence[Any]) -> bool:
        """Whether they lie apart; False is "perhaps not"."""
        if (known := self._known) is None:
            known = self._known = _known(inputs, [])
        if moved := known.moved(inputs):
            known = self._known = _known(inputs, [*known.moving, *moved])
        if not known.apart:
            return False
        moving = sorted(_span(inputs[i]) for i in known.moving if inputs[i].numel())
        return _are_apart(moving) and all(_is_free(span, known) for span in moving)


def _known(inputs: Sequence[Any], moving: list[int]) -> _Known:
    tensors = [i for i, x in enumerate(inputs) if has_storage(x)]
    staying = [i for i in tensors if i not in moving and inputs[i].is_contiguous()]
    moving = [i for i in tensors if i not in staying]
    spans = sorted(_span(inputs[i]) for i in staying if inputs[i].numel())
    begins, ends = [begin for begin, _ in spans], [end for _, end in spans]
    places = {i: (inputs[i].data_ptr(), inputs[i].numel()) for i in staying}
    return _Known(_watching(places), moving, begins, ends, _are_apart(spans))


def _watching(places: Mapping[int, Place]) -> Callable[[Sequence[Any]], list[int]]:
    """Tells which of the inputs with these numbers are in other places.

    That is asked in each call, of all parameters and buffers: in C++ where that is built.
    """
    if (library := native.library()) is not None:
        packed = array("q", [n for i, place in places.items() for n in (i, *place)]).tobytes()
        return functools.partial(library.moved, packed)
    return lambda inputs: [i for i, place in places.items() if _place(inputs[i]) != place]


def _place(tensor: Tensor) -> Place | None:
    """None for elements that do not lie one after another."""
    return (tensor.data_ptr(), tensor.numel()) if tensor.is_contiguous() else None


def _span(tensor: Tensor) -> Span:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _are_apart(spans: Sequence[Span]) -> bool:
    return all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def _is_free(span: Span, known: _Known) -> bool:
    """Whether no tensor that stays has anything of this memory."""
    at = bisect_right(known.begins, span[0])
    return (at == 0 or known.ends[at - 1] <= span[0]) and (at == len(known.begins) or span[1] <= known.begins[at])
