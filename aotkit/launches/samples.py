"""Samples of time, and what they say: medians, quartiles, ratios."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Tell = Callable[[str], None]  # called with a line of text before each thing that takes long


def silent(text: str) -> None:
    """No progress."""


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        prepare: what is not timed: resets gradients.
        forward: returns what `backward` takes.
        backward: None if there is nothing to differentiate.
    """

    prepare: Callable[[], Any]
    forward: Callable[[], Any]
    backward: Callable[[Any], Any] | None = None

    def until_the_gpu_is_done(self) -> "Step":
        """The same step, of which each part waits for what it has launched."""
        backward = None if self.backward is None else _finished(self.backward)
        return Step(_finished(self.prepare), _finished(self.forward), backward)


@dataclass
class Samples:
    """Seconds of one phase, one number a round.

    Attributes:
        wall: from call to return; on a GPU, until it has finished.
        cpu: of the calling thread alone: other processes hardly disturb it, but it does not see torch's other threads.
        device: between two events on the GPU, with a cold L2 cache; empty on a CPU.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)

    @property
    def main(self) -> list[float]:
        """What to judge by: the device's time where there is one, else wall time."""
        return self.device or self.wall


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interquartile range, as a fraction of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0

    def overlaps(self, other: "Spread") -> bool:
        return self.low <= other.high and other.low <= self.high

    def text(self, scale: float = 1.0) -> str:
        """Three digits of the median times `scale`, and the half width in percent."""
        value = self.median * scale
        digits = f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")
        return f"{digits} ±{self.half_width:.0%}"


Phases = Mapping[str, Samples]


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), low, high)


def speedup(base: Sequence[float], other: Sequence[float]) -> Spread:
    """How many times faster `other` is: the ratio of the medians, with the quartiles of the ratios round by round."""
    rounds = spread([b / o for b, o in zip(base, other, strict=True)])
    ratio = statistics.median(base) / statistics.median(other)
    return Spread(ratio, min(rounds.low, ratio), max(rounds.high, ratio))


def _finished(run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        result = run(*args)
        torch.cuda.synchronize()
        return result

    return call
