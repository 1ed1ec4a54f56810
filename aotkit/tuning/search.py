"""Candidates -> the one that is best for a call, by stages: check, time, and go on around what is ahead."""

import functools
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Literal

from aotkit.inspection import Graphs
from aotkit.launches import Tell
from aotkit.tuning import plans, proposals
from aotkit.tuning.candidates import Candidate
from aotkit.tuning.races import NEAR, Race, race
from aotkit.tuning.recipe import NO_TIME, Trial
from aotkit.tuning.steps import peak, sampler, steps_a_sample
from aotkit.tuning.verdicts import Unfit, graphs_of, in_one_line, made, require_right
from aotkit.tuning.workload import Workload

Objective = Literal["time", "peak", "frontier"]
# Of the time that all may take: until when something new is begun, in each stage; for timing what was checked, and for
# the last race, which ends when it is decided.
FIRST, AROUND, REGIONS = 0.55, 0.7, 0.8
TIMING, LAST = 0.1, 0.2
BEST = 2  # candidates that the second stage goes on from
FINALISTS = 3  # of the fastest, for the last race
FEWEST_OPERATIONS = 2  # of regions that are tried with other backends

SLOWER = "slower"


class Search:
    """The candidates for one call.

    Args:
        options: of `compile`, those that all candidates have.
        budget: seconds, for everything.

    Attributes:
        trials: what was found of each, in the order in which they were tried.
    """

    def __init__(
        self, workload: Workload, name: str, objective: Objective, budget: float, options: dict[str, Any], tell: Tell
    ) -> None:
        self._workload, self._name, self._options, self._tell = workload, name, options, tell
        self._objective, self._budget, self._start = objective, budget, time.perf_counter()
        self._count = steps_a_sample(workload)
        self.trials: list[Trial] = []
        self._calls: dict[int, Callable[..., Any]] = {}  # by place among the trials; of what may still be the answer
        self._plans: dict[Hashable, str] = {}  # what has been compiled, and which candidate that was

    def run(self, candidates: Sequence[Candidate] | None) -> Iterator[Trial]:
        """What is right, best first."""
        device = self._workload.device.type
        if candidates is not None:
            self._admit(candidates, 1.0)
            return self._right(self._decided(self._ranked()))
        first, unavailable = proposals.backends(device)
        self._admit(first, FIRST)
        best = [self.trials[i].candidate for i in self._ranked()[:BEST]]
        self._admit(proposals.around(best, self._objective, device), AROUND)
        ranked = self._ranked()
        if self._objective == "time":
            ranked = self._by_region(ranked)
        self.trials += [Trial(Candidate({"backend": name}), why=why) for name, why in unavailable.items()]
        return self._right(self._decided(ranked))

    def _admit(self, candidates: Iterable[Candidate], share: float) -> list[int]:
        """Compile and check what there is time for; the places of what may be timed."""
        found = []
        for candidate in candidates:
            if any(candidate == trial.candidate for trial in self.trials):
                continue
            trial = Trial(candidate)
            place = len(self.trials)
            self.trials.append(trial)
            if candidate.options is not None and self._elapsed() > share * self._budget:
                trial.why = NO_TIME
                continue
            if self._is_admitted(place, trial):
                found.append(place)
        return found

    def _is_admitted(self, place: int, trial: Trial) -> bool:
        self._tell(f"{self._name}: compiling and checking {trial.candidate.label}")
        start = time.perf_counter()
        try:
            call = self._workload.fn
            if trial.candidate.options is not None:
                is_new = functools.partial(self._require_new, trial.candidate)
                call = made(trial.candidate, self._workload, self._options, is_new)
                trial.first_call = time.perf_counter() - start
            trial.peak = peak(self._workload, call)
        except Unfit as e:
            trial.why = f"not chosen: {e}"
            return False
        except Exception as e:  # what runs as the check wants it may yet not run as a step
            trial.why = f"not chosen: {in_one_line(e)}"
            return False
        self._calls[place] = call
        return True

    def _require_new(self, candidate: Candidate, all_graphs: Sequence[Graphs]) -> None:
        """What compiles the same as a simpler candidate is that one, with more to say and at best the same time.

        Raises:
            Unfit: it is that.
        """
        if not candidate.instead and (idle := plans.idle(all_graphs)):
            raise Unfit(f"there is nothing to compile for {' and '.join(idle)}")
        before = self._plans.setdefault((plans.plan(all_graphs), candidate.besides_partition()), candidate.label)
        if before != candidate.label:
            raise Unfit(f"it compiles the same as {before}")

    def _ranked(self) -> list[int]:
        """Time what may still be the answer; best first. What is slower is let go of."""
        found = self._race(self._calls, TIMING)
        self._calls = {i: call for i, call in self._calls.items() if i in found.left}
        return self._by_objective(found)

    def _decided(self, ranked: list[int]) -> list[int]:
        """The fastest and what is simpler once more, in more rounds; the first is the simplest not surely slower."""
        if self._objective != "time" or len(ranked) < 2:
            return ranked
        parts = {i: self.trials[i].candidate.parts for i in ranked}
        simpler = [i for i in ranked if parts[i] < parts[ranked[0]]]
        found = self._race({*ranked[:FINALISTS], *simpler}, LAST)
        return [*dict.fromkeys([*found.alike(), *found.ranked(), *(i for i in ranked if i not in found.failed)])]

    def _race(self, places: Iterable[int], share: float) -> Race[int]:
        """Time these by turns; of such as take the same time, the simplest is the first."""
        ordered = sorted(places, key=lambda i: (self.trials[i].candidate.parts, i))
        self._tell(f"{self._name}: timing {len(ordered)} candidates")
        samples = {i: sampler(self._workload, self._calls[i], self._count) for i in ordered}
        found = race(samples, share * self._budget, keep=1 if self._objective == "time" else None)
        for i in samples:
            trial = self.trials[i]
            trial.seconds, trial.ratio = found.spread(i) or trial.seconds, found.ratio(i)
            if i in found.failed:
                trial.why = f"not chosen: {in_one_line(found.failed[i])}"
            elif i not in found.left:
                trial.why = SLOWER
        return found

    def _by_objective(self, found: Race[int]) -> list[int]:
        ranked = found.ranked()
        if self._objective != "peak":
            return ranked
        peaks = {i: self.trials[i].peak or 0 for i in ranked}
        most = (1 + NEAR) * min(peaks.values(), default=0)
        return sorted(ranked, key=lambda i: 0 if peaks[i] <= most else peaks[i])

    def _by_region(self, ranked: list[int]) -> list[int]:
        """Other backends for the regions of the best: one after the other, as long as the whole is faster with them."""
        base = next((i for i in ranked if proposals.takes_parts(self.trials[i].candidate)), None)
        if base is None:
            return ranked
        for digest, taken in self._regions(self._calls[base]).items():
            others = [name for name in self._others() if name != taken]
            places = self._admit(proposals.with_another(self.trials[base].candidate, digest, others), REGIONS)
            ranked = self._ranked() if places else ranked
            base = next((i for i in ranked if i in (base, *places)), None)
            if base is None or self._elapsed() > REGIONS * self._budget:
                break  # without a base, something else is ahead, whoever compiles this region
        return ranked

    def _others(self) -> list[str]:
        """The names of the backends that were found right by themselves, fastest first."""
        timed = [t for t in self.trials if t.seconds is not None and isinstance(t.candidate.backend, str)]
        timed.sort(key=lambda t: t.seconds.median if t.seconds else 0.0)
        return list(dict.fromkeys(t.candidate.backend for t in timed if t.candidate.options is not None))

    def _regions(self, call: Any) -> dict[str, str]:
        """The kinds of regions in a candidate's graphs, those with most operations first: digest -> its backend."""
        sizes, taken = Counter[str](), dict[str, str]()
        for graphs in graphs_of(call, self._workload):
            for region in (one for regions in graphs.regions.values() for one in regions.regions):
                sizes[region.digest] += len(region.nodes)
                taken[region.digest] = region.backend
        return {digest: taken[digest] for digest, size in sizes.most_common() if size >= FEWEST_OPERATIONS}

    def _right(self, ranked: Sequence[int]) -> Iterator[Trial]:
        """Those that are right after all calls that timing made, too; they are compared as they are asked for."""
        for i in ranked:
            trial, call = self.trials[i], self._calls[i]
            try:
                if trial.candidate.options is not None:
                    self._tell(f"{self._name}: comparing {trial.candidate.label} once more")
                    require_right(call, self._workload)
            except Unfit as e:
                trial.why = f"not chosen: when it had been timed, {e}"
            else:
                yield trial

    def _elapsed(self) -> float:
        return time.perf_counter() - self._start
