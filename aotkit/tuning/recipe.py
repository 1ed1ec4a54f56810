"""What `autotune` answers: a recipe that prints as one line of Python, and what else was tried."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from aotkit.compiled import compile_callable
from aotkit.launches import Spread
from aotkit.text import bytes_name, counted, fitted, markdown, markdown_text, seconds_name
from aotkit.tuning.candidates import Candidate

if TYPE_CHECKING:
    from aotkit.compiler import Options

HEADING = ("", "candidate", "a step", "/ fastest", "peak", "first call", "")
NUMBERS = (False, False, True, True, True, True, False)
WIDTH = 118
NO_TIME = "not tried: the time for it was used up"
# Those of `compile`.
DEFAULTS: "Options" = {
    "backend": "auto", "partition": "auto", "check": True, "capture": "auto", "dynamic": None, "random": "shared",
    "on_error": "raise", "strict": False,
}  # fmt: skip


def as_compiled(fn: Callable[..., Any], options: dict[str, Any]) -> Any:
    """What `compile` gives for a function or a module.

    Args:
        options: of `compile`, as far as they are not the defaults.
    """
    all_options: Any = {**DEFAULTS, **options}
    return compile_callable(fn, all_options)


@dataclass
class Trial:
    """What was found of one candidate.

    Attributes:
        seconds: of a step, forward and backward, when it was last timed; None if it was not.
        ratio: to the fastest of those that took turns with it then: numbers of two races do not compare.
        peak: most bytes that are allocated at a time in a step, beyond what was before.
        first_call: seconds until it could be checked, with compiling.
        why: why it is not the answer, or that it is; "" for what might have been.
    """

    candidate: Candidate
    seconds: Spread | None = None
    ratio: Spread | None = None
    peak: int | None = None
    first_call: float | None = None
    why: str = ""

    def cells(self, mark: str) -> Sequence[str]:
        time = "" if self.seconds is None else seconds_name(self.seconds.median)
        ratio = "" if self.ratio is None else self.ratio.text()
        peak = "" if self.peak is None else bytes_name(self.peak)
        first = "" if self.first_call is None else f"{self.first_call:.1f} s"
        return mark, self.candidate.label, time, ratio, peak, first, self.why

    def json(self) -> dict[str, Any]:
        """Seconds and bytes."""
        spreads = {name: getattr(self, name) and asdict(getattr(self, name)) for name in ("seconds", "ratio")}
        plain = {"peak": self.peak, "first_call": self.first_call, "why": self.why}
        return {"candidate": self.candidate.label, **spreads, **plain}


@dataclass
class TunedRecipe:
    """How to run a function: `print` it, and it is one line of Python; `apply()` gives what that line does.

    Attributes:
        fn: the function.
        name: what it is called.
        candidate: how it runs.
        trials: what was found of each candidate, in the order in which they were tried.
        origin: where the answer comes from, in words.
        frontier: for objective "frontier", a recipe for each point, fastest first; the first one is this.
        options: of `compile`, those that all candidates have.
    """

    fn: Callable[..., Any]
    name: str
    candidate: Candidate
    trials: Sequence[Trial] = ()
    origin: str = "measured now"
    frontier: Sequence["TunedRecipe"] = ()
    options: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def line(self) -> str:
        """The recipe as one line of Python. Backends and partitioners without a name in it go by their functions'."""
        if self.candidate.options is None:
            return self.name
        changed = {name: value for name, value in self.options.items() if value != DEFAULTS.get(name)}
        own = Candidate({**self.candidate.options, **changed}, self.candidate.instead)
        return own.line(self.name)

    def apply(self, fn: Callable[..., Any] | None = None) -> Any:
        """What the line gives, for the function that was tuned or another one; in eager the function itself."""
        fn = self.fn if fn is None else fn
        if self.candidate.options is None:
            return fn
        return as_compiled(fn, {**self.options, **self.candidate.for_compile()})

    def table(self) -> str:
        """What was tried, and why what was left out is."""
        lines = [line for row in fitted(self._rows(), WIDTH, NUMBERS) for line in row]
        return "\n".join([f"{self.line}  # {self.origin}", *lines])

    def json(self) -> dict[str, Any]:
        """All of it as numbers and texts."""
        points = [recipe.line for recipe in self.frontier]
        trials = [trial.json() for trial in self.trials]
        found = {"name": self.name, "line": self.line, "origin": self.origin}
        return {"schema": 1, **found, "frontier": points, "trials": trials}

    def __str__(self) -> str:
        return self.line

    def _repr_markdown_(self) -> str:
        heading, *rows = self._rows()
        table = markdown([heading, *([*map(markdown_text, row)] for row in rows)], NUMBERS)
        return f"```python\n{self.line}  # {self.origin}\n```\n\n{table}"

    def _rows(self) -> list[Sequence[str]]:
        chosen = [recipe.candidate for recipe in self.frontier] or [self.candidate]
        tried = [trial for trial in self.trials if trial.why != NO_TIME]
        rows = [HEADING, *(trial.cells("*" if trial.candidate in chosen else "") for trial in tried)]
        if left := len(self.trials) - len(tried):
            rows.append(("", counted(left, "other"), "", "", "", "", NO_TIME))
        return rows
