"""Compiled modules behave as the module itself: state, hooks, copies, optimisers, wrappers; and other callables."""

import copy
import functools
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import aotkit
from tests.agreement import Tripling, agrees, compare


class Net(nn.Module):
    """Parameters, a buffer, submodules, lists of tensors and plain attributes."""

    def __init__(self, width=4):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("steps", torch.zeros(()))
        self.scales = [torch.full((width,), 2.0), torch.full((width,), 3.0)]
        self.slope = 0.1

    def forward(self, x, *, scale=1.0):
        x = self.first(x) * scale
        for block, factor in zip(self.blocks, self.scales, strict=True):
            x = nn.functional.leaky_relu(block(x) * factor, self.slope)
        if self.training:
            self.steps.add_(1)
        return x * self.gain

    def helper(self):
        return self.slope * 2

    @property
    def width(self):
        return self.gain.shape[0]


def gradients(m):
    return {name: p.grad for name, p in m.named_parameters()}


def test_a_compiled_module_looks_like_the_module():
    m = Net()
    c = aotkit.compile(m, backend="nop")
    assert isinstance(c, Net)
    assert list(c.state_dict()) == list(m.state_dict())
    assert [id(p) for p in c.parameters()] == [id(p) for p in m.parameters()]
    assert [name for name, _ in c.named_modules()] == [name for name, _ in m.named_modules()]
    assert [name for name, _ in c.named_buffers()] == ["steps"]
    assert c.first is m.first
    assert c.helper() == m.helper()
    assert c.width == 4
    assert "Net" in repr(c)
    assert repr(c).split("\n", 1)[1] == repr(m).split("\n", 1)[1]
    c.slope = 0.5
    assert m.slope == 0.5
    assert c.eval() is c
    assert not m.training
    assert not m.first.training
    with pytest.raises(AttributeError):
        _ = c.missing
    assert c.__wrapped__(torch.ones(1, 3)).shape == (1, 4)


@agrees(graphs=4)
def test_changes_of_a_module_between_calls(compile):
    m = compile(Net())
    x = torch.randn(2, 3)
    for change in (lambda: None, m.eval, m.train, lambda: m.blocks.eval(), lambda: setattr(m, "slope", 0.3)):
        change()
        yield m(x), m.steps
    m.scales[0] = torch.zeros(4)
    yield m(x)
    m.load_state_dict({k: torch.ones_like(v) for k, v in m.state_dict().items()})
    yield m(x), m(x), m.state_dict()


@agrees
def test_frozen_unfrozen_and_replaced_parameters(compile):
    m = compile(Net())
    x = torch.randn(2, 3)

    def step():
        m.zero_grad()
        out = m(x)
        if out.requires_grad:
            out.sum().backward()
        return out, gradients(m)

    yield step()
    m.first.requires_grad_(False)
    yield step()
    m.first.weight.requires_grad_(True)
    yield step()
    m.first.weight = nn.Parameter(torch.randn(4, 3))
    yield step()
    m.first.bias = None
    yield step()
    m.first = nn.Linear(3, 4, dtype=torch.float32)
    yield step()
    m.blocks.append(nn.Identity())
    yield lambda: m(x)
    m.scales.append(torch.full((4,), 5.0))
    yield step()
    m.requires_grad_(False)
    yield step()
    del m.first
    yield lambda: m(x)


@agrees
def test_hooks_in_every_place(compile):
    m = Net()
    m.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    m.blocks[0].register_forward_hook(lambda m, args, out: out + 1)
    c = compile(m)
    x = torch.randn(2, 3)
    yield c(x)
    handles = [
        c.register_forward_hook(lambda m, args, out: out * 3),
        c.blocks[1].register_forward_pre_hook(lambda m, args: (args[0] - 1,)),
        c.register_forward_hook(lambda m, args, kwargs, out: out * kwargs["scale"], with_kwargs=True),
    ]
    yield c(x, scale=2.0), c(x, scale=3.0)
    for handle in handles:
        handle.remove()
    yield c(x)
    c.register_full_backward_hook(lambda m, grad_input, grad_output: None)
    x = torch.randn(2, 3, requires_grad=True)
    c(x).sum().backward()
    yield x.grad, gradients(c)


