"""Whatever changes about the arguments from one call to the next, the result is eager's."""

import collections
import dataclasses
import enum
import functools
import math

import numpy as np
import pytest
import torch

import aotkit
from tests.agreement import agrees

Point = collections.namedtuple("Point", "x y")


class Mode(enum.Enum):
    UP = 1
    DOWN = 2


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shapes", [((4, 3), (8, 3)), ((8, 5), (8, 5, 2)), ((1, 3), (0, 3)), ((2, 2), (3, 3))])
@agrees(graphs=2)
def test_shape(compile, grad, shapes):
    f = compile(lambda x: x.reshape(x.shape[0], x.numel() // max(x.shape[0], 1)).sum(0) / x.shape[0])
    for shape in (*shapes, shapes[0]):
        x = torch.randn(shape, requires_grad=grad)
        yield (y := f(x))
        if grad:
            y.sum().backward()
            yield x.grad


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.int32]


@agrees(graphs=len(DTYPES))
def test_dtype(compile, order):
    f = compile(lambda x: (x.to(torch.float32), torch.ones(3, dtype=x.dtype) + x, x * 2))
    for dtype in DTYPES[::order] * 2:
        yield f(torch.tensor([0, 1, 2]).to(dtype))


@agrees(graphs=4)
def test_requires_grad(compile, order):
    f = compile(lambda a, b: (a * b).sum())
    for needs in [(False, False), (True, False), (False, True), (True, True)][::order] * 2:
        a, b = (torch.randn(3, requires_grad=r) for r in needs)
        yield (y := f(a, b))
        if y.requires_grad:
            y.backward()
        yield a.grad, b.grad


VALUES = [
    (2, 3), (2.0, 3.0), (True, False), ("sum", "mean"), (None, 1.5), (1, True), (1, 1.0), (True, 1.0), (0, False),
    (0.0, -0.0), (math.nan, 1.0), (1.0, math.nan), (math.inf, -math.inf), (1j, 1 + 0j), (0j, -0.0 + 0j), ("2", 2),
    (Mode.UP, Mode.DOWN), (slice(0, 2), slice(0, 1)), (torch.float32, torch.float64), (2**70, 2), (b"a", "a"),
    (torch.strided, None), (range(2), range(3)), (Ellipsis, None), (slice(0, 2.0), slice(0, 2)),
]  # fmt: skip


def apply(x, value):
    match value:
        case bool():
            return -x if value else x + 10
        case int():
            return x * value
        case float() | complex():
            return x * value, 1 / torch.full((), value)
        case str():
            return getattr(x.double(), value)() if value in ("sum", "mean") else x + 5
        case slice():
            return x[slice(value.start, int(value.stop))], x * value.stop
        case torch.dtype():
            return x.to(value)
        case range():
            return [x + i for i in value]
        case Mode.UP:
            return x + 1
        case bytes():
            return x + 7
        case _:
            return x - 1 if value is None else x - 2


@pytest.mark.parametrize(("first", "second"), VALUES)
@agrees
def test_python_value(compile, first, second):
    f = compile(apply)
    x = torch.tensor([3, 4, 5], dtype=torch.float64 if isinstance(first, complex) else torch.int64)
    for value in (first, second, first):
        yield lambda value=value: f(x, value)


@pytest.mark.parametrize("first", [2, 2.0, None, True, "a"])
@agrees
def test_python_value_becomes_a_tensor_and_back(compile, first):
    f = compile(lambda x, v: x * v if isinstance(v, (int, float, torch.Tensor)) else x + 1)
    x, v = torch.randn(3), torch.randn(3, requires_grad=True)
    for value in (first, v, first, torch.tensor(2), torch.tensor(2.0)):
        yield f(x, value)


@agrees(graphs=1)
def test_order_of_keywords(compile):
    f = compile(lambda x, a, b: x + a - b)
    x, a, b = torch.zeros(2), torch.ones(2), torch.full((2,), 5.0)
    yield f(x, a=a, b=b), f(x, b=b, a=a), f(b=b, a=a, x=x), f(x, a, b), f(x, a, b=b)


@agrees
def test_order_of_arbitrary_keywords(compile):
    f = compile(lambda **tensors: (tensors["a"] - tensors["b"], {k: v + 1 for k, v in tensors.items()}))
    a, b = torch.ones(2), torch.full((2,), 5.0)
    yield f(a=a, b=b), f(b=b, a=a), f(a=b, b=a)


@agrees
def test_order_of_keys_of_a_dict(compile):
    f = compile(lambda d: (d["a"] - d["b"], next(iter(d.values())) * 1, {k: v * 2 for k, v in d.items()}))
    a, b = torch.ones(2), torch.full((2,), 5.0)
    yield f({"a": a, "b": b}), f({"b": b, "a": a}), f({"a": b, "b": a})
    yield f(collections.OrderedDict(b=b, a=a)), f(collections.defaultdict(int, {"b": b, "a": a}))


@pytest.mark.parametrize("keys", [("1", 1), (1, 1.0), (True, 1), (0.0, -0.0), (None, "None")])
@agrees
def test_keys_of_a_dict_of_other_types(compile, keys):
    f = compile(lambda d: [x * 2 if type(k) in (int, str) else x / k if k else x + 1 for k, x in d.items()])
    for key in keys:
        yield f({key: torch.ones(2)})


@agrees
def test_positional_keyword_and_default(compile):
    @compile
    def f(x, y=None, /, s=2, *rest, k=3.0, **more):
        total = x * s + k + (0 if y is None else y)
        for i, r in enumerate(rest):
            total = total - r * (i + 1)
        return {"total": total, **{name: value + 1 for name, value in more.items()}}

    a, b, c = (torch.full((2,), float(i)) for i in range(3))
    yield f(a), f(a, b), f(a, b, 5), f(a, b, s=5), f(a, b, 5, c), f(a, b, 5, c, b), f(a, b, 5, b, c)
    yield f(a, s=3, z=b, y=c), f(a, y=c, z=b, s=3), f(a, k=b), f(a, b, k=c, w=b)
    yield lambda: f()
    yield lambda: f(x=a)
    yield lambda: f(a, b, 2, s=3)


@agrees
def test_mutable_default(compile):
    weights = [torch.ones(2), 3.0]

    @compile
    def f(x, weights=weights):
        return x * weights[0] * weights[1]

    x = torch.ones(2)
    yield f(x)
    weights[1] = 5.0
    yield f(x)
    weights[0] = torch.full((2,), 2.0)
    yield f(x)


def flat(xs):
    for x in xs.values() if isinstance(xs, dict) else xs:
        if isinstance(x, list | tuple):
            yield from flat(x)
        elif x is not None:
            yield x


@agrees
def test_structure_of_a_list(compile):
    f = compile(lambda xs: sum(torch.as_tensor(x).sum() * i for i, x in enumerate(flat(xs), 1)) + len(xs))
    a, b, c = (torch.full((2,), 10.0**i) for i in range(3))
    yield f([a, b]), f([a, b, c]), f([[a, b], c]), f([a, [b, c]]), f((a, b)), f([]), f([a, 2, b]), f([a, b, 2])
    yield f([a, None, b]), f({"a": a, "b": b}), f(Point(a, b))


@agrees
def test_structure_of_the_output(compile):
    x = torch.randn(3, requires_grad=True)
    tree = {"b": (x, [x, None, 3]), "a": Point(x, "s"), "c": collections.OrderedDict(z=x, y=x), "d": (), 5: []}
    f = compile(lambda t: torch.utils._pytree.tree_map(lambda v: v * 2 if isinstance(v, torch.Tensor) else v, t))
    yield f(tree)
    yield f((x, x)), f([x, x]), f((x,)), f([x]), f(x), f(Point(x, x)), f({"a": x}), f(collections.deque([x]))
    yield f(((x,), [x]))


@pytest.mark.parametrize("value", [None, 3, 2.5, True, "text", (), [], {}, torch.float32, torch.Size([2])])
@agrees
def test_output_that_is_no_tensor(compile, value):
    f = compile(lambda x: (x + 1, value))
    yield f(torch.ones(2)), f(torch.ones(2))
    g = compile(lambda x: value)
    yield g(torch.ones(2)), g(torch.ones(2))


@agrees
def test_output_numbers_follow_the_shape(compile):
    f = compile(lambda x: (x.shape, x.dim(), x.shape[0], x.numel() * 0.5, x.dtype, str(x.shape), x.device))
    yield f(torch.ones(2, 3)), f(torch.ones(3))


@agrees
def test_output_containers_are_new_each_time(compile):
    f = compile(lambda x: {"a": [x + 1], "b": []})
    x = torch.ones(2)
    first = f(x)
    first["b"].append(1)
    first["a"].clear()
    yield f(x)


@dataclasses.dataclass
class Pair:
    a: torch.Tensor
    b: object


@agrees
def test_dataclass_argument(compile):
    f = compile(lambda p: p.a * p.b)
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    yield f(Pair(x, 2)), f(Pair(x, 3)), f(Pair(x, w)), f(Pair(w, 2.0))
    pair = Pair(x, 2)
    yield f(pair)
    pair.b = 4
    yield f(pair)
    f(Pair(x, w)).sum().backward()
    yield w.grad


def test_dataclass_output_is_an_error_that_names_it():
    f = aotkit.compile(lambda x: Pair(x, 1), backend="nop", capture="aot")
    with pytest.raises(aotkit.TraceError, match="Pair"):
        f(torch.ones(2))


@agrees
def test_other_arguments(compile):
    f = compile(lambda x, act: act(x))
    x = torch.linspace(-1, 1, 5)
    for act in (torch.sin, torch.relu, torch.nn.Tanh(), lambda t: t * 2, lambda t: t * 3, torch.Tensor.cos, abs):
        yield f(x, act)
    for scale in (2, 3):
        yield f(x, functools.partial(torch.mul, other=scale))
    for p in (0.1, 0.7):
        yield f(x, torch.nn.LeakyReLU(p))


@agrees(eager=None)
def test_sets_and_other_objects(compile):
    f = compile(lambda x, s: x * len(s) + (10 if 3 in s else 0))
    for s in ({1}, {3}, frozenset({3, 4}), b"ab", bytearray(b"\x03"), {1: 2, 3: 4}.keys()):
        yield f(torch.ones(2), s)


@agrees
def test_numpy_argument(compile):
    f = compile(lambda x, a: x * float(a[0]) if a.ndim else x * float(a))
    a = np.array([2.0, 3.0])
    yield f(torch.ones(2), a)
    a[0] = 5.0
    yield f(torch.ones(2), a)
    yield f(torch.ones(2), np.float64(2.0)), f(torch.ones(2), np.float64(3.0)), f(torch.ones(2), np.array([9.0]))


@agrees(graphs=10)
def test_many_signatures_live_side_by_side(compile):
    f = compile(lambda x, n: x * n + x.shape[0])
    xs = [torch.randn(n, requires_grad=n % 2 == 0) for n in range(1, 6)]
    for _ in range(2):
        for x in xs:
            for n in (2, 3.0):
                yield f(x, n)
