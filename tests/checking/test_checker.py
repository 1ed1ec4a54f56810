"""The verdict on a compiled function: every planted fault is found, and rounding is no fault."""

import itertools
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import aotkit
from aotkit.backends.nop import compile_graph

pytestmark = pytest.mark.usefixtures("only_the_verdict")


def altering(alter):
    """A graph compiler whose compiled function returns `alter(outputs, inputs)`."""

    def compile(gm, example_inputs):
        return lambda *inputs: alter(list(gm(*inputs)), inputs)

    return compile


def backend(forward=None, backward=None):
    return aotkit.Backend(
        altering(forward) if forward else compile_graph, altering(backward) if backward else compile_graph
    )


def refused(fn, *args, **options):
    """What the report says of each wrong value."""
    with pytest.raises(aotkit.MismatchError) as e:
        aotkit.check(fn, *args, **{"partition": "default", **options})
    return {c.what: c.problem for c in e.value.report.comparisons if c.problem}


def replacing(i, value):
    """Alter the output of this number."""
    return lambda out, inputs: [*out[:i], value(out[i]), *out[i + 1 :]]


def leaf(*shape, **options):
    return torch.randn(*shape, requires_grad=True, **options)


# Planted faults.


@pytest.mark.parametrize("grad", [True, False])
def test_small_values_lost_among_large_ones(grad):
    x = torch.tensor([1e6, 1.0, 2.0, 3.0], requires_grad=grad)
    lost = replacing(0, lambda y: torch.where(y < 100, 0.0, y))
    assert list(refused(lambda x: x * 1.5, x, backend=backend(lost))) == ["output 0"]


def test_a_small_gradient_lost_among_large_ones():
    x = torch.tensor([1e6, 10.0, 20.0, 30.0], requires_grad=True)
    lost = replacing(0, lambda g: torch.where(g.abs() < 1e3, 0.0, g))
    assert list(refused(lambda x: x * x, x, backend=backend(backward=lost))) == ["gradient of x"]


@pytest.mark.parametrize("masked", [0.0, torch.finfo(torch.float32).min])
def test_other_noise(masked):
    def noisy(x, mask):
        return x + torch.randn_like(x)

    louder = backend(replacing(0, lambda y: 1.5 * y))
    assert list(refused(noisy, torch.randn(1000), torch.full((4,), masked), backend=louder)) == ["output 0"]


def test_other_dropout():
    """As many draws, but another mask."""
    shifted = replacing(0, lambda y: y.roll(1))
    assert list(refused(F.dropout, leaf(1000), backend=backend(shifted))) == ["output 0"]


def test_memory_shared_with_an_input():
    def same_values(out, inputs):
        return [inputs[0], *out[1:]]

    found = refused(lambda x: x + 0, torch.randn(3), backend=backend(same_values))
    assert found == {"output 0": "shares memory with input x, eager's does not"}


def test_memory_shared_between_outputs():
    def one_for_both(out, inputs):
        return [out[0], out[0], *out[2:]]

    found = refused(lambda x: (x.sin(), x.sin()), torch.randn(3), backend=backend(one_for_both))
    assert found == {"output 1": "shares memory with output 0, eager's does not"}


def test_a_traced_dropout_that_copies_is_no_fault():
    assert aotkit.check(lambda x: F.dropout(x, training=False), torch.randn(3), backend="nop").passed


def test_swapped_gradients():
    def swapped(out, inputs):
        return [out[1], out[0], *out[2:]]

    found = refused(lambda x, y: x.sin() * y.cos(), leaf(4), leaf(4), backend=backend(backward=swapped))
    assert set(found) == {"gradient of x", "gradient of y"}


@pytest.mark.parametrize("extra", [True, False])
def test_other_random_state_afterwards(extra):
    def draws(out, inputs):
        torch.rand(1)
        return out

    def keeps(gm, example_inputs):
        def run(*inputs):
            state = torch.get_rng_state()
            try:
                return gm(*inputs)
            finally:
                torch.set_rng_state(state)

        return run

    faulty = backend(draws) if extra else aotkit.Backend(keeps)
    found = refused(F.dropout, torch.randn(4), backend=faulty, random="torch")
    assert found == {"random generator": "compiled and eager leave it in different states"}


