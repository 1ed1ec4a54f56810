"""Whether a compiled pattern gives what the pattern does, with dropout, whoever draws the mask."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from aotkit.benchmark.patterns.cases import Case, P

SEED = 1
DEVIATIONS = 6  # of the share that dropout keeps; standard ones
# Of the largest value of each tensor.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def difference(case: Case, call: Callable[..., Tensor], inputs: Sequence[Tensor]) -> str | None:
    """What differs of the output and the gradients from the pattern in float64; None if nothing does.

    The mask is found by a call on ones: there the output is larger where an element is kept. The same seed gives the
    same mask again.
    """
    kept = None
    if case.drops:
        kept = _kept(call, [_ones(name, x) for name, x in zip(case.inputs, inputs, strict=True)])
        share, elements = float(kept.double().mean()), kept.numel()
        if abs(share - (1 - P)) > DEVIATIONS * (P * (1 - P) / elements) ** 0.5:
            return f"keeps {share:.2%} of {elements} elements, not {1 - P:.0%}"
    torch.manual_seed(SEED)
    found = results(call, inputs)
    exact = [x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs]
    with _Masked(kept):
        expected = results(case.fn, exact)
    leaves = [name for name, x in zip(case.inputs, inputs, strict=True) if x.requires_grad]
    names = ["the output", *(f"the gradient of {name}" for name in leaves)]
    for name, a, b in zip(names, found, expected, strict=True):
        if a.dtype != inputs[0].dtype:
            return f"{name} is of {a.dtype}, not {inputs[0].dtype}"
        largest = float(b.abs().max())
        error = float((a.double() - b).abs().max())
        # Between the least numbers of a type there is nothing: float16's gradients of a mean over many rows are such.
        if not error <= TOLERANCES[a.dtype] * largest + torch.finfo(a.dtype).smallest_normal * torch.finfo(a.dtype).eps:
            return f"{name} is off by {error:.2g}, where the largest value is {largest:.2g}"
    return None


def results(call: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The output, and the gradients of inputs for the cotangent that `cotangent_of` has for it."""
    output = call(*inputs)
    leaves = [x for x in inputs if x.requires_grad]
    if not leaves:
        return [output]
    return [output.detach(), *torch.autograd.grad(output, leaves, cotangent_of(output))]


def cotangent_of(output: Tensor) -> Tensor:
    """Different for each element, the same every time."""
    generator = torch.Generator(output.device).manual_seed(2)
    values = torch.randn(output.shape, generator=generator, device=output.device)
    return values.half().to(output.dtype)  # the same for float16 and float64


def _ones(name: str, x: Tensor) -> Tensor:
    make = torch.zeros_like if name in ("bias", "offset") else torch.ones_like
    return make(x).requires_grad_(x.requires_grad)


def _kept(call: Callable[..., Tensor], ones: Sequence[Tensor]) -> Tensor:
    torch.manual_seed(SEED)
    output = call(*ones).detach()
    return output > (output.amax(-1, keepdim=True) + output.amin(-1, keepdim=True)) / 2


class _Masked(TorchFunctionMode):
    """Dropout with a given mask."""

    def __init__(self, kept: Tensor | None) -> None:
        super().__init__()
        self._kept = kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is F.dropout and self._kept is not None:
            return args[0] * self._kept / (1 - P)
        return func(*args, **(kwargs or {}))
