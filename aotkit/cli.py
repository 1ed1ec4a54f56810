"""The command line: `python -m aotkit demo`, `bench`, `check`, `faults`, `view`, `backends`, `partitioners`.

Exit codes: 0, all well; 1, a compiled function differs from eager, a plug-in does not conform, or a planted fault was
missed; 2, wrong usage; 3, the plug-in to check cannot run here.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WIDTH = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "demo":
        from aotkit.demo import demo

        return 0 if demo() else 1
    if options.command == "bench":
        return BENCHMARKS[options.subject](options)
    if options.command == "faults":
        return _faults(options)
    if options.command == "check":
        return _check(options)
    if options.command == "view":
        from aotkit.view.command import view

        return view(options.file, options.output)
    from aotkit.registry import backend_status, partitioner_status

    status = backend_status() if options.command == "backends" else partitioner_status()
    print(json.dumps(_as_json(options.command, status), indent=2) if options.json else _as_text(status))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aotkit", description="Compile PyTorch training functions ahead of time.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="graphs, time and memory of compiled functions next to eager (a few minutes)")
    bench = commands.add_parser("bench", help="time compiled functions, judge partitioners")
    subjects = bench.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    _add_overhead(subjects.add_parser("overhead", help="what a call costs, next to eager and to torch.compile"))
    _add_partitioners(subjects.add_parser("partitioners", help="memory and estimated time of models that they cut"))
    _add_memory(subjects.add_parser("memory", help="peak memory and time of training steps under memory budgets"))
    _add_patterns(subjects.add_parser("patterns", help="fused patterns of transformers, next to torch.compile"))
    _add_faults(commands.add_parser("faults", help="whether the check catches planted faults, next to torch's own"))
    _add_check(commands.add_parser("check", help="find out whether a backend or partitioner does all it has to"))
    view = commands.add_parser(
        "view", help="make a page of graphs, from what json.dump(graphs.json()) wrote, and open it"
    )
    view.add_argument("file", metavar="FILE.json")
    view.add_argument("-o", "--output", metavar="FILE.html", help="write the page there, and open nothing")
    for kind in ("backends", "partitioners"):
        listing = commands.add_parser(kind, help=f"list the {kind}, and why one cannot run here")
        listing.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _add_overhead(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--workload", nargs="+", default=[], metavar="NAME", help="only these; * and ? match; default: all"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring for each workload; default: 5")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _add_partitioners(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", metavar="NAME[,NAME...]", help="* and ? match; default: all but gpt2-xl")
    parser.add_argument(
        "--partitions", default="*", metavar="NAME[,NAME...]", help="only these rows, such as 'min_cut budget *'"
    )
    parser.add_argument("--decompositions", choices=("inductor", "none"), default="inductor")
    parser.add_argument("--random", choices=("shared", "torch"), default="shared", help="as for aotkit.compile")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: the same models in small")
    parser.add_argument("--models", default="*", metavar="NAME[,NAME...]", help="* and ? match; default: all")
    parser.add_argument(
        "--partitions", default="eager,min_cut,nx_min_cut,* ?.?", metavar="NAME[,NAME...]",
        help="rows, such as 'eager,torch.compile *,nx_min_cut peak 0.43'; default: budgets in steps of 0.1",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=30.0, help="of timing for each model; default: 30")
    parser.add_argument("--join", nargs="+", metavar="FILE", help="instead, show together what --json printed before")
    parser.add_argument("--plot", metavar="FILE", help="draw time against memory, too; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _add_patterns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: smaller shapes, float32")
    parser.add_argument(
        "--patterns", default="*", metavar="NAME[,NAME...]", help="such as 'act *,softmax'; default: all"
    )
    parser.add_argument(
        "--shapes", metavar="SHAPE[,SHAPE...]", help="such as 8x256x512; default: xFormers' six on cuda"
    )
    parser.add_argument("--dtypes", metavar="NAME[,NAME...]", help="of float16, float32, bfloat16")
    parser.add_argument("--passes", default="*", metavar="NAME[,NAME...]", help="FW, FW+BW; default: both")
    parser.add_argument("--variants", default="*", metavar="NAME[,NAME...]", help="* and ? match; default: all")
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing for each cell; default: 0.3")
    parser.add_argument("--join", nargs="+", metavar="FILE", help="instead, show together what --json printed before")
    parser.add_argument("--plot", metavar="FILE", help="draw speed-ups over eager, too; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _add_faults(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="*", metavar="NAME", help="only these faults, or functions of the zoo with --alarms; default: all"
    )
    parser.add_argument(
        "--alarms", action="store_true", help="instead, look for false alarms: what is right, and refused (hours)"
    )
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="of --alarms: inputs of each function")
    parser.add_argument(
        "--backend", nargs="+", default=[], metavar="NAME", help="of --alarms: only these; default: all that run here"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def _faults(options: argparse.Namespace) -> int:
    from aotkit.testing.faults import FAULTS, caught
    from aotkit.testing.faults.table import as_json, as_text
    from aotkit.testing.zoo import CASES

    names = [case.name for case in CASES] if options.alarms else [fault.name for fault in FAULTS]
    if unknown := [name for name in options.name if name not in names]:
        print(f"nothing is called {', '.join(unknown)}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    if options.alarms:
        return _alarms(options)
    verdicts = [caught(fault) for fault in FAULTS if not options.name or fault.name in options.name]
    print(json.dumps(as_json(verdicts), indent=2) if options.json else as_text(verdicts))
    return 0 if all(v.caught for v in verdicts) else 1


def _alarms(options: argparse.Namespace) -> int:
    from aotkit.testing.faults.alarms import alarms, combinations

    found, checks = [], 0
    for where in combinations(options.name, options.backend):
        here = alarms(where, range(options.seeds))
        if not options.json:
            print(*here, sep="\n", end="\n" if here else "", flush=True)
        found += here
        checks += options.seeds
    if options.json:
        print(json.dumps({"schema": 1, "checks": checks, "alarms": [alarm.json() for alarm in found]}, indent=2))
    else:
        print(f"{len(found)} false alarms in {checks} checks.")
    return 1 if found else 0


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a registered backend or partitioner")
    parser.add_argument("--kind", choices=("backend", "partitioner"), help="needed if NAME is both")
    parser.add_argument("--case", default="*", metavar="PATTERN", help="only these; * and ? match; default: all")
    parser.add_argument("--all-operators", action="store_true", help="add opinfo/*: PyTorch's own test database")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _check(options: argparse.Namespace) -> int:
    import torch

    from aotkit.errors import UnavailableError, UnknownNameError
    from aotkit.testing.conformance.report import matching, run
    from aotkit.testing.conformance.requirements import Subject
    from aotkit.testing.conformance.suites import kind_of, requirements

    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device; run without --device cuda", file=sys.stderr)
        return 2
    try:
        kind = options.kind or kind_of(options.name)
        cases = matching(requirements(kind, options.all_operators), options.case)
        report = run(Subject(kind, options.name, torch.device(options.device)), cases)
    except UnknownNameError as e:
        print(e, file=sys.stderr)
        return 2
    except UnavailableError as e:
        print(e, file=sys.stderr)
        return 3
    return _shown(report, options)


def _bench_overhead(options: argparse.Namespace) -> int:
    import torch

    from aotkit.benchmark.overhead import overhead
    from aotkit.benchmark.overhead_workloads import chosen_names
    from aotkit.demo import progress
    from aotkit.errors import UnknownNameError

    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device; run without --device cuda", file=sys.stderr)
        return 2
    try:
        names = chosen_names(options.workload, options.device)
    except UnknownNameError as e:
        print(e, file=sys.stderr)
        return 2
    report = overhead(names, device=options.device, seconds=options.seconds, progress=progress())
    return _shown(report, options)


def _bench_partitioners(options: argparse.Namespace) -> int:
    from aotkit.benchmark.choice import chosen
    from aotkit.benchmark.models import DEFAULT_MODELS, MODELS
    from aotkit.benchmark.partitioners import all_partitioners, compare
    from aotkit.demo import progress
    from aotkit.errors import UnknownNameError

    partitioners = all_partitioners()
    patterns = options.models.split(",") if options.models else DEFAULT_MODELS
    try:
        models = chosen(patterns, MODELS, "no model is called {pattern!r}; there are {names}.")
        unknown = "no partitioner is called {pattern!r}; there are {names}."
        rows = chosen(options.partitions.split(","), partitioners, unknown)
    except UnknownNameError as e:
        print(e, file=sys.stderr)
        return 2
    report = compare(
        models, {row: partitioners[row] for row in rows},
        decompositions=options.decompositions, random=options.random, progress=progress(),
    )  # fmt: skip
    return _shown(report, options)


def _bench_memory(options: argparse.Namespace) -> int:
    from aotkit.benchmark.memory_plot import plot
    from aotkit.benchmark.memory_report import MemoryReport

    return _joined_or_measured(options, MemoryReport.joined, _measured_memory, plot)


def _bench_patterns(options: argparse.Namespace) -> int:
    from aotkit.benchmark.patterns_plot import plot
    from aotkit.benchmark.patterns_report import PatternsReport

    return _joined_or_measured(options, PatternsReport.joined, _measured_patterns, plot)


def _joined_or_measured(
    options: argparse.Namespace,
    join: Callable[[Sequence[Any]], Any],
    measure: Callable[[argparse.Namespace], Any],
    plot: Callable[[Any, str], None],
) -> int:
    from aotkit.errors import UnknownNameError

    if options.plot and find_spec("matplotlib") is None:
        print("--plot needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 2
    try:
        if options.join:
            report = join([json.loads(Path(name).read_text(encoding="utf-8")) for name in options.join])
        else:
            report = measure(options)
        if options.plot:
            plot(report, options.plot)
    except (UnknownNameError, ImportError, OSError, ValueError) as e:
        print(e, file=sys.stderr)
        return 2
    return _shown(report, options)


def _measured_memory(options: argparse.Namespace) -> Any:
    from aotkit.benchmark.choice import chosen
    from aotkit.benchmark.memory import memory
    from aotkit.benchmark.memory_variants import MODELS, variants
    from aotkit.demo import progress

    _require_device(options.device)
    rows = variants()
    models = chosen(options.models.split(","), MODELS[options.device])
    names = chosen(options.partitions.split(","), rows)
    chosen_rows = {name: rows[name] for name in names}
    return memory(models, chosen_rows, device=options.device, seconds=options.seconds, progress=progress())


def _measured_patterns(options: argparse.Namespace) -> Any:
    from aotkit.benchmark.choice import chosen
    from aotkit.benchmark.patterns import chosen_cells, measure, variants
    from aotkit.demo import progress

    _require_device(options.device)
    cells = chosen_cells(options.device, options.patterns, options.shapes, options.dtypes, options.passes)
    rivals = variants()
    names = chosen(options.variants.split(","), rivals)
    chosen_rivals = {name: rivals[name] for name in names}
    return measure(cells, chosen_rivals, device=options.device, seconds=options.seconds, progress=progress())


def _require_device(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no CUDA device; run without --device cuda")


def _shown(report: Any, options: argparse.Namespace) -> int:
    """Print a report; the exit status."""
    print(json.dumps(report.json(), indent=2) if options.json else report)
    return 0 if report.passed else 1


BENCHMARKS = {
    "overhead": _bench_overhead,
    "partitioners": _bench_partitioners,
    "memory": _bench_memory,
    "patterns": _bench_patterns,
}


def _as_json(kind: str, status: dict[str, str | None]) -> dict[str, object]:
    entries = [{"name": name, "available": reason is None, "reason": reason} for name, reason in status.items()]
    return {"schema": 1, kind: entries}


def _as_text(status: dict[str, str | None]) -> str:
    width = max(map(len, status), default=0) + 2
    return "\n".join(
        textwrap.fill(reason or "available", WIDTH, initial_indent=name.ljust(width), subsequent_indent=" " * width)
        for name, reason in status.items()
    )
