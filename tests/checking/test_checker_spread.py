"""The verdict where rounding is large, where eager itself varies, and where there is no time to find out."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Interpreter

import aotkit
from aotkit.backends.nop import compile_graph
from aotkit.checking import checker
from aotkit.checking.precision import CONVOLUTIONS, PRODUCTS

pytestmark = pytest.mark.usefixtures("only_the_verdict")
aten = torch.ops.aten


def refused(fn, *args, **options):
    """What the report says of each wrong value."""
    with pytest.raises(aotkit.MismatchError) as e:
        aotkit.check(fn, *args, **{"partition": "default", **options})
    return {c.what: c.problem for c in e.value.report.comparisons if c.problem}


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


# Networks that amplify rounding.


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.long = nn.Sequential(
            *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
            *(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)),
        )
        self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        return F.relu(self.long(x) + self.short(x))


class SmallBatch(nn.Module):
    """A residual network whose last norms are over four numbers each, of two images."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(a, b, 2) for a, b in itertools.pairwise((3, 8, 16, 32))))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.blocks(x).mean((2, 3)))


def in_tf32(x):
    """The nearest numbers with 10 bits of fraction."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class Tensorcores(Interpreter):
    """Products and convolutions read their operands in TF32."""

    def call_function(self, target, args, kwargs):
        if getattr(target, "overloadpacket", None) in (*PRODUCTS, *CONVOLUTIONS):
            args = [in_tf32(a) if isinstance(a, torch.Tensor) else a for a in args]
        return super().call_function(target, tuple(args), kwargs)


def tensorcores(gm, example_inputs):
    return lambda *inputs: Tensorcores(gm).run(*inputs)  # each call has its own values


@pytest.fixture
def tf32():
    """Let float32 be read so: a CPU without such cores does not, but the check has to expect it."""
    torch.set_float32_matmul_precision("high")
    torch.backends.mkldnn.conv.fp32_precision = "tf32"
    yield
    torch.backends.mkldnn.conv.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.sweep
@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("seed", range(3))
def test_tf32_in_a_network_that_amplifies_rounding(seed):
    torch.manual_seed(seed)
    report = aotkit.check(SmallBatch(), torch.randn(2, 3, 16, 16), backend=tensorcores)
    assert report.passed
    assert not report.undecided
    assert max(c.error / (c.allowed or 1) for c in report.comparisons) > 0


@pytest.mark.sweep
def test_tf32_where_nobody_allowed_it():
    torch.manual_seed(0)
    assert refused(SmallBatch(), torch.randn(2, 3, 16, 16), backend=tensorcores)


def spoiling(spoil):
    """A backend in TF32 whose backward graph is wrong besides."""

    def compile(gm, example_inputs):
        run = tensorcores(gm, example_inputs)
        return lambda *inputs: spoil(list(run(*inputs)))

    return aotkit.Backend(tensorcores, compile)


def spoiled(wrong):
    """Of the gradients, the largest matrix or filter."""

    def spoil(gradients):
        at = max((i for i, g in enumerate(gradients) if g is not None), key=lambda i: gradients[i].numel())
        gradients[at] = wrong(gradients[at])
        return gradients

    return spoil


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(torch.neg, id="sign", marks=pytest.mark.sweep),
        pytest.param(torch.zeros_like, id="missing", marks=pytest.mark.sweep),
        pytest.param(lambda g: g / 2, id="half", marks=pytest.mark.sweep),
        pytest.param(lambda g: g.flip(0), id="permuted", marks=pytest.mark.sweep),
        pytest.param(lambda g: torch.cat([g[:-1], g[-1:] * 0]), id="last_row"),
    ],
)
def test_faults_in_a_network_that_amplifies_rounding(wrong):
    torch.manual_seed(0)
    found = refused(SmallBatch(), torch.randn(2, 3, 16, 16), backend=spoiling(spoiled(wrong)))
    assert any(what.startswith("gradient") for what in found)


# Eager that varies.


class AddedInAnyOrder(torch.autograd.Function):
    """A sum of rows whose order is another in each run, as where threads add with atomics."""

    @staticmethod
    def forward(ctx, x):
        ctx.rows = len(x)
        return _added(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.expand(ctx.rows, *gradient.shape)


RUNS = itertools.count(1)


@torch.library.custom_op("aotkit_tests::added_in_any_order", mutates_args=())
def _added(x: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(next(RUNS)))
    total = torch.zeros_like(x[0])
    for row in x[order]:
        total = total + row
    return total


_added.register_fake(lambda x: torch.empty_like(x[0]))
_added.register_autograd(
    lambda ctx, gradient: gradient.expand(ctx.rows, *gradient.shape),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "rows", len(inputs[0])),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_sums_in_any_order(dtype, capture):
    """Also in the gradients, of the first backward pass and of the second."""

    def f(x, w):
        return (_added(x * w).sin() * _added(x * 1e3)).sum() + (w * _added(x)).square().sum()

    x, w = (torch.randn(*shape).to(dtype).requires_grad_() for shape in ((300, 8), (8,)))
    compiled = aotkit.compile(f, backend="nop", capture=capture)
    assert compiled.report(x, w).passed


@torch.library.custom_op("aotkit_tests::sums_anyhow", mutates_args=())
def _sums_anyhow(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return _added(gradient * x)


_sums_anyhow.register_fake(lambda gradient, x: torch.empty_like(x[0]))


@torch.library.custom_op("aotkit_tests::scaled", mutates_args=())
def _scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


_scaled.register_fake(lambda x, w: torch.empty_like(x))
_scaled.register_autograd(
    lambda ctx, g: (g * ctx.saved_tensors[1], _sums_anyhow(g, ctx.saved_tensors[0])),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_second_backward_pass_that_adds_in_another_order(dtype):
    x, w = torch.randn(500, 64).to(dtype), torch.randn(64).to(dtype).requires_grad_()
    assert aotkit.check(lambda x, w: _scaled(x, w) * 2, x, w, backend="nop").passed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_sign_beside_sums_in_any_order(dtype):
    def negated(gm, example_inputs):
        return lambda *inputs: [None if y is None else -y for y in gm(*inputs)]

    x, w = torch.randn(500, 64).to(dtype), torch.randn(64).to(dtype).requires_grad_()
    backend = aotkit.Backend(compile_graph, negated)
    assert "gradient of w" in refused(lambda x, w: _scaled(x, w) * 2, x, w, backend=backend)


def attention(x, key_bias, w):
    """As on a GPU with dropout, whose kernels draw other numbers in float64. Softmax takes no notice of the bias."""
    if x.dtype is torch.float64:
        raise NotImplementedError
    queries = x * _added(x[:8] * w)
    return (queries @ (x + key_bias).t() / 8).softmax(-1) @ x


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_nothing_but_rounding(dtype, seed):
    """It is other noise each time, as different from that of another run as from zero."""
    torch.manual_seed(seed)
    x, bias, w = (torch.randn(*shape).to(dtype).requires_grad_() for shape in ((200, 64), (64,), (64,)))
    assert aotkit.check(attention, x, bias, w, backend="nop").passed


@torch.library.custom_op("aotkit_tests::summed", mutates_args=())
def _summed(gradient: torch.Tensor) -> torch.Tensor:
    return _added(gradient) if gradient.dtype is torch.float64 else gradient.sum(0)


_summed.register_fake(lambda gradient: torch.empty_like(gradient[0]))


@torch.library.custom_op("aotkit_tests::shifted", mutates_args=())
def _shifted(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x + bias


_shifted.register_fake(lambda x, bias: torch.empty_like(x))
_shifted.register_autograd(lambda ctx, gradient: (gradient, _summed(gradient)), setup_context=lambda *_, **__: None)


class FromTheEnd(Interpreter):
    """Means are added up from the last number to the first."""

    def call_function(self, target, args, kwargs):
        if getattr(target, "overloadpacket", None) is aten.mean:
            args = (args[0].flip(0), *args[1:])
        return super().call_function(target, args, kwargs)


@pytest.mark.parametrize(("dtype", "more"), [(torch.float32, 1e-2), (torch.float64, 1e-9)], ids=str)
def test_what_cancels_is_noise_in_each_precision(dtype, more):
    """Also in float64, where no wider type tells how much of a value is noise."""

    def compile_graph(gm, inputs):
        return lambda *values: FromTheEnd(gm).run(*values)

    def fn(x):
        return (x.sin() - x.sin().mean()).sum()

    torch.manual_seed(0)
    x = torch.randn(1000, dtype=dtype, requires_grad=True)
    report = aotkit.check(fn, x, backend=aotkit.Backend(fw_compiler=compile_graph), partition="default")
    assert report.passed
    assert not report.undecided
    assert "output 0" in refused(lambda x: fn(x) + more * x[0], x, backend=dropping_last_addition)


def dropping_last_addition(gm, inputs):
    last = [n for n in gm.graph.nodes if n.target is aten.add.Tensor]
    if last:
        last[-1].replace_all_uses_with(last[-1].args[0])
        gm.recompile()
    return lambda *values: gm(*values)


def test_noise_whose_kernel_varies_in_float64_alone():
    """As of a bias that a normalisation takes away again, where other gradients vary."""

    def normalised(x, bias, w, scale):
        rows = _shifted(x, bias)
        return _scaled((rows - rows.mean(0)) / rows.std(0), w).sin(), _scaled(x - x.mean(0), scale).sum(0)

    def otherwise(gm, example_inputs):
        return lambda *inputs: [y.flip(0) if y is not None and y.abs().amax() < 1e-3 else y for y in gm(*inputs)]

    torch.manual_seed(0)
    x, (bias, w, scale) = torch.randn(200, 64), (torch.randn(64, requires_grad=True) for _ in range(3))
    report = aotkit.check(normalised, x, bias, w, scale, backend=aotkit.Backend(compile_graph, otherwise))
    assert report.passed, report


def test_a_gradient_that_is_larger_than_rounding_is_no_noise():
    def shifted(gm, example_inputs):
        return lambda *inputs: [None if y is None else y + 0.1 * y.abs().amax() for y in gm(*inputs)]

    x, bias, w = (torch.randn(*shape).bfloat16().requires_grad_() for shape in ((200, 64), (64,), (64,)))
    found = refused(attention, x, bias, w, backend=aotkit.Backend(compile_graph, shifted))
    assert {"gradient of x", "gradient of w"} <= found.keys()


@pytest.mark.parametrize("size", [0.01, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_drawn_outside_of_the_generators(size, dtype):
    """They are as different in float64 as in any type, which rounding is not."""

    @torch.library.custom_op(f"aotkit_tests::drawn_{str(dtype)[6:]}_{size * 100:.0f}", mutates_args=())
    def drawn(x: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(next(RUNS))
        return x * (1 + size * torch.randn(x.shape, generator=generator).to(x))

    drawn.register_fake(torch.empty_like)
    found = refused(lambda x: drawn(x), torch.randn(100, dtype=dtype), backend="nop")
    assert "eager itself gives something else each time" in found["output 0"]


# What is no value.


def test_memory_that_nobody_wrote():
    """What is in it is another number in each run."""
    runs = itertools.count(1)

    @torch.library.custom_op("aotkit_tests::taken", mutates_args=())
    def taken(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def partly(x):
        y = torch.empty(4, len(x))
        y[0] = x
        return y

    def used_before(gm, example_inputs):
        def run(*inputs):
            (y,) = gm(*inputs)
            y[1:] = float(next(runs)) if next(runs) % 2 else float("nan")
            return [y]

        return run

    assert aotkit.check(partly, torch.randn(8), backend=used_before).passed
    wrong = refused(partly, torch.randn(8), backend=lambda gm, i: lambda *x: [gm(*x)[0].neg()])
    assert "output 0" in wrong


def test_types_that_a_captured_graph_names():
    """TorchDynamo writes down the type that a module's weight has: float64 is not that."""
    model = nn.Linear(8, 4)

    def f(x):
        bias = (x.to(model.weight.dtype) @ model.weight.t()).softmax(0).sum(0) * 1e4
        return bias - 1e4

    slightly = aotkit.Backend(lambda gm, inputs: lambda *x: [y.flip(0).flip(0) + 2e-3 for y in gm(*x)], compile_graph)
    compiled = aotkit.compile(f, backend=slightly, capture="dynamo")
    with torch.no_grad():
        assert compiled.report(torch.randn(512, 8)).passed


