"""What a function reads besides its arguments may change between calls: closures, globals, attributes, parameters."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn

import aotkit
from tests.agreement import agrees

SCALE = 2.0
WEIGHT = torch.full((3,), 2.0)
TABLE = {"scale": 2.0, "layers": [1.0, 2.0]}


class Config:
    scale = 2.0

    def __init__(self):
        self.shift = 1.0
        self.inner = {"deep": [1.0]}


CONFIG = Config()


@agrees(graphs=3)
def test_closure_over_a_number(compile):
    scale = 2.0
    f = compile(lambda x: x * scale)
    x = torch.ones(3)
    for value in (2.0, 3.0, 3, 2.0):
        scale = value
        yield f(x)


@agrees(graphs=1)
def test_closure_over_a_tensor(compile):
    w = torch.randn(3, requires_grad=True)
    f = compile(lambda x: (x * w).sum())
    x = torch.ones(3)
    for _ in range(2):
        f(x).backward()
        yield w.grad
        with torch.no_grad():
            w.add_(1.0)
    old, w = w, torch.randn(3, requires_grad=True)
    f(x).backward()
    yield w.grad, old.grad


@agrees
def test_closure_over_a_tensor_that_changes_kind(compile):
    w = torch.randn(3)
    f = compile(lambda x: x if w is None else x * w)
    x = torch.ones(3)
    for value in (torch.randn(3), None, 2.0, torch.randn(1), torch.randn(3, dtype=torch.float64), torch.ones(3)):
        w = value
        yield f(x)


@agrees
def test_closure_over_containers(compile):
    ws = [torch.randn(3), {"a": torch.randn(3), "n": 2}]
    f = compile(lambda x: sum((x * w for w in ws[1].values()), x * ws[0]) * len(ws))
    x = torch.ones(3)
    yield f(x)
    ws[0] = torch.zeros(3)
    yield f(x)
    ws[1]["n"] = 3
    yield f(x)
    ws[1]["b"] = torch.ones(3)
    yield f(x)
    ws.append(None)
    yield f(x)


@agrees
def test_globals(compile):
    global SCALE, WEIGHT
    f = compile(lambda x: x * SCALE * WEIGHT * TABLE["scale"] * TABLE["layers"][1])
    x = torch.ones(3)
    yield f(x)
    try:
        SCALE = 3.0
        yield f(x)
        WEIGHT = torch.full((3,), 5.0)
        yield f(x)
        TABLE["scale"] = 7.0
        yield f(x)
        TABLE["layers"][1] = 11.0
        yield f(x)
    finally:
        SCALE, WEIGHT, TABLE["scale"], TABLE["layers"][1] = 2.0, torch.full((3,), 2.0), 2.0, 2.0
    yield f(x)


def helper(x):
    return deeper(x) * SCALE


def deeper(x):
    return x + CONFIG.shift


@agrees
def test_globals_of_called_functions(compile):
    global SCALE, deeper
    f = compile(lambda x: helper(x) + 1)
    x, original = torch.ones(3), deeper
    yield f(x)
    try:
        SCALE = 5.0
        yield f(x)
        CONFIG.shift = 4.0
        yield f(x)
        deeper = lambda x: x * 100  # noqa: E731
        yield f(x)
    finally:
        SCALE, CONFIG.shift, deeper = 2.0, 1.0, original
    yield f(x)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * SCALE

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (SCALE + CONFIG.shift)


@agrees(graphs=3)
def test_globals_of_a_function_of_autograd(compile):
    global SCALE
    f = compile(lambda x: Scaled.apply(x))

    def step():
        x = torch.ones(3, requires_grad=True)
        f(x).sum().backward()
        return x.grad

    yield step()
    try:
        SCALE = 5.0
        yield step()
        CONFIG.shift = 4.0
        yield step()
    finally:
        SCALE, CONFIG.shift = 2.0, 1.0
    yield step()


@agrees
def test_attributes_of_an_object(compile):
    config = Config()
    f = compile(lambda x: x * config.scale + config.shift + config.inner["deep"][0])
    x = torch.ones(3)
    yield f(x)
    config.shift = 2.0
    yield f(x)
    config.inner["deep"][0] = 5.0
    yield f(x)
    try:
        Config.scale = 7.0
        yield f(x)
        config.scale = 9.0
        yield f(x)
        config.shift = torch.randn(3)
        yield f(x)
        config.shift = torch.randn(3)
        yield f(x)
        config.shift = None if False else 0.0
        yield f(x)
    finally:
        Config.scale = 2.0


class Slotted:
    __slots__ = ("scale", "weight")

    def __init__(self):
        self.scale, self.weight = 2.0, torch.ones(3)


@agrees
def test_attributes_in_slots(compile):
    s = Slotted()
    f = compile(lambda x: x * s.scale * s.weight)
    x = torch.ones(3)
    yield f(x)
    s.scale = 3.0
    yield f(x)
    s.weight = torch.full((3,), 4.0)
    yield f(x)


class WithProperty:
    def __init__(self):
        self._gain = 2.0

    @property
    def gain(self):
        return self._gain

    def __getattr__(self, name):
        if name == "magic":
            return self._gain * 10
        raise AttributeError(name)


@agrees
def test_properties(compile):
    o = WithProperty()
    f = compile(lambda x: x * o.gain + o.magic)
    yield f(torch.ones(2))
    o._gain = 3.0
    yield f(torch.ones(2))


@agrees
def test_attribute_read_by_getattr(compile):
    config = Config()
    f = compile(lambda x, name: x * getattr(config, "sh" + name) + vars(config)["sh" + name])
    yield f(torch.ones(2), "ift")
    config.shift = 3.0
    yield f(torch.ones(2), "ift")


@agrees
def test_functions_in_containers(compile):
    ops = {"f": lambda x: x * 2, "g": [torch.sin, lambda x: x + SCALE]}
    f = compile(lambda x: ops["g"][1](ops["g"][0](ops["f"](x))))
    x = torch.ones(3)
    yield f(x)
    ops["f"] = lambda x: x * 3
    yield f(x)
    ops["g"][0] = torch.cos
    yield f(x)


@agrees
def test_replaced_code_of_a_function(compile):
    def inner(x):
        return x * 2

    def other(x):
        return x * 3

    f = compile(lambda x: inner(x))
    yield f(torch.ones(2))
    inner.__code__ = other.__code__
    yield f(torch.ones(2))


@agrees
def test_defaults_of_a_called_function(compile):
    def inner(x, k=2.0, *, b=1.0):
        return x * k + b

    f = compile(lambda x: inner(x))
    yield f(torch.ones(2))
    inner.__defaults__ = (3.0,)
    yield f(torch.ones(2))
    inner.__kwdefaults__ = {"b": 5.0}
    yield f(torch.ones(2))


@agrees
def test_defaults_of_a_function_that_is_called_again(compile):
    def f(x, times=1, scale=2.0):
        return f(x, times - 1) if times else x * scale

    fast = compile(f)
    yield fast(torch.ones(2), 1, 2.0)
    f.__defaults__ = (1, 3.0)
    yield fast(torch.ones(2), 1, 2.0)


def appends(log):
    def f(x):
        log.append(x.shape[0])
        return x * 2

    return f


def assigns_nonlocal(log):
    count = 0

    def f(x):
        nonlocal count
        count += 1
        return x * count

    return f


def assigns_global(log):
    def f(x):
        global SCALE
        SCALE = SCALE * 1.0 + 1.0
        return x * SCALE

    return f


def assigns_attribute(log):
    config = Config()

    def f(x):
        config.shift = x.sum()
        return x * config.shift

    return f


def assigns_new_attribute(log):
    config = Config()

    def f(x):
        config.last = x
        return x * 2

    return f


def fills_a_dict(log):
    cache = {}

    def f(x):
        cache["x"] = x + 1
        return cache["x"]

    return f


def adds_to_a_set(log):
    seen = set()

    def f(x):
        seen.add(x.shape)
        return x * len(seen)

    return f


def draws_python_random(log):
    return lambda x: x * random.random()


def draws_numpy_random(log):
    return lambda x: x * float(np.random.rand())


def changes_its_argument(log):
    def f(x, state={"n": 1.0}):  # noqa: B006
        state["n"] += 1.0
        return x * state["n"]

    return f


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    "make",
    [appends, assigns_nonlocal, assigns_global, assigns_attribute, assigns_new_attribute, fills_a_dict, adds_to_a_set,
     changes_its_argument, draws_python_random, draws_numpy_random],
)  # fmt: skip
def test_side_effects_are_refused(make, check):
    log = []
    f = aotkit.compile(make(log), backend="nop", check=check, capture="aot")
    try:
        with pytest.raises(aotkit.AotkitError):
            f(torch.ones(3))
        assert not log
        assert SCALE == 2.0
    finally:
        globals()["SCALE"] = 2.0


ITERATORS = {
    "iter": lambda: iter(range(2, 100)),
    "generator": lambda: (float(i) for i in range(2, 100)),
    "itertools": lambda: itertools.count(2),
}


@pytest.mark.parametrize("kind", ITERATORS)
@agrees(eager=True)
def test_iterators_run_eagerly(compile, kind):
    numbers = ITERATORS[kind]()
    f = compile(lambda x: x * next(numbers))
    for _ in range(3):
        yield f(torch.ones(3))


@agrees
def test_mutated_global_state_of_a_module_argument(compile):
    def f(m, x):
        return m(x)

    f = compile(f)
    m, x = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), torch.randn(2, 3)
    yield f(m, x)
    m.eval()
    yield f(m, x)
    m[0].weight = nn.Parameter(torch.ones(3, 3))
    yield f(m, x)
    f(m, x).sum().backward()
    yield [p.grad for p in m.parameters()]
    m[0].bias = None
    yield f(m, x)
    m[0].requires_grad_(False)
    yield f(m, x)


@agrees(eager=None)
def test_an_error_comes_after_what_was_done_before(compile):
    """A function that raises has done to its inputs and buffers what it does before."""
    steps = torch.zeros(())

    def f(x):
        steps.add_(1)
        x.mul_(2)
        return x @ x

    f = compile(f)
    x = torch.ones(2, 3)
    for _ in range(2):
        yield lambda: f(x)
        yield x, steps
    yield f(torch.ones(2, 2)), steps
