"""Requirements on every operator of PyTorch's own test database: some 540, with samples of their inputs.

They take minutes with a backend that compiles fast, and hours with others: only those ask for them who want them.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aotkit.errors import TraceError, UnavailableError
from aotkit.testing.conformance.compare import differentiable
from aotkit.testing.conformance.requirements import Requirement, Requirements, Subject
from aotkit.torch_private import testing as opinfo
from aotkit.torch_private.dispatch import pytree

MOST_SAMPLES = 4  # of each operator, from first to last
TOLERANCE = 1e-4  # of the largest value of a tensor
SAYS = "The operator gives eager's values and gradients on samples of PyTorch's test database."


def operators() -> Requirements:
    """One requirement for each operator.

    Raises:
        UnavailableError: the database needs packages that are not installed.
    """
    group = Requirements("opinfo")
    try:
        names = opinfo.operators()
    except ImportError as e:
        raise UnavailableError(str(e)) from e
    group.extend(Requirement(f"opinfo/{n}", SAYS, functools.partial(_equals_eager, n)) for n in names)
    return group


def _equals_eager(operator: str, subject: Subject) -> None:
    first, second = (opinfo.samples(operator, str(subject.device)) for _ in range(2))
    for i in range(0, len(first), -(-len(first) // MOST_SAMPLES)):
        fn = opinfo.function(operator, first[i])
        try:
            want = evaluate(fn, first[i])
        except Exception:  # eager mode refuses this one
            continue
        try:
            got = evaluate(subject.compile(fn), second[i])
        except TraceError:  # no graph of it reaches any plug-in
            continue
        found = difference(got, want)
        assert found is None, f"sample {i}: {found}"


def evaluate(fn: Callable[..., Any], sample: Any) -> dict[str, Any]:
    """Outputs, gradients with random cotangents, and the inputs after the call, by name."""
    arguments = (sample.input, sample.args, sample.kwargs)
    inputs = [t for t in pytree.tree_leaves(arguments) if isinstance(t, Tensor)]
    wanted = [t for t in inputs if t.requires_grad]
    opinfo.seed()
    outputs = pytree.tree_leaves(fn(sample.input, *sample.args, **sample.kwargs))
    roots = differentiable(outputs)
    cotangents = [_cotangent(t) for t in roots]
    gradients = torch.autograd.grad(roots, wanted, cotangents, allow_unused=True) if roots and wanted else []
    found = {"output": outputs, "gradient": gradients, "input": inputs}
    return {f"{kind} {i}": value for kind, values in found.items() for i, value in enumerate(values)}


def _cotangent(output: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(opinfo.SEED)
    return torch.randn(output.shape, dtype=output.dtype, generator=generator, device="cpu").to(output.device)


def difference(got: dict[str, Any], want: dict[str, Any]) -> str | None:
    """How what `evaluate` found compiled is not what it found in eager mode, up to rounding."""
    if list(got) != list(want):
        return f"has {', '.join(got)}; eager mode has {', '.join(want)}"
    for what, w in want.items():
        g = got[what]
        if not isinstance(w, Tensor) or not isinstance(g, Tensor):
            if type(g) is not type(w) or not (g == w or g != g):
                return f"{what} is {g!r}, eager's is {w!r}"
            continue
        if g.requires_grad != w.requires_grad:
            return f"{what} has requires_grad={g.requires_grad}, eager's has not"
        try:
            torch.testing.assert_close(g, w, rtol=0, atol=_allowed(w), equal_nan=True, check_stride=False)
        except AssertionError as e:
            return f"{what}: {' '.join(str(e).split())}"
    return None


def _allowed(tensor: Tensor) -> float:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    values = tensor.detach().to_dense().abs()
    values = values[values.isfinite()]
    return TOLERANCE * float(values.max()) if values.numel() else 0.0
