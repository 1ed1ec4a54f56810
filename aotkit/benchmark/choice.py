"""What a command line chooses by patterns."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from aotkit.errors import UnknownNameError

NOTHING_CALLED = "nothing is called {pattern!r}; there are {names}."


def chosen(patterns: Iterable[str], names: Iterable[str], unknown: str = NOTHING_CALLED) -> list[str]:
    """The names that match any of the patterns, in which * and ? match anything.

    Args:
        unknown: the error for a pattern that matches none, with {pattern!r} and {names} in it.

    Raises:
        UnknownNameError: a pattern matches none.
    """
    names, found = list(names), set[str]()
    for pattern in patterns:
        matching = {name for name in names if fnmatchcase(name, pattern)}
        if not matching:
            raise UnknownNameError(unknown.format(pattern=pattern, names=", ".join(names)))
        found |= matching
    return [name for name in names if name in found]
