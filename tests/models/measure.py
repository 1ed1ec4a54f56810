"""Measure one step of the zoo, compiled by aotkit or by torch.compile, in this process."""

import importlib
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import aotkit
from tests.models import zoo
from tests.models.compare import comparable, difference, run

SENTENCE = re.compile(r"(.+?[.!?])(?=\s|$)", re.DOTALL)
LONGEST = 200  # characters of a reason


@dataclass
class Measured:
    """What became of a step on one side.

    Attributes:
        outcome: `whole`, `3 graphs`, `eager`, `refused`, or, when eager itself fails, `broken`.
        why: why it is not whole: each break, or the first sentence of the error.
        capture: how aotkit captured it.
        check: whether aotkit's check passed; None where there was none.
        difference: the largest relative difference to eager, of loss, gradients and buffers.
        where: where that is.
        zeros: how many gradients are zeros where eager has none.
        compared: "", `dropout off` or `same numbers`.
        seconds: what the first step took, forward and backward.
        error: the whole of it.
    """

    outcome: str = ""
    why: list[str] = field(default_factory=list)
    capture: str | None = None
    check: bool | None = None
    difference: float | None = None
    where: str = ""
    zeros: int = 0
    compared: str = ""
    seconds: float | None = None
    error: str = ""


def prepare(libraries: Iterable[str], options: dict[str, Any]) -> None:
    """Import what takes long, and compile something small, so that neither counts as a model's own time."""
    for library in libraries:
        importlib.import_module(library)
        if library == "transformers":
            importlib.import_module("transformers.modeling_utils")
    for side in SIDES.values():
        compile, _ = side(options)
        linear = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        compile(linear)(torch.randn(2, 4)).sum().backward()


def measure(step: zoo.Step, side: str, options: dict[str, Any]) -> Measured:
    """Train a step once as it is, and, if that draws random numbers, once more so that eager can be compared.

    Args:
        side: `aotkit` or `torch.compile`.
        options: those of `aotkit.compile`.
    """
    found = Measured()
    try:
        found.compared, build = comparable(step)
        training = build()
        want = run(training, training.model)
    except Exception as e:
        return _failed(found, "broken", e)
    try:
        compile, describe = SIDES[side](options)
        training = step.build()
        compiled = compile(training.model)
        begun = time.perf_counter()
        got = run(training, compiled)
        found.seconds = time.perf_counter() - begun
        furthest = None if found.compared else difference(got, want)
        describe(found, compiled, training)  # may run it again, which moves buffers
        if furthest is None:
            if found.compared == "same numbers" and side == "aotkit":
                compile, _ = SIDES[side]({**options, "random": "torch"})
            training = build()
            furthest = difference(run(training, compile(training.model)), want)
    except Exception as e:
        return _failed(found, "refused", e)
    found.difference, found.where, found.zeros = furthest.size, furthest.where, furthest.zeros
    return found


def _failed(found: Measured, outcome: str, error: Exception) -> Measured:
    found.outcome, found.error = outcome, f"{type(error).__name__}: {error}"
    found.why = [first_sentence(found.error)]
    if isinstance(error, aotkit.MismatchError):
        found.check = False
        found.why = [f"MismatchError: {_first_problem(error)}"]
    return found


def _first_problem(error: aotkit.MismatchError) -> str:
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    return next((line.partition(" (")[0] for line in lines[1:] if ": " not in line or " differs" in line), lines[0])


def first_sentence(text: str) -> str:
    """Of an error's message, with the name of its class."""
    name, _, message = text.partition(": ")
    match = SENTENCE.match(message.strip())
    sentence = " ".join((match[1] if match else message).split())
    return f"{name}: {sentence[:LONGEST]}"


def _with_aotkit(options: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., None]]:
    def describe(found: Measured, compiled: Any, training: zoo.Training) -> None:
        explained = compiled.explain(*training.args, **training.kwargs)
        found.capture = explained.capture
        if explained.eager is not None:
            found.outcome, found.why = "eager", [explained.eager]
            return
        one = explained.capture == "aot" or explained.pieces == 1
        found.outcome, found.why = "whole" if one else f"{explained.pieces} graphs", list(explained.breaks)
        found.check = compiled.report(*training.args, **training.kwargs).passed

    def compile(model: Any) -> Any:
        return aotkit.compile(model, **options)

    return compile, describe


def _with_torch_compile(options: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., None]]:
    ran = 0

    def backend(gm: Any, inputs: Any) -> Callable[..., Any]:
        """`aot_eager`, which counts how many of its graphs run."""
        compiled = torch._dynamo.lookup_backend("aot_eager")(gm, inputs)

        def call(*args: Any) -> Any:
            nonlocal ran
            ran += 1
            return compiled(*args)

        return call

    def describe(found: Measured, compiled: Any, training: zoo.Training) -> None:
        found.outcome = "whole" if ran == 1 else f"{ran} graphs" if ran else "eager"
        found.why = [reason.splitlines()[0] for reason in torch._dynamo.utils.counters["graph_break"]]

    def compile(model: Any) -> Any:
        nonlocal ran
        ran = 0
        return torch.compile(model, backend=backend)

    return compile, describe


SIDES = {"aotkit": _with_aotkit, "torch.compile": _with_torch_compile}
