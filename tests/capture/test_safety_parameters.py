"""Whatever parameters and defaults a function has, and gets, the result is eager's."""

import functools
import inspect

import pytest
import torch

from tests.agreement import agrees


@agrees
def test_changed_defaults(compile):
    def f(x, y=2.0, *, z=3.0):
        return x * y + z

    fast, x = compile(f), torch.ones(2)
    yield fast(x), fast(x, z=1.0)
    f.__kwdefaults__["z"] = 5.0
    yield fast(x), fast(x, z=1.0)
    f.__kwdefaults__ = {"z": 6.0}
    yield fast(x)
    f.__defaults__ = (7.0,)
    yield fast(x), fast(x, z=1.0)
    f.__code__ = (lambda x, a=0, *, z=0: x - a - z).__code__
    yield fast(x), fast(x, a=1.0), lambda: fast(x, y=1.0)


@agrees
def test_defaults_of_parameters_that_come_later(compile):
    def f(x, y):
        return x - y

    fast, x = compile(f), torch.ones(2)
    yield fast(x, 2.0)
    f.__code__, f.__defaults__ = (lambda x, y, z=1.0: x + y * z).__code__, (1.0,)
    yield fast(x, 2.0)
    f.__defaults__ = (5.0,)
    yield fast(x, 2.0)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda f, scales: f,
        lambda f, scales: functools.partial(f),
        lambda f, scales: torch.no_grad()(f),
        lambda f, scales: scales,
        lambda f, scales: scales.scaled,
    ],
    ids=["function", "partial", "no_grad", "object", "method"],
)
@agrees
def test_changed_defaults_of_what_is_wrapped(compile, wrapped):
    def f(x, scale=2.0):
        return x * scale

    class Scales:
        def __call__(self, x, scale=2.0):
            return x * scale

        def scaled(self, x, scale=2.0):
            return x * scale

    fast, x = compile(wrapped(f, Scales())), torch.ones(2)
    yield fast(x), fast(x, 3.0), fast(x, scale=4.0)
    for function in (f, Scales.__call__, Scales.scaled):
        function.__defaults__ = (5.0,)
    yield fast(x), fast(x, 3.0), fast(x, scale=4.0)


@agrees
def test_a_signature_that_tells_of_other_defaults(compile):
    def f(x, scale=2.0):
        return x * scale

    @functools.wraps(f)
    def wrapper(x, scale=3.0):
        return f(x, scale)

    def told(x, scale=2.0):
        return x * scale

    told.__signature__ = inspect.signature(wrapper)
    x = torch.ones(2)
    for fast in map(compile, (wrapper, told)):
        yield fast(x), fast(x, 4.0), fast(x, scale=5.0)


class Odd:
    def nothing():  # it cannot be called
        return torch.ones(2)

    def everything(*args, **kwargs):
        return args[1] * kwargs.get("scale", 2.0)

    def late(self, x, scale=2.0):
        return x * scale


@agrees
def test_methods_with_odd_parameters(compile):
    x, odd = torch.ones(2), Odd()
    nothing, everything, late = compile(odd.nothing), compile(odd.everything), compile(odd.late)
    yield lambda: nothing()
    yield everything(x), everything(x, scale=3.0), lambda: everything()
    yield late(x), late(x, scale=3.0)
    was = Odd.late.__code__, Odd.late.__defaults__
    Odd.late.__code__, Odd.late.__defaults__ = Odd.nothing.__code__, None
    try:
        yield lambda: late(x)
    finally:
        Odd.late.__code__, Odd.late.__defaults__ = was


@agrees
def test_arguments_of_any_name(compile):
    x = torch.ones(2)
    shifted = compile(lambda x, *, self, args=1.0, bind=2.0: x * self + args * bind)
    yield shifted(x, self=2.0), shifted(x, bind=3.0, self=2.0), lambda: shifted(x)
    yield compile(lambda **kwargs: kwargs["self"] + kwargs["kwargs"])(self=x, kwargs=x)

    class Doubles:
        @compile
        def call(self, x):
            return x * 2

    yield Doubles.call(self=Doubles(), x=x), Doubles().call(x=x)