def test_whole_numbers_that_rounding_decides():
    """The place of the largest of numbers that differ by rounding only."""

    def f(x, w):
        return (x * 3 @ w).argmax(1)

    def other_order(gm, example_inputs):
        for node in gm.graph.find_nodes(op="call_function", target=aten.mm.default):
            node.target = lambda a, b: (a.flip(1)[..., None] * b.flip(0)).sum(1)
        gm.recompile()
        return compile_graph(gm, example_inputs)

    column = torch.rand(300, 1)
    w = column.expand(300, 5) + 0.0
    assert aotkit.check(f, torch.rand(64, 300), w, backend=other_order).passed
    later = aotkit.Backend(lambda gm, inputs: lambda *x: [(gm(*x)[0] + 1) % 5])
    assert refused(f, torch.rand(64, 300), torch.rand(300, 5), backend=later)


# Time.


def in_doubt(gm, example_inputs):
    """Farther off than what is allowed without a look at float64."""
    return lambda *inputs: [None if y is None else y * (1 + 3e-4) for y in gm(*inputs)]


def test_without_time_what_is_in_doubt_stays_undecided(monkeypatch):
    monkeypatch.setattr(checker, "STEPS", 0)
    monkeypatch.setattr(checker, "SECONDS", 0.0)
    with pytest.warns(aotkit.UndecidedWarning, match="undecided: differs by up to"):
        report = aotkit.check(torch.sin, leaf(50), backend=in_doubt)
    assert report.passed
    assert report.undecided
    assert not report.repeated
    assert "may equal eager" in str(report)
    assert not aotkit.check(torch.sin, leaf(50), backend="nop").undecided
    found = refused(torch.sin, torch.randn(3, 3), backend=lambda gm, i: lambda *x: [gm(*x)[0].t().contiguous().t()])
    assert "has strides" in found["output 0"]


