"""Runs of training steps, and by how much two of them differ."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.models.zoo import Step, Training, set_seed, without_dropout

# A gradient that is nothing but rounding has no size to compare with: that of a key's bias in attention is 0.
LEAST_SIZE = 1e-4  # of the largest gradient of the model


@dataclass
class Run:
    """What a training step left behind: the loss, gradients of parameters, buffers such as running statistics."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


@dataclass(frozen=True)
class Difference:
    """Between two runs.

    Attributes:
        size: the largest, relative to the largest element of the same tensor; infinite where one is missing.
        where: which tensor that is.
        zeros: how many gradients are zeros where eager has none, which optimizers treat differently; not in `size`.
    """

    size: float
    where: str
    zeros: int = 0


def run(training: Training, call: Callable[..., Any], seed: int = 1) -> Run:
    """One step of `call`, which stands for the model, from a seed on."""
    set_seed(seed)
    loss = training.loss(call(*training.args, **training.kwargs))
    loss.backward()
    gradients = {name: p.grad for name, p in training.model.named_parameters()}
    return Run(loss.detach(), gradients, dict(training.model.named_buffers()))


def difference(got: Run, want: Run) -> Difference:
    """Between a run and eager's."""
    largest = max((_size(g) for g in want.gradients.values() if g is not None), default=0.0)
    found = [_between("loss", got.loss, want.loss)]
    found += [
        _between(f"gradient of {name}", got.gradients.get(name), expected, LEAST_SIZE * largest)
        for name, expected in want.gradients.items()
    ]
    found += [_between(f"buffer {name}", got.buffers.get(name), expected) for name, expected in want.buffers.items()]
    furthest = max(found, key=lambda d: d.size)
    return replace(furthest, zeros=sum(d.zeros for d in found))


def comparable(step: Step) -> tuple[str, Callable[[], Training]]:
    """How to build a step so that its results can be compared, and what that takes.

    Compiled dropout may draw other numbers than eager's. So where the numbers matter, they do not: every probability
    of dropping something becomes 0. What still draws numbers has to draw the same.

    Returns:
        "" if eager does not depend on the seed, "dropout off", or "same numbers"; and what builds the step.
    """

    def without() -> Training:
        training = step.build()
        without_dropout(training.model)
        return training

    if not _is_random(step.build):
        return "", step.build
    return ("dropout off", without) if not _is_random(without) else ("same numbers", step.build)


def _is_random(build: Callable[[], Training]) -> bool:
    runs = []
    for seed in (1, 2):
        training = build()
        runs.append(run(training, training.model, seed))
    return difference(*runs).size > 1e-5


def _between(where: str, got: Tensor | None, want: Tensor | None, least: float = 0.0) -> Difference:
    if got is not None and want is None and not got.any():
        return Difference(0.0, where, zeros=1)
    if got is None or want is None:
        return Difference(0.0 if got is want else float("inf"), where)
    if got.shape != want.shape or got.dtype != want.dtype:
        return Difference(float("inf"), where)
    got, want = got.detach().to_dense(), want.detach().to_dense()
    if torch.equal(got, want) or want.numel() == 0:
        return Difference(0.0, where)
    off, size = _size(got.double() - want.double()), max(_size(want), least)
    return Difference(off / size if size and off == off else float("inf"), where)


def _size(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0
