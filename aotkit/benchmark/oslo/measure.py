"""Run the workloads, each variant in a process of its own: processes get ready together, and are timed in turn."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch

from aotkit.benchmark.oslo.process import Task
from aotkit.benchmark.oslo.report import OsloReport, Row
from aotkit.benchmark.report import machine
from aotkit.benchmark.timing import Tell, silent

ROUNDS = 3
MOST_SECONDS = 900
FEW_COMPILERS = {"TORCHINDUCTOR_COMPILE_THREADS": "4"}  # else each process starts one for each core


def measure(
    variants: Mapping[str, Sequence[str]], *, device: str = "cpu", dtype: str = "float32", seconds: float = 1.0,
    folders: Mapping[str, str] | None = None, new_tokens: int | None = None, progress: Tell = silent,
) -> OsloReport:  # fmt: skip
    """Time the variants of each workload.

    Args:
        variants: of each workload, keys of `VARIANTS[workload]`.
        dtype: a key of `process.DTYPES`.
        seconds: of timing for each variant, in three rounds; at least one call in each.
        folders: workload -> what `save_pretrained` wrote of its model; random weights without.
        new_tokens: that `generate` has to produce; None: as many as OSLO's tutorial allowed.
    """
    import transformers

    place = {**machine(device), "transformers": transformers.__version__, "dtype": dtype}
    report = OsloReport(place, torch.__version__, device)
    tasks = [
        Task(device, dtype, workload, variant, (folders or {}).get(workload), new_tokens)
        for workload, names in variants.items()
        for variant in names
    ]
    for batch in _batches(tasks, os.cpu_count() or 1):
        report.rows += _measured_together(batch, seconds / ROUNDS, progress)
    return report


def _batches(tasks: Sequence[Task], together: int) -> Iterator[list[Task]]:
    """Workloads of which so many processes get ready at the same time; at least one workload."""
    batch: list[Task] = []
    for name in dict.fromkeys(task.workload for task in tasks):
        next_ones = [task for task in tasks if task.workload == name]
        if batch and len(batch) + len(next_ones) > together:
            yield batch
            batch = []
        batch += next_ones
    if batch:
        yield batch


def _measured_together(tasks: Sequence[Task], seconds: float, progress: Tell) -> list[Row]:
    rows = [Row(task.workload, task.variant) for task in tasks]
    with ExitStack() as stack:
        progress(f"getting ready: {', '.join(f'{row.workload}: {row.variant}' for row in rows)}")
        processes = [stack.enter_context(Process(task)) for task in tasks]
        for row, process in zip(rows, processes, strict=True):
            if found := _answer(row, process):
                row.differs = found["differs"]
                progress(f"{row.workload}: {row.variant} is ready")
        for number in range(ROUNDS):
            for row, process in zip(rows, processes, strict=True):
                if row.problem is None:
                    row.add(_answer(row, process, str(seconds)))
                    taken = "failed" if row.time is None else f"{1e3 * row.time:.4g} ms"
                    progress(f"{row.workload}: {row.variant} ({number + 1} of {ROUNDS}): {taken}")
    return rows


def _answer(row: Row, process: "Process", line: str | None = None) -> dict[str, Any]:
    """What the process of a row says; nothing where it has ended, which the row notes."""
    try:
        return process.answer(line)
    except RuntimeError as e:
        row.fail(e)
        return {}


class Process:
    """A process of `oslo.process`, which ends with the `with` statement, and after some time in any case."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")
        command = [sys.executable, "-m", "aotkit.benchmark.oslo.process", self._task.text()]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**FEW_COMPILERS, **os.environ},
        )  # fmt: skip
        self._timer = threading.Timer(MOST_SECONDS, self._process.kill)
        self._timer.daemon = True
        self._timer.start()
        return self

    def answer(self, line: str | None = None) -> dict[str, Any]:
        """What it says next.

        Args:
            line: what to ask it first.

        Raises:
            RuntimeError: it has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if line is not None:
                print(line, file=self._process.stdin, flush=True)
            if text := self._process.stdout.readline():
                return json.loads(text)  # type: ignore[no-any-return]
        except BrokenPipeError:
            pass
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {code}")

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()
        self._errors.close()
