"""False alarms: where the check refuses what is right.

Every function of the zoo under every backend and partitioner that runs here, in float32 and in the half types, with
other inputs for each seed. All that these compile is right, so each refusal is one too many: of the check, or of the
backend.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotkit.compiler import compile
from aotkit.errors import AotkitError
from aotkit.registry import backend_status, list_partitioners
from aotkit.testing.case import Case, build, inputs
from aotkit.testing.faults.judge import first_complaint
from aotkit.testing.zoo import CASES

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SEEDS = 20
LEFT_OUT = ("print", "nnc")  # the same as nop, but for what it prints; and one that fuses on CUDA devices only
# torch has no complex numbers of half types, or hardly any; a module in a closure keeps its float32 parameters.
FLOAT32_ONLY = ("complex_numbers", "closure_over_a_module")


@dataclass(frozen=True)
class Combination:
    """One function in one type under one backend and partitioner."""

    case: Case
    backend: str
    partition: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.case.name}, {self.backend}, {self.partition}, {self.dtype}"


@dataclass(frozen=True)
class Alarm:
    """A refusal of what is right.

    Attributes:
        error: the class of the error.
        message: its first complaint.
    """

    where: Combination
    seed: int
    error: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}, seed {self.seed}: {self.error}: {self.message}"

    def json(self) -> dict[str, Any]:
        return {
            "function": self.where.case.name,
            "backend": self.where.backend,
            "partition": self.where.partition,
            "dtype": str(self.where.dtype),
            "seed": self.seed,
            "error": self.error,
            "message": self.message,
        }


def combinations(functions: Sequence[str] = (), backends: Sequence[str] = ()) -> Iterator[Combination]:
    """All that run here, or those of the functions and backends with these names.

    Left out are backends that the machine cannot run, and types in which eager cannot run a function.
    """
    if not backends:
        status = backend_status()
        backends = [name for name, reason in status.items() if reason is None and name not in LEFT_OUT]
    for case in CASES:
        if functions and case.name not in functions:
            continue
        for dtype in DTYPES:
            if dtype is not torch.float32 and case.name in FLOAT32_ONLY:
                continue
            for backend in backends:
                yield from (Combination(case, backend, p, dtype) for p in list_partitioners())


def alarms(where: Combination, seeds: Iterable[int]) -> list[Alarm]:
    """Compile a function, and check it for the inputs of each seed."""
    fn = build(where.case)
    fn = fn.to(where.dtype) if isinstance(fn, torch.nn.Module) else fn
    compiled: Any = compile(fn, backend=where.backend, partition=where.partition, check=False)
    found = []
    for seed in seeds:
        try:
            compiled.check(*inputs(where.case, seed, where.dtype)[1])
        except AotkitError as error:
            found.append(Alarm(where, seed, type(error).__name__, first_complaint(error)))
    return found
