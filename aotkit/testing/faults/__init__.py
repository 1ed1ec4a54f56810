"""Planted faults: small wrong compilers and partitioners, each of which aotkit's check has to catch.

`FAULTS` lists them; `caught(fault)` judges one; `python -m aotkit faults` prints all verdicts.
"""

from aotkit.testing.faults import (
    buffers,
    calls,
    gradients,
    memory,
    numerics,
    operators,
    partitions,
    randomness,
    reductions,
)
from aotkit.testing.faults.judge import FalseAlarmError, Verdict, caught
from aotkit.testing.faults.planting import Fault, PlugIn
from aotkit.testing.faults.rewriting import NotPlanted

SUBJECTS = (operators, reductions, numerics, gradients, partitions, memory, randomness, calls, buffers)
FAULTS: list[Fault] = [fault for subject in SUBJECTS for fault in subject.faults.faults]

__all__ = ["FAULTS", "FalseAlarmError", "Fault", "NotPlanted", "PlugIn", "Verdict", "caught"]
