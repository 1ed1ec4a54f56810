"""What changes from one compilation of a function to the next: numbers that do are no constants; others are told."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from aotkit.capture.arguments import Arguments, Parameters
from aotkit.capture.objects import is_constant
from aotkit.capture.signature import Signature
from aotkit.capture.walk import Walk
from aotkit.errors import RecompilationWarning
from aotkit.runtime import warn_user

MANY = 32
ENOUGH = 3  # values of a number, after which it is no constant
MOST_DIFFERENCES = 3
MOST_CHARACTERS = 40

Description = Mapping[str, str]


class Recompilations:
    """Counts the compilations of one function; warns once, when there are many."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._last: Description = {}

    def count(self, describe: Callable[[], Description]) -> None:
        """One more.

        Args:
            describe: tells of all inputs what they are.
        """
        self._count += 1
        if self._count == MANY - 1:
            self._last = describe()
        elif self._count == MANY:
            last, self._last = self._last, {}
            warn_user(
                f"{self._name!r} was compiled {MANY} times, for different inputs each time, which takes time and "
                f"memory. Between the last two, {_differences(last, describe())}. Pass what changes as a tensor; leave "
                "sizes open with dynamic=True.",
                RecompilationWarning,
            )


class Numbers:
    """The numbers that a function was compiled for: arguments, and what it reads besides."""

    def __init__(self) -> None:
        self._known: dict[str, set[float]] = {}

    def changing(self, parameters: Parameters, arguments: Arguments, walk: Walk) -> str | None:
        """Which number has had too many values to be a constant, in words, if one has; remembers those of this call."""
        found = None
        for name, value in _constants(parameters, arguments, walk):
            if type(value) in (int, float):
                values = self._known.setdefault(name, set())
                values.add(value)
                if len(values) > ENOUGH:
                    found = found or f"{name} keeps changing, and is {_brief(value)} now"
        return found


def describe(parameters: Parameters, arguments: Arguments, signature: Signature, walk: Walk) -> Description:
    """What each input of a function is, by its name, for people."""
    constants = {name: _brief(value) for name, value in _constants(parameters, arguments, walk)}
    return constants | dict(zip(signature.names, map(_brief, signature.tensors), strict=True))


def _constants(parameters: Parameters, arguments: Arguments, walk: Walk) -> Iterator[tuple[str, Any]]:
    """What is no tensor, by its name: constants that the function reads, then arguments."""
    yield from ((slot.name, slot.value) for slot in walk.slots if is_constant(slot.value))
    others = [leaf for leaf in arguments.leaves if not isinstance(leaf, Tensor)]
    # Only objects have names as yet, not constants.
    nameless = [leaf if isinstance(leaf, Tensor) else object() for leaf in arguments.leaves]
    yield from zip(parameters.names_of(arguments._replace(leaves=nameless))[1], others, strict=True)


def _differences(last: Description, now: Description) -> str:
    both = [name for name in now if name in last and last[name] != now[name]]
    changed = [f"{name} changed from {last[name]} to {now[name]}" for name in both]
    if not changed:
        return "an object, a function or a global switch (gradient mode, autocast, ...) changed"
    more = f" and {len(changed) - MOST_DIFFERENCES} more" if len(changed) > MOST_DIFFERENCES else ""
    return ", ".join(changed[:MOST_DIFFERENCES]) + more


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        gradient = " that requires gradients" if value.requires_grad else ""
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {list(value.shape)}{gradient}"
    if not is_constant(value):
        return f"the {type(value).__name__} at {id(value):#x}"
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
