"""Whether a compiled pattern gives what the pattern does, with dropout, whoever draws the mask."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from aotkit.benchmark.patterns.cases import Function, P, Pattern

SEED = 1
DEVIATIONS = 6  # of the share that dropout keeps; standard ones
# Of the largest value of each tensor.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def difference(pattern: Pattern, call: Function, inputs: Sequence[Tensor]) -> str | None:
    """What differs of outputs and gradients from the pattern in float64; None if nothing does.

    The mask is found by a call on ones: there the output is larger where an element is kept. The same seed gives the
    same mask again.
    """
    kept = None
    if pattern.mask is not None:
        kept = _kept(pattern, call, [_ones(name, x) for name, x in zip(pattern.inputs, inputs, strict=True)])
        share, number = float(kept.double().mean()), kept.numel()
        if abs(share - (1 - P)) > DEVIATIONS * (P * (1 - P) / number) ** 0.5:
            return f"keeps {share:.2%} of {number} {pattern.mask}s, not {1 - P:.0%}"
    torch.manual_seed(SEED)
    found = results(call, inputs)
    exact = [x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs]
    with _Masked(kept):
        expected = results(pattern.fn, exact)
    for (name, dtype), a, b in zip(_named(pattern, inputs), found, expected, strict=True):
        if a.dtype != dtype:
            return f"{name} is of {a.dtype}, not {dtype}"
        largest = float(b.abs().max())
        error = float((a.double() - b).abs().max())
        # Between the least numbers of a type there is nothing: float16's gradients of a mean over many rows are such.
        if not error <= TOLERANCES[a.dtype] * largest + torch.finfo(a.dtype).smallest_normal * torch.finfo(a.dtype).eps:
            return f"{name} is off by {error:.2g}, where the largest value is {largest:.2g}"
    return None


def outputs_of(call: Function, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    output = call(*inputs)
    return (output,) if isinstance(output, Tensor) else tuple(output)


def results(call: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs, and the gradients of inputs for the cotangents that `cotangents_of` has for them."""
    outputs = outputs_of(call, inputs)
    leaves = [x for x in inputs if x.requires_grad]
    found = [output.detach() for output in outputs]
    return [*found, *torch.autograd.grad(outputs, leaves, cotangents_of(outputs))] if leaves else found


def cotangents_of(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Different for each element, the same every time."""
    generator = torch.Generator(outputs[0].device).manual_seed(2)
    values = (torch.randn(x.shape, generator=generator, device=x.device) for x in outputs)
    # The same for float16 and float64.
    return [value.half().to(x.dtype) for value, x in zip(values, outputs, strict=True)]


def _named(pattern: Pattern, inputs: Sequence[Tensor]) -> list[tuple[str, torch.dtype]]:
    """What each of the results is, and its type in eager."""
    with torch.no_grad():
        dtypes = [output.dtype for output in outputs_of(pattern.fn, inputs)]
    names = ["the output"] if len(dtypes) == 1 else [f"output {i}" for i in range(len(dtypes))]
    leaves = [(f"the gradient of {name}", x) for name, x in zip(pattern.inputs, inputs, strict=True) if x.requires_grad]
    return [*zip(names, dtypes, strict=True), *((name, x.dtype) for name, x in leaves)]


def _ones(name: str, x: Tensor) -> Tensor:
    make = torch.zeros_like if name in ("bias", "offset") else torch.ones_like
    return make(x).requires_grad_(x.requires_grad)


def _kept(pattern: Pattern, call: Function, ones: Sequence[Tensor]) -> Tensor:
    torch.manual_seed(SEED)
    output = outputs_of(call, ones)[0].detach()
    if pattern.mask == "sample":
        output = output.flatten(1).mean(1)
    return output >= (output.amax(-1, keepdim=True) + output.amin(-1, keepdim=True)) / 2


class _Masked(TorchFunctionMode):
    """Dropout with a given mask, and what draws one."""

    def __init__(self, kept: Tensor | None) -> None:
        super().__init__()
        self._kept = kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is F.dropout and self._kept is not None:
            return args[0] * self._kept / (1 - P)
        if func is torch.bernoulli and self._kept is not None:
            return self._kept.reshape(args[0].shape).to(args[0].dtype)
        return func(*args, **(kwargs or {}))
