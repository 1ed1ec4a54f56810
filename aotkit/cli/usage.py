"""What several commands share: options, errors, progress and output."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from aotkit.errors import AotkitError, UnavailableError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

# Exit codes.
CHECK_FAILED, WRONG_USAGE, UNAVAILABLE = 1, 2, 3
INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it


class UsageError(AotkitError, ValueError):
    """Arguments of the command line that make no sense, or a file of theirs that cannot be read or written."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """What files and values of the user's raise is wrong usage."""
    try:
        yield
    except (OSError, ValueError) as e:
        raise UsageError(str(e)) from e


@contextmanager
def needing_packages() -> Iterator[None]:
    """A package that is missing is something that this machine has not."""
    try:
        yield
    except ImportError as e:
        raise UnavailableError(str(e)) from e


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], help: str
) -> argparse.ArgumentParser:
    """A command with `--json`; other options are added to what it returns.

    Args:
        run: returns the exit code.
    """
    parser = commands.add_parser(name, help=help)
    add_json(parser)
    parser.set_defaults(run=run)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def add_device(parser: argparse.ArgumentParser, help: str | None = None) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=help)


def add_output(parser: argparse.ArgumentParser, metavar: str, help: str) -> None:
    parser.add_argument("-o", "--output", metavar=metavar, type=_writable, help=help)


def _writable(text: str) -> Path:
    """What cannot be written should not be found out after minutes of work."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: it is a folder, or its folder does not exist.")
    return path


def require_device(device: str) -> None:
    """Raises UnavailableError where there is no such device."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UnavailableError(
            "--device cuda was asked for, but torch finds no CUDA device. Run without it; `aotkit doctor` tells more."
        )


def show(options: argparse.Namespace, data: Any, text: object) -> None:
    """Print what was asked for: data as JSON, or text."""
    if options.json:
        show_json(data)
    else:
        print(text)


def show_json(data: Any) -> None:
    """The one way in which commands print JSON."""
    print(json.dumps(data, indent=2))


def shown(report: Any, options: argparse.Namespace) -> int:
    """Print a report, which has `passed` and `json()`; returns the exit code."""
    show(options, report.json(), report)
    return 0 if report.passed else CHECK_FAILED


def progress() -> Callable[[str], None]:
    """A function that prints a line to standard error, after the seconds since now."""
    start = time.perf_counter()

    def tell(text: str) -> None:
        print(f"[{time.perf_counter() - start:3.0f} s] {text}", file=sys.stderr, flush=True)

    return tell
