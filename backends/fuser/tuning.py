"""What has been measured of schedules: by this process, and by earlier ones."""

from dataclasses import asdict, dataclass

from aotkit.backends.fuser import limits
from aotkit.backends.fuser.measuring import Measure, measured
from aotkit.keep import installed, keep, kept

KIND = "schedule"
Key = tuple[str, ...]  # texts that tell kernels apart, and what they run on


@dataclass(frozen=True)
class Answer:
    """How a kernel is laid out.

    Attributes:
        preference: one of its target's; "": as the model chooses.
        told: what was measured, in words.
    """

    preference: str
    told: str


class Tuning:
    """What has been measured, by this process and by earlier ones.

    Args:
        measure: how long functions take: a function like `measured`, which is the default.
        fewest: elements that a kernel walks if it is worth it.
    """

    def __init__(self, measure: Measure | None = None, fewest: int = limits.ONE_PROGRAM) -> None:
        self.measure, self.fewest = measure or measured, fewest
        self._answers: dict[Key, Answer] = {}

    def known(self, key: Key) -> Answer | None:
        """The answer for a kernel, if there is one."""
        if key not in self._answers and (found := kept(KIND, (*installed(), *key))) is not None:
            self._answers[key] = Answer(**found)
        return self._answers.get(key)

    def note(self, key: Key, answer: Answer) -> None:
        """Have an answer for later, and for the next process."""
        self._answers[key] = answer
        keep(KIND, (*installed(), *key), asdict(answer))