def test_nan_at_another_place():
    found = refused(torch.sqrt, torch.tensor([-1.0, 1.0, 4.0]), backend=backend(replacing(0, lambda y: y.flip(0))))
    assert found == {"output 0": "has NaN or infinity at other places than eager's"}


def test_infinity_of_the_other_sign():
    found = refused(torch.exp, torch.tensor([1e3, 1.0]), backend=backend(replacing(0, lambda y: -y)))
    assert found == {"output 0": "has NaN or infinity at other places than eager's"}


def near_the_largest_float16(low, high):
    x = torch.rand(2000) * (high - low) + low
    return (x / 1.7 / (1 - 0.37 * 0.13)).half(), (torch.rand(2000) * 0.01 - 0.13).half()


def in_steps(x, w):
    return (x * w * 0.37 + x) * 1.7


def test_rounding_past_the_largest_number_is_rounding():
    torch.manual_seed(0)
    args = near_the_largest_float16(63_000, 68_000)
    fast = aotkit.compile(in_steps, backend="inductor")
    assert not torch.equal(fast(*args).isinf(), in_steps(*args).isinf())
    assert fast.report(*args).passed


def products(x):
    """Too large for float16 on the way, and in eager for good."""
    return x * 2000 * 100 / 1000


def of_exponentials(x):
    """In float16 an infinity over another, or nothing over an infinity, in eager."""
    e = x.exp()
    return e / (e.sum() + 1)


IN_FLOAT64 = {
    "as it is": lambda y, out: y,
    "a tenth too little": lambda y, out: y * 0.9,
    "at other places": lambda y, out: y.flip(0),
    "nothing": lambda y, out: torch.where(out.isfinite(), y, 0),
    "the largest number": lambda y, out: torch.where(out.isfinite(), y, torch.finfo(y.dtype).max),
}


def scaled_exponentials(x):
    return (x * 1.37).exp() * 1e-4


def near_the_end(x):
    return (x * 1.5 + 304) * 2000 * 100 / 1000


@pytest.mark.parametrize("alter", IN_FLOAT64)
@pytest.mark.parametrize("fn", [products, of_exponentials, near_the_end])
def test_what_leaves_the_range_of_its_type_in_eager_alone_is_compared_with_float64(fn, alter):
    torch.manual_seed(0)
    x = (torch.rand(2000) * 14).half()
    assert not fn(x).isfinite().all()
    exact = backend(lambda out, inputs: [IN_FLOAT64[alter](fn(inputs[0].double()).half(), out[0])])
    if alter == "as it is":
        report = aotkit.check(fn, x, backend=exact, partition="default")
        assert report.comparisons[0].agreement.endswith(
            f"{int((~fn(x).isfinite()).sum())} by float64, not finite in eager"
        )
    else:
        assert "output 0" in refused(fn, x, backend=exact)


def test_what_rounds_as_eager_where_eager_leaves_the_range_is_right():
    """A product is stored in float16, which takes the exponential .8 % from its float64 value: tolerance is 1 %."""
    x = (torch.rand(500) * 4 + 8.2).half()
    fused = backend(lambda out, inputs: [((inputs[0] * 1.37).float().exp() * 1e-4).half()])
    assert not scaled_exponentials(x).isfinite().all()
    assert aotkit.check(scaled_exponentials, x, backend=fused, partition="default").passed


def test_what_fused_kernels_keep_in_range_is_no_fault(device):
    x = (torch.rand(2000, device=device) * 14).half().requires_grad_()
    fast = aotkit.compile(products, backend="inductor")
    assert fast(x).isfinite().all()
    assert not products(x).isfinite().all()
    assert fast.report(x).passed


def finite(y):
    return torch.where(y.isinf(), torch.finfo(y.dtype).max * y.sign(), y)


