"""What the ranks of a group tell each other of the first call of a function, so that all go on, or none does.

They leave messages in the store by which torch has them find each other. Only the first call is settled so, as all
ranks make that: later ones may compile on one rank alone, such as for a batch of another size, and wait for nobody.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any

import torch

from aotkit.errors import RankError
from aotkit.inspection import Graphs
from aotkit.passes import collectives, group_of, program, results_of
from aotkit.torch_private.distributed import Store, groups_around, is_running, ranks_of

PAUSE = 0.02  # seconds between two looks at the store
_meetings: Counter[str] = Counter()  # how many there were of each name: as many on each rank that takes part


@dataclass(frozen=True)
class Message:
    """What a rank tells the others.

    Attributes:
        problem: why it does not go on; None if it does.
        cut: the graphs that it is going to run, as far as all ranks have to have the same.
    """

    problem: str | None = None
    cut: Sequence[str] = ()


class Meeting:
    """The first call of a function on one of several ranks.

    Args:
        subject: what is compiled, and how.
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._rank = torch.distributed.get_rank()
        self._number: int | None = None  # of the meetings of this name, once it has told the others anything
        self._messages_left = 0

    def stop(self, error: Exception) -> None:
        """Tell the others that this rank does not go on; nobody is waited for."""
        self._leave(Message(f"{type(error).__name__}: {error}"))
        error.add_note(f"This is rank {self._rank}. The other ranks of its group have been told, and stop.")

    def settle(self, ranks: Collection[int], cut: Sequence[str] = ()) -> None:
        """Wait until all these ranks have come as far as this one.

        Raises:
            RankError: one of them does not go on, or is not there in time, or is going to run other graphs.
        """
        others = sorted({*ranks} - {self._rank})
        if not others:
            return
        mine, key = Message(cut=cut), self._leave(Message(cut=cut))
        messages = self._messages(key, others)
        if failed := [rank for rank, message in messages.items() if message.problem is not None]:
            problems = "\n".join(f"rank {rank}: {messages[rank].problem}" for rank in failed)
            raise RankError(f"{self._subject} is given up on all ranks, as it failed on {_named(failed)}.\n{problems}")
        if unlike := [rank for rank, message in messages.items() if list(message.cut) != list(mine.cut)]:
            differences = _differences(self._rank, mine, unlike[0], messages[unlike[0]])
            raise RankError(
                f"{self._subject} is compiled to other graphs on {_named(unlike)} than on rank {self._rank}, and ranks "
                f"would wait for each other for ever: {differences}. Have all ranks choose the same cut: a partitioner "
                "must not ask for the rank, the time or the memory that is free."
            )

    def _leave(self, message: Message) -> str:
        if self._number is None:
            self._number = _meetings[self._subject]
            _meetings[self._subject] += 1
        key = f"aotkit/{self._subject}/{self._number}/{self._messages_left}"
        self._messages_left += 1
        Store().leave(f"{key}/{self._rank}", json.dumps(asdict(message)))
        return key

    def _messages(self, key: str, others: Sequence[int]) -> dict[int, Message]:
        """What each of these ranks has left; as soon as one of them does not go on, what there is."""
        store, found = Store(), dict[int, Message]()
        end = time.monotonic() + store.timeout.total_seconds()
        while len(found) < len(others) and not any(message.problem for message in found.values()):
            missing = [rank for rank in others if rank not in found]
            for rank in missing:
                if (text := store.found(f"{key}/{rank}")) is not None:
                    found[rank] = Message(**json.loads(text))
            if time.monotonic() > end:
                raise RankError(
                    f"{_named(missing)} did not come to the first call of {self._subject} within {store.timeout}, the "
                    f"timeout of the process group, so rank {self._rank} does not go on. See what became of it there."
                )
            time.sleep(PAUSE)
        return found


_meeting: ContextVar[Meeting | None] = ContextVar("meeting", default=None)


class FirstCall:
    """What the first call of a function runs in: where other ranks make the same call, all go on, or none does."""

    def __init__(self, fn: Any, subject: str) -> None:
        self._fn = fn
        self._subject = subject
        self._has_begun = False

    def __call__(self) -> AbstractContextManager[None]:
        """That for the next call, which is the first one of several ranks, or none of these.

        Raises:
            RankError: at its end; another rank does not go on.
        """
        is_first, self._has_begun = not self._has_begun, True
        return self._settled() if is_first and is_running() else nullcontext()

    @contextmanager
    def _settled(self) -> Iterator[None]:
        meeting = Meeting(self._subject)
        ranks = {rank for group in groups_around(self._fn) for rank in group}
        token = _meeting.set(meeting)
        try:
            yield
        except Exception as e:  # of the function, too: else the others would wait for what this one does not send
            meeting.stop(e)
            raise
        finally:
            _meeting.reset(token)
        meeting.settle(ranks)


def settle_graphs(graphs_of: Callable[[], Graphs | None]) -> None:
    """See to it that all ranks that graphs communicate with have such graphs, before they run for the first time.

    Args:
        graphs_of: gives them; it is asked where there are other ranks.

    Raises:
        RankError: another one has not.
    """
    if (meeting := _meeting.get()) is None or (graphs := graphs_of()) is None:
        return
    parts = {"forward": graphs.forward} | ({} if graphs.backward is None else {"backward": graphs.backward})
    ranks = {rank for gm in parts.values() for node in collectives(gm) for rank in ranks_of(group_of(node))}
    if ranks:
        saved = [f"{value} is saved" for value in results_of(graphs.forward)[graphs.num_outputs :]]
        meeting.settle(ranks, [*(f"{role} calls {step}" for role, gm in parts.items() for step in program(gm)), *saved])


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _differences(rank: int, mine: Message, other: int, theirs: Message) -> str:
    """What one cut has and the other has not; or where the order differs."""
    here, there = Counter(mine.cut), Counter(theirs.cut)
    only = {rank: here - there, other: there - here}
    if any(only.values()):
        return "; ".join(f"on rank {r} alone, {', '.join(steps)}" for r, steps in only.items() if steps)
    return next(
        f"{a!r} comes where {b!r} does on rank {other}" for a, b in zip(mine.cut, theirs.cut, strict=True) if a != b
    )