@agrees(eager=None)
def test_backward_hooks_inside(compile):
    m = compile(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    m[0].register_full_backward_hook(lambda m, grad_input, grad_output: (grad_input[0] * 5,))
    x = torch.randn(2, 3, requires_grad=True)
    m(x).sum().backward()
    yield x.grad


@agrees
def test_hooks_on_parameters(compile):
    m = compile(nn.Linear(3, 3))
    seen = []
    m.weight.register_hook(lambda g: g * 10)
    m.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    for _ in range(2):
        m(torch.ones(2, 3)).sum().backward()
        yield gradients(m), list(seen)


def test_copies_are_independent():
    c = aotkit.compile(Net(), backend="nop")
    x = torch.randn(2, 3)
    before = c(x)
    other = copy.deepcopy(c)
    assert type(other).__name__ == type(c).__name__
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert torch.equal(c(x), before)
    assert not other(x).any()
    other(x).sum().backward()
    assert c.gain.grad is None
    assert other.gain.grad is not None
    shallow = copy.copy(c)
    assert torch.equal(shallow(x), before)


def test_pickle_and_save():
    c = aotkit.compile(Net(), backend="nop")
    x = torch.randn(2, 3)
    want = c(x)
    assert torch.equal(pickle.loads(pickle.dumps(c))(x), want)
    file = io.BytesIO()
    torch.save(c.state_dict(), file)
    file.seek(0)
    fresh = Net()
    fresh.load_state_dict(torch.load(file))
    assert torch.equal(aotkit.compile(fresh, backend="nop")(x), want)
    file = io.BytesIO()
    torch.save(c, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), want)


@agrees
def test_dtype_of_a_module(compile):
    m = compile(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        m.to(dtype)
        x = torch.randn(4, 3, dtype=dtype, requires_grad=True)
        m.zero_grad()
        y = m(x)
        y.sum().backward()
        yield y, x.grad, gradients(m)


OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9),
    "adamw": lambda ps: torch.optim.AdamW(ps, 0.01),
    "lbfgs": lambda ps: torch.optim.LBFGS(ps, 0.1, max_iter=3),
}


@pytest.mark.thinned
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
@agrees(graphs=1)
def test_optimiser_loop(compile, name, set_to_none):
    m = compile(Net())
    optimizer = OPTIMIZERS[name](m.parameters())
    x, y = torch.randn(8, 3), torch.randn(8, 4)

    def closure():
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = (m(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(4):
        yield optimizer.step(closure)
    yield dict(m.named_parameters()), dict(m.named_buffers())


@agrees
def test_gradient_accumulation_clipping_and_scaling(compile):
    m = compile(Net())
    optimizer = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(2):
        for _ in range(3):
            (m(torch.randn(2, 3)).square().mean() / 3).backward()
        yield nn.utils.clip_grad_norm_(m.parameters(), 0.5), gradients(m)
        optimizer.step()
        m.zero_grad()
    yield dict(m.named_parameters())


@agrees
def test_averaged_weights(compile):
    m = compile(nn.Linear(3, 3))
    average = torch.optim.swa_utils.AveragedModel(m)
    for _ in range(2):
        with torch.no_grad():
            m.weight.mul_(2)
        average.update_parameters(m)
        yield average(torch.ones(1, 3)), m(torch.ones(1, 3))


PARAMETRIZATIONS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "old weight_norm": nn.utils.weight_norm,
    "old spectral_norm": nn.utils.spectral_norm,
}


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", PARAMETRIZATIONS)
@agrees(eager=None, exact=False)
def test_parametrization(compile, name, when):
    m = nn.Linear(3, 3)
    if when == "before":
        PARAMETRIZATIONS[name](m)
        m = compile(m)
    else:
        m = compile(m)
        yield m(torch.ones(2, 3))
        PARAMETRIZATIONS[name](m)
    for mode in (True, True, False):
        m.train(mode)
        x = torch.randn(2, 3)
        m.zero_grad()
        y = m(x)
        y.square().sum().backward()
        yield y, gradients(m), dict(m.named_buffers())


@pytest.mark.filterwarnings("ignore::aotkit.errors.EagerCallWarning")
@agrees(eager=None)
def test_cached_parametrization(compile):
    m = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)))
    c = compile(m)
    x = torch.randn(2, 3)
    with parametrize.cached():
        inside = c(x), c(x), m(x), type(m[0].weight)
    yield inside
    yield c(x), m(x)