INFINITIES = {
    "of a mask": (lambda x: (x * 1.5).masked_fill(x < 0, float("-inf")), finite),
    "and all others": (lambda x: (x * 1.5).masked_fill(x < 0, float("-inf")), lambda y: finite(y).clamp(max=0)),
    "of a pole": (lambda x: 1 / (x - x[0]), finite),
    "of a logarithm": (lambda x: x.abs().floor().log(), lambda y: torch.where(y.isinf(), finite(y), 7 * y + 3)),
    "that was replaced": (lambda x: (1 / (x - x[0])).nan_to_num(), lambda y: torch.where(finite(y) < 1e4, y, y / 0)),
    "of one small number": (lambda x: x * 1.5, lambda y: y.index_fill(0, torch.tensor([3]), float("inf"))),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("case", INFINITIES)
def test_infinities_that_rounding_does_not_make(case, dtype):
    if case == "that was replaced" and dtype == torch.float64:
        pytest.skip("what replaces it is the largest number, and there is none larger to tell it from")
    fn, alter = INFINITIES[case]
    found = refused(fn, torch.randn(50, dtype=dtype), backend=backend(replacing(0, alter)))
    assert found == {"output 0": "has NaN or infinity at other places than eager's"}


def test_an_overflow_hides_nothing_beside_it():
    args = near_the_largest_float16(63_000, 68_000)
    place = in_steps(*args).isfinite().nonzero()[0, 0]

    def altered(y):
        return torch.where(torch.arange(len(y)) == place, 5.0, finite(y))

    assert list(refused(in_steps, *args, backend=backend(replacing(0, altered)))) == ["output 0"]


@pytest.mark.parametrize(
    ("fn", "alter"), [(lambda x: x.argsort(), lambda y: y + (y == 2)), (lambda x: x > 0, torch.logical_not)]
)
def test_exact_types_have_no_tolerance(fn, alter):
    assert "elements" in refused(fn, torch.randn(8), backend=backend(replacing(0, alter)))["output 0"]


def test_zeros_instead_of_a_gradient():
    found = refused(
        lambda x, y: x * y.exp(), leaf(3), leaf(3), backend=backend(backward=replacing(1, torch.zeros_like))
    )
    assert list(found) == ["gradient of y"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_a_tenth_too_much(dtype):
    x = torch.randn(50, dtype=dtype)
    assert list(refused(lambda x: x * x, x, backend=backend(replacing(0, lambda y: 1.1 * y)))) == ["output 0"]


def test_strides():
    transposed = replacing(0, lambda y: y.t().contiguous().t())
    assert "has strides [1, 3]" in refused(torch.sin, torch.randn(3, 3), backend=backend(transposed))["output 0"]


def test_a_copy_instead_of_a_view():
    x = torch.randn(3, 4)
    found = refused(lambda x: (y := x.sin(), y[0]), x, backend=backend(replacing(1, torch.clone)))
    assert found == {"output 1": "does not share memory with output 0"}


def test_an_overwritten_input():
    def scratch(out, inputs):
        inputs[0].data.zero_()  # unseen by autograd
        return out

    found = refused(lambda x: x.sin(), torch.randn(4), backend=backend(scratch))
    assert found == {"input x after the call": "was overwritten, which eager does not"}


def test_an_overwritten_saved_value():
    def compile(gm, example_inputs):
        def run(*inputs):
            out = gm(*inputs)
            inputs[0].data.mul_(2)
            return out

        return run

    found = refused(lambda x: x.exp().sin(), leaf(4), backend=aotkit.Backend(compile_graph, compile))
    assert "not that of the first" in found["gradient of x, second backward pass"]


def stale(gm, example_inputs):
    """Gives its first result for ever."""
    results = []

    def run(*inputs):
        results.append(gm(*inputs))
        return [y.clone() for y in results[0]]

    return run


@pytest.mark.parametrize("grad", [True, False])
def test_a_result_of_an_earlier_call(grad):
    found = refused(lambda x: x.sin(), torch.randn(4, requires_grad=grad), backend=stale)
    assert "output 0, in a second run with other values" in found


def test_indices_of_an_earlier_call():
    def compile(gm, example_inputs):
        first = []

        def run(x, index):
            first.append(index.clone())
            return gm(x, first[0])

        return run

    found = refused(lambda x, i: x[i] * 1, torch.randn(5), torch.tensor([3, 1, 3]), backend=compile)
    assert "output 0, in a second run with other values" in found


def test_indices_that_have_to_be_in_order():
    """The second run keeps them then."""

    def f(tokens, table, offsets):
        return F.embedding_bag(tokens, table, offsets, mode="sum")

    tokens, offsets = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 5])
    assert aotkit.check(f, tokens, leaf(10, 3), offsets, backend="nop").repeated


