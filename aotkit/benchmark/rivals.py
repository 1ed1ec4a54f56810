"""Those that ours are compared with, by the names of their rows."""

import copy
import itertools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

EAGER, TORCH_COMPILE = "eager", "torch.compile"

_copies = itertools.count()


def torch_compiled(fn: Any, **options: Any) -> Callable[..., Tensor]:
    """By torch.compile, as if the process had compiled nothing before."""
    return torch.compile(_with_code_of_its_own(fn), **options)


def _with_code_of_its_own(fn: Any) -> Any:
    """A copy for which Dynamo knows no compilation, no dynamic shape: it remembers both by the code and its name."""
    if isinstance(fn, nn.Module):
        module, kind = copy.copy(fn), type(fn)
        module.__class__ = type(kind.__name__, (kind,), {"forward": _with_code_of_its_own(kind.forward)})
        return module
    code = fn.__code__.replace(co_name=f"{fn.__name__}_{next(_copies)}")
    return FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
