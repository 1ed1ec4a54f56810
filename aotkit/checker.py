"""Compare a compiled function with eager: outputs, gradients and mutated inputs, on copies of the inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aotkit.aot import pytree
from aotkit.copies import Outcome, run_on_copies
from aotkit.errors import MismatchError

# Relative to the largest value of the tensor. Fused arithmetic rounds less often than eager's, or in another order.
# Where a value is little else than rounding errors, such as the gradient of a bias before a batch norm, this is too
# strict, and a run in float64 decides.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
# How many times eager's distance from float64 the compiled function may be away from it.
WORSE_THAN_EAGER = 10.0
# How often, and by how many units in their last place, inputs are moved to see how sensitive a value is. The units
# stand for the rounding of all intermediate values; the tolerance of float32 is about 800 of them.
NUDGES = 16
NUDGE = 32


@dataclass
class Comparison:
    """One compared value.

    Attributes:
        what: `output 0`, `gradient of weight`, `input x after the call`.
        error: largest absolute difference; 0 for anything that is not floating point.
        allowed: the largest that counts as equal.
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
) -> CheckReport:
    """Run `compiled` on copies of `tensors` and compare.

    Args:
        subject: what was compiled and how, for the report.
        names: one for each tensor.
        want: eager's outcome for the same tensors.
    """
    got = run_on_copies(compiled, tensors)
    report = compare(subject, names, got, want)
    if not report.passed:
        try:
            exact = run_on_copies(eager, [_in_float64(t) for t in tensors])
            nudged = [run_on_copies(eager, _nudged(tensors, seed)) for seed in range(NUDGES)]
        except Exception:  # not every function takes float64; then eager's verdict stands
            return report
        runs = [_values(outcome, names) for outcome in (got, want, exact, *nudged)]
        _excuse_rounding(report, runs[0], runs[1], runs[2], runs[3:])
    return report


def _in_float64(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        wide = tensor.detach().to(torch.complex128)
    elif tensor.is_floating_point():
        wide = tensor.detach().double()
    else:
        return tensor
    return wide.requires_grad_(tensor.requires_grad)


def _nudged(tensors: Sequence[Tensor], seed: int) -> list[Tensor]:
    """The inputs in float64, each number off by a few units in its last place."""
    generator = torch.Generator().manual_seed(seed)
    nudged = []
    for tensor in tensors:
        wide = _in_float64(tensor)
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)
            wide = (wide.detach() * (1 + NUDGE * torch.finfo(tensor.dtype).eps * noise)).requires_grad_(
                tensor.requires_grad
            )
        nudged.append(wide)
    return nudged


Values = dict[str, Tensor]


def _excuse_rounding(report: CheckReport, got: Values, want: Values, exact: Values, nudged: Sequence[Values]) -> None:
    """Withdraw complaints that rounding explains.

    Either the compiled value is about as far from the float64 one as eager's is, and not far for the size of numbers
    around; or the value itself jumps when the inputs move in their last places, as a gradient does where the input of
    a relu is almost zero, and the compiled value lies within those jumps.
    """
    largest = max((float(v.abs().nan_to_num().max()) for v in want.values() if v.numel()), default=0.0)
    for c in report.comparisons:
        if c.error <= c.allowed or c.what not in exact or exact[c.what].shape != want[c.what].shape:
            continue
        e = exact[c.what]
        own, eager = ((v[c.what].to(e.dtype) - e).abs() for v in (got, want))
        limit = max(TOLERANCE.get(want[c.what].abs().dtype, 0.2), _autocast_tolerance(e.device)) * largest
        as_good_as_eager = own.max() <= WORSE_THAN_EAGER * eager.max() and own.max() <= limit
        jumps = torch.stack([(v[c.what] - e).abs() for v in nudged]).amax(0)
        if as_good_as_eager or bool((own <= c.allowed + 2 * jumps).all()):
            c.problem, c.allowed = None, c.error


def _autocast_tolerance(device: torch.device) -> float:
    if not torch.is_autocast_enabled(device.type):
        return 0.0
    return TOLERANCE[torch.get_autocast_dtype(device.type)]


def _values(outcome: Outcome, names: Sequence[str]) -> Values:
    outputs = enumerate(pytree.tree_leaves(outcome.outputs))
    values = {f"output {i}": v for i, v in outputs}
    values |= {f"gradient of {n}": v for n, v in zip(names, outcome.gradients or (), strict=False)}
    values |= {f"input {n} after the call": v for n, v in zip(names, outcome.inputs, strict=True)}
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
    difference = (got - want)[finite].abs()
    allowed = TOLERANCE.get(real, 0.2) * max(float(want[finite].abs().max()), 1e-30)
    error = float(difference.max())
    problem = None
    if error > allowed:
        wrong = int((difference > allowed).sum())
        problem = (
            f"differs by up to {error:.3g} in {wrong} of {want.numel()} elements; {allowed:.3g} is allowed "
            f"({real}, largest value {float(want[finite].abs().max()):.3g})"
        )
    return Comparison(what, error, allowed, problem)


def _brief(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, torch.Size) else value
