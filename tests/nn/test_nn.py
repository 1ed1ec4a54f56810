"""The fused modules compute what the unfused ones of torch.nn do, forward and backward, and are used as those are."""

import copy
import itertools
import pickle
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import aotkit
from aotkit.backends.nop import compile_graph
from aotkit.nn import MLP, FusedBiasActivationDropout, FusedBiasDropoutRes, FusedBiasDropoutResLayerNorm

ACTIVATIONS = {
    None: nn.Identity(),
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "leaky_relu": nn.LeakyReLU(),
    "squared_relu": lambda x: nn.ReLU()(x) ** 2,
    # With beta = 2, from its definition.
    "smelu": lambda x: torch.where(x >= 2, x, torch.where(x <= -2, torch.zeros_like(x), (x + 2) ** 2 / 8)),
}
RES, PRE, POST = "residual", "pre", "post"
PATTERNS = [*ACTIVATIONS, RES, PRE, POST]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
XFORMERS_SHAPES = [
    (384, 512), (8, 384, 128), (8, 784, 512), (4, 16, 384), (4, 16, 1024), (2, 16, 2048), (2, 16, 4096), (1, 16, 12288),
]  # fmt: skip


def fused(pattern, p, width, bias=True, **options):
    """With random parameters."""
    options = {"backend": "nop", **options}
    bias_shape = width if bias else None
    if pattern == RES:
        module = FusedBiasDropoutRes(p, bias_shape, **options)
    elif pattern in (PRE, POST):
        module = FusedBiasDropoutResLayerNorm(p, width, bias_shape, pattern, **options)
    else:
        module = FusedBiasActivationDropout(p, pattern, bias_shape, **options)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def unfused(pattern, module, x, residual, kept):
    """In the precision of the parameters; `kept` is what dropout multiplies by."""
    y = x if module.bias is None else x + module.bias
    y = ACTIVATIONS.get(pattern, nn.Identity())(y) * kept
    if pattern in (PRE, POST):
        return module.norm(y) + residual if pattern == PRE else module.norm(y + residual)
    return y + residual if pattern == RES else y


def kept_by(p, x):
    """What dropout multiplies by after `manual_seed(0)`, which is the same for all patterns."""
    torch.manual_seed(0)
    return FusedBiasActivationDropout(p, backend="nop")(torch.ones_like(x))


def results(run, module, inputs, cotangent):
    """The output, and the gradients of inputs and parameters."""
    leaves = [*inputs, *module.parameters()]
    output = run(*inputs)
    return [output, *torch.autograd.grad(output, leaves, cotangent)]


def assert_equals_unfused(pattern, module, x, residual):
    """Against float64, up to rounding: relative to each element, or to the largest."""
    cotangent = torch.randn_like(x)
    kept = kept_by(module.p, x).double()
    inputs = [t.clone().requires_grad_() for t in ([x, residual] if module.requires_residual else [x])]
    torch.manual_seed(0)
    found = results(module, module, inputs, cotangent)
    exact = copy.deepcopy(module).double()
    doubles = [t.detach().double().requires_grad_() for t in inputs]
    expected = results(
        lambda x, residual=None: unfused(pattern, exact, x, residual, kept), exact, doubles, cotangent.double()
    )
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == x.dtype
        tolerance = TOLERANCES[x.dtype]
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance * float(b.detach().abs().max()))


