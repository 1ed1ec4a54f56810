"""`aotkit bench`: what calls cost, and what partitioners make of models."""

import argparse
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotkit.cli.usage import (
    add_device,
    add_json,
    add_output,
    needing_packages,
    progress,
    require_device,
    shown,
    usage_errors,
)
from aotkit.errors import UnavailableError

if TYPE_CHECKING:
    from aotkit.cli.usage import Commands


def add(commands: "Commands") -> None:
    bench = commands.add_parser("bench", help="time compiled functions, judge partitioners")
    subjects = bench.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    _add_overhead(subjects.add_parser("overhead", help="what a call costs, next to eager and to torch.compile"))
    _add_start(subjects.add_parser("start", help="the first step with empty and full caches, next to torch.compile"))
    _add_partitioners(subjects.add_parser("partitioners", help="memory and estimated time of models that they cut"))
    _add_memory(subjects.add_parser("memory", help="peak memory and time of training steps under memory budgets"))
    _add_backends(subjects.add_parser("backends", help="all backends, and autotune, next to eager and torch.compile"))
    _add_patterns(subjects.add_parser("patterns", help="fused patterns of transformers, next to torch.compile"))
    _add_distributed(subjects.add_parser("distributed", help="training steps on several ranks, next to torch.compile"))
    _add_oslo(subjects.add_parser("oslo", help="the models of OSLO's tutorial, next to eager and torch.compile"))


