"""The check: compiled results next to eager's, and a verdict.

`checker` runs it; `rounding` says what counts as equal.
"""

from aotkit.checking import checker
from aotkit.checking.budget import Budget
from aotkit.checking.checker import raise_if_different
from aotkit.checking.comparison import CheckReport
from aotkit.checking.copies import copy_inputs
from aotkit.checking.in_pieces import checksum, pieces
from aotkit.checking.kept import checked_before, kept_verdict
from aotkit.checking.other_values import resized
from aotkit.checking.rounding import TOLERANCE
from aotkit.checking.runs import Baseline, Outcome, Plan, Run, at_once, cotangent, run_on_copies, unmoved

__all__ = [
    "TOLERANCE",
    "Baseline",
    "Budget",
    "CheckReport",
    "Outcome",
    "Plan",
    "Run",
    "at_once",
    "checked_before",
    "checker",
    "checksum",
    "copy_inputs",
    "cotangent",
    "kept_verdict",
    "pieces",
    "raise_if_different",
    "resized",
    "run_on_copies",
    "unmoved",
]
