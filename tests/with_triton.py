"""Processes that have Triton, which is not among the installed packages of a machine without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Not among the installed packages, where Inductor would compile for CPUs otherwise: `make install` puts it there.
TRITON = Path(sys.prefix) / "interpreter"


def run(*command, **environment):
    """A process with Triton, without the variables by which pytest and its workers talk to each other."""
    if "TRITON_INTERPRET" in environment and not (TRITON / "triton").is_dir():
        pytest.skip(f"Triton is not in {TRITON}: `make install` puts it there")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    path = os.pathsep.join(filter(None, [str(TRITON), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env={**kept, "PYTHONPATH": path, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout
