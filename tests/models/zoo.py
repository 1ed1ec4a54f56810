"""The zoo's register: training steps of public libraries, each built from a small configuration with random weights.

A step is built when it is measured, and not before: the files of the zoo import their libraries inside of functions.
"""

import fnmatch
import importlib
import importlib.util
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# Attributes such as `attention_dropout`, `mask_time_prob` (which draws from NumPy) and `router_jitter_noise`.
DROPS = re.compile(r"drop|mask_\w+_prob|jitter")


def loss_of(output: Any) -> Tensor:
    """The loss that a model of transformers has in its output; of any other, the mean square of what has a gradient."""
    if isinstance(output, Mapping) and isinstance(output.get("loss"), Tensor):
        return output["loss"]
    leaves = torch.utils._pytree.tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    tensors = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    return sum((x.float().square().mean() for x in tensors), torch.zeros(()))


@dataclass
class Training:
    """One training step: `loss(model(*args, **kwargs)).backward()`."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], Tensor] = loss_of


@dataclass(frozen=True)
class Step:
    """A step of the zoo.

    Attributes:
        name: unique, such as `gpt2`.
        library: the package that it comes from, by the name that it is imported by.
        needs: what has to be importable besides.
        make: builds the model and its inputs from torch's, NumPy's and Python's random numbers.
    """

    name: str
    library: str
    make: Callable[[], Training]
    needs: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Why it cannot be built here, or None."""
        absent = [name for name in (self.library, *self.needs) if importlib.util.find_spec(name) is None]
        return f"{', '.join(absent)} not installed" if absent else None

    def build(self, seed: int = 0) -> Training:
        """The model in train mode, with the same weights and inputs every time."""
        set_seed(seed)
        training = self.make()
        training.model.train()
        return training


_steps: dict[str, Step] = {}


def step(library: str, *needs: str) -> Callable[[Callable[[], Training]], Callable[[], Training]]:
    """Register the function below under its own name."""

    def register(make: Callable[[], Training]) -> Callable[[], Training]:
        add(make.__name__, library, make, *needs)
        return make

    return register


def add(name: str, library: str, make: Callable[[], Training], *needs: str) -> None:
    """Register a step, whose name no other has."""
    if name in _steps:
        raise ValueError(f"The zoo has two steps called {name!r}: rename one.")
    _steps[name] = Step(name, library, make, needs)


def steps() -> dict[str, Step]:
    """All steps by name: every file of this folder may register some."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in ("__main__", "zoo") and not path.stem.startswith("test_"):
            importlib.import_module(f"tests.models.{path.stem}")
    return dict(_steps)


def chosen(patterns: Sequence[str]) -> list[Step]:
    """The steps whose name or library one of the patterns matches, in the order of the zoo.

    Raises:
        ValueError: a pattern matches none.
    """
    every = list(steps().values())
    matched = {
        pattern: [s for s in every if fnmatch.fnmatchcase(s.name, pattern) or fnmatch.fnmatchcase(s.library, pattern)]
        for pattern in patterns
    }
    if nothing := [pattern for pattern, found in matched.items() if not found]:
        raise ValueError(f"No step of the zoo is called {', '.join(nothing)}; there are {', '.join(steps())}.")
    return [s for s in every if any(s in found for found in matched.values())]


def set_seed(seed: int) -> None:
    """Of everything that models draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        numpy.random.seed(seed)


def without_dropout(model: nn.Module) -> None:
    """Set every probability of dropping, masking or shaking something to 0, in modules and their configurations."""
    for module in model.modules():
        owners = [module, *([module.config] if hasattr(module, "config") else [])]
        for owner in owners:
            for name, value in vars(owner).items():
                if isinstance(value, float) and DROPS.search(name):
                    setattr(owner, name, 0.0)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