def test_without_memory_for_float64_what_is_in_doubt_stays_undecided():
    """A GPU's attention kernels take little memory; in float64 there are none, and it is computed in parts."""

    def f(x):
        if x.dtype is torch.float64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x.sin()

    with pytest.warns(aotkit.UndecidedWarning, match="no memory, to find out"):
        assert aotkit.check(f, leaf(50), backend=in_doubt).undecided


def test_with_time_it_is_decided():
    assert refused(torch.sin, leaf(50), backend=in_doubt)


@pytest.mark.parametrize("runs", [1, 2, 5])
def test_fewer_runs_raise_no_alarm(runs, monkeypatch):
    """What has not changed within a few runs may yet be rounding; what is far off is not."""
    references = aotkit.checking.references
    monkeypatch.setattr(aotkit.checking.Budget, "is_used_up", property(lambda self: len(nudged) >= runs))
    nudged = []
    arithmetic = references.StochasticArithmetic
    monkeypatch.setattr(references, "StochasticArithmetic", lambda *args: nudged.append(1) or arithmetic(*args))

    def round_up(gm, example_inputs):
        for node in gm.graph.find_nodes(op="call_function", target=aten.round.default):
            node.target = lambda x: (x + 0.5).floor()
        gm.recompile()
        return compile_graph(gm, example_inputs)

    with pytest.MonkeyPatch.context() as quiet:
        quiet.setattr(checker, "warn_user", lambda *args: None)
        assert aotkit.check(lambda x: (x / 3 * 3).round(), torch.arange(512.0) + 0.5, backend=round_up).passed
    nudged.clear()
    assert refused(torch.sin, torch.randn(50), backend=lambda gm, i: lambda *x: [-y for y in gm(*x)])


