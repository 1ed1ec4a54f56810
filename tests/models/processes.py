"""Measure steps of the zoo in processes of their own, each with a time limit: a crash costs one of them.

They are forked from one that has imported the libraries, since that takes longer than most of the steps.
"""

import multiprocessing
import os
import signal
import tempfile
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import IO, Any

import torch

from tests.models.measure import SIDES, Measured, measure, prepare
from tests.models.zoo import Step


@dataclass(frozen=True)
class Row:
    """One step of the zoo, compiled by aotkit and by torch.compile; `missing` is why it was not measured."""

    step: Step
    missing: str | None = None
    ours: Measured | None = None
    theirs: Measured | None = None


@dataclass
class _Child:
    """A process that measures one side of a step."""

    step: Step
    side: str
    options: dict[str, Any]
    limit: float
    printed: IO[str] = field(default_factory=lambda: tempfile.TemporaryFile("w+", errors="replace"))  # noqa: SIM115
    end: float = 0.0

    def start(self) -> None:
        self.end = time.monotonic() + self.limit
        context = multiprocessing.get_context("fork")
        self.answer, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=self._run, args=(sender,))
        self.process.start()
        sender.close()

    def _run(self, sender: Connection) -> None:
        signal.alarm(round(self.limit) + 10)  # in case that nobody is left to stop it
        os.setsid()  # Ctrl-C is for who started it; killing the session ends compilers, too
        os.dup2(self.printed.fileno(), 1)
        os.dup2(self.printed.fileno(), 2)
        warnings.simplefilter("ignore")
        sender.send(measure(self.step, self.side, self.options))

    def result(self) -> Measured | None:
        """What it found, once it is done or its time is over."""
        if self.answer.poll():
            try:
                return self.answer.recv()
            except EOFError:
                self.process.join()
                self.printed.seek(0)
                printed = self.printed.read()
                last = (printed.splitlines() or [""])[-1]
                return Measured("crashed", [f"exit code {self.process.exitcode}: {last}"], error=printed)
        return Measured("no end", [f"not done in {self.limit:.0f} s"]) if time.monotonic() > self.end else None

    def stop(self) -> None:
        try:
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        except ProcessLookupError:
            self.process.kill()
        self.process.join()
        self.printed.close()


def rows(steps: Sequence[Step], options: dict[str, Any], limit: float, jobs: int) -> Iterator[Row]:
    """Measure the steps, `jobs` processes at a time, and give each as it is done; closing this ends what still runs."""
    yield from (Row(step, missing) for step in steps if (missing := step.missing()) is not None)
    waiting = deque(_Child(s, side, options, limit) for s in steps if s.missing() is None for side in SIDES)
    running: list[_Child] = []
    found: dict[str, dict[str, Measured]] = defaultdict(dict)
    torch.set_num_threads(1)  # before any thread is there: a forked process has none of them
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # autograd has a thread for each device, and the steps run on the CPU
    prepare({child.step.library for child in waiting}, options)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(waiting.popleft())
                running[-1].start()
            wait([child.answer for child in running], timeout=max(0.0, min(c.end for c in running) - time.monotonic()))
            for child in list(running):
                if (measured := child.result()) is None:
                    continue
                running.remove(child)
                child.stop()
                sides = found[child.step.name]
                sides[child.side] = measured
                if len(sides) == len(SIDES):
                    yield Row(child.step, None, *(sides[side] for side in SIDES))
    finally:
        for child in running:
            child.stop()
