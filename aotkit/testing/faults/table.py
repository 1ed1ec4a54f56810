"""The verdicts on planted faults, as a table and as JSON."""

import textwrap
from collections.abc import Sequence
from typing import Any

from aotkit.testing.faults.judge import Verdict
from aotkit.text import aligned

HEADING = ("fault", "subject", "aotkit", "torch's check", "what aotkit said")
SAID_WIDTH = 70


def as_text(verdicts: Sequence[Verdict]) -> str:
    """One line for each fault, and the totals."""
    rows = [HEADING]
    for v in verdicts:
        said = textwrap.shorten(v.said, SAID_WIDTH, placeholder=" ...")
        rows.append((v.fault.name, v.fault.subject, _word(v.caught), _word(v.torch_caught), said))
    total = len(verdicts)
    by_aotkit, by_torch = sum(v.caught for v in verdicts), sum(v.torch_caught for v in verdicts)
    return "\n".join([*aligned(rows), "", f"aotkit caught {by_aotkit} of {total}, torch's own check {by_torch}."])


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The same for programs."""
    entries = [
        {
            "name": v.fault.name,
            "subject": v.fault.subject,
            "description": v.fault.description,
            "function": v.fault.case.name,
            "caught": v.caught,
            "error": v.error,
            "said": v.said,
            "caught_by_torch": v.torch_caught,
        }
        for v in verdicts
    ]
    return {"schema": 1, "faults": entries}


def _word(caught: bool) -> str:
    return "caught" if caught else "MISSED"