@pytest.mark.thinned
@pytest.mark.parametrize(("p", "bias"), [(0.0, False), (0.1, True)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_output_and_all_gradients_are_those_of_the_unfused_modules(pattern, p, bias, device):
    module = fused(pattern, p, 33, bias).to(device)
    assert_equals_unfused(pattern, module, torch.randn(5, 7, 33, device=device), torch.randn(5, 7, 33, device=device))


def test_compiled_by_what_is_chosen_for_the_device(device):
    module = fused(POST, 0.5, 48, backend="auto").to(device)
    assert_equals_unfused(POST, module, torch.randn(3, 7, 48, device=device), torch.randn(3, 7, 48, device=device))
    assert "auto" in repr(module._function)


@pytest.mark.sweep
@pytest.mark.parametrize("shape", XFORMERS_SHAPES, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_grid_of_xformers(pattern, shape, device):
    """With all gradients, which theirs left out."""
    for p, bias, dtype in itertools.product((0.0, 0.1, 0.5), (False, True), (torch.float32, torch.bfloat16)):
        module = fused(pattern, p, shape[-1], bias, backend="auto").to(device, dtype)
        x, residual = torch.randn(2, *shape, dtype=dtype, device=device)
        assert_equals_unfused(pattern, module, x, residual)


@pytest.mark.parametrize("shape", [(33,), (2, 3, 4, 33)], ids=str)
def test_any_shape(shape):
    assert_equals_unfused(PRE, fused(PRE, 0.1, 33), *torch.randn(2, *shape))


def test_an_empty_batch():
    module, x = fused(POST, 0.1, 8), torch.randn(0, 8, requires_grad=True)
    output = module(x, x)
    output.sum().backward()
    assert output.shape == x.grad.shape == (0, 8)
    assert not module.bias.grad.any()


def test_not_contiguous():
    x, residual = torch.randn(33, 6, 4).transpose(0, 2), torch.randn(6, 4, 66)[:, :, ::2].transpose(0, 1)
    assert_equals_unfused(POST, fused(POST, 0.1, 33), x, residual)


@pytest.mark.parametrize(("pattern", "dtype"), [("squared_relu", torch.float16), (PRE, torch.bfloat16)], ids=str)
def test_half_precision(pattern, dtype):
    x, residual = torch.randn(2, 6, 32, dtype=dtype)
    assert_equals_unfused(pattern, fused(pattern, 0.1, 32).to(dtype), x, residual)


@pytest.mark.parametrize("pattern", [RES, POST])
def test_the_residual_may_be_x_itself(pattern):
    module, x = fused(pattern, 0.1, 16), torch.randn(5, 16, requires_grad=True)
    cotangent, kept = torch.randn(5, 16), kept_by(0.1, x)
    torch.manual_seed(0)
    found = results(lambda x: module(x, x), module, [x], cotangent)
    expected = results(lambda x: unfused(pattern, module, x, x, kept), module, [x], cotangent)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout(p):
    module, x = FusedBiasActivationDropout(p, backend="nop"), torch.ones(400, 500, requires_grad=True)
    torch.manual_seed(1)
    first, second = module(x), module(x)
    torch.manual_seed(1)
    assert torch.equal(module(x), first)
    dropped = first == 0
    assert torch.equal(first, ~dropped / (1 - p))
    # Five standard deviations of the share of 200 000 elements.
    tolerance = 5 * (p * (1 - p) / x.numel()) ** 0.5
    assert abs(float(dropped.float().mean()) - p) < tolerance
    assert not torch.equal(first, second)
    assert len(dropped.unique(dim=0)) == len(dropped)
    assert dropped.unique(dim=1).shape == dropped.shape
    cotangent = torch.randn_like(x)
    (gradient,) = torch.autograd.grad(first, x, cotangent)
    torch.testing.assert_close(gradient, cotangent * ~dropped / (1 - p))


@pytest.mark.parametrize("pattern", ["relu", POST])
def test_in_eval_mode_nothing_is_dropped_nor_drawn(pattern):
    module, x = fused(pattern, 0.5, 32), torch.randn(8, 32)
    arguments = [x, x] if module.requires_residual else [x]
    torch.manual_seed(0)
    expected = unfused(pattern, module, x, x, 1.0)
    state = torch.get_rng_state()
    for _ in range(2):
        torch.testing.assert_close(module.eval()(*arguments), expected)
        assert torch.equal(torch.get_rng_state(), state)
        assert not torch.equal(module.train()(*arguments), expected)
        torch.set_rng_state(state)


def test_p_may_change():
    module = FusedBiasActivationDropout(0.1, backend="nop")
    x = torch.ones(100, 100)
    module(x)
    module.p = 0.9
    assert abs(float((module(x) == 0).float().mean()) - 0.9) < 0.02
    module.p = 0.0
    assert torch.equal(module(x), x)


def test_layers_and_copies_of_them_share_what_is_compiled():
    compiled = []

    def counting(gm, example_inputs):
        compiled.append(gm)
        return compile_graph(gm, example_inputs)

    backend = aotkit.Backend(counting, decompositions={})

    def layer():
        return FusedBiasDropoutResLayerNorm(0.1, 16, 16, backend=backend)

    x = torch.randn(4, 16, requires_grad=True)
    layer()(x, x).sum().backward()
    count = len(compiled)
    assert count > 0
    for other in [layer(), copy.deepcopy(layer()), copy.copy(layer()), copy.deepcopy(nn.ModuleList([layer()]))[0]]:
        other(x, x).sum().backward()
    assert len(compiled) == count


@pytest.mark.parametrize("pattern", ["gelu", RES, PRE])
def test_copies_have_parameters_of_their_own(pattern):
    module, x = fused(pattern, 0.0, 16), torch.randn(4, 16)
    arguments = [x, x] if module.requires_residual else [x]
    before = module(*arguments)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(*arguments), before)
        nn.init.constant_(other.bias, 3.0)
        assert not torch.equal(other(*arguments), before)
        assert torch.equal(module(*arguments), before)
    module.init_weights()
    assert not module.bias.any()


def test_parameters():
    assert dict(fused("relu", 0.1, 8, bias=False).named_parameters()) == {}
    assert set(fused("relu", 0.1, 8).state_dict()) == {"bias"}
    assert set(fused(PRE, 0.1, 8, bias=False).state_dict()) == {"norm.weight", "norm.bias"}
    assert set(fused(POST, 0.1, 8).state_dict()) == {"bias", "norm.weight", "norm.bias"}
    assert [fused(pattern, 0.1, 8).requires_residual for pattern in ("relu", RES, PRE)] == [False, True, True]


def unfused_mlp(width, p, bias=True):
    layers = [nn.Linear(width, 4 * width, bias), nn.GELU(), nn.Dropout(p), nn.Linear(4 * width, width, bias)]
    return nn.ModuleDict({"mlp": nn.Sequential(*layers, nn.Dropout(p))})


@pytest.mark.parametrize("bias", [False, True])
def test_mlp_has_the_parameters_and_results_of_the_unfused_one(bias, device):
    ours = MLP(32, 0.5, "gelu", 4, bias, backend="nop").to(device)
    theirs = unfused_mlp(32, 0.5, bias).to(device)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    ours.eval()
    theirs.eval()
    x, cotangent = torch.randn(4, 6, 32, device=device, requires_grad=True), torch.randn(4, 6, 32, device=device)
    found, expected = (results(run, run, [x], cotangent) for run in (ours, theirs["mlp"]))
    torch.testing.assert_close(found, expected)
    # Of what follows the hidden layer, no neuron hears of one that is dropped.
    dropped = ours.train()(x).eq(0).float().mean()
    assert 0.4 < float(dropped) < 0.6


def test_mlp_under_autocast():
    ours, theirs = MLP(32, 0.1, "gelu", 4, backend="nop").eval(), unfused_mlp(32, 0.1).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 32)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = ours(x), theirs["mlp"](x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)


class Layer(nn.Module):
    """A user's module around the fused ones."""

    def __init__(self, p):
        super().__init__()
        self.mlp = MLP(16, p, "squared_relu", 2, backend="nop")
        self.add = FusedBiasDropoutResLayerNorm(p, 16, 16, backend="nop")

    def forward(self, x):
        return self.add(self.mlp(x), x)


COMPILERS = {
    "aotkit": lambda module: aotkit.compile(module, backend="nop"),
    "torch.compile": lambda module: torch.compile(module, backend="aot_eager", fullgraph=True),
    "vmap": lambda module: torch.func.vmap(module, randomness="different"),
    "checkpoint": lambda module: lambda x: checkpoint(module, x, use_reentrant=False),
}


@pytest.mark.filterwarnings("ignore::aotkit.errors.EagerCallWarning")
@pytest.mark.parametrize("compiler", COMPILERS)
def test_inside_of(compiler):
    layer, x = Layer(0.0), torch.randn(4, 16, requires_grad=True)
    found = results(COMPILERS[compiler](layer), layer, [x], torch.ones(4, 16))
    torch.testing.assert_close(found, results(layer, layer, [x], torch.ones(4, 16)))
    with torch.no_grad():
        assert not torch.equal(layer(x), COMPILERS[compiler](Layer(0.5))(x))


def test_a_checkpoint_repeats_the_mask():
    module, x = FusedBiasActivationDropout(0.5, "relu", backend="nop"), torch.rand(30, 40, requires_grad=True)
    output = checkpoint(module, x, use_reentrant=False)
    output.sum().backward()
    assert torch.equal(x.grad, (output != 0) * 2.0)


def test_without_a_compiler_it_is_eager(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    x = torch.randn(5, 8)
    torch.manual_seed(0)
    found = FusedBiasActivationDropout(0.5)(x)
    torch.manual_seed(0)
    assert torch.equal(found, F.dropout(x, 0.5))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FusedBiasDropoutRes(1.0), ValueError, "below 1, not 1.0"),
        (lambda: FusedBiasDropoutRes(-0.1), ValueError, "at least 0 and below 1, not -0.1"),
        (lambda: MLP(8, 2, None, 4), ValueError, "not 2"),
        (lambda: FusedBiasActivationDropout(0.1, "swish"), ValueError, "activation must be one of .*'gelu'.*'swish'"),
        (lambda: fused(PRE, 0.1, 8, layer_norm=1), TypeError, "layer_norm"),
        (lambda: FusedBiasDropoutResLayerNorm(0.1, 8, None, None), ValueError, "one of 'pre', 'post', not None"),
        (lambda: FusedBiasDropoutRes(0.1, backend="inducter"), aotkit.UnknownNameError, "Did you mean 'inductor'"),
    ],
)
def test_errors_come_early(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_wrong_width_raises_what_eager_raises():
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        fused(RES, 0.1, 8)(torch.randn(2, 7), torch.randn(2, 7))
