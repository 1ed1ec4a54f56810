"""Which RMS norm a module computes: found out by small probes, as classes of many names compute the same."""

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from aotkit.errors import UnsupportedError
from aotkit.nn.patterns import RMSNormStyle, rms_norm

# Of x and weight. Where they differ, modules may refuse.
EQUAL = [(dtype, dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)]
MIXED = [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.float16, torch.float32)]
Probe = tuple[Tensor, Tensor | None, Tensor]  # x, weight, and what the module makes of them
Same = Callable[[Tensor, Tensor], bool]


class _Forward(nn.Module):
    """The module without its hooks."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.module.forward(x)
        return result


def style_of(module: nn.Module) -> tuple[RMSNormStyle, str]:
    """The style of an RMS norm, and the name of the attribute that is its eps.

    A module that rounds otherwise in float32, as `x * mean ** -0.5` does, is taken for the style that it follows.

    Raises:
        UnsupportedError: it is no RMS norm, or one that no style stands for; the message says why.
    """
    if (reason := _why_not(module)) is not None:
        raise UnsupportedError(f"{type(module).__name__} is not taken for an RMS norm: {reason}.")
    values = vars(module).items()
    names = [name for name, value in values if name[0] != "_" and (value is None or type(value) is float)]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # who knows what it runs
        probes = list(_probes(module))
        for same in (torch.equal, _nearly_equal):
            for style, name in itertools.product(RMSNormStyle, names):
                if all(_agrees(probe, style, getattr(module, name), same) for probe in probes):
                    return style, name
    raise UnsupportedError(f"{type(module).__name__} is not taken for an RMS norm: it computes something else.")


def _why_not(module: nn.Module) -> str | None:
    """What of a module tells without running it."""
    if "forward" in vars(module):
        return "its forward is replaced"
    parameters = list(inspect.signature(module.forward).parameters.values())
    if len(parameters) != 1:
        return f"its forward takes {', '.join(p.name for p in parameters) or 'nothing'}"
    if any(True for _ in module.children()):
        return "it has modules of its own"
    if names := [name for name, _ in module.named_buffers()]:
        return f"it has buffers: {', '.join(names)}"
    if names := [name for name, _ in module.named_parameters() if name != "weight"]:
        return f"it has parameters besides weight: {', '.join(names)}"
    return None


def _probes(module: nn.Module) -> Iterator[Probe]:
    """Rows of all magnitudes, of which some are small beside eps."""
    weight = dict(module.named_parameters()).get("weight")
    shape = tuple(getattr(module, "normalized_shape", (8,))) if weight is None else tuple(weight.shape)
    with torch.device("cpu"):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(2, 4, *shape, generator=generator) * torch.logspace(-4, 1, 4).view(-1, *[1] * len(shape))
        scale = torch.randn(shape, generator=generator)
    for of_x, of_weight in EQUAL + (MIXED if weight is not None else []):
        given, replaced = x.to(of_x), None if weight is None else scale.to(of_weight)
        try:
            with warnings.catch_warnings(action="ignore"):
                substituted = {} if replaced is None else {"module.weight": replaced}
                result = functional_call(_Forward(module), substituted, (given,))
        except Exception as e:
            if of_x == of_weight:
                raise UnsupportedError(f"{type(module).__name__} is not taken for an RMS norm: {e}") from e
            continue
        yield given, replaced, result


def _agrees(probe: Probe, style: RMSNormStyle, eps: float | None, same: Same) -> bool:
    x, weight, result = probe
    expected: Any = rms_norm(x, weight, eps, style)
    return isinstance(result, Tensor) and result.dtype == expected.dtype and same(result, expected)


def _nearly_equal(a: Tensor, b: Tensor) -> bool:
    """Up to rounding in float32, which moves a value in 16 bits only where that lies between two."""
    if a.dtype.itemsize > 2:
        return torch.allclose(a, b, rtol=1e-6, atol=0)
    return torch.allclose(a, b, rtol=2 * torch.finfo(a.dtype).eps, atol=0) and int((a != b).sum()) <= 0.01 * a.numel()