def test_the_same_random_numbers_in_each_call():
    def compile(gm, example_inputs):
        state = torch.get_rng_state()

        def run(*inputs):
            after = torch.get_rng_state()
            with torch.random.fork_rng([]):
                gm(*inputs)
                moved_on = torch.get_rng_state()
            torch.set_rng_state(first.setdefault("state", after))
            out = gm(*inputs)
            torch.set_rng_state(moved_on)
            return out

        first = {} if state.numel() else None
        return run

    found = refused(lambda x: x * torch.rand(50), torch.randn(50), backend=compile, random="torch")
    assert list(found) == ["output 0, in a second run with other values"]


def test_an_error_with_other_values():
    calls = []

    def compile(gm, example_inputs):
        def run(*inputs):
            calls.append(1)
            if len(calls) > 1:
                raise RuntimeError("stale handle")
            return gm(*inputs)

        return run

    found = refused(torch.sin, torch.randn(4), backend=compile)
    assert found == {"second run, with other values": "raises RuntimeError: stale handle"}


@pytest.mark.parametrize("order", [1, -1])
def test_the_type_of_each_value_decides_what_is_rounding(order):
    """In float32 something may jump; in float64, whatever the inputs are, half a millionth is no rounding."""

    def compile(gm, example_inputs):
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.round.default):
            node.target = lambda x: (x + 0.5).floor()
        gm.recompile()
        return compile_graph(gm, example_inputs)

    inputs = (torch.arange(8.0) + 0.5, torch.ones((), dtype=torch.float64))[::order]
    assert aotkit.check(lambda a, b: ((a if a.dim() else b) / 3 * 3).round(), *inputs, backend=compile).passed
    slightly = altering(lambda out, inputs: [y * (1 + 5e-7) for y in out])
    assert refused(lambda x: x.double() / 3, torch.rand(50), backend=slightly)
    assert refused(torch.sin, torch.randn(50, dtype=torch.complex128), backend=slightly)


def test_doubts_beside_an_empty_output():
    halves = torch.arange(8.0) + 0.5
    compile = altering(lambda out, inputs: [out[0], out[1] + (inputs[0] == 2.5)])
    assert aotkit.check(lambda x: (x[:0], (x / 3 * 3).round()), halves, backend=compile).passed


def test_memory_that_two_threads_share():
    """Where two threads call it at the same time, each writes before either reads: one of them reads wrong values."""
    kept = {}
    met = threading.Barrier(2, timeout=60)

    def compile(gm, example_inputs):
        def run(x):
            kept["x"] = x
            if any(thread.name == "aotkit check" for thread in threading.enumerate()):
                met.wait()
            return gm(kept["x"])

        return run

    found = refused(lambda x: x.sin() + x.cos().sin(), torch.randn(4), backend=compile)
    assert "another thread" in found["second run"]


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool, torch.complex128])
def test_results_that_are_empty_or_expanded(size, dtype):
    report = aotkit.check(
        lambda x: (x, x.clone(), x.sum()), torch.zeros(1, dtype=dtype)[:size].expand(size), backend="nop"
    )
    assert report.passed
    assert report.repeated


def test_a_compiled_function_inside_of_an_operator():
    """The other thread of the check would wait for this one, which waits for it."""
    inner = aotkit.compile(lambda x: x.sin(), backend="nop")

    @torch.library.custom_op("aotkit_tests::nested", mutates_args=())
    def nested(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    nested.register_fake(torch.empty_like)
    report = aotkit.check(lambda x: nested(x) * 2, torch.randn(4), backend="nop")
    assert report.passed
    assert report.repeated


def test_values_that_change_from_run_to_run():
    """In float64 they differ at random, which is no rounding."""
    steps = itertools.count()

    @torch.library.custom_op("aotkit_tests::unsteady", mutates_args=())
    def unsteady(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 0.01 * next(steps))

    unsteady.register_fake(torch.empty_like)
    found = refused(lambda x: unsteady(x), torch.randn(4), backend="nop")
    assert "eager itself gives something else each time" in found["output 0"]


def test_rounding_of_what_was_not_rounded():
    """Halves jump when they move, but nothing moves them here; after a product something may."""

    def compile(gm, example_inputs):
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.round.default):
            node.target = lambda x: (x + 0.5).floor()
        gm.recompile()
        return compile_graph(gm, example_inputs)

    halves = torch.arange(8.0) + 0.5
    assert list(refused(lambda x: x.round(), halves, backend=compile)) == ["output 0"]
    assert aotkit.check(lambda x: (x / 3 * 3).round(), halves, backend=compile).passed