def _add_overhead(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    parser.add_argument(
        "--workload", nargs="+", default=["*"], metavar="NAME", help="only these; * and ? match; default: all"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring for each workload; default: 5")
    add_json(parser)
    parser.set_defaults(run=_overhead)


def _add_start(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    _add_names(parser, "workloads", "* and ? match; default: all")
    _add_names(parser, "ways", "such as 'torch.compile,aotkit*'; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured; default: 3")
    add_json(parser)
    parser.set_defaults(run=_start)


def _add_partitioners(parser: argparse.ArgumentParser) -> None:
    _add_names(parser, "models", "* and ? match; default: all but gpt2-xl", default=None)
    _add_names(parser, "partitions", "only these rows, such as 'min_cut budget *'")
    parser.add_argument("--decompositions", choices=("inductor", "none"), default="inductor")
    parser.add_argument("--random", choices=("shared", "torch"), default="shared", help="as for aotkit.compile")
    add_json(parser)
    parser.set_defaults(run=_partitioners)


def _add_memory(parser: argparse.ArgumentParser) -> None:
    add_device(parser, "cpu: the same models in small")
    _add_names(parser, "models", "* and ? match; default: all")
    such = "rows, such as 'eager,torch.compile *,nx_min_cut peak 0.43'; default: budgets in steps of 0.1"
    _add_names(parser, "partitions", such, default="eager,min_cut,nx_min_cut,* ?.?")
    _add_measuring(parser, 30.0, "model", "time against memory")
    parser.set_defaults(run=_memory)


def _add_patterns(parser: argparse.ArgumentParser) -> None:
    add_device(parser, "cpu: smaller shapes, float32")
    _add_names(parser, "patterns", "such as 'act *,softmax'; default: all")
    _add_names(parser, "shapes", "such as 8x256x512; default: xFormers' six on cuda", default=None, each="SHAPE")
    _add_names(parser, "dtypes", "of float16, float32, bfloat16", default=None)
    _add_names(parser, "passes", "FW, FW+BW; default: both")
    held_out = "instead of the grid, patterns that nothing was tuned for, in shapes and types of their own"
    parser.add_argument("--held-out", action="store_true", help=held_out)
    _add_names(parser, "variants", "* and ? match; default: all")
    _add_measuring(parser, 0.3, "cell", "speed-ups over eager")
    parser.set_defaults(run=_patterns)


def _add_distributed(parser: argparse.ArgumentParser) -> None:
    add_device(parser, "cuda: each rank has a device of its own")
    four = "DDP,FSDP2 by layer,tensor parallel,pipeline 1F1B"
    _add_names(parser, "wrappers", f"* and ? match; default: {four}", default=four)
    _add_names(parser, "ways", "such as 'torch.compile,aotkit'; default: all")
    parser.add_argument("--ranks", type=int, default=2, help="as many processes; default: 2")
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing for each wrapper; default: 5")
    add_json(parser)
    parser.set_defaults(run=_distributed)


def _add_oslo(parser: argparse.ArgumentParser) -> None:
    add_device(parser, "cpu: the same models in small")
    _add_names(parser, "workloads", "such as 'gpt2 *'; default: all")
    _add_names(parser, "variants", "such as 'eager,fuse *'; default: all")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="float32: products in TF32")
    parser.add_argument("--new-tokens", type=int, metavar="N", help="that generate makes; default: 19, as OSLO's")
    parser.add_argument("--gpt2", metavar="FOLDER", help="what save_pretrained wrote, in place of random weights")
    parser.add_argument("--t5", metavar="FOLDER", help="the same for T5")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each variant; default: 1")
    add_output(parser, "FILE", "write what --json prints to a file, too")
    add_json(parser)
    parser.set_defaults(run=_oslo)


def _add_backends(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    _add_names(parser, "workloads", "* and ? match; default: all")
    _add_names(parser, "variants", "such as 'eager,torch.compile,inductor,autotune'; default: all")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for autotune, each workload; default: 60")
    _add_measuring(parser, 4.0, "workload", "speed-ups over eager")
    parser.set_defaults(run=_backends)


def _add_names(
    parser: argparse.ArgumentParser, option: str, help: str, default: str | None = "*", each: str = "NAME"
) -> None:
    parser.add_argument(f"--{option}", default=default, metavar=f"{each}[,{each}...]", help=help)


def _add_measuring(parser: argparse.ArgumentParser, seconds: float, each: str, drawn: str) -> None:
    """The options that `_joined_or_measured` reads: `seconds` of timing `each`, and a plot of what is `drawn`."""
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"of timing for each {each}; default: {seconds:g}"
    )
    parser.add_argument("--join", nargs="+", metavar="FILE", help="instead, show together what --json printed before")
    parser.add_argument("--plot", metavar="FILE", help=f"draw {drawn}, too; needs matplotlib")
    add_json(parser)


def _overhead(options: argparse.Namespace) -> int:
    require_device(options.device)
    from aotkit.benchmark.overhead.measure import overhead
    from aotkit.benchmark.overhead.workloads import chosen_names

    names = chosen_names(",".join(options.workload), options.device)
    return shown(overhead(names, device=options.device, seconds=options.seconds, progress=progress()), options)


def _start(options: argparse.Namespace) -> int:
    require_device(options.device)
    from aotkit.benchmark.choice import chosen
    from aotkit.benchmark.start.measure import measure
    from aotkit.benchmark.start.process import WAYS
    from aotkit.benchmark.start.workloads import WORKLOADS

    names = chosen(options.workloads, WORKLOADS[options.device])
    ways = chosen(options.ways, dict.fromkeys(WAYS))
    found = measure(names, [*ways], device=options.device, rounds=options.rounds, progress=progress())
    return shown(found, options)


def _partitioners(options: argparse.Namespace) -> int:
    from aotkit.benchmark.choice import chosen
    from aotkit.benchmark.models import DEFAULT_MODELS, MODELS
    from aotkit.benchmark.partitioners import all_partitioners, compare

    patterns = options.models or ",".join(DEFAULT_MODELS)
    models = chosen(patterns, MODELS, "no model is called {pattern!r}; there are {names}.")
    unknown = "no partitioner is called {pattern!r}; there are {names}."
    rows = chosen(options.partitions, all_partitioners(), unknown)
    asked = {"decompositions": options.decompositions, "random": options.random}
    return shown(compare(models, rows, **asked, progress=progress()), options)


def _memory(options: argparse.Namespace) -> int:
    from aotkit.benchmark.choice import chosen
    from aotkit.benchmark.memory import MODELS, MemoryReport, memory, variants
    from aotkit.benchmark.plots import plot_memory

    def measured(**common: Any) -> MemoryReport:
        models = chosen(options.models, MODELS[options.device])
        rows = chosen(options.partitions, variants())
        with needing_packages():
            return memory(models, rows, **common)

    return _joined_or_measured(options, MemoryReport.joined, measured, plot_memory)


def _backends(options: argparse.Namespace) -> int:
    from aotkit.benchmark.backends.measure import measure, variants
    from aotkit.benchmark.backends.report import BackendsReport
    from aotkit.benchmark.backends.workloads import WORKLOADS
    from aotkit.benchmark.choice import chosen
    from aotkit.benchmark.plots import plot_backends

    def measured(**common: Any) -> BackendsReport:
        names = chosen(options.workloads, WORKLOADS)
        with needing_packages():
            return measure(names, chosen(options.variants, variants()), budget=options.budget, **common)

    return _joined_or_measured(options, BackendsReport.joined, measured, plot_backends)


def _patterns(options: argparse.Namespace) -> int:
    from aotkit.benchmark.choice import chosen
    from aotkit.benchmark.patterns.measure import chosen_cells, measure, variants
    from aotkit.benchmark.patterns.report import PatternsReport
    from aotkit.benchmark.plots import plot_patterns

    def measured(**common: Any) -> PatternsReport:
        asked = options.patterns, options.shapes, options.dtypes, options.passes
        with usage_errors():
            cells = chosen_cells(options.device, *asked, held_out=options.held_out)
        return measure(cells, chosen(options.variants, variants()), **common)

    return _joined_or_measured(options, PatternsReport.joined, measured, plot_patterns)


def _distributed(options: argparse.Namespace) -> int:
    require_device(options.device)
    import torch

    if options.device == "cuda" and torch.cuda.device_count() < options.ranks:
        raise UnavailableError(
            f"{options.ranks} ranks need as many CUDA devices; there are {torch.cuda.device_count()}."
        )
    from aotkit.benchmark.choice import chosen
    from aotkit.benchmark.distributed.measure import measure
    from aotkit.benchmark.distributed.process import WAYS
    from aotkit.benchmark.distributed.wrappers import WRAPPERS

    wrappers, ways = chosen(options.wrappers, WRAPPERS), chosen(options.ways, dict.fromkeys(WAYS))
    common = {"device": options.device, "ranks": options.ranks, "seconds": options.seconds}
    return shown(measure(wrappers, [*ways], **common, progress=progress()), options)


def _oslo(options: argparse.Namespace) -> int:
    require_device(options.device)
    from aotkit.benchmark.choice import chosen
    from aotkit.benchmark.oslo.measure import measure
    from aotkit.benchmark.oslo.variants import VARIANTS

    workloads = chosen(options.workloads, VARIANTS)
    names = chosen(options.variants, {name: None for variants in workloads.values() for name in variants})
    rows = {workload: [name for name in variants if name in names] for workload, variants in workloads.items()}
    folders = {workload: getattr(options, workload.split()[0]) for workload in rows}
    with needing_packages():
        report = measure(
            rows, device=options.device, dtype=options.dtype, seconds=options.seconds, folders=folders,
            new_tokens=options.new_tokens, progress=progress(),
        )  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps(report.json(), indent=2) + "\n", encoding="utf-8")
    return shown(report, options)


def _joined_or_measured(
    options: argparse.Namespace,
    join: Callable[[Sequence[Any]], Any],
    measure: Callable[..., Any],
    plot: Callable[[Any, str], None],
) -> int:
    if options.plot and find_spec("matplotlib") is None:
        raise UnavailableError("--plot needs matplotlib: pip install matplotlib")
    if options.join:
        with usage_errors():
            report = join([json.loads(Path(name).read_text(encoding="utf-8")) for name in options.join])
    else:
        require_device(options.device)
        report = measure(device=options.device, seconds=options.seconds, progress=progress())
    if options.plot:
        with usage_errors():
            plot(report, options.plot)
    return shown(report, options)
