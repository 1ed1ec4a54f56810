"""Compare a compiled function with eager on copies of the inputs.

Outputs, gradients and mutated inputs, which outputs share memory, and the state of the random generators afterwards.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aotkit.aot import pytree
from aotkit.copies import Outcome, run_on_copies, same_random
from aotkit.errors import MismatchError
from aotkit.rounding import Excuses, allowed_difference, is_rounding


@dataclass
class Comparison:
    """One compared value.

    Attributes:
        what: `output 0`, `gradient of weight`, `input x after the call`.
        error: the absolute difference in the element that is furthest off, for what is allowed there; 0 for anything
            that is not floating point.
        allowed: the largest that counts as equal in that element.
        problem: how it differs, or None.
    """

    what: str
    error: float = 0.0
    allowed: float = 0.0
    problem: str | None = None


@dataclass
class CheckReport:
    """The verdict on one compiled function and one signature.

    Attributes:
        subject: the function, backend and partitioner.
        comparisons: one for each output, gradient and mutated input.
    """

    subject: str
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(c.problem is None for c in self.comparisons)

    def __str__(self) -> str:
        verdict = "equals eager" if self.passed else "differs from eager"
        width = max((len(c.what) for c in self.comparisons), default=0)
        lines = [
            f"  {c.what:{width}}  {c.problem or f'ok: largest difference {c.error:.3g}, allowed {c.allowed:.3g}'}"
            for c in self.comparisons
        ]
        return "\n".join([f"{self.subject} {verdict}:", *lines])


def check(
    subject: str,
    names: Sequence[str],
    compiled: Callable[[list[Tensor]], Any],
    eager: Callable[[list[Tensor]], Any],
    tensors: Sequence[Tensor],
    want: Outcome,
    generators: Sequence[torch.Generator] = (),
    randomness: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> CheckReport:
    """Run `compiled` on copies of `tensors` and compare.

    Args:
        subject: what was compiled and how, for the report.
        names: one for each tensor.
        want: eager's outcome for the same tensors.
        generators: random generators that the function draws from, besides torch's own.
        randomness: what `eager` runs under.
    """
    got = run_on_copies(compiled, tensors, generators)
    report = compare(subject, names, got, want)
    # Only what differs by a number can be rounding; nothing excuses the rest.
    if not report.passed and all(c.error for c in report.comparisons if c.problem):
        excuses = Excuses(eager, tensors, want, generators, randomness)
        if excuses.usable:
            _excuse_rounding(report, names, got, want, excuses)
    return report


def _excuse_rounding(report: CheckReport, names: Sequence[str], got: Outcome, want: Outcome, excuses: Excuses) -> None:
    """Withdraw complaints that rounding explains."""
    kinds = (_outputs, _gradients, _mutated)
    for kind in kinds:
        runs = [kind(outcome, names) for outcome in (got, want, excuses.exact, *excuses.nudged)]
        largest = max((float(v.abs().nan_to_num().max()) for v in runs[1].values() if v.numel()), default=0.0)
        for c in report.comparisons:
            if c.problem is None or any(c.what not in run for run in runs):
                continue
            g, w, exact, *nudged = (run[c.what] for run in runs)
            if exact.shape == w.shape and is_rounding(g, w, exact, nudged, largest):
                c.problem, c.allowed = None, c.error


Values = dict[str, Tensor]


def _outputs(outcome: Outcome, names: Sequence[str]) -> Values:
    return _inexact({f"output {i}": v for i, v in enumerate(pytree.tree_leaves(outcome.outputs))})


def _gradients(outcome: Outcome, names: Sequence[str]) -> Values:
    return _inexact({f"gradient of {n}": v for n, v in zip(names, outcome.gradients or (), strict=False)})


def _mutated(outcome: Outcome, names: Sequence[str]) -> Values:
    triples = zip(names, outcome.inputs, outcome.changed, strict=True)
    return _inexact({f"input {n} after the call": v for n, v, changed in triples if changed})


def _inexact(values: dict[str, Any]) -> Values:
    return {
        k: v.detach() for k, v in values.items() if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())
    }


def compare(subject: str, names: Sequence[str], got: Outcome, want: Outcome) -> CheckReport:
    """Compare a compiled run with eager's.

    Args:
        subject: what was compiled and how, for the report.
        names: one for each input.
    """
    report = CheckReport(subject)
    add = report.comparisons.append
    got_leaves, got_spec = pytree.tree_flatten(got.outputs)
    want_leaves, want_spec = pytree.tree_flatten(want.outputs)
    if got_spec != want_spec:
        add(Comparison("structure of the output", problem=f"is {got_spec}, eager's is {want_spec}"))
        return report
    for i, (g, w) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        add(_compare(f"output {i}", g, w))
    if (got.gradients is None) != (want.gradients is None):
        has, has_not = (
            ("eager", "the compiled function") if got.gradients is None else ("the compiled function", "eager")
        )
        add(Comparison("gradients", problem=f"{has} has gradients, {has_not} has none"))
    for name, g, w in zip(names, got.gradients or (), want.gradients or (), strict=False):
        if g is not None or w is not None:
            add(_compare(f"gradient of {name}", g, w))
    changed = [a or b for a, b in zip(got.changed, want.changed, strict=True)]
    for name, g, w, different in zip(names, got.inputs, want.inputs, changed, strict=True):
        if different:
            add(_compare(f"input {name} after the call", g, w))
    for i, (g, w) in enumerate(zip(got.memory, want.memory, strict=True)):
        # Not the reverse: in evaluation mode eager's dropout returns its input itself, torch's traced one a copy.
        for kind, j in sorted(g - w):
            other = f"input {names[j]}" if kind == "input" else f"output {j}"
            add(Comparison(f"output {i}", problem=f"shares memory with {other}, eager's does not"))
    if not same_random(got.random, want.random):
        add(Comparison("random generator", problem="compiled and eager leave it in different states"))
    return report


def raise_if_different(report: CheckReport) -> None:
    """Raise MismatchError, with the report attached as `.report`, unless it passed."""
    if not report.passed:
        error = MismatchError(str(report))
        error.report = report  # type: ignore[attr-defined]
        raise error


def _compare(what: str, got: Any, want: Any) -> Comparison:
    if not (isinstance(got, Tensor) and isinstance(want, Tensor)):
        same = got is want or (type(got) is type(want) and (got == want or got != got))
        return Comparison(what, problem=None if same else f"is {_brief(got)}, eager's is {_brief(want)}")
    for property_ in ("shape", "dtype", "device", "requires_grad"):
        g, w = getattr(got, property_), getattr(want, property_)
        if g != w:
            return Comparison(what, problem=f"has {property_} {_plain(g)}, eager's has {_plain(w)}")
    return Comparison(what) if want.is_meta else _compare_values(what, got.detach(), want.detach())


def _compare_values(what: str, got: Tensor, want: Tensor) -> Comparison:
    if not (want.is_floating_point() or want.is_complex()):
        different = int((got != want).sum())
        return Comparison(what, problem=f"differs in {different} of {want.numel()} elements" if different else None)
    real = want.real.dtype if want.is_complex() else want.dtype
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    finite = want.isfinite()
    if not torch.equal(got.isfinite(), finite) or not torch.equal(
        got[~finite].nan_to_num(), want[~finite].nan_to_num()
    ):
        return Comparison(what, problem="has NaN or infinity at other places than eager's")
    if not finite.any():
        return Comparison(what)
    difference = (got - want).abs()[finite]
    allowed = allowed_difference(want, real)[finite]
    furthest = (difference / allowed).argmax()
    comparison = Comparison(what, float(difference[furthest]), float(allowed[furthest]))
    if comparison.error > comparison.allowed:
        wrong = int((difference > allowed).sum())
        comparison.problem = (
            f"differs by up to {float(difference.max()):.3g} in {wrong} of {want.numel()} elements; "
            f"{comparison.allowed:.3g} is allowed where it is furthest off, by {comparison.error:.3g} ({real}, largest "
            f"value {float(want[finite].abs().max()):.3g})"
        )
    return comparison


def _brief(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, torch.Size) else value
