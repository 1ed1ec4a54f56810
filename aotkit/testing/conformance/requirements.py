"""A requirement: something that a plug-in has to do, under a name, and the function that finds out whether it does."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from aotkit.compiler import compile
from aotkit.registry import get_backend, get_partitioner, name_of
from aotkit.testing.case import Case

Kind = Literal["backend", "partitioner"]


@dataclass(frozen=True)
class Subject:
    """The plug-in that is examined.

    Attributes:
        spec: its name, or the object itself.
        device: where the inputs are.
    """

    kind: Kind
    spec: Any
    device: torch.device

    @property
    def name(self) -> str:
        return name_of(self.spec)

    def plug_in(self) -> Any:
        """The backend or partitioner itself.

        Raises:
            UnavailableError: it cannot run here.
        """
        return (get_backend if self.kind == "backend" else get_partitioner)(self.spec)

    def compile(self, fn: Any, **options: Any) -> Any:
        """`aotkit.compile` with this plug-in, without its check: what is wrong shall reach the requirement."""
        plug_ins = {"backend": "nop", "partition": "default"}
        plug_ins["backend" if self.kind == "backend" else "partition"] = self.spec
        # Torch's stream, which eager draws too.
        return compile(fn, **{"check": False, "random": "torch", **plug_ins, **options})


Check = Callable[[Subject], None]


@dataclass(frozen=True)
class Requirement:
    """One thing that a plug-in has to do.

    Attributes:
        name: `group/name`, such as `layout/transposed`.
        says: what is required, in a sentence.
        check: returns if the plug-in does it, else raises.
    """

    name: str
    says: str
    check: Check


class Requirements(list[Requirement]):
    """The requirements of one group."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def __call__(self, check: Check) -> Check:
        """Decorator: make a requirement of a function; its name is the name, its docstring says what is required."""
        self.append(Requirement(f"{self.group}/{check.__name__}", (check.__doc__ or "").strip(), check))
        return check

    def add_cases(self, says: str, cases: Iterable[Case], compare: Callable[..., None]) -> "Requirements":
        """One requirement for each function: what `compare(subject, case)` asks of it."""
        self.extend(Requirement(f"{self.group}/{c.name}", says, functools.partial(compare, case=c)) for c in cases)
        return self
