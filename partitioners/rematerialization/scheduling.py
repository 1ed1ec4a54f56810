"""An order of tasks in which those that free memory come first."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any


@dataclass(frozen=True)
class Task:
    """What runs without interruption.

    Attributes:
        after: the numbers of the tasks that have to run before it.
        reads: memory that it reads, and that is freed when the last of its readers has run -> bytes.
        leaves: bytes that it makes and that are in memory when it has run.
        may_be_early: whether it may run before its turn.
    """

    after: Collection[int]
    reads: Mapping[Any, int]
    leaves: int
    may_be_early: bool


def frees_first(tasks: Sequence[Task]) -> list[int]:
    """The order in which to run tasks, by their numbers, which are their turns.

    Of those that can run, the first one that frees at least as many bytes as it leaves is next; if there is none, the
    first one of all.
    """
    schedule = _Schedule(tasks)
    while schedule.turns:
        schedule.run(heappop(schedule.early or schedule.turns))
    return list(schedule.order)


class _Schedule:
    """What has run and what can.

    Attributes:
        order: what has run.
        turns: a heap of all that can run; some of them have, early.
        early: a heap of those among them that free enough.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.order: dict[int, None] = {}
        self.turns: list[int] = []
        self.early: list[int] = []
        self.missing = [len(task.after) for task in tasks]
        self.growth = [task.leaves for task in tasks]
        self.users: list[list[int]] = [[] for _ in tasks]
        self.readers: dict[Any, set[int]] = {}
        for i, task in enumerate(tasks):
            for other in task.after:
                self.users[other].append(i)
            for memory in task.reads:
                self.readers.setdefault(memory, set()).add(i)
        for memory in self.readers:
            self._look_for_last_reader(memory)
        for i, count in enumerate(self.missing):
            if not count:
                heappush(self.turns, i)
                self._offer(i)

    def run(self, i: int) -> None:
        if i in self.order:
            return
        self.order[i] = None
        for memory in self.tasks[i].reads:
            self.readers[memory].remove(i)
            self._look_for_last_reader(memory)
        for user in self.users[i]:
            self.missing[user] -= 1
            if not self.missing[user]:
                heappush(self.turns, user)
                self._offer(user)

    def _look_for_last_reader(self, memory: Any) -> None:
        if len(self.readers[memory]) == 1:
            (i,) = self.readers[memory]
            self.growth[i] -= self.tasks[i].reads[memory]
            self._offer(i)

    def _offer(self, i: int) -> None:
        if not self.missing[i] and self.tasks[i].may_be_early and self.growth[i] <= 0:
            heappush(self.early, i)
