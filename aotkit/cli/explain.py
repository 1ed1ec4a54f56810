"""`aotkit explain FILE.py:function`: how a function of a file runs, and what it launches.

The file is imported under another name than `__main__`, with its folder on the path, as `python FILE.py` has it.
`function` is a name in it, or a path of names with dots: a function, a module (an instance), or what `aotkit.compile`
made of one. Its inputs are a tuple or list, or a function without arguments that returns one: by the name that is
asked for, else `function.example_inputs`, else `example_inputs` of the file.
"""

import argparse
import importlib.util
import inspect
import operator
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aotkit.cli.usage import Commands, UsageError, add_command, add_output, progress, show, usage_errors
from aotkit.errors import AotkitError

if TYPE_CHECKING:
    from aotkit.compiled import CompiledFunction

DEFAULT_INPUTS = "example_inputs"


@dataclass(frozen=True)
class Target:
    """What a command line names: a function, and positional arguments for it."""

    path: Path
    name: str
    fn: Callable[..., Any]
    inputs: tuple[Any, ...]


def add(commands: Commands) -> None:
    explain = add_command(
        commands, "explain", _explain,
        "compile a function of a file, and tell how it runs and which kernels it launches",
    )  # fmt: skip
    explain.add_argument("target", metavar="FILE.py:function", help="a function or a module in that file")
    explain.add_argument("--backend", metavar="NAME", help="as for aotkit.compile; default: auto")
    explain.add_argument("--partition", metavar="NAME", help="as for aotkit.compile; default: auto")
    explain.add_argument(
        "--inputs", metavar="NAME",
        help="in that file: a tuple of arguments, or a function that returns one; default: example_inputs",
    )  # fmt: skip
    add_output(explain, "FILE.html", "write a page with the code of each kernel there, too")


def _explain(options: argparse.Namespace) -> int:
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
    show(options, found, explanation)
    return 0


def _compiled(target: Target, options: argparse.Namespace) -> "CompiledFunction[..., object]":
    from aotkit.compiled import CompiledFunction, CompiledModule, function_of
    from aotkit.compiler import compile

    compiled: object = target.fn
    if not isinstance(compiled, CompiledFunction | CompiledModule):
        compiled = compile(target.fn, backend=options.backend or "auto", partition=options.partition or "auto")
    elif options.backend or options.partition:
        raise UsageError(f"{target.name!r} is compiled already: leave out --backend and --partition.")
    return function_of(compiled)


def load(target: str, inputs: str | None) -> Target:
    """Import the file, find the function and its inputs.

    Raises:
        UsageError: there is no such file or name, they are of no use, or the file's own code raises.
    """
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name:
        raise UsageError(f"FILE.py:function is needed, such as train.py:loss, not {target!r}.")
    path = Path(file).resolve()
    if not path.is_file():
        raise UsageError(f"there is no file {file!r}.")
    if path.suffix != ".py":
        raise UsageError(f"{file!r} is no Python file: its name does not end in .py.")
    module = _imported(path)
    fn = _named(module, name, file)
    if inspect.isclass(fn):
        raise UsageError(f"{name!r} in {file} is a class: make an instance in the file, and name that.")
    if not callable(fn):
        raise UsageError(f"{name!r} in {file} is of type {type(fn).__name__}, neither a function nor a module.")
    found = Target(path, name, fn, _inputs(module, fn, inputs, path, file))
    _require_taken(found)
    return found


@contextmanager
def own_errors(path: Path) -> Iterator[None]:
    """What the code of a user's file raises is told with its line there, without our part of the traceback."""
    try:
        yield
    except AotkitError:
        raise
    except (Exception, SystemExit) as e:
        lines = [f.lineno for f in traceback.extract_tb(e.__traceback__) if f.filename == str(path)]
        if isinstance(e, SyntaxError) and e.filename == str(path):
            lines.append(e.lineno)
        if not lines:
            raise
        raise UsageError(f"{path}:{lines[-1]}: {type(e).__name__}: {e}") from e


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"aotkit_file_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look there
    sys.path.insert(0, str(path.parent))
    with own_errors(path):
        spec.loader.exec_module(module)
    return module


def _named(module: ModuleType, name: str, file: str) -> Any:
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        known = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        there = f" It has {', '.join(known)}." if known else ""
        raise UsageError(f"{file} has no {name!r}.{there}") from None


def _inputs(module: ModuleType, fn: Any, name: str | None, path: Path, file: str) -> tuple[Any, ...]:
    default = getattr(fn, DEFAULT_INPUTS, getattr(module, DEFAULT_INPUTS, None))
    found = default if name is None else _named(module, name, file)
    if found is None:
        raise UsageError(
            f"{file} has no {DEFAULT_INPUTS!r}: a tuple of arguments, or a function that returns one. "
            "Write it there, or give the name of such with --inputs."
        )
    if callable(found):
        with own_errors(path):
            found = found()
    if not isinstance(found, tuple | list):
        raise UsageError(
            f"the inputs {name or DEFAULT_INPUTS!r} in {file} are of type {type(found).__name__}, not a tuple or list "
            "of arguments, or a function without arguments that returns one."
        )
    return tuple(found)


def _require_taken(target: Target) -> None:
    """Raises UsageError where the function does not take as many inputs."""
    called = getattr(target.fn, "forward", target.fn)  # the signature of a module's __call__ says nothing
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # one that is not written in Python has none
        return
    try:
        signature.bind(*target.inputs)
    except TypeError as e:
        number = len(target.inputs)
        raise UsageError(
            f"{target.name}{signature} does not take its {number} input{'s' if number != 1 else ''}: {e}."
        ) from None
