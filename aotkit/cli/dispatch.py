"""From arguments to a command, and from an error to an exit code."""

import argparse
import sys
from collections.abc import Sequence

from aotkit import __version__
from aotkit.cli import benchmarks, checks, demo, doctor, explain, listings, pages
from aotkit.cli.usage import CHECK_FAILED, INTERRUPTED, UNAVAILABLE, WRONG_USAGE, UsageError
from aotkit.errors import AotkitError, UnavailableError, UnknownNameError

# In the order of the help. Each has `add(commands)`, which adds parsers that say what to `run`.
FAMILIES = (demo, doctor, explain, pages, listings, checks, benchmarks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Wrong arguments end in `SystemExit`, as argparse has it."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except AotkitError as e:
        print(e, file=sys.stderr)
        return exit_code(e)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def exit_code(error: AotkitError) -> int:
    """What an error means to a shell."""
    if isinstance(error, UnavailableError):
        return UNAVAILABLE
    return WRONG_USAGE if isinstance(error, UsageError | UnknownNameError) else CHECK_FAILED


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(prog="aotkit", description="Compile PyTorch training functions ahead of time.")
    top.add_argument("--version", action="version", version=f"aotkit {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for family in FAMILIES:
        family.add(commands)
    return top
