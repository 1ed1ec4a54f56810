"""`agrees`: run one sequence of calls twice, in eager mode and compiled, and demand that nothing tells them apart."""

import inspect
import warnings
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch

import aotkit
from aotkit.backends.nop import compile_graph


class Tripling(torch.Tensor):
    """Overrides operators: what ignores that gives a third, what heeds it twice gives three times as much."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 3 if func in (torch.sin, torch.matmul, torch.ops.aten.mm.default) else result


def agrees(scenario: Any = None, /, **expected: Any) -> Any:
    """Make a test of a generator function that gets `compile` and yields whatever a user would look at.

    It runs once with a `compile` that returns the function itself and once with aotkit's, with and without the check.
    If it takes the `order`, 1 or -1, in which it goes through a table, one order is checked and the other is not.
    A function that it yields is called; when it raises, the type of the exception is compared. `expected` are the
    keywords of `compare`. The other parameters of `scenario` are the test's.
    """
    if scenario is None:
        return lambda s: agrees(s, **expected)

    own = list(inspect.signature(scenario).parameters)[1:]
    both_ways = "order" in own

    def test(**parameters: Any) -> None:
        check = parameters["order"] == 1 if both_ways else parameters.pop("check")
        compare(lambda compile: scenario(compile, **parameters), check, **expected)

    names = own if both_ways else ["check", *own]
    test.__signature__ = inspect.Signature([inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names])  # type: ignore[attr-defined]
    test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    test.pytestmark = getattr(scenario, "pytestmark", [])  # type: ignore[attr-defined]
    if both_ways:
        return pytest.mark.parametrize("order", [1, -1], ids=["checked", "backwards"])(test)
    return pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])(test)


def compare(
    scenario: Any,
    check: bool = True,
    *,
    graphs: int | None = None,
    eager: bool | None = False,
    exact: bool = True,
    **options: Any,
) -> None:
    """Demand that both runs of `scenario` yield the same.

    Args:
        graphs: how many forward and inference graphs must have been compiled.
        eager: whether no compiled graph may run where the function is traced directly; then TorchDynamo may take it,
            with the same results. Else one has to. None: either.
        exact: equal bit for bit, or up to rounding.
        options: of `aotkit.compile`.
    """
    want = observe(scenario, lambda fn: fn)
    counter = Counter()
    if eager and "capture" not in options:
        compare(scenario, check, exact=exact, eager=None, **options)
        options["capture"] = "aot"
    # Eager draws from torch's generators.
    options = {"backend": counter.backend(), "check": check, "random": "torch", **options}
    with warnings.catch_warnings():
        if eager is not False:
            warnings.simplefilter("ignore", aotkit.EagerCallWarning)
            # What Dynamo says of library code that it looks into.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor|Dynamo detected a call to a `functools")
        got = observe(scenario, lambda fn: aotkit.compile(fn, **options))
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        same(g, w, f"observation {i}", exact)
    if graphs is not None:
        assert counter.compiled == graphs
    if isinstance(options["backend"], aotkit.Backend) and eager is not None:
        assert (counter.ran == 0) == eager, f"{counter.ran} compiled graphs ran"


class Counter:
    """Counts the forward and inference graphs that are compiled, and that run."""

    def __init__(self) -> None:
        self.compiled = 0
        self.ran = 0

    def backend(self) -> aotkit.Backend:
        def forward(gm: Any, example_inputs: Any) -> Any:
            self.compiled += 1
            run = compile_graph(gm, example_inputs)

            def call(*args: Any) -> Any:
                self.ran += 1
                return run(*args)

            return call

        return aotkit.Backend(forward, compile_graph)


class Seen(NamedTuple):
    """What a caller can see of one tensor, at the moment of looking."""

    facts: dict[str, Any]
    values: torch.Tensor


@dataclass(frozen=True)
class Raised:
    """An exception; its text is for the reader."""

    kind: type[Exception]
    text: str = field(compare=False)


def observe(scenario: Any, compile: Any) -> list[Any]:
    torch.manual_seed(0)
    return [look(value) for value in scenario(compile)]


def look(value: Any) -> Any:
    if inspect.isfunction(value):
        try:
            return look(value())
        except Exception as e:
            return Raised(type(e), str(e))
    if isinstance(value, torch.Tensor):
        facts = {
            "type": type(value),
            "dtype": value.dtype,
            "shape": value.shape,
            # Nothing depends on the stride of a dimension of one element.
            "stride": [s for n, s in zip(value.shape, value.stride(), strict=True) if n > 1]
            if value.layout is torch.strided
            else None,
            "requires_grad": value.requires_grad,
            "is_leaf": value.is_leaf,
            "is_inference": value.is_inference(),
            "is_conj": value.is_conj(),
        }
        return Seen(facts, value.detach().clone())
    if isinstance(value, dict):
        return type(value), [(look(k), look(v)) for k, v in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), [look(v) for v in value]
    return value


def same(got: Any, want: Any, where: str, exact: bool) -> None:
    assert type(got) is type(want), f"{where}: {got} instead of {want}"
    if isinstance(want, Seen):
        assert got.facts == want.facts, where
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(got.values, want.values, equal_nan=True, msg=lambda m: f"{where}: {m}", **tolerance)
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), f"{where}: {got} instead of {want}"
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            same(g, w, f"{where}[{i}]", exact)
    else:
        assert got == want or (got != got and want != want), f"{where}: {got} instead of {want}"
