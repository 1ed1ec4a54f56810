"""Rows by their names: which a command line chooses, and which are not tried."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from aotkit.benchmark.report import Outcome
from aotkit.errors import UnknownNameError

NOTHING_CALLED = "nothing is called {pattern!r}; there are {names}."

T = TypeVar("T")
AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)


def chosen(patterns: str, among: Mapping[str, T], unknown: str = NOTHING_CALLED) -> dict[str, T]:
    """What has a name that fits any of the patterns.

    Args:
        patterns: with commas in between; * and ? match anything.
        unknown: the error for a pattern that fits none, with {pattern!r} and {names} in it.

    Raises:
        UnknownNameError: a pattern fits none.
    """
    found = set[str]()
    for pattern in patterns.split(","):
        matching = {name for name in among if fnmatchcase(name, pattern)}
        if not matching:
            raise UnknownNameError(unknown.format(pattern=pattern, names=", ".join(among)))
        found |= matching
    return {name: value for name, value in among.items() if name in found}


def family_and_limit(name: str) -> tuple[str, float]:
    """Of "nx_min_cut peak 0.4", "nx_min_cut peak" and 0.4; of a name without a limit, itself and infinity."""
    family, _, last = name.rpartition(" ")
    return (family, float(last)) if last.replace(".", "", 1).isdigit() else (name, math.inf)


def judged_if_possible(names: Iterable[str], judge: Callable[[str], AnyOutcome]) -> Iterator[AnyOutcome]:
    """What is found by each name, but for limits that are smaller than an impossible one of the same family."""
    impossible: dict[str, float] = {}
    for name in names:
        family, limit = family_and_limit(name)
        if limit >= impossible.get(family, 0.0):
            found = judge(name)
            if found.impossible:
                impossible[family] = limit
            yield found
