"""Compare two runs of a function, value by value."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aotkit.checking.budget import Budget
from aotkit.checking.in_pieces import blocks, is_floating, magnitude, pieces
from aotkit.checking.rounding import allowed_difference
from aotkit.checking.runs import Baseline, Outcome, same_random
from aotkit.torch_private.dispatch import pytree

if TYPE_CHECKING:
    from aotkit.culprit import Culprit

AGAIN = ", second backward pass"
MOST_LINES = 20  # of a report as text: what is wrong first, then what is undecided


@dataclass
class Comparison:
    """One compared value.

    Attributes:
        what: `output 0`, `gradient of weight`, `input x after the call`.
        error: the absolute difference in the element that is furthest off, for what is allowed there; 0 for anything
            that is not floating point.
        allowed: the largest that counts as equal in that element.
        problem: how it differs, or None.
        undecided: how it differs, where there was no time to find out whether that is rounding.
        values: the name of the compared value, where only its elements differ: not its type or its size.
        beyond: how many elements are finite, but not in eager, and were compared with float64.
    """

    what: str
    error: float = 0.0
    allowed: float = 0.0
    problem: str | None = None
    undecided: str | None = None
    values: str | None = None
    beyond: int = 0

    @property
    def agreement(self) -> str:
        """How near it is, in words."""
        if self.undecided is not None:
            return f"undecided: {self.undecided}"
        near = f"largest difference {self.error:.3g}, allowed {self.allowed:.3g}" if self.error else "equal"
        return f"ok: {near}" + (f"; {self.beyond} by float64, not finite in eager" if self.beyond else "")


@dataclass
class CheckReport:
    """The verdict on one compiled function and one signature.

    Attributes:
        subject: the function, backend and partitioner.
        comparisons: one for each output, gradient and mutated input.
        repeated: whether it held for a second run, with other values and other random numbers.
        resized: whether that run had other sizes.
        culprit: after a failed check, the first wrong node, or in words why it was not found.
        kept: whether all this was found before, for the same graphs and code on a machine like this.
        search: looks for that within a budget; None where it was found, or cannot be.
    """

    subject: str
    comparisons: list[Comparison] = field(default_factory=list)
    repeated: bool = False
    resized: bool = False
    culprit: "Culprit | str | None" = None
    kept: bool = False
    search: Callable[[Budget], "Culprit | str"] | None = field(default=None, repr=False, compare=False)

    def find_culprit(self, seconds: float | None = None) -> "Culprit | str | None":
        """Look for what is wrong, for so many seconds, or as long as it takes; sets `culprit`, and returns it."""
        if self.search is not None:
            budget = Budget(seconds)
            self.culprit = self.search(budget)
            if not budget.is_used_up:
                self.search = None  # it holds the inputs
        return self.culprit

    @property
    def passed(self) -> bool:
        return all(c.problem is None for c in self.comparisons)

    @property
    def undecided(self) -> bool:
        """Whether it passed, but there was no time to find out whether some of what differs is rounding."""
        return self.passed and any(c.undecided is not None for c in self.comparisons)

    def __str__(self) -> str:
        sizes = " and sizes" if self.resized else ""
        again = f", also with other values{sizes}" if self.repeated else ""
        equals = "may equal eager" if self.undecided else "equals eager"
        earlier = ", as was found before" if self.kept else ""
        verdict = f"{equals}{again}{earlier}" if self.passed else "differs from eager"
        shown, rest = self.comparisons, list[Comparison]()
        if len(shown) > MOST_LINES:
            shown = sorted(shown, key=lambda c: (c.problem is None, c.undecided is None))
            shown, rest = shown[:MOST_LINES], shown[MOST_LINES:]
        width = max((len(c.what) for c in shown), default=0)
        lines = [f"  {c.what:{width}}  {c.problem or c.agreement}" for c in shown]
        if rest:
            counts = Counter("wrong" if c.problem else "ok" if c.undecided is None else "undecided" for c in rest)
            lines.append(f"  and {', '.join(f'{count} more {what}' for what, count in counts.items())}")
        if self.culprit is not None:
            lines.append(f"  {self.culprit}")
        return "\n".join([f"{self.subject} {verdict}:", *lines])


def compare(baseline: Baseline, got: Outcome) -> list[Comparison]:
    """Compare a compiled run with eager's: outputs, gradients, inputs, shared memory, random state."""
    names, want = baseline.names, baseline.want
    got_leaves, got_spec = pytree.tree_flatten(got.outputs)
    want_leaves, want_spec = pytree.tree_flatten(want.outputs)
    if got_spec != want_spec:
        return [Comparison("structure of the output", problem=f"is {got_spec}, eager's is {want_spec}")]
    found = []
    for i, (g, w) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        found.append(compare_values(f"output {i}", g, w))
        if baseline.layouts and found[-1].problem is None and _layout(g) != _layout(w):
            found[-1].values = None
            found[-1].problem = f"has strides {list(g.stride())}, eager's has {list(w.stride())}"
    found += _compare_gradients(names, got, want)
    for i, name in enumerate(names):
        if want.changed[i]:
            found.append(compare_values(f"input {name} after the call", got.inputs[i], want.inputs[i]))
        elif got.checksums[i] != want.checksums[i]:
            found.append(Comparison(f"input {name} after the call", problem="was overwritten, which eager does not"))
    whose = [*(f"input {name} after the call" for name in names), *(f"output {i}" for i in range(len(want_leaves)))]
    for what, mine, eagers in zip(whose, got.memory, want.memory, strict=True):
        for kind, j in sorted(mine ^ eagers):
            other = f"input {names[j]}" if kind == "input" else f"output {j}"
            shares = "shares memory with {}, eager's does not" if (kind, j) in mine else "does not share memory with {}"
            found.append(Comparison(what, problem=shares.format(other)))
    if not same_random(got.random, want.random):
        found.append(Comparison("random generator", problem="compiled and eager leave it in different states"))
    return found


