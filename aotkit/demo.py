"""`python -m aotkit demo`: graphs of functorch's tutorial, then time and memory next to eager on three workloads."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from aotkit.api import extract
from aotkit.benchmark import BenchReport, bench
from aotkit.benchmark.workloads import GPT2Loss, ResidualLoss, byte_tokens, tutorial, tutorial_inputs
from aotkit.compiled_function import Capture

SECONDS = 8.0  # of measuring for each workload; compiling takes longer


def demo(progress: Callable[[str], None], show: Callable[[object], None]) -> list[BenchReport]:
    """Show graphs and reports; the reports."""
    torch.manual_seed(0)
    show(_heading("functorch's tutorial: x = a + b + c + d; x.cos().cos(), four matrices of 1024 x 2048, float32"))
    inputs = tutorial_inputs()
    for partition in ("default", "min_cut"):
        show(extract(tutorial, *inputs, partition=partition))
    reports = [bench(tutorial, *inputs, seconds=SECONDS, progress=progress)]
    show(reports[-1])
    show(_heading("One training step of a residual block, batch normalisation in training mode: 8 x 64 x 32 x 32"))
    images = torch.randn(2, 8, 64, 32, 32)
    reports.append(bench(ResidualLoss(), *images, seconds=SECONDS, progress=progress))
    show(reports[-1])
    show(
        _heading("One training step of Hugging Face's GPT2LMHeadModel: 4 layers, random weights, text of 2 x 128 bytes")
    )
    try:
        model: nn.Module = GPT2Loss()
    except ImportError:
        show("transformers is missing. Run `pip install 'transformers>=5'`, then this command again.")
    else:
        tokens: Tensor = byte_tokens(2, 128)
        capture: Capture = "dynamo"
        reports.append(bench(model, tokens, seconds=SECONDS, capture=capture, progress=progress))
        show(reports[-1])
    return reports


def _heading(text: str) -> str:
    return f"{text}\n{'=' * len(text)}"
