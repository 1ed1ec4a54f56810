"""Record the stages of a first call: whoever does something that takes long says `with stage("what")`."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from aotkit.timeline.memory import Peaks
from aotkit.timeline.table import as_html, as_text


@dataclass
class Stage:
    """A part of a first call.

    Attributes:
        name: what is done in it, a few words.
        begin: seconds after the call began.
        seconds: that it took, with the stages in it.
        memory: bytes by which it raised the peak of this process's memory; None where the system does not tell.
        device_memory: bytes by which it raised the peak of what torch has allocated on the GPU; None without one.
        stages: those in it, in order.
    """

    name: str
    begin: float
    seconds: float = 0.0
    memory: int | None = None
    device_memory: int | None = None
    stages: "list[Stage]" = field(default_factory=list)


# The call whose stages are recorded, and where the next one belongs.
_open: "ContextVar[tuple[Timeline, list[Stage]] | None]" = ContextVar("open", default=None)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """What runs in it is a stage of the first call that is being recorded, if one is."""
    if (outer := _open.get()) is None:
        yield
        return
    timeline, siblings = outer
    mine = Stage(name, time.perf_counter() - timeline.began)
    siblings.append(mine)
    token = _open.set((timeline, mine.stages))
    before = Peaks.now()
    try:
        yield
    finally:
        _open.reset(token)
        mine.seconds = time.perf_counter() - timeline.began - mine.begin
        mine.memory, mine.device_memory = before.risen()


def current() -> "Timeline | None":
    """That of the call whose stages are being recorded."""
    return None if (found := _open.get()) is None else found[0]


@dataclass
class Timeline:
    """The stages of one first call; `print` it, or show it in a notebook.

    Attributes:
        subject: the function, its backend and its partitioner.
        began: when, by `time.perf_counter`.
        seconds: that the call took, as far as it is over.
        stages: in order; the time between them is the call's own.
    """

    subject: str
    began: float = field(default_factory=time.perf_counter, repr=False)
    seconds: float = 0.0
    stages: list[Stage] = field(default_factory=list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Stages that run in it are this call's."""
        token = _open.set((self, self.stages))
        try:
            yield
        finally:
            _open.reset(token)
            self.end()

    def since_last(self, name: str) -> None:
        """What the call has done since its last stage, or its begin, is a stage, too."""
        begin = self.stages[-1].begin + self.stages[-1].seconds if self.stages else 0.0
        self.stages.append(Stage(name, begin, time.perf_counter() - self.began - begin))

    def end(self) -> None:
        """The call is over, until a stage follows."""
        self.seconds = time.perf_counter() - self.began

    @classmethod
    def joined(cls, timelines: "Sequence[Timeline]") -> "Timeline":
        """One for calls that each compiled a part; they follow one another in it."""
        whole = cls(timelines[0].subject)
        for one in timelines:
            whole.stages += [replace(stage, begin=stage.begin + whole.seconds) for stage in one.stages]
            whole.seconds += one.seconds
        return whole

    def json(self) -> dict[str, Any]:
        """All of it, in seconds and bytes, for `json.dumps`."""
        stages = [asdict(stage) for stage in self.stages]
        return {"schema": 1, "subject": self.subject, "seconds": self.seconds, "stages": stages}

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)
