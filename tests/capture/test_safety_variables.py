"""What a function reads in context variables, which hold other values in other threads and contexts."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context

import pytest
import torch

import aotkit
from tests.agreement import agrees

SCALE = ContextVar("SCALE", default=2.0)
SETTINGS = ContextVar("SETTINGS", default={"shift": [1.0]})  # noqa: B039
BARE = ContextVar("BARE")


@pytest.fixture(autouse=True)
def left_as_they_were():
    yield
    assert SCALE.get(None) is None
    assert BARE.get(None) is None
    assert SETTINGS.get() == {"shift": [1.0]}


@contextmanager
def holding(variable, value):
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@agrees(graphs=3)
def test_a_number_in_a_variable(compile):
    f = compile(lambda x: x * SCALE.get())
    x = torch.ones(3)
    yield f(x)
    for value in (3.0, 3, 3.0):
        with holding(SCALE, value):
            yield f(x)
    yield f(x)


@agrees
def test_a_default_of_the_call_and_of_the_variable(compile):
    f = compile(lambda x: x * SCALE.get(5.0))
    x = torch.ones(3)
    yield f(x)
    with holding(SCALE, 2.0):
        yield f(x)
    yield f(x)


@agrees(graphs=1)
def test_a_tensor_in_a_variable(compile):
    f = compile(lambda x: (x * BARE.get()).sum())
    for _ in range(2):
        w = torch.randn(3, requires_grad=True)
        with holding(BARE, w):
            f(torch.ones(3)).backward()
        yield w.grad


@agrees
def test_a_container_in_a_variable(compile):
    f = compile(lambda x: x + SETTINGS.get()["shift"][0])
    x, settings = torch.ones(3), {"shift": [2.0]}
    yield f(x)
    SETTINGS.get()["shift"][0] = 3.0
    yield f(x)
    with holding(SETTINGS, settings):
        yield f(x)
        settings["shift"].insert(0, 7.0)
        yield f(x)
    SETTINGS.get()["shift"][0] = 1.0
    yield f(x)


@agrees
def test_other_threads_and_contexts_hold_other_values(compile):
    f = compile(lambda x: x * SCALE.get())
    x = torch.ones(3)

    def scaled_by(value):
        SCALE.set(value)
        return f(x)

    yield f(x)
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(scaled_by, 3.0).result()
        yield f(x)
        yield thread.submit(lambda: f(x)).result()
    yield copy_context().run(scaled_by, 4.0)
    yield f(x)


@agrees(eager=None)
def test_a_variable_that_holds_nothing(compile):
    f = compile(lambda x: x * BARE.get())
    x = torch.ones(3)
    yield lambda: f(x)
    with holding(BARE, 3.0):
        yield f(x)
    yield lambda: f(x)


@agrees(graphs=1)
def test_a_function_that_sets_a_variable_for_others(compile):
    def scaled(x):
        return x * SCALE.get()

    def f(x):
        token = SCALE.set(x.mean())
        try:
            return scaled(x)
        finally:
            SCALE.reset(token)

    f = compile(f)
    x = torch.rand(3, requires_grad=True)
    yield f(x)
    f(x).sum().backward()
    yield x.grad
    yield SCALE.get()


@agrees(eager=True)
def test_a_token_of_the_caller_runs_eagerly(compile):
    """It is of the context in which the call is made."""
    x, token = torch.ones(3), None

    def f(x):
        SCALE.reset(token)
        return x * SCALE.get()

    f = compile(f)
    for _ in range(2):
        token = SCALE.set(5.0)
        yield f(x)
        yield SCALE.get()


@agrees(eager=True)
def test_a_context_runs_eagerly(compile):
    context = copy_context()
    f = compile(lambda x: x * context[BARE])
    for value in (2.0, 3.0):
        context.run(BARE.set, value)
        yield f(torch.ones(3))


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("held", [None, 3.0])
def test_a_function_that_leaves_a_variable_changed_is_refused(held, random, check):
    def leaves(x):
        SCALE.set(7.0)
        return torch.dropout(x, 0.5, train=True) if random else x * 2

    def call():
        if held is not None:
            SCALE.set(held)
        with pytest.raises(aotkit.TraceError, match="SCALE"):
            aotkit.compile(leaves, backend="nop", check=check, capture="aot")(torch.ones(3))
        return SCALE.get()

    assert copy_context().run(call) == (held or 2.0)
