"""`python -m tests.models.verdicts`: first calls of public models with the check, in all types that people train in.

Whatever is not passed is a false alarm, an error or a wrong result: none is expected.
"""

import argparse
import dataclasses
import fnmatch
import itertools
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import aotkit
from tests.models.speed.models import MODELS
from tests.models.verdicts.case import DTYPES, Case, Verdict, builders, in_a_process


def main() -> int:
    """Judge all cases that the results do not have yet, and print what became of them: 1 if one is not passed."""
    parser = _parser()
    given = parser.parse_args()
    patterns = given.models.split(",")
    names = [name for name in builders(1) if any(fnmatch.fnmatchcase(name, p) for p in patterns)]
    unknown = [p for p in patterns if not fnmatch.filter(names, p)] + sorted({*given.dtypes.split(",")} - {*DTYPES})
    if unknown:
        parser.error(f"no {', '.join(unknown)}; models are {', '.join(builders(1))}, types are {', '.join(DTYPES)}")
    try:
        for variant in given.variants.split(","):
            backend, _, partition = variant.partition("/")
            aotkit.get_backend(backend), aotkit.get_partitioner(partition or "min_cut")
    except aotkit.UnknownNameError as e:
        parser.error(str(e))
    axes = (given.variants.split(","), given.dtypes.split(","), given.batches, range(given.seeds))
    cases = dict.fromkeys(
        Case(name, dtype, None if name in MODELS else batch, variant, seed, given.device)
        for (variant, dtype, batch, seed), name in itertools.product(itertools.product(*axes), names)
    )
    known = {case: verdict for case, verdict in _read(given.results).items() if verdict.text != "not passed"}
    found = {case: known[case] for case in cases if case in known}
    with ThreadPoolExecutor(given.jobs) as pool:
        running = {pool.submit(in_a_process, case, given.limit): case for case in cases if case not in found}
        for done in as_completed(running):
            found[running[done]] = done.result()
            line = {"case": dataclasses.asdict(running[done]), "verdict": dataclasses.asdict(done.result())}
            with given.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(_line(running[done], done.result()), file=sys.stderr, flush=True)
    print(_summary(found))
    return int(any(verdict.text == "not passed" for verdict in found.values()))


def _read(results: Path) -> dict[Case, Verdict]:
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    return {Case(**line["case"]): Verdict(**line["verdict"]) for line in map(json.loads, lines)}


def _line(case: Case, verdict: Verdict) -> str:
    values = [str(value) for value in dataclasses.asdict(case).values() if value is not None]
    return f"{' '.join(values)}: {verdict.text} after {verdict.seconds:.0f} s. {verdict.why}".strip()


def _summary(found: dict[Case, Verdict]) -> str:
    counts = Counter("undecided in part" if "undecided" in v.text else v.text for v in found.values())
    told = [_line(case, verdict) for case, verdict in found.items() if verdict.text == "not passed"]
    return "\n".join([*told, ", ".join(f"{text}: {count}" for text, count in counts.items())])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.models.verdicts", description=__doc__)
    parser.add_argument("--models", default="timm_*", metavar="GLOB,GLOB", help=", ".join(builders(1)))
    parser.add_argument("--variants", default="inductor/min_cut,inductor/nx_min_cut", metavar="NAME,NAME")
    parser.add_argument("--dtypes", default=",".join(DTYPES), metavar="NAME,NAME")
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 32], help="images; the other models have theirs")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="of weights and inputs")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; many leave more undecided")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each")
    parser.add_argument(
        "--results", type=Path, default=Path(".verdicts.jsonl"), help="kept; what passed is not run again"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
