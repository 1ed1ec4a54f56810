"""Functions within reach of more than can be compared: what they run is compared, and what they do not is not run."""

import cProfile
import functools
import itertools
import sys
from contextlib import suppress
from contextvars import ContextVar, copy_context

import pytest
import torch
from torch import nn

import aotkit
from tests.agreement import agrees

NUMBERS = itertools.count(2)  # its contents cannot be compared
SCALE = 2.0
WEIGHT = torch.ones(3)
SEEN = []


def count(x):
    return x * next(NUMBERS)


def scale(x):
    return x * SCALE * WEIGHT


@functools.cache
def shift():
    return SCALE + 1.0


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * shift()


TABLE = {"count": count, "scale": scale, "triple": Triple.apply, "shift": lambda x: x + shift()}


def restarted():
    """Each run of a test begins with the same values."""
    global NUMBERS, SCALE, WEIGHT
    NUMBERS, SCALE, WEIGHT = itertools.count(2), 2.0, torch.ones(3)
    TABLE.update(count=count, scale=scale)
    SEEN.clear()
    shift.cache_clear()


@pytest.fixture(autouse=True)
def as_they_were():
    yield
    restarted()


def chosen(x, name):
    return TABLE[name](x)


@agrees(graphs=4, capture="aot")
def test_what_runs_is_compared(compile):
    global SCALE, WEIGHT
    restarted()
    f = compile(chosen)
    x = torch.ones(3)
    yield f(x, "scale")
    SCALE = 3.0
    yield f(x, "scale")
    WEIGHT = torch.full((3,), 5.0)
    yield f(x, "scale")
    TABLE["scale"] = lambda x: x - 1
    yield f(x, "scale")
    TABLE["scale"] = scale
    yield f(x, "shift")
    yield f(x, "scale")


@agrees(eager=None, capture="aot")
def test_what_cannot_be_compared_does_not_run_before_the_call(compile):
    restarted()
    f = compile(chosen)
    x = torch.ones(3)
    for name in ("count", "scale", "count", "count", "scale", "count"):
        yield f(x, name)
    yield next(NUMBERS)


@agrees(eager=None, capture="aot")
def test_another_branch_may_run_later(compile):
    restarted()

    def f(x, y):
        try:
            return scale(x) if x.shape[0] == 3 else count(x)
        except BaseException:
            return y

    f = compile(f)
    for n in (3, 1, 3, 1):
        yield f(torch.ones(n), torch.zeros(n))


@agrees(capture="aot")
def test_what_only_a_backward_pass_runs_is_compared(compile):
    global SCALE
    restarted()
    f = compile(chosen)
    for value in (2.0, 3.0, 2.0):
        SCALE = value
        shift.cache_clear()
        x = torch.ones(3, requires_grad=True)
        f(x, "triple").sum().backward()
        yield x.grad


@agrees(exact=False, capture="aot")
def test_tensors_stay_as_they_are_while_it_looks(compile):
    restarted()
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))

    def f(x):
        x.add_(1)
        return chosen(model(x), "scale")

    f = compile(f)
    for _ in range(2):
        x = torch.rand(4, 3)
        yield f(x)
        yield x
        yield dict(model.named_buffers())
    yield torch.rand(2)


@agrees(capture="aot")
def test_context_variables_stay_as_they_are_while_it_looks(compile):
    restarted()
    gain = ContextVar("gain")

    def f(x):
        gain.set(gain.get() * 1)
        return chosen(x, "scale")

    def g(x):
        return chosen(x, "scale") * gain.get()

    f, g = compile(f), compile(g)

    def calls():
        held = torch.full((3,), 5.0)
        gain.set(held)
        found = [g(torch.ones(3)), gain.get() is held]
        with suppress(aotkit.TraceError):
            f(torch.ones(3))
            gain.set(held)
        return [*found, gain.get() is held]

    for _ in range(2):
        yield copy_context().run(calls)


@pytest.mark.parametrize("check", [True, False])
def test_side_effects_of_what_runs_are_refused(check):
    def notes(x):
        SEEN.append(x.shape)
        return chosen(x, "scale")

    with pytest.raises(aotkit.TraceError, match="SEEN"):
        aotkit.compile(notes, backend="nop", check=check, capture="aot")(torch.ones(3))
    assert not SEEN


def test_a_profiler_goes_on():
    events = []

    def profile(frame, event, argument):
        events.append(frame.f_code)

    f = aotkit.compile(chosen, backend="nop", capture="aot")
    sys.setprofile(profile)
    try:
        assert f(torch.ones(3), "scale").tolist() == [2.0, 2.0, 2.0]
        chosen(torch.ones(3), "scale")
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert scale.__code__ in events
    assert f.graphs(torch.ones(3), "scale").forward is not None


@pytest.mark.filterwarnings("ignore::aotkit.errors.EagerCallWarning")
def test_a_profiler_in_c_goes_on():
    f = aotkit.compile(chosen, backend="nop", capture="aot")
    profiler = cProfile.Profile()
    with profiler:
        assert f(torch.ones(3), "scale").tolist() == [2.0, 2.0, 2.0]
        why = f.explain(torch.ones(3), "scale").eager
    assert why is None or "profiler" in why  # from Python 3.12 on, it is in nobody's way
    assert scale.__code__ in {entry.code for entry in profiler.getstats()}


def test_why_it_runs_eagerly():
    with pytest.raises(aotkit.TraceError, match="NUMBERS"):
        aotkit.compile(chosen, capture="aot").graphs(torch.ones(3), "count")
