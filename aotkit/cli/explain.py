"""`aotkit explain`: how a function of a file runs, and what it launches."""

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from aotkit.cli.usage import UsageError, add_json, add_output, progress, show_json, usage_errors

if TYPE_CHECKING:
    from aotkit.cli.loading import Target
    from aotkit.cli.usage import Commands
    from aotkit.compiled import CompiledFunction


def add(commands: "Commands") -> None:
    explain = commands.add_parser(
        "explain", help="compile a function of a file, and tell how it runs and which kernels it launches"
    )
    explain.add_argument("target", metavar="FILE.py:function", help="a function or a module in that file")
    explain.add_argument("--backend", metavar="NAME", help="as for aotkit.compile; default: auto")
    explain.add_argument("--partition", metavar="NAME", help="as for aotkit.compile; default: auto")
    explain.add_argument(
        "--inputs", metavar="NAME",
        help="in that file: a tuple of arguments, or a function that returns one; default: example_inputs",
    )  # fmt: skip
    add_output(explain, "FILE.html", "write a page with the code of each kernel there, too")
    add_json(explain)
    explain.set_defaults(run=_explain)


def _explain(options: argparse.Namespace) -> int:
    from aotkit.cli.loading import load, own_errors

    tell = progress()
    with redirect_stdout(sys.stderr):  # what the file prints is not what was asked for
        target = load(options.target, options.inputs)
    with redirect_stdout(sys.stderr), own_errors(target.path):
        function = _compiled(target, options)
        tell(f"compiling {target.name}")
        explanation = function.explain(*target.inputs)
        tell(f"running {target.name}, kernel by kernel")
        found = explanation.json()
    if options.output:
        with usage_errors():
            options.output.write_text(explanation.html(), encoding="utf-8")
    if options.json:
        show_json(found)
    else:
        print(explanation)
    return 0


def _compiled(target: "Target", options: argparse.Namespace) -> "CompiledFunction[..., object]":
    from aotkit.compiled import CompiledFunction, CompiledModule, compile, function_of

    fn = target.fn
    if not isinstance(fn, CompiledFunction | CompiledModule):
        compiled: object = compile(fn, backend=options.backend or "auto", partition=options.partition or "auto")
        return function_of(compiled)
    if options.backend or options.partition:
        raise UsageError(f"{target.name!r} is compiled already: leave out --backend and --partition.")
    return function_of(fn)
