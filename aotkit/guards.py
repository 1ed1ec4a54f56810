"""Generated code that finds captured tensors again and compares everything else: a guard and a fetch in one pass."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from aotkit.constants import constant_set, same_constant, same_constants

Fetch = Callable[[Sequence[Any]], Sequence[Tensor] | None]


class FetchSource:
    """The source of a function from the roots of a walk to the tensors that it found.

    Each line finds an object, or returns None because something is no longer as it was.
    """

    def __init__(self, roots: int) -> None:
        self._lines = [f"if len(roots) != {roots}: return None"]
        self._globals: dict[str, Any] = {f.__name__: f for f in (same_constant, same_constants, constant_set)}

    def bind(self, value: Any) -> str:
        """A name by which the source can speak of an object."""
        name = f"c{len(self._globals)}"
        self._globals[name] = value
        return name

    def assign(self, variable: str, expression: str) -> None:
        """Find an object."""
        self._lines.append(f"{variable} = {expression}")

    def require(self, condition: str) -> None:
        """Compare."""
        self._lines.append(f"if not ({condition}): return None")

    def require_constant(self, expression: str, value: Any) -> None:
        """Compare with a constant; nearly always it is the very same object."""
        c = self.bind(value)
        self.require(f"({expression}) is {c} or same_constant({expression}, {c})")

    def require_type(self, variable: str, value: Any) -> None:
        """Compare the type with that of `value`."""
        self.require(f"type({variable}) is {self.bind(type(value))}")

    def compile(self, found: Sequence[str]) -> Fetch:
        """The function; it returns the objects that the variables `found` stand for."""
        body = "\n        ".join(self._lines)
        source = (
            f"def fetch(roots):\n    try:\n        {body}\n        return [{', '.join(found)}]\n"
            "    except (AttributeError, IndexError, KeyError, TypeError, ValueError):\n        return None\n"
        )
        exec(compile(source, "<aotkit guard>", "exec"), self._globals)
        return self._globals["fetch"]  # type: ignore[no-any-return]
