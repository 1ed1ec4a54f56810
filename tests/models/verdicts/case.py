"""One first call with the check, in a process of its own: a crash, or memory that runs out, costs one of them."""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.models.speed.measure import measure
from tests.models.speed.models import MODELS
from tests.models.verdicts.models import models
from tests.models.zoo import Training

ROOT = Path(__file__).resolve().parents[3]
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """What is trained for one step, and how it is compiled; without a batch, with the model's own."""

    model: str
    dtype: str
    batch: int | None
    variant: str
    seed: int
    device: str


@dataclass(frozen=True)
class Verdict:
    """What the check said: `passed`, `passed, 3 undecided` or `not passed`, and in that case why; after how long."""

    text: str
    why: str
    seconds: float


def builders(batch: int | None) -> dict[str, Callable[[], Training]]:
    """All models by name. The batch is for those of timm; the others have theirs."""
    return {**models(batch or 1), **MODELS}


def in_a_process(case: Case, limit: float) -> Verdict:
    """The verdict on it, or why there is none after `limit` seconds."""
    command = [sys.executable, "-m", "tests.models.verdicts.case", json.dumps(dataclasses.asdict(case))]
    begun = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=limit)
    except subprocess.TimeoutExpired:
        return Verdict("not passed", f"not done in {limit:.0f} s", limit)
    last = (done.stdout.splitlines() or [""])[-1]
    try:
        return Verdict(**json.loads(last))
    except (ValueError, TypeError):
        why = f"exit code {done.returncode}: {done.stderr[-2000:]}"
        return Verdict("not passed", why, time.monotonic() - begun)


def judged(case: Case) -> Verdict:
    """The verdict on it, found here."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case.dtype == "tf32"
    options: dict[str, Any] = {"device": case.device, "dtype": DTYPES[case.dtype], "seed": case.seed}
    (row,) = measure(builders(case.batch)[case.model], [case.variant], seconds=0.0, check=True, **options)
    return Verdict("not passed" if row.error else row.check, row.error, round(row.first, 1))


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(judged(Case(**json.loads(sys.argv[1]))))))
