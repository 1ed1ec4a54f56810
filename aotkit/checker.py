"""Compare a compiled function with eager: outputs, gradients and mutated inputs, on copies of the inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from aotkit.aot import negated, pytree, random_state
from aotkit.errors import MismatchError

# Relative to the largest value of the tensor. Fused arithmetic rounds less often than eager's, or in another order.
# Where a value is little else than rounding errors, such as the gradient of a bias before a batch norm, this is too
# strict, and a run in float64 decides.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
# How many times eager's distance from float64 the compiled function may be away from it.
WORSE_THAN_EAGER = 10.0
COTANGENT_SEED = 0x5EED
# Of a larger storage, such as a data set of which the input is a slice, only the slice is copied.
MOST_SPARE_BYTES = 64 << 20


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


@dataclass
class Outcome:
    """What one run produced.

    Attributes:
        outputs: the outputs, as returned.
        gradients: one for each input, None where there is none; None altogether if nothing requires gradients.
        inputs: the inputs after the call.
        changed: whether each input was mutated.
    """

    outputs: Any
    gradients: list[Tensor | None] | None
    inputs: list[Tensor]
    changed: list[bool]


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
        except Exception:  # not every function takes float64; then eager's verdict stands
            return report
        _excuse_rounding(report, names, got, want, exact)
    return report


def _in_float64(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        wide = tensor.detach().to(torch.complex128)
    elif tensor.is_floating_point():
        wide = tensor.detach().double()
    else:
        return tensor
    return wide.requires_grad_(tensor.requires_grad)


def _excuse_rounding(report: CheckReport, names: Sequence[str], got: Outcome, want: Outcome, exact: Outcome) -> None:
    """Withdraw complaints where both runs are about as close to the float64 one, for the size of numbers around."""
    g, w, e = (_values(outcome, names) for outcome in (got, want, exact))
    largest = max((float(v.abs().nan_to_num().max()) for v in w.values() if v.numel()), default=0.0)
    for c in report.comparisons:
        if c.error > c.allowed and c.what in e and e[c.what].shape == w[c.what].shape:
            own, eager = (float((v[c.what].to(e[c.what].dtype) - e[c.what]).abs().max()) for v in (g, w))
            limit = TOLERANCE.get(w[c.what].abs().dtype, 0.2) * largest
            if own <= WORSE_THAN_EAGER * eager and own <= limit:
                c.problem, c.allowed = None, limit


def _values(outcome: Outcome, names: Sequence[str]) -> dict[str, Tensor]:
    outputs = enumerate(pytree.tree_leaves(outcome.outputs))
    values = {f"output {i}": v for i, v in outputs}
    values |= {f"gradient of {n}": v for n, v in zip(names, outcome.gradients or (), strict=False)}
    values |= {f"input {n} after the call": v for n, v in zip(names, outcome.inputs, strict=True)}
    return {
        k: v.detach() for k, v in values.items() if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())
    }


def run_on_copies(fn: Callable[[list[Tensor]], Any], tensors: Sequence[Tensor]) -> Outcome:
    """Run `fn` on copies of `tensors`, then backward with random cotangents; global random state is left as it was."""
    try:
        return _run_on_copies(fn, tensors, _gradients)
    except RuntimeError as e:
        if "incompatible with .grad()" not in str(e):
            raise
        # Reentrant torch.utils.checkpoint works with Tensor.backward only.
        return _run_on_copies(fn, tensors, _accumulated_gradients)


def _run_on_copies(
    fn: Callable[[list[Tensor]], Any],
    tensors: Sequence[Tensor],
    differentiate: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor | None]],
) -> Outcome:
    leaves, inputs = copy_inputs(tensors)
    before = [_state(x) for x in inputs]
    # The caller's hooks are for the tensors that the real call saves; a function may leave another gradient mode.
    hooks = saved_tensors_hooks(lambda t: t, lambda t: t)
    with random_state(), torch.set_grad_enabled(torch.is_grad_enabled()), hooks:
        outputs = fn(list(inputs))
        changed = [_changed(x, state) for x, state in zip(inputs, before, strict=True)]
        results = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]
        results += [x for x, c in zip(inputs, changed, strict=True) if c]
        roots = [t for t in results if t.requires_grad]
        wanted = [x for x in leaves if x.requires_grad]
        gradients = None
        if roots and wanted and torch.is_grad_enabled():
            found = iter(differentiate(roots, wanted))
            gradients = [next(found) if x.requires_grad else None for x in leaves]
    return Outcome(outputs, gradients, inputs, changed)


def _state(tensor: Tensor) -> int | Tensor:
    """Tells whether a tensor was mutated. Inference tensors do not count that: their values have to serve."""
    return tensor.clone() if tensor.is_inference() else tensor._version


def _changed(tensor: Tensor, state: int | Tensor) -> bool:
    return tensor._version != state if isinstance(state, int) else not torch.equal(tensor, state)


def _gradients(roots: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor | None]:
    return list(torch.autograd.grad(roots, wanted, _cotangents(roots), allow_unused=True))


def _accumulated_gradients(roots: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor | None]:
    torch.autograd.backward(roots, _cotangents(roots))
    return [x.grad for x in wanted]


def _cotangents(roots: Sequence[Tensor]) -> list[Tensor]:
    return [cotangent(t, i) for i, t in enumerate(roots)]


def cotangent(output: Tensor, index: int) -> Tensor:
    """Random values, different for each element, so that a permuted or summed gradient cannot pass."""
    generator = torch.Generator().manual_seed(COTANGENT_SEED + index)
    dtype = torch.complex64 if output.is_complex() else torch.float32
    values = torch.randn(output.shape, generator=generator, dtype=dtype, device="cpu")
    return values.to(device=output.device, dtype=output.dtype)


def copy_inputs(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """(leaves to differentiate, copies to pass): equal values, strides, shared memory and gradient requirements."""
    shared = _shared_storages(tensors)
    storages: dict[int, Any] = {}
    copies: dict[int, tuple[Tensor, Tensor]] = {}
    for t in tensors:
        if id(t) not in copies:
            copies[id(t)] = _copy(t, storages, t.untyped_storage()._cdata in shared)
    pairs = [copies[id(t)] for t in tensors]
    return [leaf for leaf, _ in pairs], [x for _, x in pairs]


def _shared_storages(tensors: Sequence[Tensor]) -> set[int]:
    distinct = {id(t): t.untyped_storage()._cdata for t in tensors}
    storages = list(distinct.values())
    return {s for s in storages if storages.count(s) > 1} if len(set(storages)) < len(storages) else set()


def _copy(tensor: Tensor, storages: dict[int, Any], shared: bool) -> tuple[Tensor, Tensor]:
    source = tensor.detach()
    if source.is_conj():
        leaf, _ = _copy(source.conj(), storages, shared)
        leaf = leaf.conj()
    elif source.is_neg():
        leaf, _ = _copy(negated(source), storages, shared)
        leaf = negated(leaf)
    elif shared:
        key = source.untyped_storage()._cdata
        storage = storages.setdefault(key, source.untyped_storage().clone())  # type: ignore[no-untyped-call]
        leaf = _over(source, storage, int(source.storage_offset()))
    elif source.untyped_storage().nbytes() - source.nbytes <= MOST_SPARE_BYTES:
        # A function may look beyond its view, and where in the storage that begins.
        leaf = _over(source, source.untyped_storage().clone(), int(source.storage_offset()))  # type: ignore[no-untyped-call]
    else:
        used = 1 + sum((n - 1) * s for n, s in zip(source.shape, source.stride(), strict=True)) if source.numel() else 0
        flat = source.as_strided((used,), (1,)).clone()
        leaf = _over(source, flat.untyped_storage(), 0)
    leaf = leaf.requires_grad_(tensor.requires_grad)
    # Eager refuses to mutate a leaf that requires gradients; an input that is no leaf must not become one.
    mutable = leaf.clone() if tensor.requires_grad and not tensor.is_leaf and not shared else leaf
    return leaf, mutable if mutable.stride() == leaf.stride() else leaf


def _over(like: Tensor, storage: Any, offset: int) -> Tensor:
    with torch.inference_mode(like.is_inference()), torch.no_grad():
        empty = torch.empty(0, dtype=like.dtype, device=like.device)
        return empty.set_(storage, offset, like.shape, like.stride())


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
        error = MismatchError(f"{report}\nRun it with check=False to have the results all the same.")
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
    return _compare_values(what, got.detach(), want.detach())


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
