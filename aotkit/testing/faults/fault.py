"""What a planted fault is: a small mistake in a plug-in, and the function that it is planted in."""

from collections.abc import Callable
from dataclasses import dataclass

from aotkit.interfaces import Backend, Partitioner
from aotkit.testing.case import Case


@dataclass(frozen=True)
class PlugIn:
    """A backend and a partitioner, one of which may be wrong."""

    backend: Backend
    partition: Partitioner


@dataclass(frozen=True)
class Fault:
    """One mistake of a compiler or a partitioner.

    Attributes:
        subject: what it is about; faults of one subject share a file.
        description: what goes wrong, in a sentence.
        case: the function that is compiled.
        plug_in: makes the plug-in, with the fault (True) or without it (False).
        dynamic: whether the function is compiled with open sizes.
    """

    name: str
    subject: str
    description: str
    case: Case
    plug_in: Callable[[bool], PlugIn]
    dynamic: bool = False


class NotPlanted(Exception):
    """The graph has no place for a fault: the suite is wrong, not the plug-in."""