def _compare_gradients(names: Sequence[str], got: Outcome, want: Outcome) -> list[Comparison]:
    found = []
    if (got.gradients is None) != (want.gradients is None):
        who = ("eager", "the compiled function")
        has, has_not = who if got.gradients is None else who[::-1]
        found.append(Comparison("gradients", problem=f"{has} has gradients, {has_not} has none"))
    for name, g, w in zip(names, got.gradients or (), want.gradients or (), strict=False):
        if g is not None or w is not None:
            found.append(compare_values(f"gradient of {name}", g, w))
    if got.overwrote_cotangents:
        found.append(Comparison("gradients given to the backward pass", problem="were overwritten"))
    for name, first, second in zip(names, got.gradients or (), got.again or (), strict=False):
        if first is not None or second is not None:
            again = compare_values(f"gradient of {name}", second, first)
            if again.problem is not None:
                again.what = f"{again.what}{AGAIN}"
                again.problem = f"is not that of the first: {again.problem}"
                found.append(again)
    return found


def _layout(value: Any) -> Any:
    """The strides that one can see."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.numel():
        return None
    return [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1]


def compare_values(what: str, got: Any, want: Any) -> Comparison:
    """Compare one value of a compiled run with eager's."""
    if not (isinstance(got, Tensor) and isinstance(want, Tensor)):
        same = got is want or (type(got) is type(want) and (got == want or got != got))
        return Comparison(what, problem=None if same else f"is {_brief(got)}, eager's is {_brief(want)}")
    for property_ in ("shape", "dtype", "device", "requires_grad"):
        g, w = getattr(got, property_), getattr(want, property_)
        if g != w:
            return Comparison(what, problem=f"has {property_} {_plain(g)}, eager's has {_plain(w)}")
    return Comparison(what) if want.is_meta else compare_elements(what, got.detach(), want.detach())


def compare_elements(what: str, got: Tensor, want: Tensor) -> Comparison:
    """Compare two tensors of the same shape and type."""
    if torch.equal(got, want):
        return Comparison(what)
    if not is_floating(want):
        different = sum(int((g != w).sum()) for g, w in pieces(got, want))
        problem = f"differs in {different} of {want.numel()} elements" if different else None
        return Comparison(what, problem=problem, values=what)
    real, largest = want.real.dtype, magnitude(want)
    wide = torch.complex128 if want.is_complex() else torch.float64
    comparison, furthest, most, wrong = Comparison(what, values=what), 0.0, 0.0, 0
    for g, w in (block for piece in pieces(got, want) for block in blocks(*piece)):
        exact = w.to(wide)
        difference, allowed = (g.to(wide) - exact).abs(), allowed_difference(exact, real, largest)
        share = difference / allowed
        if not math.isfinite(largest_share := float(share.max())):
            finite = w.isfinite()
            others = g[~finite].nan_to_num(), w[~finite].nan_to_num()
            if not torch.equal(g.isfinite(), finite) or not torch.equal(*others):
                return Comparison(what, problem="has NaN or infinity at other places than eager's", values=what)
            difference, allowed, share = difference[finite], allowed[finite], share[finite]
            if not len(share):
                continue
            largest_share = float(share.max())
        if largest_share >= 1:
            wrong += int((difference > allowed).sum())
        most = max(most, float(difference.max()))
        if largest_share > furthest:
            at = share.argmax()
            furthest, comparison.error, comparison.allowed = largest_share, float(difference[at]), float(allowed[at])
    if wrong:
        comparison.problem = (
            f"differs by up to {most:.3g} in {wrong} of {want.numel()} elements; {comparison.allowed:.3g} is allowed "
            f"where it is furthest off, by {comparison.error:.3g} ({real}, largest value {largest:.3g})"
        )
    return comparison


def _brief(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, torch.Size) else value
