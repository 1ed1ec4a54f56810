"""Schedules that are measured, on request: for each kernel the model's own choice and a handful around it.

That is done in the first call of a kernel, on the tensors of the call; what this returns comes from the schedule that
has won. Equal kernels are measured once, and the answer is kept for the next process.
"""

import functools
import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from aotkit.backends.fuser.measuring import fastest
from aotkit.backends.fuser.plan import Plan
from aotkit.backends.fuser.trials import Trials
from aotkit.backends.fuser.tuning import Answer, Key, Tuning
from aotkit.errors import is_out_of_memory
from aotkit.runtime import warn_user
from aotkit.text import counted, seconds_name

if TYPE_CHECKING:
    from aotkit.backends.fuser.launches import Launch, Step, Target

_log = logging.getLogger("aotkit")


@dataclass(frozen=True)
class Candidate:
    """A kernel with a schedule that it may have; `step` waits until it is compiled."""

    preference: str
    launch: "Launch"
    step: Callable[[], "Step"]


class Search:
    """The kernels of a definition, while it is open what their schedules are.

    Args:
        launches: as the model chooses; the answer takes the place, now if it is known.
        types: of buffers.

    Attributes:
        told: what was measured, by the names of kernels.
    """

    def __init__(
        self, tuning: Tuning, target: "Target", plan: Plan, launches: "list[Launch]", types: Sequence[torch.dtype]
    ) -> None:
        self._tuning, self._target, self._plan, self._launches = tuning, target, plan, launches
        self.told: dict[str, str] = {}
        self._open: dict[int, Key] = {}
        self._others: dict[int, list[Candidate]] = {}
        for n, kernel in enumerate(plan.kernels):
            if plan.loops.size(kernel.domain) >= tuning.fewest:
                of_buffers = [str(types[i]) for i in launches[n].buffers]
                key = (target.version(), target.place(), *of_buffers, launches[n].template)
                if (answer := tuning.known(key)) is None:
                    self._open[n] = key
                else:
                    self._settle(n, self._launch(n, answer.preference), answer)

    def _launch(self, n: int, preference: str) -> "Launch":
        kernel = self._plan.kernels[n]
        return self._target.launch(self._plan.loops, kernel, kernel.name(n), preference)

    def _settle(self, n: int, launch: "Launch", answer: Answer) -> None:
        self._launches[n], self.told[launch.name] = launch, answer.told

    def prepare(self) -> None:
        """Begin to compile what is to be tried: another schedule of each kernel, then one more, and so on."""
        several = {n: self._other_launches(n) for n in self._open}
        self._others = {n: [] for n in several}
        for i in range(max(map(len, several.values()), default=0)):
            found = {n: others[i] for n, others in several.items() if i < len(others)}
            steps = functools.cache(self._target.prepared([launch for _, launch in found.values()], self._plan.inputs))
            for place, (n, (preference, launch)) in enumerate(found.items()):
                self._others[n].append(Candidate(preference, launch, partial(_item, steps, place)))

    def _other_launches(self, n: int) -> "list[tuple[str, Launch]]":
        """With the other schedules that there are, each once."""
        found = {self._launches[n].template: ("", self._launches[n])}
        for preference in self._target.preferences:
            launch = self._launch(n, preference)
            found.setdefault(launch.template, (preference, launch))
        return [*found.values()][1:]

    def begins(self) -> bool:
        """Whether a call chooses: while a CUDA graph is recorded, nothing can be measured."""
        return bool(self._open) and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())

    @torch.no_grad()
    def chosen(self, n: int, own: "Step", values: Sequence[Any]) -> "Step":
        """The step of a kernel from now on.

        Args:
            own: as the model chooses.
            values: of the call, by place; none of them changes.
        """
        if (key := self._open.pop(n, None)) is None:
            return own
        candidates = [Candidate("", self._launches[n], lambda: own), *self._others.pop(n)]
        if (answer := self._tuning.known(key)) is None:
            try:
                answer = self._answer(n, candidates, values)
            except Exception as e:
                if not is_out_of_memory(e):
                    raise
                _log.debug("%s: there is no memory for copies of what it writes", self._launches[n].name)
                return own
            self._tuning.note(key, answer)
        winner = next((c for c in candidates if c.preference == answer.preference), candidates[0])
        self._settle(n, winner.launch, answer)
        return winner.step()

    def _answer(self, n: int, candidates: Sequence[Candidate], values: Sequence[Any]) -> Answer:
        """Which candidate is the fastest of those whose results are those of the first."""
        kernel, own = self._plan.kernels[n], candidates[0]
        parts = {x.buffer for x in kernel.partials}
        written = {x.buffer for x in kernel.stores} | parts
        trials = Trials(own.step(), values, written, parts if kernel.summed else ())
        right = [own, *(c for c in candidates[1:] if _is_right(trials, c, own))]
        if len(right) == 1:
            return Answer("", "")
        seconds = self._tuning.measure([trials.bound(c.step()) for c in right], trials.device)
        best = right[at := fastest(seconds)]
        choice = f"the model's choice, {own.launch.schedule.heading}: {_median(seconds[0])}"
        if best is own:
            return Answer("", f"tuned: {choice}; of {counted(len(right) - 1, 'other')}, none is faster")
        return Answer(best.preference, f"tuned: {best.launch.schedule.heading}: {_median(seconds[at])}; {choice}")


def _item(steps: "Callable[[], Sequence[Step]]", place: int) -> "Step":
    return steps()[place]


def _median(seconds: Sequence[float]) -> str:
    return seconds_name(statistics.median(seconds))


def _is_right(trials: Trials, other: Candidate, own: Candidate) -> bool:
    """Whether a candidate runs, and its results are those of the model's own choice."""
    try:
        if trials.is_right(other.step()):
            return True
    except Exception as e:  # such as for want of registers
        tell_of_failure(other, e)
        return False
    warn_user(
        f"the fuser's {other.launch.name} computes something else with one schedule ({other.launch.schedule.heading}) "
        f"than with another ({own.launch.schedule.heading}). The first is not used. Please report it.",
        RuntimeWarning,
    )
    return False


def tell_of_failure(candidate: Candidate, error: Exception) -> None:
    """A candidate does not compile, or not run, which is nothing to worry about."""
    name, schedule = candidate.launch.name, candidate.launch.schedule.heading
    _log.debug("%s is not tried with %s: %s: %s", name, schedule, type(error).__name__, error)
