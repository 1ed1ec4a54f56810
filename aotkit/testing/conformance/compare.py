"""Everything that a caller can observe of a call, compiled and in eager, and the comparison of the two."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aotkit.checking import TOLERANCE, cotangent
from aotkit.testing.case import Case, build, inputs
from aotkit.testing.conformance.requirements import Subject
from aotkit.torch_private.dispatch import pytree

BUILT_IN_PARTITIONERS = ("default", "min_cut", "nx_min_cut")


def equals_eager(subject: Subject, case: Case, **options: Any) -> None:
    """Demand that two calls with different values, compiled once, are what eager makes of them, gradients and all.

    Args:
        options: of `aotkit.compile`.
    """
    eager, wrapped = build(case, subject.device), build(case, subject.device)
    compiled = subject.compile(wrapped, **options)
    for call, seed in (("first", 1), ("second", 2)):
        want = observe(eager, eager, case, subject.device, seed)
        got = observe(compiled, wrapped, case, subject.device, seed)
        assert_equal(got, want, f"{call} call")
    compiled.graphs(*inputs(case, 1, device=subject.device)[1])  # raises if those calls ran eagerly


def equals_eager_under_each_partitioner(subject: Subject, case: Case) -> None:
    """The same under each of aotkit's own partitioners."""
    for partition in BUILT_IN_PARTITIONERS:
        try:
            equals_eager(subject, case, partition=partition)
        except Exception as e:
            e.add_note(f"This was under partitioner {partition!r}.")
            raise


def equals_eager_with_open_sizes(subject: Subject, case: Case) -> None:
    """The same with fixed sizes and, where the function allows it, with open ones."""
    equals_eager(subject, case)
    equals_eager(subject, case, dynamic=True)


def observe(
    call: Callable[..., Any], function: Any, case: Case, device: torch.device, seed: int
) -> Mapping[str, Sequence[Any]]:
    """The leaves of all that a caller sees of one call, by name. `function` is what `call` runs, compiled or not."""
    modules = _modules(function)
    new, args = inputs(case, seed, device=device)
    leaves = [*new.leaves, *(p for m in modules for p in m.parameters())]
    outputs = call(*args)
    seen = {
        "output": outputs,
        "argument after the call": args,
        "buffer after the call": [b for m in modules for b in m.buffers()],
        "random state after the call": torch.get_rng_state(),
    }
    found = {what: [_snapshot(v) for v in pytree.tree_leaves(value)] for what, value in seen.items()}
    found["structure"] = [pytree.tree_structure(value) for value in seen.values()]
    if leaves and (roots := differentiable(outputs)):
        found["gradient"] = gradients(roots, leaves)
        for i, root in enumerate(roots if len(roots) > 1 else ()):
            found[f"gradient of output {i} alone"] = gradients([root], leaves)
    return found


def differentiable(outputs: Any) -> list[Tensor]:
    """The tensors among them that require gradients."""
    return [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]


def gradients(roots: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of the leaves, each output weighed with random numbers; the graph is kept."""
    weights = [cotangent(t, i) for i, t in enumerate(roots)]
    return list(torch.autograd.grad(roots, leaves, weights, retain_graph=True, allow_unused=True))


def assert_equal(got: Mapping[str, Sequence[Any]], want: Mapping[str, Sequence[Any]], where: str) -> None:
    """Demand the same names, and values that are equal up to rounding."""
    assert list(got) == list(want), f"{where}: has {', '.join(got)}; eager has {', '.join(want)}"
    for what, values in want.items():
        assert_each(got[what], values, f"{where}: {what}")


def assert_each(got: Sequence[Any], want: Sequence[Any], what: str) -> None:
    """Demand as many values, each equal up to rounding."""
    assert len(got) == len(want), f"{what}: {len(got)} of them; eager has {len(want)}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        _assert_same(g, w, f"{what} {i}")


def assert_close(got: Tensor, want: Tensor, what: str) -> None:
    """Demand equal types, devices, shapes, and values up to rounding."""
    # Relative to each value, and absolute: values of the functions here are of size 1.
    allowed = TOLERANCE.get(want.real.dtype, 0.0)
    compare = functools.partial(torch.testing.assert_close, rtol=allowed, atol=allowed, equal_nan=True)
    compare(got, want, check_stride=False, msg=lambda m: f"{what} differs from eager's. {m}")


def _assert_same(got: Any, want: Any, what: str) -> None:
    if isinstance(want, _Snapshot) and isinstance(got, _Snapshot):
        assert got.requires_grad == want.requires_grad, f"{what} has requires_grad={got.requires_grad}, eager's has not"
        got, want = got.values, want.values
    if isinstance(want, Tensor) and isinstance(got, Tensor):
        assert_close(got, want, what)
    else:
        assert (type(got), got) == (type(want), want), f"{what} is {got!r}, eager's is {want!r}"


class _Snapshot:
    """What a tensor was at the moment of looking."""

    def __init__(self, tensor: Tensor) -> None:
        self.values = tensor.detach().clone()
        self.requires_grad = tensor.requires_grad


def _snapshot(value: Any) -> Any:
    return _Snapshot(value) if isinstance(value, Tensor) else value


def _modules(function: Any) -> list[nn.Module]:
    if isinstance(function, nn.Module):
        return [function]
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return [value for value in held if isinstance(value, nn.Module)]
