"""Train on several ranks, for each wrapper in processes of their own, and tell what was found."""

import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

from aotkit.benchmark.distributed.process import EAGER, OURS, TORCH_COMPILE, WAYS, run_rank
from aotkit.benchmark.report import MeasuredReport, Outcome, cell, machine
from aotkit.benchmark.timing import Tell, silent

MOST_SECONDS = 400.0  # for one wrapper
EXPLANATION = (
    "first s: the first step, with compiling and the check. step ms: medians of interleaved rounds, of the slowest "
    "rank each. of eager, of theirs: shares of eager's and of torch.compile's step. gradients: the largest distance of "
    "one from eager's, as a share of its size. check: the verdict of all ranks."
)


@dataclass
class Row(Outcome):
    """One wrapper and one way to compile; in seconds."""

    wrapper: str
    way: str
    ranks: int
    first: float | None = None
    step: float | None = None
    distance: float | None = None
    verdict: str = ""


@dataclass
class DistributedReport(MeasuredReport[Row]):
    """All rows."""

    heading = ("wrapper", "way", "first s", "step ms", "of eager", "of theirs", "gradients", "check")
    words = ("wrapper", "way", "check")
    by = 1
    key = ("wrapper", "way")

    @classmethod
    def row_of(cls, values: Mapping[str, Any]) -> Row:
        return Row(**values)

    def share(self, row: Row, way: str) -> float | None:
        """The time of a step as a share of what another way takes; None where one of them did not run."""
        other = next((r.step for r in self.rows if (r.wrapper, r.way) == (row.wrapper, way)), None)
        return row.step / other if row.step and other else None

    def _cells(self) -> Iterable[Sequence[str]]:
        for row in self.rows:
            if row.problem:
                yield row.wrapper, row.way, row.word
                continue
            shares = [cell(self.share(row, way) if row.way != way else None, ".2f") for way in (EAGER, TORCH_COMPILE)]
            shares[1] = shares[1] if row.way == OURS else ""
            numbers = cell(row.first, ".1f"), cell(row.step, ".2f", 1e-3), *shares
            yield row.wrapper, row.way, *numbers, cell(row.distance, ".1e") if row.way != EAGER else "", row.verdict

    def _notes(self) -> list[str]:
        problems = [f"{row.wrapper}: {row.way}: {row.problem}" for row in self.rows if row.problem]
        return [f"{self.rows[0].ranks} ranks. " * bool(self.rows) + EXPLANATION, *problems]


def measure(
    wrappers: Iterable[str],
    ways: Sequence[str] = WAYS,
    *,
    device: str = "cpu",
    ranks: int = 2,
    seconds: float = 10.0,
    progress: Tell = silent,
) -> DistributedReport:
    """Training steps with each wrapper.

    Args:
        wrappers: keys of `WRAPPERS`.
        ways: of `WAYS`; eager is always one of them.
        ranks: as many processes; on "cuda" each has a device.
        seconds: of timing for each wrapper.
    """
    report = DistributedReport(machine(device), torch.__version__, device)
    ways = [EAGER, *(way for way in ways if way != EAGER)]
    for name in wrappers:
        progress(name)
        try:
            found = _in_processes(ranks, (ranks, name, ways, device, seconds))
        except Exception as e:
            found = {way: {"problem": f"{type(e).__name__}: {str(e).strip().splitlines()[-1]}"} for way in ways}
        report.rows += [Row(name, way, ranks, **found[way]) for way in ways]
    return report


def _in_processes(ranks: int, arguments: Sequence[Any]) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        end = time.monotonic() + MOST_SECONDS
        spawn: Any = multiprocessing.spawn  # type: ignore[attr-defined]
        context = spawn(run_rank, (*arguments, folder), nprocs=ranks, join=False)
        try:
            while not context.join(timeout=1.0):
                if time.monotonic() > end:
                    raise TimeoutError(f"not done within {MOST_SECONDS:.0f} s")
        finally:
            for process in context.processes:
                process.kill()
        return json.loads(Path(folder, "found").read_text(encoding="utf-8"))  # type: ignore[no-any-return]