def test_what_is_far_off_is_wrong_where_there_was_time_for_float64_alone(monkeypatch):
    """Of a large network, the gradients: 33,000 times too small."""
    references = aotkit.checking.references
    monkeypatch.setattr(aotkit.checking.Budget, "is_used_up", property(lambda self: bool(ran)))
    ran = []
    widened = references.Widened
    monkeypatch.setattr(references, "Widened", lambda: ran.append(1) or widened())

    def tiny(gm, example_inputs):
        return lambda *inputs: [y / 33000 for y in gm(*inputs)]

    wrong = refused(torch.sin, torch.randn(50), backend=tiny)
    assert "output 0" in wrong


# Float16 without a scaled loss.


class Scaled(nn.Module):
    """A block of an EfficientFormer."""

    def __init__(self, width):
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(width, 4 * width, 1), nn.BatchNorm2d(4 * width), nn.GELU())
        self.narrow = nn.Sequential(nn.Conv2d(4 * width, width, 1), nn.BatchNorm2d(width))
        self.scales = nn.ParameterList([nn.Parameter(torch.full((width, 1, 1), 1e-5)) for _ in range(2)])

    def forward(self, x):
        x = x + self.scales[0] * (F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x)
        return x + self.scales[1] * self.narrow(self.wide(x))


