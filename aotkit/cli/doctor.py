"""`aotkit doctor`: what this machine can run, and why not the rest."""

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from aotkit.cli.usage import UNAVAILABLE, add_json, needing_packages, progress, show_json

if TYPE_CHECKING:
    from aotkit.cli.machine import Finding, Trial
    from aotkit.cli.usage import Commands


def add(commands: "Commands") -> None:
    doctor = commands.add_parser(
        "doctor", help="tell what this machine can run, and why not the rest; 0 if the defaults compile and run, else 3"
    )
    add_json(doctor)
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from aotkit.cli.listings import WIDTH, entries, status_text
    from aotkit.cli.machine import findings, trials

    tell = progress()
    tell("looking at versions, devices and packages")
    with needing_packages():
        found = findings()
    from aotkit.registry import backend_status, partitioner_status

    backends, partitioners = backend_status(), partitioner_status()
    tell("compiling a small function")
    tried = trials()
    usable = all(trial.problem is None for trial in tried)
    if options.json:
        show_json(
            {
                "schema": 1,
                "usable": usable,
                "findings": [asdict(finding) for finding in found],
                "backends": entries(backends),
                "partitioners": entries(partitioners),
                "trials": [asdict(trial) for trial in tried],
            }
        )
    else:
        listed = [_found(found), f"backends\n{status_text(backends)}", f"partitioners\n{status_text(partitioners)}"]
        print("\n\n".join([*listed, *(textwrap.fill(_verdict(trial), WIDTH) for trial in tried)]))
    return 0 if usable else UNAVAILABLE


def _found(findings: "Sequence[Finding]") -> str:
    width = max(len(finding.subject) for finding in findings) + 2
    return "\n".join(
        f"{finding.subject:{width}}{finding.found}{f': {finding.problem}' if finding.problem else ''}"
        for finding in findings
    )


def _verdict(trial: "Trial") -> str:
    with_gradients = f"The default backend {trial.backend!r} on {trial.device}, a small function with gradients:"
    if trial.problem is None:
        return f"{with_gradients} compiled, ran and equals eager ({trial.seconds:.1f} s)."
    return f"{with_gradients} failed ({trial.seconds:.1f} s). {trial.problem}"
