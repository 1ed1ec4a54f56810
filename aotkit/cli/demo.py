"""`aotkit demo`: a function's graphs, then time and memory next to eager on three workloads."""

import argparse
from typing import Any

from aotkit.cli.usage import CHECK_FAILED, Commands, add_command, progress, show_json

SECONDS = 4.0  # of measuring for each workload; compiling takes longer


def add(commands: Commands) -> None:
    add_command(commands, "demo", _demo, "graphs, time and memory of compiled functions next to eager (minutes)")


def _demo(options: argparse.Namespace) -> int:
    import torch

    from aotkit.api import extract
    from aotkit.benchmark import bench
    from aotkit.benchmark.workloads import ResidualLoss, gpt2, padded_texts, tutorial, tutorial_inputs
    from aotkit.capture import default_backend

    reports, tell = [], progress()

    def tell_result(text: object) -> None:
        if not options.json:
            print(text, end="\n\n", flush=True)

    def begin(text: str) -> None:
        tell_result(f"{text}\n{'=' * len(text)}")

    def measure(fn: Any, *args: Any, **chosen: Any) -> None:
        reports.append(bench(fn, *args, seconds=SECONDS, progress=tell, **chosen))
        tell_result(reports[-1])

    torch.manual_seed(0)
    begin("functorch's tutorial: x = a + b + c + d; x.cos().cos(), four matrices of 1024 x 2048, float32")
    inputs = tutorial_inputs()
    for partition in ("default", "min_cut"):
        tell_result(extract(tutorial, *inputs, partition=partition))
    measure(tutorial, *inputs)
    chosen: Any = {"backends": [default_backend().names], "partitions": ("min_cut", "nx_min_cut")}
    begin("One training step of a residual block, batch normalisation in training mode: 8 x 64 x 32 x 32")
    measure(ResidualLoss(), *torch.randn(2, 8, 64, 32, 32), **chosen)
    begin("One training step of Hugging Face's GPT2LMHeadModel as it is: 2 layers, two texts, one of them padded")
    try:
        model = gpt2()
    except ImportError:
        tell_result("transformers is missing. Run `pip install 'transformers>=5'`, then this command again.")
    else:
        measure(model, **chosen, **padded_texts())
        tell_result(next((row.way for row in reports[-1].rows if row.way), ""))
    if options.json:
        show_json({"schema": 1, "reports": [report.json() for report in reports]})
    return 0 if all(report.passed for report in reports) else CHECK_FAILED