class Faint(nn.Module):
    """What a layer scale of 1e-5 leaves of a gradient, float16 can hardly hold."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU())
        self.more = nn.Sequential(nn.Conv2d(24, 48, 3, 2, 1), nn.BatchNorm2d(48), nn.ReLU())
        self.blocks = nn.Sequential(Scaled(48), Scaled(48))
        self.head = nn.Linear(48, 10)

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.blocks(self.more(self.stem(x))).mean((2, 3))).float(), y)


@pytest.mark.sweep
def test_gradients_too_small_for_float16():
    """Eager gives zeros, or the sum of what was rounded alike at each pixel; so does Inductor, of other pixels."""
    torch.manual_seed(0)
    net, x, y = Faint().half(), torch.randn(4, 3, 32, 32).half(), torch.randint(0, 10, (4,))
    aotkit.check(lambda x: 16 * net(x, y), x, backend="inductor", partition="min_cut")


def test_no_alarm_is_raised_of_noise_where_there_was_time_for_float64_alone(monkeypatch):
    """A sum that is zero in float64 and, by chance, in eager."""
    references = aotkit.checking.references
    monkeypatch.setattr(aotkit.checking.Budget, "is_used_up", property(lambda self: bool(ran)))
    monkeypatch.setattr(checker, "warn_user", lambda *args: None)
    ran = []
    widened = references.Widened
    monkeypatch.setattr(references, "Widened", lambda: ran.append(1) or widened())

    def noisy(gm, example_inputs):
        return lambda *inputs: [y + 1e-6 if y.dim() == 0 else y for y in gm(*inputs)]

    def f(x):
        return x, (x - x).sum()

    assert aotkit.check(f, torch.randn(50).half() * 10, backend=noisy).passed


class HalfAsMuch(Interpreter):
    def call_function(self, target, args, kwargs):
        found = super().call_function(target, args, kwargs)
        return (*(found[:1]), found[1] / 2, *found[2:]) if target is aten.convolution_backward.default else found


@pytest.mark.sweep
def test_a_wrong_gradient_in_float16_is_wrong_though_others_are_too_small():
    net, y = Faint().half(), torch.randint(0, 10, (4,))
    wrong = refused(
        *(lambda x: 16 * net(x, y), torch.randn(4, 3, 32, 32).half()),
        backend=lambda gm, example_inputs: lambda *inputs: HalfAsMuch(gm).run(*inputs),
    )
    assert "gradient of net.stem.0.weight" in wrong
