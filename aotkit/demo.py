"""`python -m aotkit demo`: graphs of functorch's tutorial, then time and memory next to eager on three workloads."""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from aotkit.api import extract
from aotkit.benchmark import BenchReport, bench
from aotkit.benchmark.workloads import GPT2Loss, ResidualLoss, byte_tokens, tutorial, tutorial_inputs
from aotkit.compiled_function import Capture

SECONDS = 8.0  # of measuring for each workload; compiling takes longer


def demo() -> bool:
    """Print everything to standard output, progress to standard error; whether all variants equal eager."""
    torch.manual_seed(0)
    tell = progress()
    _heading("functorch's tutorial: x = a + b + c + d; x.cos().cos(), four matrices of 1024 x 2048, float32")
    inputs = tutorial_inputs()
    for partition in ("default", "min_cut"):
        print(extract(tutorial, *inputs, partition=partition), end="\n\n")
    reports = [_show(bench(tutorial, *inputs, seconds=SECONDS, progress=tell))]
    _heading("One training step of a residual block, batch normalisation in training mode: 8 x 64 x 32 x 32")
    images = torch.randn(2, 8, 64, 32, 32)
    reports.append(_show(bench(ResidualLoss(), *images, seconds=SECONDS, progress=tell)))
    _heading("One training step of Hugging Face's GPT2LMHeadModel: 4 layers, random weights, text of 2 x 128 bytes")
    try:
        model: nn.Module = GPT2Loss()
    except ImportError:
        print("transformers is missing. Run `pip install 'transformers>=5'`, then this command again.")
    else:
        tokens: Tensor = byte_tokens(2, 128)
        capture: Capture = "dynamo"
        reports.append(_show(bench(model, tokens, seconds=SECONDS, capture=capture, progress=tell)))
    return all(report.passed for report in reports)


def _heading(text: str) -> None:
    print(f"{text}\n{'=' * len(text)}\n")


def _show(report: BenchReport) -> BenchReport:
    print(report, end="\n\n", flush=True)
    return report


def progress() -> Callable[[str], None]:
    """A function that prints a line to standard error, after the seconds since now."""
    start = time.perf_counter()

    def tell(text: str) -> None:
        print(f"[{time.perf_counter() - start:3.0f} s] {text}", file=sys.stderr, flush=True)

    return tell
