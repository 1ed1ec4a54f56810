"""`python -m aotkit demo`: a function's graphs, then time and memory next to eager on three workloads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aotkit.api import extract
from aotkit.benchmark import BenchReport, bench
from aotkit.benchmark.workloads import ResidualLoss, gpt2, padded_texts, tutorial, tutorial_inputs
from aotkit.registry import default_backend

SECONDS = 4.0  # of measuring for each workload; compiling takes longer


def demo(progress: Callable[[str], None], show: Callable[[object], None]) -> list[BenchReport]:
    """Show graphs and reports; the reports."""
    torch.manual_seed(0)
    show(_heading("functorch's tutorial: x = a + b + c + d; x.cos().cos(), four matrices of 1024 x 2048, float32"))
    inputs = tutorial_inputs()
    for partition in ("default", "min_cut"):
        show(extract(tutorial, *inputs, partition=partition))
    reports = [bench(tutorial, *inputs, seconds=SECONDS, progress=progress)]
    show(reports[-1])
    chosen: Any = {"backends": [default_backend()], "partitions": ("min_cut", "nx_min_cut"), "progress": progress}
    show(_heading("One training step of a residual block, batch normalisation in training mode: 8 x 64 x 32 x 32"))
    images = torch.randn(2, 8, 64, 32, 32)
    reports.append(bench(ResidualLoss(), *images, seconds=SECONDS, **chosen))
    show(reports[-1])
    show(
        _heading(
            "One training step of Hugging Face's GPT2LMHeadModel as it is: 2 layers, two texts, one of them padded"
        )
    )
    try:
        model: nn.Module = gpt2()
    except ImportError:
        show("transformers is missing. Run `pip install 'transformers>=5'`, then this command again.")
    else:
        reports.append(bench(model, seconds=SECONDS, **chosen, **padded_texts()))
        show(reports[-1])
        show(next((row.way for row in reports[-1].rows if row.way), ""))
    return reports


def _heading(text: str) -> str:
    return f"{text}\n{'=' * len(text)}"
