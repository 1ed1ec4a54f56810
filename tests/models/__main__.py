"""`python -m tests.models`: what becomes of training steps of public libraries, beside torch.compile."""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from tests.models import report
from tests.models.processes import Row, rows
from tests.models.zoo import Step, chosen


def main() -> int:
    """Measure, and print or write a table.

    Returns:
        0, 1 if torch.compile takes a model that aotkit does not, 2 for wrong usage, 130 after Ctrl-C.
    """
    parser = _parser()
    given = parser.parse_args()
    try:
        steps = chosen(given.models.split(","))
    except ValueError as e:
        parser.error(str(e))
    options = {name: value for name in ("backend", "partition", "capture") if (value := getattr(given, name))}
    found: dict[str, Row] = {}
    interrupted = False
    try:
        for row in rows(steps, options, given.seconds, given.jobs):
            found[row.step.name] = row
            _tell(row, len(found), steps)
    except KeyboardInterrupt:
        interrupted = True
    done = [found[step.name] for step in steps if step.name in found]
    _show(done, given, write=given.write and not interrupted)
    return 130 if interrupted else int(any(map(report.is_behind, done)))


def _show(done: Sequence[Row], given: Any, *, write: bool) -> None:
    command = f"python -m tests.models {shlex.join(a for a in sys.argv[1:] if a != '--write')}".strip()
    if write:
        report.write(done, command)
    if given.json:
        print(json.dumps(report.as_data(done), indent=1))
    elif not write:
        print(report.page(done, command))


def _tell(row: Row, number: int, steps: Sequence[Step]) -> None:
    if row.ours is None or row.theirs is None:
        text = f"skipped: {row.missing}"
    else:
        why = f": {'; '.join(row.ours.why)}" if row.ours.why else ""
        text = f"{'right' if report.is_right(row.ours) else 'NOT right'}, {row.ours.outcome}{why}"
        text += f" [torch.compile: {'right' if report.is_right(row.theirs) else 'not right'}, {row.theirs.outcome}]"
    print(f"{number}/{len(steps)} {row.step.name}: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("--models", default="*", metavar="GLOB,GLOB", help="names of models or libraries")
    parser.add_argument("--backend", default="nop", help="default: nop")
    parser.add_argument("--partition", help="default: that of aotkit.compile")
    parser.add_argument("--capture", help="default: that of aotkit.compile")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time; more than one makes times longer")
    parser.add_argument("--seconds", type=float, default=300.0, help="limit for each model and side")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--write", action="store_true", help="put the table into docs/models.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
