"""`python -m tests.conforming FILE`: the conformance suite over the `backend` of a file, such as an example's."""

import runpy
import sys
from pathlib import Path

import torch

import aotkit
from aotkit.testing.conformance.report import matching, run
from aotkit.testing.conformance.requirements import Subject
from aotkit.testing.conformance.suites import requirements

LEFT_OUT = "opinfo"  # operators of which these leave most to ATen


def conforming(file, patterns=("*",)):
    """The report of the suite."""
    name = Path(file).stem
    aotkit.register_backend(name, runpy.run_path(str(file))["backend"])
    try:
        wanted = [r for r in requirements("backend") if not r.name.startswith(LEFT_OUT)]
        chosen = {r.name: r for pattern in patterns for r in matching(wanted, pattern)}
        return run(Subject("backend", name, torch.device("cpu")), list(chosen.values()), {})
    finally:
        aotkit.unregister_backend(name)


if __name__ == "__main__":
    file, *patterns = sys.argv[1:]
    report = conforming(file, patterns or ("*",))
    print(report)
    sys.exit(not report.passed)
