"""Run first steps, each in a process of its own: with caches that are empty, and once more with those it has filled."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from aotkit.benchmark.report import machine
from aotkit.benchmark.start.process import EAGER
from aotkit.benchmark.start.report import Row, StartReport
from aotkit.benchmark.timing import Tell, silent

# Where torch, Triton and aotkit keep what outlives a process.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")
MOST_SECONDS = 1800


def measure(
    workloads: Iterable[str], ways: Sequence[str], *, device: str = "cpu", rounds: int = 3, progress: Tell = silent
) -> StartReport:
    """The first steps of each workload, one way after the other in each round.

    Args:
        workloads: keys of `WORKLOADS[device]`.
        ways: of `WAYS`; eager is always one of them.
        rounds: how often each is measured.
    """
    report = StartReport(machine(device), torch.__version__, device)
    for name in workloads:
        rows = [Row(name, way) for way in (EAGER, *(way for way in ways if way != EAGER))]
        report.rows += rows
        for round in range(rounds):
            for row in rows:
                if row.problem is None:
                    progress(f"{name}: {row.way} ({round + 1} of {rounds})")
                    _measure(row, device)
    return report


def _measure(row: Row, device: str) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a background build may still write there
        caches = {name: str(Path(folder, name)) for name in CACHES}
        for kind in (row.cold, row.warm):
            try:
                kind.append(_in_a_process((device, row.workload, row.way), caches))
            except RuntimeError as e:
                row.fail(e)
                return
            if row.way == EAGER:
                return


def _in_a_process(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "aotkit.benchmark.start.process", *arguments]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
    )
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]
