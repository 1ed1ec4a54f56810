"""What one call runs of graphs that TorchDynamo captured, and what it compiles of them."""

import contextvars
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aotkit.timeline import Timeline

if TYPE_CHECKING:
    from aotkit.capture.frames import KeptPiece
    from aotkit.capture.piece import CapturedGraph

BY_DYNAMO = "TorchDynamo"  # the stage of a first call in which that captures


@dataclass
class Ran:
    """What a call has run so far of graphs that TorchDynamo captured.

    Attributes:
        again: whether to compare each with eager again.
        waits: whether to wait for what is being compiled in the background.
        pieces: the graphs.
        eager: why some of them ran uncompiled.
        began: when, by `time.perf_counter`.
        timeline: where its time goes, if it compiles anything.
        values: inputs and results of each graph that runs compiled, where they are wanted.
    """

    again: bool = False
    waits: bool = False
    pieces: "list[CapturedGraph | KeptPiece]" = field(default_factory=list)
    eager: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    timeline: Timeline | None = None
    values: "list[tuple[Sequence[Any], Sequence[Any]]] | None" = None

    @contextmanager
    def recorded(self, subject: str) -> Iterator[None]:
        """What runs in it are stages of this call; what it has done since the last one was Dynamo's."""
        self.timeline = self.timeline or Timeline(subject, self.began)
        self.timeline.since_last(BY_DYNAMO)
        with self.timeline.recording():
            yield


ran: contextvars.ContextVar[Ran | None] = contextvars.ContextVar("ran", default=None)
