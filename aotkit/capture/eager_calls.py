"""Calls that have to run eagerly: why, and how seldom to look whether that is still so."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from aotkit.capture.arguments import Arguments
from aotkit.capture.refusals import EagerOnly
from aotkit.torch_private.tensors import tensor_kind

# Kinds of calls to remember; a function that is called with ever new constants must not fill the memory.
MOST_KINDS = 1000


class EagerVerdicts:
    """Kinds of calls of one function that had to run eagerly, so that each does not search it for tensors again.

    What a function captures may change, so the search is repeated at the 2nd, 4th, 8th, ... call of a kind.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, str, bool]] = {}

    def consult(self, arguments: Arguments) -> None:
        """Nothing if it is time to search.

        Raises:
            EagerOnly: such calls have to run eagerly, as far as is known.
        """
        kind = _kind(arguments)
        if (known := self._known.get(kind)) is None:
            return
        calls, reason, final = known
        self._known[kind] = calls + 1, reason, final
        if calls & (calls + 1):
            raise EagerOnly(reason, final=final)

    @contextmanager
    def learning(self, arguments: Arguments) -> Iterator[None]:
        """Remember for calls like this one whether what is done inside raises EagerOnly."""
        kind = _kind(arguments)
        calls = self._known.pop(kind, (1, "", False))[0]
        try:
            yield
        except EagerOnly as e:
            if len(self._known) >= MOST_KINDS:
                self._known.clear()
            self._known[kind] = calls, str(e), e.final
            raise


def _kind(arguments: Arguments) -> Hashable:
    return arguments.key, tuple(map(type, arguments.objects)), tuple(map(tensor_kind, arguments.tensors))