def test_a_size_that_a_backend_bakes_in():
    """The function itself allows open sizes."""

    def compile(gm, example_inputs):
        sizes = []

        def run(*inputs):
            sizes.append(len(inputs[-1]))
            return [y + len(inputs[-1]) - sizes[0] for y in gm(*inputs)]

        return run

    f = aotkit.compile(lambda x: x * 2, backend=compile, dynamic=True)
    with pytest.raises(aotkit.MismatchError, match="With fixed sizes it equals eager"):
        f(torch.randn(4))


def test_check_again():
    """What is compiled can be compared at any time, for other values."""

    def compile(gm, example_inputs):
        return lambda *inputs: [y if y is None else y.clamp(max=100) for y in gm(*inputs)]

    layer = nn.Linear(3, 3)
    for compiled in (aotkit.compile(layer, backend=compile), aotkit.compile(lambda x: layer(x), backend=compile)):
        x = torch.randn(4, 3)
        compiled(x)
        assert compiled.check(x + 1).passed
        with pytest.raises(aotkit.MismatchError, match=r"output 0 +differs"):
            compiled.check(x * 1e4)
        with torch.no_grad():
            assert compiled.check(x).passed


def halved(op):
    """A compiler that computes one operator in half precision."""

    def compile(gm, example_inputs):
        for node in gm.graph.nodes:
            if node.target is op:
                node.target = lambda *args, op=op: op(*(a.half() if torch.is_tensor(a) else a for a in args)).float()
        gm.recompile()
        return compile_graph(gm, example_inputs)

    return compile


def test_half_precision_between_operations():
    """Each element is within the tolerance of a sum of large numbers; all of them together are not."""
    found = refused(lambda x: x.sin() + 10, torch.rand(64, 64), backend=halved(torch.ops.aten.sin.default))
    assert "less exact" in found["output 0"]


def test_bfloat16_sums():
    def compile(gm, example_inputs):
        def run(x):
            total = torch.zeros(x.shape[0], dtype=x.dtype)
            for column in x.unbind(1):
                total = total + column  # rounds to bfloat16 each time
            return [total]

        return run

    x = torch.rand(64, 300).bfloat16()
    assert list(refused(lambda x: x.sum(1), x, backend=compile)) == ["output 0"]


def test_functions_that_take_no_other_values():
    """The first run alone decides where eager refuses the second one's values."""

    def f(x):
        torch._assert_async((x == 1).all(), "ones only")
        return x * 2

    report = aotkit.check(f, torch.ones(4), backend="nop")
    assert report.passed
    assert not report.repeated


def test_how_often_a_check_runs_the_function(monkeypatch):
    runs, compiled = [], []
    run = aotkit.capture.signature.Signature.running
    monkeypatch.setattr(aotkit.capture.signature.Signature, "running", lambda *args: runs.append(args[1]) or run(*args))

    def f(x, w):
        return (x @ w).sin().sum(1)

    def compile(gm, example_inputs):
        def run(*inputs):
            compiled.append(1)
            return [y * (1 + 1e-7) if y.is_floating_point() else y for y in gm(*inputs)]

        return run

    assert aotkit.check(f, leaf(32, 32), leaf(32, 32), backend=aotkit.Backend(compile, compile_graph)).repeated
    assert len([doing for doing in runs if doing != "traced"]) == 3  # eager, in float64, with other values
    assert len(compiled) == 3  # once more forward


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only the CUDA allocator tells the peak")
@pytest.mark.parametrize("backend", ["nop", "inductor"])
def test_memory_that_a_check_takes(backend):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8))).cuda()
    x = torch.randn(2048, 1024, device="cuda")

    def peak(call):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated()

    def eager():
        torch.autograd.grad(model(x).sum(), list(model.parameters()))

    eager()
    assert peak(lambda: aotkit.check(model, x, backend=backend)) <= 4 * peak(eager)


