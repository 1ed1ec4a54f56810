"""One variant of one workload, in the process that this is the program of: `python -m aotkit.benchmark.oslo.process`.

Its argument is a `Task` as JSON. It prints a line of JSON when it is ready, and one more for each line that it reads:
what a round of calls took.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from aotkit.benchmark.oslo.variants import VARIANTS
from aotkit.benchmark.oslo.workloads import T5_GENERATE, build
from aotkit.benchmark.rivals import EAGER

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Of what is compared with eager, see `Workload.compare`: products are rounded to TF32 on a GPU, as was torch's default
# when OSLO measured.
TOLERANCES = {("cpu", "float32"): 1e-3, ("cuda", "float32"): 0.01, ("cpu", "bfloat16"): 0.1, ("cuda", "bfloat16"): 0.1}
WARM_UP, MOST_CALLS = 3, 100


@dataclass(frozen=True)
class Task:
    """What a process measures.

    Attributes:
        folder: what `save_pretrained` wrote of the model; None: random weights.
        new_tokens: None: those of the workload's sizes.
    """

    device: str
    dtype: str
    workload: str
    variant: str
    folder: str | None = None
    new_tokens: int | None = None

    def text(self) -> str:
        return json.dumps(asdict(self))


def prepared(task: Task) -> tuple[Callable[[], Any], str | None]:
    """What runs the variant once, warm, and what is wrong with its results; None: they are eager's.

    Raises:
        whatever building, compiling or running the model does; ImportError without transformers.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    variant = VARIANTS[task.workload][task.variant]
    workload = build(task.workload, task.device, DTYPES[task.dtype], folder=task.folder, new_tokens=task.new_tokens)
    scored = {"return_dict_in_generate": True, "output_scores": True} if task.workload == T5_GENERATE else {}
    wanted = workload.run(**VARIANTS[task.workload][EAGER].options(), **scored)
    variant.prepare(workload.model)
    run = partial(workload.run, **variant.options())
    for _ in range(WARM_UP):
        found = run()
    differs = workload.compare(found, wanted, TOLERANCES[task.device, task.dtype])
    return run, differs or (_unfused(workload.model) if variant.is_ours else None)


def _unfused(model: Any) -> str | None:
    """Why a part of a fused model runs uncompiled."""
    from aotkit.fusing import fusion_report

    reasons = {reason for part in fusion_report(model).modules.values() for reason in part.eager}
    return "; ".join(sorted(reasons)) or None


def round_of(run: Callable[[], Any], seconds: float, device: str) -> dict[str, Any]:
    """Calls for about `seconds`, but at least one.

    Returns:
        `seconds`: of each, until the device has finished; `peak_bytes`: the most that was allocated, None on a CPU.
    """
    synchronize: Callable[[], Any] = torch.cuda.synchronize if device == "cuda" else lambda: None
    times: list[float] = []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    end = time.perf_counter() + seconds
    while not times or (time.perf_counter() < end and len(times) < MOST_CALLS):
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - start)
    return {"seconds": times, "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None}


def main(text: str) -> None:
    """See the module."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what libraries print is no answer
        task = Task(**json.loads(text))
        run, differs = prepared(task)
        print(json.dumps({"differs": differs}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(round_of(run, float(line), task.device)), file=answers, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
