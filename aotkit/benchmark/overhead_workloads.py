"""What `python -m aotkit bench overhead` times: small functions, whose calls cost more than their arithmetic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aotkit.benchmark.choice import chosen
from aotkit.benchmark.workloads import tutorial
from aotkit.random import random_state

FORWARD, BACKWARD, NO_GRAD, STEP = "forward", "backward", "no-grad", "forward + backward"
PHASES = (FORWARD, BACKWARD, NO_GRAD, STEP)
SIGNATURES = (1, 4, 16)
SHARED_ELEMENTS = 180  # has 16 divisors besides 1 and itself
# What xFormers timed its fused layers at: batch, length, width.
XFORMERS_SHAPES = (
    (8, 256, 512), (8, 512, 1024), (4, 1024, 1024), (2, 2048, 2048), (1, 2048, 12288), (2, 4096, 4096),
)  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """One function with its inputs.

    Attributes:
        name: without the number of signatures.
        fn: a plain function or a module; returns one tensor.
        calls: the arguments of each call, which are cycled; each has shapes of its own.
        phases: what to time of it.
    """

    name: str
    fn: Callable[..., Tensor]
    calls: Sequence[Sequence[Tensor]]
    phases: Sequence[str] = PHASES

    @property
    def leaves(self) -> list[Tensor]:
        """Where gradients accumulate."""
        parameters = list(self.fn.parameters()) if isinstance(self.fn, nn.Module) else []
        return parameters + [t for call in self.calls for t in call if t.requires_grad]


class MLP(nn.Module):
    """Two square layers with a ReLU between them: [batch, width] -> [batch, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(F.relu(self.first(x)))
        return y


class ScaleShift(nn.Module):
    """x * scale + shift, both of x's last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))
        self.shift = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Stages(nn.Module):
    """Many stages of two parameters and hardly any arithmetic."""

    def __init__(self, stages: int, width: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(ScaleShift(width) for _ in range(stages))

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


def gelu_norm(x: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Bias and GELU into layer normalisation, as xFormers fused them: x [..., width], the others [width]."""
    return F.layer_norm(F.gelu(x + bias), scale.shape, scale, shift)


def _leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def _tutorial(name: str, *shape: int, phases: Sequence[str] = PHASES) -> list[Workload]:
    return [Workload(name, tutorial, [[_leaf(*shape) for _ in range(4)]], phases)]


def _signatures(name: str) -> list[Workload]:
    """The same function under each number of shapes, all of as many elements: only telling them apart costs more."""
    shapes = [(rows, SHARED_ELEMENTS // rows) for rows in range(2, SHARED_ELEMENTS) if SHARED_ELEMENTS % rows == 0]
    calls = [[_leaf(*shape) for _ in range(4)] for shape in shapes]
    return [Workload(name, tutorial, calls[:count], (FORWARD,)) for count in SIGNATURES]


def _module(name: str, module: Callable[[], nn.Module], *shape: int) -> list[Workload]:
    return [Workload(name, module(), [[torch.randn(*shape)]])]


def _gelu_norm(name: str, *shape: int) -> list[Workload]:
    width = shape[-1]
    return [Workload(name, gelu_norm, [[_leaf(*shape), _leaf(width), _leaf(width), _leaf(width)]], (STEP,))]


WORKLOADS: dict[str, Callable[[str], list[Workload]]] = {
    "tutorial-2x4": lambda name: _tutorial(name, 2, 4),
    "mlp-8x64": lambda name: _module(name, partial(MLP, 64), 8, 64),
    "module-150": lambda name: _module(name, partial(Stages, 75, 8), 2, 8),
    "tutorial-1024x2048": lambda name: _tutorial(name, 1024, 2048, phases=(STEP,)),
    "signatures": _signatures,
}


def _xformers(shape: Sequence[int]) -> dict[str, Callable[[str], list[Workload]]]:
    text = "x".join(map(str, shape))
    return {
        f"gelu-norm-{text}": lambda name: _gelu_norm(name, *shape),
        f"tutorial-{text}": lambda name: _tutorial(name, *shape, phases=(STEP,)),
    }


CUDA_WORKLOADS = {name: build for shape in XFORMERS_SHAPES for name, build in _xformers(shape).items()}


def workload_names(device: str) -> list[str]:
    return [*WORKLOADS, *(CUDA_WORKLOADS if device == "cuda" else ())]


def chosen_names(patterns: Sequence[str], device: str) -> list[str]:
    """The names that fit any of the patterns (with * and ?), all if there are none.

    Raises:
        UnknownNameError: a pattern fits no name.
    """
    unknown = f"there is no workload {{pattern!r}} on {device}; there are: {{names}}"
    return chosen(patterns or ["*"], workload_names(device), unknown)


def build(name: str, device: str) -> list[Workload]:
    """The workloads of a name, which are timed together, on a device; the same numbers every time."""
    with random_state(), torch.device(device):
        torch.manual_seed(0)
        return (WORKLOADS | CUDA_WORKLOADS)[name](name)