@agrees
def test_pruning(compile):
    from torch.nn.utils import prune

    m = compile(nn.Linear(4, 4))
    x = torch.randn(2, 4)
    yield m(x)
    prune.l1_unstructured(m, "weight", 0.5)
    m(x).sum().backward()
    yield m(x), gradients(m)
    prune.remove(m, "weight")
    yield m(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x).tanh())


@agrees
def test_tied_weights(compile):
    m = compile(Tied())
    x = torch.tensor([0, 3, 3])
    for tied in (True, False, True):
        m.head.weight = m.embed.weight if tied else nn.Parameter(m.embed.weight.detach().clone())
        m.zero_grad()
        y = m(x)
        y.square().sum().backward()
        yield y, gradients(m)


@agrees
def test_two_compiled_modules_share_a_submodule(compile):
    body = nn.Linear(3, 3)
    a, b = compile(nn.Sequential(body, nn.Tanh())), compile(nn.Sequential(body, nn.Sigmoid()))
    optimizer = torch.optim.SGD(body.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        x = torch.randn(2, 3)
        (a(x).sum() + b(x).sum()).backward()
        optimizer.step()
        yield a(x), b(x), gradients(body)
    body.weight = nn.Parameter(torch.ones(3, 3))
    yield a(x), b(x)


@agrees
def test_compiled_submodule_in_a_plain_model(compile):
    inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    model = nn.Sequential(nn.Linear(3, 3), compile(inner), nn.Linear(3, 1))
    yield list(model.state_dict())
    for mode in (True, False):
        model.train(mode)
        x = torch.randn(4, 3)
        model.zero_grad()
        model(x).sum().backward()
        yield model(x), gradients(model)
    other = copy.deepcopy(model)
    yield other(x), [type(m).__name__.removeprefix("Compiled") for m in other]


@pytest.mark.filterwarnings("ignore:.* is not initialised yet:aotkit.errors.EagerCallWarning")
@agrees
def test_lazy_submodule(compile):
    m = compile(nn.Sequential(nn.LazyLinear(4), nn.ReLU()))
    x = torch.randn(2, 3)
    for _ in range(3):
        m.zero_grad()
        m(x).sum().backward()
        yield m(x), gradients(m)


class Scaled(nn.Parameter):
    """As those of manifolds: with attributes, and methods of its own."""

    def __new__(cls, data, scale):
        parameter = torch.Tensor._make_subclass(cls, data, True)
        parameter.scale = scale
        return parameter

    def scaled(self):
        return self * self.scale


class TriplingScaled(Tripling, Scaled):
    pass


@pytest.mark.filterwarnings("ignore:.* a TriplingScaled, a tensor subclass:aotkit.errors.EagerCallWarning")
@pytest.mark.parametrize(("kind", "backend"), [(Scaled, "inductor"), (TriplingScaled, "nop")])
def test_parameters_of_a_subclass(kind, backend):
    """What overrides operators runs eagerly."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = kind(torch.randn(3, 3), 2.0)

        def forward(self, x):
            return torch.matmul(x, self.weight).sin() + self.weight.scaled()

    eager, layer = Layer(), Layer()
    layer.load_state_dict(eager.state_dict())
    compiled = aotkit.compile(layer, backend=backend, strict=kind is Scaled)
    for scale in (2.0, 0.5):
        eager.weight.scale = layer.weight.scale = scale
        x = torch.randn(3, 3)
        want, got = eager(x), compiled(x)
        torch.testing.assert_close(got, want)
        for module, loss in ((eager, want), (layer, got)):
            module.zero_grad()
            loss.square().sum().backward()
        torch.testing.assert_close(layer.weight.grad, eager.weight.grad)
    assert type(layer.weight) is kind


def test_cumulative_batch_norm_is_an_error_that_says_what_to_do():
    m = aotkit.compile(nn.BatchNorm1d(3, momentum=None), backend="nop", capture="aot")
    with pytest.raises(aotkit.TraceError, match="dynamo"):
        m(torch.randn(4, 3))
    assert m.num_batches_tracked == 0


def test_lazy_root_is_refused():
    m = nn.LazyLinear(3)
    with pytest.raises(ValueError, match="Call it once"):
        aotkit.compile(m)
    m(torch.ones(2, 3))
    assert aotkit.compile(m, backend="nop")(torch.ones(2, 3)).shape == (2, 3)


LAYERS = {
    "lstm with state": (lambda: nn.LSTM(3, 4), lambda: (torch.randn(3, 2, 3), (torch.randn(1, 2, 4),) * 2)),
    "rnn": (lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False), lambda: (torch.randn(3, 2, 3),)),
    "rnn dropout": (lambda: nn.RNN(3, 4, 3, dropout=0.5), lambda: (torch.randn(3, 2, 3),)),
    "gru dropout": (lambda: nn.GRU(3, 4, 2, dropout=0.5, batch_first=True), lambda: (torch.randn(2, 3, 3),)),
    "lstm dropout": (lambda: nn.LSTM(3, 4, 2, dropout=0.5, bidirectional=True), lambda: (torch.randn(3, 2, 3),)),
    "lstm cell": (lambda: nn.LSTMCell(3, 4), lambda: (torch.randn(2, 3),)),
    "attention": (lambda: nn.MultiheadAttention(4, 2), lambda: (torch.randn(5, 2, 4),) * 3),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), lambda: (torch.randn(2, 5, 4),)),
    "batch norm": (lambda: nn.BatchNorm2d(3), lambda: (torch.randn(2, 3, 4, 4),)),
    "instance norm": (lambda: nn.InstanceNorm1d(3, affine=True), lambda: (torch.randn(2, 3, 4),)),
    "embedding": (lambda: nn.Embedding(5, 3, padding_idx=0), lambda: (torch.randint(0, 5, (4,)),)),
    "embedding bag": (lambda: nn.EmbeddingBag(5, 3, mode="mean"), lambda: (torch.randint(0, 5, (4, 2)),)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3, padding="same"), lambda: (torch.randn(2, 3, 5, 5),)),
    "group norm": (lambda: nn.GroupNorm(2, 4), lambda: (torch.randn(2, 4, 3),)),
}


@pytest.mark.thinned
@pytest.mark.parametrize("name", LAYERS)
@agrees(exact=False, capture="aot")
def test_layer(compile, name, order):
    make, inputs = LAYERS[name]
    m = compile(make())
    for mode in (True, False)[::order]:
        m.train(mode)
        with torch.set_grad_enabled(mode):
            out = m(*inputs())
        yield out
        if mode:
            m.zero_grad()
            torch.utils._pytree.tree_leaves(out)[0].sum().backward()
        yield gradients(m), dict(m.named_buffers())


@pytest.mark.parametrize("when", ["before", "after"])
@agrees(eager=None)
def test_forward_in_the_instance(compile, when):
    m = nn.Linear(3, 3)
    original = m.forward

    def patched(x):
        return original(x) * 100

    if when == "before":
        m.forward = patched
    c = compile(m)
    x = torch.randn(2, 3)
    yield c(x)
    m.forward = patched
    yield c(x), m(x)


def doubled(forward):
    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):
        return forward(self, *args, **kwargs) * self.factor

    return wrapper


class Decorated(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.linear = nn.Linear(3, 3)

    @doubled
    def forward(self, x):
        return self.linear(x) * self.shift()

    def shift(self):
        return 1.0


class Shifted(Decorated):
    def forward(self, x):
        return super().forward(x) + 1

    def shift(self):
        return 2.0


@agrees
def test_decorated_and_inherited_forward(compile):
    for m in (Decorated(2.0), Decorated(3.0), Shifted(4.0)):
        c = compile(m)
        x = torch.randn(2, 3)
        yield c(x)
        m.factor = 10.0
        yield c(x)
        c(x).sum().backward()
        yield gradients(c)


class AsMethod(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.factor = factor

    @aotkit.compile(backend="nop")
    def forward(self, x, scale=1.0):
        return self.linear(x) * self.factor * scale


def test_forward_decorated_in_the_class():
    a, b = AsMethod(2.0), AsMethod(3.0)
    x = torch.randn(2, 3)
    for _ in range(2):
        for m in (a, b):
            want = m.linear(x) * m.factor
            got = m(x)
            assert torch.equal(got, want)
            assert torch.equal(m(x, scale=2.0), want * 2)
            m.zero_grad()
            got.sum().backward()
            grad = m.linear.weight.grad
            m.zero_grad()
            want.sum().backward()
            assert torch.equal(grad, m.linear.weight.grad)
        a.factor, b.factor = b.factor, a.factor
    other = copy.deepcopy(a)
    nn.init.zeros_(other.linear.weight)
    assert torch.equal(a(x), a.linear(x) * a.factor)
    assert torch.equal(other(x), other.linear(x) * other.factor)


class Scaler:
    factor = 1.0

    def __init__(self, factor, weight):
        self.factor, self.weight = factor, weight

    @aotkit.compile(backend="nop")
    def scale(self, x):
        return x * self.factor * self.weight

    @staticmethod
    @aotkit.compile(backend="nop")
    def twice(x):
        return x * 2

    @classmethod
    @aotkit.compile(backend="nop")
    def by_class(cls, x):
        return x * cls.factor

    def __call__(self, x):
        return x * self.factor + self.weight


class Special(Scaler):
    factor = 5.0


def test_decorated_methods():
    x = torch.ones(3)
    a, b = Scaler(2.0, torch.full((3,), 3.0)), Special(4.0, torch.full((3,), 5.0))
    for _ in range(2):
        assert torch.equal(a.scale(x), x * 6)
        assert torch.equal(b.scale(x), x * 20)
    a.factor, b.weight = 10.0, torch.zeros(3)
    assert torch.equal(a.scale(x), x * 30)
    assert torch.equal(b.scale(x), x * 0)
    assert torch.equal(Scaler.scale(a, x), x * 30)
    assert torch.equal(Scaler.twice(x), a.twice(x))
    assert torch.equal(Scaler.by_class(x), x)
    assert torch.equal(Special.by_class(x), x * 5)
    try:
        Scaler.factor = 7.0
        assert torch.equal(Scaler.by_class(x), x * 7)
    finally:
        Scaler.factor = 1.0


@pytest.mark.parametrize("capture", ["auto", "aot"])
@pytest.mark.filterwarnings("ignore::aotkit.EagerCallWarning")
def test_a_compiled_method_that_a_function_finds_is_that_of_its_instance(capture):
    x = torch.ones(3)
    a, b = Scaler(2.0, torch.full((3,), 3.0)), Scaler(4.0, torch.full((3,), 5.0))
    found = a.scale
    f = aotkit.compile(lambda x: found(x) + 1, backend="nop", capture=capture)
    assert torch.equal(f(x), x * 7)
    a.weight = torch.zeros(3)
    assert torch.equal(f(x), x * 1)
    found = b.scale
    assert torch.equal(f(x), x * 21)


def times(x, k, *, plus=0.0):
    return x * k + plus


@agrees
def test_other_callables(compile):
    x = torch.linspace(-1, 1, 4)
    scaler = Scaler(2.0, torch.ones(4))
    f = compile(scaler)
    yield f(x)
    scaler.factor, scaler.weight = 3.0, torch.zeros(4)
    yield f(x)
    yield compile(functools.partial(times, k=2.0))(x), compile(functools.partial(times, k=2.0))(x, plus=1.0)
    part = compile(functools.partial(times, plus=scaler.weight))
    yield part(x, 2.0), part(x, 3.0), part(x, k=x)
    for fn in (torch.sin, torch.Tensor.cos, abs, torch.relu, nn.functional.silu, torch.ops.aten.exp.default):
        yield compile(fn)(x)
    yield compile(torch.add)(x, x, alpha=2), compile(sum)([x, x * 2]), compile(lambda: x * 2)()
    yield compile(scaler.__call__)(x)


@agrees(eager=None)
def test_function_that_calls_a_compiled_module_in_training(compile):
    m = compile(Net())
    loss = compile(lambda x, y: (m(x) - y).square().mean())
    x, y = torch.randn(4, 3), torch.randn(4, 4)
    for _ in range(2):
        m.zero_grad()
        out = loss(x, y)
        out.backward()
        yield out, gradients(m), m.steps


@pytest.mark.parametrize("check", [True, False])
def test_training_with_inductor(check):
    def scenario(compile):
        m = compile(nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2)))
        optimizer = torch.optim.AdamW(m.parameters(), 0.01)
        for mode in (True, True, False):
            m.train(mode)
            x, y = torch.randn(6, 4), torch.randn(6, 2)
            optimizer.zero_grad()
            loss = (m(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            yield loss, gradients(m), dict(m.named_buffers())

    compare(scenario, check, backend="inductor", exact=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:

        def scenario(compile):
            m = nn.parallel.DistributedDataParallel(compile(Net()))
            optimizer = torch.optim.SGD(m.parameters(), 0.1)
            for _ in range(3):
                optimizer.zero_grad()
                m(torch.randn(4, 3)).sum().backward()
                optimizer.step()
                yield gradients(m), dict(m.named_parameters())

        compare(scenario)
    finally:
        torch.distributed.destroy_process_group()
