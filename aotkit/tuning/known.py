"""Answers that are kept: for a graph on a machine like this, and for graphs that are like it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aotkit.compiled import CompiledFunction
from aotkit.keep import keep, kept, machine
from aotkit.passes import digest
from aotkit.tuning.candidates import Candidate, candidate_from
from aotkit.tuning.verdicts import said_as_a_reason
from aotkit.tuning.workload import Workload

KIND = "recipe"
SAME, ALIKE = "measured before", "carried over from a graph with sizes like these"


@dataclass(frozen=True)
class Key:
    """What an answer depends on.

    Attributes:
        asked: what was asked for, in words.
        exact, rough: digests of the graphs of the call.
    """

    asked: Sequence[str]
    exact: str
    rough: str

    def parts(self, which: str) -> tuple[str, ...]:
        return (*machine(), *self.asked, which)

    def answer(self) -> tuple[Candidate, str] | None:
        """What was the best, and where that is known from."""
        for which, origin in ((self.exact, SAME), (self.rough, ALIKE)):
            if (found := kept(KIND, self.parts(which))) is not None:
                return candidate_from(found), origin
        return None

    def note(self, candidate: Candidate) -> None:
        """Have an answer for the next process, if that knows what it names."""
        if (data := candidate.data()) is not None:
            for which in (self.exact, self.rough):
                keep(KIND, self.parts(which), data)


def key_of(workload: Workload, asked: Sequence[str], options: dict[str, Any]) -> Key | None:
    """The key for a workload's graphs, as backend `nop` has them; None where there are none."""
    plain = {**options, "backend": "nop", "partition": "default", "check": False}
    with said_as_a_reason():
        workload.prepare()
        found = workload.call(CompiledFunction(workload.fn, plain).explain).all_graphs  # type: ignore[arg-type]
    graphs = [graphs.joint or graphs.forward for graphs in found]
    return Key(asked, digest(*graphs), digest(*graphs, rough=True)) if graphs else None
