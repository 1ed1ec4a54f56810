"""One training step on made-up values: what is compared when a saved step is loaded."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aotkit.torch_private.tensors import dtype_named

SAMPLES = 8
MOST_INTEGERS = 2**16
# Relative to the mean size of the elements. A GPU adds up in another order each time.
TOLERANCES = {torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 1e-3, torch.complex64: 1e-3}
COARSE = 5e-2
SEED = 0x5EED

Digest = list[float] | None


def integers_of(inputs: Sequence[Tensor]) -> list[list[Any] | None]:
    """The values of inputs whose values decide what may be done with them, such as indices; None for others.

    Of many, none: zeros are made up for these.
    """
    return [
        None if x.is_floating_point() or x.is_complex() or x.numel() > MOST_INTEGERS else x.flatten().tolist()
        for x in inputs
    ]


def probed(
    call: Callable[[list[Tensor]], Sequence[Any]],
    layouts: Sequence[Mapping[str, Any]],
    integers: Sequence[list[Any] | None],
    seeded: bool,
) -> list[Digest]:
    """Digests of outputs and gradients of a step on made-up values, the same wherever they are computed.

    Args:
        call: from a list of inputs to outputs.
        layouts: of the inputs, from `layout_of`.
        integers: from `integers_of`.
        seeded: whether a seed follows the inputs.
    """
    inputs = [_made_up(i, *given) for i, given in enumerate(zip(layouts, integers, strict=True))]
    seed = [torch.tensor(SEED)] if seeded else []
    outputs = list(call([*inputs, *seed]))
    roots = [y for y in outputs if isinstance(y, Tensor) and y.requires_grad]
    leaves = [x for x in inputs if x.requires_grad]
    gradients: Sequence[Tensor | None] = ()
    if roots and leaves:
        total = sum((_real(y).double().sum() for y in roots), torch.zeros((), device=roots[0].device))
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return [_digest(x) for x in (*outputs, *gradients)]


def differing(found: Sequence[Digest], wanted: Sequence[Digest], dtypes: Sequence[torch.dtype]) -> list[int]:
    """The numbers of the digests that differ by more than rounding.

    Args:
        dtypes: of which all were computed.
    """
    tolerance = max((TOLERANCES.get(dtype, COARSE) for dtype in dtypes if _is_inexact(dtype)), default=0.0)
    if len(found) != len(wanted):
        return [*range(max(len(found), len(wanted)))]
    return [i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if not _are_close(a, b, tolerance)]


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _are_close(a: Digest, b: Digest, tolerance: float) -> bool:
    if a is None or b is None:
        return a is b
    size = abs(b[0])  # the mean size of the elements
    pairs = zip(a, b, strict=True)
    return len(a) == len(b) and all(
        x == y or (math.isnan(x) and math.isnan(y)) or abs(x - y) <= tolerance * (size + abs(y)) for x, y in pairs
    )


def _made_up(number: int, layout: Mapping[str, Any], integers: list[Any] | None) -> Tensor:
    dtype, shape = dtype_named(layout["dtype"]), layout["shape"]
    tensor = torch.empty_strided(shape, layout["stride"], dtype=dtype, device=layout["device"])
    if integers is not None:
        values = torch.tensor(integers, dtype=dtype).reshape(shape)
    elif _is_inexact(dtype):
        # Small and positive: a variance may be among them.
        values = torch.rand(shape, generator=torch.Generator().manual_seed(number)) * 0.1 + 0.01
    else:
        values = torch.zeros(shape, dtype=dtype)
    return tensor.copy_(values).requires_grad_(layout["requires_grad"])


def _real(value: Tensor) -> Tensor:
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _digest(value: Tensor | None) -> Digest:
    """The mean size of the elements, their mean, and some of them."""
    if value is None:
        return None
    flat = _real(value.detach()).double().flatten().cpu()
    if not flat.numel():
        return [0.0]
    where = torch.linspace(0, flat.numel() - 1, SAMPLES).long()
    return [float(flat.abs().mean()), float(flat.mean()), *flat[where].tolist()]
