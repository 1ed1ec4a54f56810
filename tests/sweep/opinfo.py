"""One case of the sweep: an operator of PyTorch's own test database under one backend and partitioner.

Every sample runs in eager mode and twice compiled (the first call compiles and checks, the second takes the cached
entry), on equal inputs and from the same seed; outputs, gradients and inputs are compared. The comparison here is not
`aotkit.checker`, so a hole in that one shows up as a `WrongValue`.
"""

import functools
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import aotkit

PARTITIONS = {"nop": ("default", "min_cut", "nx_min_cut"), "inductor": ("min_cut",)}
MOST_SAMPLES = {"nop": 10_000, "inductor": 2}
SEED = 20
TOLERANCE = 1e-4  # of the largest value of a tensor


@dataclass(frozen=True)
class Case:
    """The first `samples` samples of one operator, such as `linalg.svd`, under one backend and partitioner."""

    operator: str
    samples: int
    backend: str
    partition: str


@dataclass(frozen=True)
class Outcome:
    """What became of one sample.

    Attributes:
        error: the class of the error; None if the sample passed. Besides those that aotkit raises: `EagerError` if
            eager mode fails too, `WrongValue` if a result is wrong and no check noticed, `RanEagerly`, `Recompiled`.
        message: what the error says, in one line.
    """

    sample: int
    error: str | None = None
    message: str = ""


class WrongValue(Exception):
    """A compiled function returned something else than eager mode, unnoticed."""


class RanEagerly(Exception):
    """The function was not compiled at all."""


class Recompiled(Exception):
    """The second of two equal calls compiled again."""


class EagerError(Exception):
    """The sample fails in eager mode too, in the same way."""


@functools.cache
def operators() -> dict[str, Any]:
    """Every operator that can be differentiated in float32 on a CPU, under its full name."""
    with quiet():
        from torch.testing._internal import common_methods_invocations as database
    # The database seeds inside of random operators; no graph can hold that, and `evaluate` seeds outside.
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {
        op.full_name: op
        for op in database.op_db
        if op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
    }


def cases(backend: str) -> list[Case]:
    """All cases of one backend, in the order of the database; one operator's partitioners follow each other."""
    counts = {name: min(MOST_SAMPLES[backend], len(samples(name))) for name in operators()}
    return [Case(name, n, backend, partition) for name, n in counts.items() for partition in PARTITIONS[backend]]


def samples(operator: str) -> list[Any]:
    """The operator's samples; new tensors with the same values on every call."""
    seed()
    with quiet():
        return list(operators()[operator].sample_inputs("cpu", torch.float32, requires_grad=True))


def run_case(case: Case, start: int, at: Callable[[int], None]) -> Iterator[Outcome]:
    """Run the samples of a case from number `start` on; `at` is called with the number of each before it runs."""
    copies = zip(samples(case.operator), samples(case.operator), samples(case.operator), strict=True)
    for i, (first, second, third) in enumerate(copies):
        if start <= i < case.samples:
            at(i)
            yield _outcome(i, lambda: run_sample(case, first, second, third))  # noqa: B023  (called at once)


def _outcome(sample: int, run: Callable[[], None]) -> Outcome:
    try:
        with quiet():
            run()
    except Exception as e:
        return Outcome(sample, type(e).__name__, _one_line(e))
    return Outcome(sample)


def _one_line(error: Exception) -> str:
    report = getattr(error, "report", None)
    if report is not None:
        problems = [f"{c.what} {c.problem}" for c in report.comparisons if c.problem]
        return "; ".join(problems)[:300]
    return next(iter(str(error).splitlines()), "")[:300]


def run_sample(case: Case, first: Any, second: Any, third: Any) -> None:
    """Compare eager mode on one sample with two compiled calls on copies of it.

    Raises:
        WrongValue, RanEagerly, Recompiled, EagerError: see there.
        Exception: whatever compiling and running raises.
    """
    fn = function(case.operator, first)
    compiled: Any = aotkit.compile(fn, backend=case.backend, partition=case.partition)
    try:
        want = evaluate(fn, first)
    except Exception as e:
        _fails_too(compiled, second, e)
    for sample in (second, third):
        _compare(evaluate(compiled, sample), want)
    try:
        graphs = [compiled.graphs(s.input, *s.args, **s.kwargs) for s in (second, third)]
    except aotkit.TraceError as e:
        raise RanEagerly(str(e)) from e
    if graphs[0] is not graphs[1]:
        raise Recompiled("the second call compiled again")


def function(operator: str, sample: Any) -> Callable[..., Any]:
    """The operator itself; or followed by what makes its result unique, such as the signs of eigenvectors."""
    op, process = operators()[operator].op, sample.output_process_fn_grad
    if process.__qualname__.startswith("SampleInput."):  # the default, which changes nothing
        return op  # type: ignore[no-any-return]
    return lambda *args, **kwargs: process(op(*args, **kwargs))


def _fails_too(compiled: Any, sample: Any, error: Exception) -> None:
    try:
        evaluate(compiled, sample)
    except Exception as e:
        raise (EagerError(_one_line(error)) if type(e) is type(error) else e) from e
    raise WrongValue(f"eager mode raises {type(error).__name__}: {_one_line(error)}; the compiled function does not")


def evaluate(fn: Callable[..., Any], sample: Any) -> dict[str, Any]:
    """Outputs, gradients with random cotangents, and the inputs after the call, by name."""
    arguments = (sample.input, sample.args, sample.kwargs)
    inputs = [t for t in pytree.tree_leaves(arguments) if isinstance(t, Tensor)]
    wanted = [t for t in inputs if t.requires_grad]
    seed()
    outputs = pytree.tree_leaves(fn(sample.input, *sample.args, **sample.kwargs))
    roots = [t for t in outputs if isinstance(t, Tensor) and t.requires_grad]
    cotangents = [torch.randn(t.shape, dtype=t.dtype, generator=torch.Generator().manual_seed(SEED)) for t in roots]
    gradients = torch.autograd.grad(roots, wanted, cotangents, allow_unused=True) if roots and wanted else []
    found = {"output": outputs, "gradient": gradients, "input": inputs}
    return {f"{kind} {i}": value for kind, values in found.items() for i, value in enumerate(values)}


def _compare(got: dict[str, Any], want: dict[str, Any]) -> None:
    if list(got) != list(want):
        raise WrongValue(f"has {', '.join(got)}; eager mode has {', '.join(want)}")
    for what, w in want.items():
        g = got[what]
        if not isinstance(w, Tensor) or not isinstance(g, Tensor):
            if type(g) is not type(w) or not (g == w or g != g):
                raise WrongValue(f"{what} is {g!r}, eager's is {w!r}")
            continue
        if g.requires_grad != w.requires_grad:
            raise WrongValue(f"{what} has requires_grad={g.requires_grad}, eager's has not")
        try:
            torch.testing.assert_close(g, w, rtol=0, atol=_allowed(w), equal_nan=True, check_stride=False)
        except AssertionError as e:
            raise WrongValue(f"{what}: {' '.join(str(e).split())}") from e


def _allowed(tensor: Tensor) -> float:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    values = tensor.detach().to_dense().abs()
    values = values[values.isfinite()]
    return TOLERANCE * float(values.max()) if values.numel() else 0.0


def seed() -> None:
    """Put every generator that samples and operators draw from at one place."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


def quiet() -> Any:
    """Operators of the database warn about deprecations and the like."""
    return warnings.catch_warnings(action="ignore")
