"""Whether a planted fault is caught, by aotkit's check and by torch's; the verdicts as a table and as JSON."""

import functools
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotkit.compiler import compile
from aotkit.errors import AotkitError, CompileError
from aotkit.testing.case import Case, build, inputs
from aotkit.testing.faults.planting import Fault, PlugIn
from aotkit.text import aligned
from aotkit.torch_private.dispatch import pytree
from aotkit.torch_private.testing import aot_compiled, observed, same_by_torch

CALLS = 3  # with other values each; torch's check compares each call, aotkit's what it wants
HEADING = ("fault", "subject", "aotkit", "torch's check", "what aotkit said")
SAID_WIDTH = 70


@dataclass(frozen=True)
class Verdict:
    """What the two checks say of one fault.

    Attributes:
        error: the class of the error that aotkit raises, None if it raises none.
        said: its first complaint.
        torch_caught: whether torch's check finds a difference.
    """

    fault: Fault
    error: str | None
    said: str
    torch_caught: bool

    @property
    def caught(self) -> bool:
        return self.error is not None


def as_text(verdicts: Sequence[Verdict]) -> str:
    """One line for each fault, and the totals."""
    rows = [HEADING]
    for v in verdicts:
        aotkit_says, torch_says = ("caught" if caught else "MISSED" for caught in (v.caught, v.torch_caught))
        said = textwrap.shorten(v.said, SAID_WIDTH, placeholder=" ...")
        rows.append((v.fault.name, v.fault.subject, aotkit_says, torch_says, said))
    by_aotkit, by_torch = sum(v.caught for v in verdicts), sum(v.torch_caught for v in verdicts)
    totals = f"aotkit caught {by_aotkit} of {len(verdicts)}, torch's own check {by_torch}."
    return "\n".join([*aligned(rows), "", totals])


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The same for programs."""
    entries = [
        {
            "name": v.fault.name,
            "subject": v.fault.subject,
            "description": v.fault.description,
            "function": v.fault.case.name,
            "caught": v.caught,
            "error": v.error,
            "said": v.said,
            "caught_by_torch": v.torch_caught,
        }
        for v in verdicts
    ]
    return {"schema": 1, "faults": entries}


class FalseAlarmError(AotkitError, AssertionError):
    """A plug-in without any fault was refused."""


def caught(fault: Fault) -> Verdict:
    """Compile the fault's function with the wrong plug-in, and with the right one.

    Raises:
        FalseAlarmError: one of the checks refuses the right one.
        NotPlanted: the fault changes nothing.
    """
    if (error := refusal(fault, fault.plug_in(False))) is not None:
        raise FalseAlarmError(f"Without its fault, the plug-in of {fault.name!r} was refused: {error}") from error
    if not _torch_accepts(fault, fault.plug_in(False)):
        raise FalseAlarmError(f"Without its fault, torch's check refuses the plug-in of {fault.name!r}.")
    error = refusal(fault, fault.plug_in(True))
    said = "" if error is None else first_complaint(error)
    torch_caught = not _torch_accepts(fault, fault.plug_in(True))
    return Verdict(fault, type(error).__name__ if error else None, said, torch_caught)


def refusal(fault: Fault, plug_in: PlugIn) -> AotkitError | None:
    """The error with which aotkit refuses a plug-in for the fault's function; None if it accepts it.

    Raises:
        Exception: whatever the plug-in itself raises.
    """
    options: dict[str, Any] = {"backend": plug_in.backend, "partition": plug_in.partition, "dynamic": fault.dynamic}
    # With torch's stream, random operators are in the graph, where faults can change them.
    compiled = compile(build(fault.case), random="torch", **options)
    try:
        for seed in range(CALLS):
            compiled(*inputs(fault.case, seed)[1])
    except AotkitError as error:
        cause = error.__cause__
        if isinstance(error, CompileError) and cause is not None and not isinstance(cause, CompileError):
            raise cause from None  # the fault itself does not work
        return error
    return None


def first_complaint(error: AotkitError) -> str:
    """What an error of the check says, in one line."""
    report = getattr(error, "report", None)
    if report is None:
        return str(error).splitlines()[0].rpartition("its compiled function ")[2]
    comparison = next(c for c in report.comparisons if c.problem)
    return f"{comparison.what} {comparison.problem}"


def _torch_accepts(fault: Fault, plug_in: PlugIn) -> bool:
    """Each call as torch's minifier would judge it; whatever makes the wrong one raise counts as a difference."""
    reference, wrong, wide = build(fault.case), build(fault.case), build(fault.case)
    wide = wide.double() if isinstance(wide, torch.nn.Module) else wide
    backend = plug_in.backend
    new_function = functools.partial(
        aot_compiled, wrong, backend.fw_compiler, backend.bw_compiler, plug_in.partition, fault.dynamic
    )
    functions: dict[Any, Any] = {}
    for seed in range(CALLS):
        run = functools.partial(_observed, fault.case, seed=seed)
        key = None if fault.dynamic else _signature(inputs(fault.case, seed)[1])
        compiled = functions[key] = functions.get(key) or new_function()
        want = run(reference, reference)
        try:
            if not same_by_torch(want, run(compiled, wrong), _exact(run, wide)):
                return False
        except (RuntimeError, TypeError, AssertionError):
            return False
    return True


def _signature(args: tuple[Any, ...]) -> str:
    """What torch's front end takes for constant without looking at it again."""
    return str(pytree.tree_map(lambda value: value.shape if isinstance(value, torch.Tensor) else value, args))


def _observed(case: Case, call: Any, module: Any, seed: int, dtype: torch.dtype = torch.float32) -> list[Any]:
    new, args = inputs(case, seed, dtype)
    return observed(call, module, args, new.leaves)


def _exact(run: Callable[..., list[Any]], wide: Any) -> list[Any] | None:
    try:
        return run(wide, wide, dtype=torch.float64)
    except RuntimeError:  # it does not take float64; torch goes on without, too
        return None