# No false alarms.


class BiasBeforeNorm(nn.Sequential):
    """The gradient of the convolution's bias is rounding errors only."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))


class Dropout(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 8))


class SumOfNorms(nn.Linear):
    """All gradients are rounding errors only: what a layer norm gives adds up to nothing."""

    def forward(self, x):
        return F.layer_norm(F.dropout(F.gelu(super().forward(x)), 0.1), (self.out_features,)).sum()


ROUNDING = {
    "bias_before_batch_norm": (BiasBeforeNorm, (4, 3, 16, 16), torch.float32, 1.0, 0.0),
    "sum_of_layer_norms": (lambda: SumOfNorms(64, 64), (32, 64), torch.float32, 1.0, 0.0),
    "dropout": (Dropout, (64, 32), torch.float32, 1.0, 0.0),
    "relu_at_zero": (lambda: lambda x: F.relu(x - x.mean(0) - (x - x.mean(0))), (64, 64), torch.float32, 1.0, 0.0),
    "softmax_bfloat16": (lambda: lambda x: x.softmax(-1), (64, 128), torch.bfloat16, 1.0, 0.0),
    "cumsum": (lambda: lambda x: x.cumsum(0), (100_000,), torch.float32, 1.0, 0.0),
    "sum_that_cancels": (lambda: lambda x: x.sum(0), (100_000, 4), torch.float32, 1e3, 0.0),
    "logsumexp": (lambda: lambda x: x.logsumexp(-1), (64, 128), torch.float32, 30.0, 0.0),
    "layer_norm_large_mean": (lambda: lambda x: F.layer_norm(x, (128,)), (64, 128), torch.float32, 1.0, 1e3),
    "matmul": (lambda: lambda x: F.gelu(x @ x), (256, 256), torch.float32, 1.0, 0.0),
    "log_softmax": (lambda: lambda x: F.log_softmax(x, -1), (64, 1000), torch.float32, 10.0, 0.0),
    "norm": (lambda: lambda x: x / x.norm(dim=-1, keepdim=True), (64, 128), torch.float32, 1e4, 0.0),
    "half": (lambda: lambda x: F.gelu(x @ x), (64, 64), torch.float16, 1.0, 0.0),
}

# Another of those before with the same cause.
RESEMBLING = ("dropout", "log_softmax", "norm", "matmul", "sum_of_layer_norms")
TWICE = [(name, seed) for seed in (0, 1) for name in ROUNDING]


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("name", "seed"),
    [pytest.param(*c, marks=pytest.mark.sweep if c[1] or c[0] in RESEMBLING else []) for c in TWICE],
)
def test_rounding_is_no_fault(name, seed):
    make, shape, dtype, scale, shift = ROUNDING[name]
    torch.manual_seed(seed)
    fn = make()
    x = (torch.randn(shape) * scale + shift).to(dtype).requires_grad_()
    assert aotkit.check(fn, x, backend="inductor").passed


# What a function may not do, and what it leaves.


def unused_rand(x):
    torch.rand(3)
    return x * 2


def unused_dropout(x):
    F.dropout(x)
    return x * 2


def unused_permutation(x):
    torch.randperm(5)
    return x * 2


@pytest.mark.thinned
@pytest.mark.parametrize("partition", aotkit.list_partitioners())
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("fn", [unused_rand, unused_dropout, unused_permutation])
@pytest.mark.parametrize("backend", ["nop", "inductor"])
def test_unused_draws_move_the_generator_on(fn, grad, backend, partition):
    x = torch.ones(3, requires_grad=grad)
    compiled = aotkit.compile(fn, backend=backend, partition=partition, random="torch")
    states = []
    for call in (fn, compiled):
        torch.manual_seed(1)
        call(x)
        states.append(torch.rand(3))
    assert torch.equal(*states)


def sets_state(x):
    state = torch.get_rng_state()
    y = x * torch.rand(3)
    torch.set_rng_state(state)
    return y


def forks(x):
    with torch.random.fork_rng([]):
        y = x * torch.rand(3)
    return y


def seeds(x):
    torch.manual_seed(3)
    return x * torch.rand(3)


def sets_default_dtype(x):
    torch.set_default_dtype(torch.float64)
    return x * torch.ones(3)


def sets_precision(x):
    torch.set_float32_matmul_precision("high")
    return x * 2


def becomes_deterministic(x):
    torch.use_deterministic_algorithms(True)
    return x * 2


@pytest.fixture
def switches():
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (sets_state, "sets the state of torch's random generator"),
        (forks, "sets the state of torch's random generator"),
        (seeds, "seeds torch's random generator"),
        (sets_default_dtype, "global switch of torch changed"),
        (sets_precision, "global switch of torch changed"),
        (becomes_deterministic, "global switch of torch changed"),
    ],
)
def test_global_state_is_not_for_a_graph_to_change(fn, message, check):
    with pytest.raises(aotkit.TraceError, match=message):
        aotkit.compile(fn, backend="nop", check=check, capture="aot")(torch.ones(3))


@pytest.mark.usefixtures("switches")
@pytest.mark.filterwarnings("ignore::aotkit.errors.EagerCallWarning")
@pytest.mark.parametrize("fn", [sets_state, forks, seeds, sets_precision])
def test_global_state_changes_as_in_eager_where_dynamo_captures(fn):
    def observed(call):
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("highest")
        return call(torch.ones(3)), torch.get_rng_state(), torch.get_float32_matmul_precision()

    compiled = aotkit.compile(fn, backend="nop", random="torch")
    for _ in range(2):
        for got, want in zip(observed(compiled), observed(fn), strict=True):
            assert torch.equal(got, want) if isinstance(got, torch.Tensor) else got == want


def test_switches_inside_a_with_statement_are_allowed():
    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    assert aotkit.check(f, leaf(4, 4), backend="nop").passed


def test_the_check_leaves_the_random_state():
    compiled = aotkit.compile(F.dropout, backend="nop")
    before = torch.get_rng_state()
    compiled.graphs(torch.ones(4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.11 cannot trace a generator")
def test_a_generator_that_the_function_makes():
    def f(x):
        return x + torch.rand(3, generator=torch.Generator().manual_seed(3))

    with pytest.raises(aotkit.TraceError, match="generator"):
        aotkit.compile(f, backend="nop", check=False, capture="aot")(torch.ones(3))


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.11 cannot trace a generator")
@pytest.mark.parametrize("check", [True, False])
def test_a_generator_of_the_users(check):
    generator = torch.Generator()

    def f(x):
        return x + torch.rand(3, generator=generator)

    compiled = aotkit.compile(f, backend="nop", check=check)
    runs = []
    for call in (f, compiled):
        generator.manual_seed(5)
        runs.append(torch.stack([call(torch.ones(3)), call(torch.ones(3)), torch.rand(3, generator=generator)]))
    assert torch.equal(*runs)


def test_rounding_does_not_excuse_what_shared_memory_explains(monkeypatch):
    """The runs in float64, which decide what is rounding, have inputs that share memory as the originals do."""
    monkeypatch.setattr("aotkit.torch_private.aotautograd._rows_overlap", lambda a, b: False)
    rows = torch.arange(14.0).view(7, 2)[1::2]
    with pytest.raises(aotkit.MismatchError, match=r"output 0 +differs"):
        aotkit.compile(lambda a, b: a.mul_(2) + b, backend="nop")(rows[:-1], rows[1:])


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_buffer_that_gradients_are_written_into(dtype, capture):
    """As the spectrum of a Fourier neural operator, made before a graph break: no leaf that has a gradient."""

    def spread(spectrum, modes):
        spectrum[:, 2:5] = modes
        return spectrum.sin()

    def step(f):
        spectrum = torch.zeros(3, 7, dtype=dtype)
        loss = f(spectrum, modes).abs().sum() + spectrum.abs().square().sum()
        return torch.autograd.grad(loss, modes)[0]

    modes = torch.randn(3, 3, dtype=dtype, requires_grad=True)
    compiled = aotkit.compile(spread, backend="nop", capture=capture)
    torch.testing.assert_close(step(compiled), step(spread))
    assert compiled.report(torch.zeros(3, 7, dtype=dtype), modes).passed
