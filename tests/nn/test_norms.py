"""RMS norms of transformers and torch, fused: what these modules compute, with their parameters and gradients."""

import contextlib
import copy
import importlib
import itertools
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import aotkit
from aotkit.backends.nop import compile_graph
from aotkit.nn import FusedRMSNorm, RMSNormStyle, rms_norm_forward
from aotkit.nn.patterns import rms_norm

WIDTH = 24
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def of_transformers(model, name):
    module = pytest.importorskip(f"transformers.models.{model}.modeling_{model}")
    return getattr(module, name)


MODULES = {
    "t5": (RMSNormStyle.T5, lambda: of_transformers("t5", "T5LayerNorm")(WIDTH)),
    "llama": (RMSNormStyle.Llama, lambda: of_transformers("llama", "LlamaRMSNorm")(WIDTH, eps=1e-5)),
    "mistral": (RMSNormStyle.Llama, lambda: of_transformers("mistral", "MistralRMSNorm")(WIDTH)),
    "qwen3": (RMSNormStyle.Llama, lambda: of_transformers("qwen3", "Qwen3RMSNorm")(WIDTH)),
    "gemma": (RMSNormStyle.Gemma, lambda: of_transformers("gemma", "GemmaRMSNorm")(WIDTH)),
    "gemma2": (RMSNormStyle.Gemma, lambda: of_transformers("gemma2", "Gemma2RMSNorm")(WIDTH)),
    "olmo2": (RMSNormStyle.Olmo, lambda: of_transformers("olmo2", "Olmo2RMSNorm")(WIDTH)),
    "no weight": (RMSNormStyle.Llama, lambda: of_transformers("llama4", "Llama4TextL2Norm")()),
    "torch": (RMSNormStyle.Torch, lambda: nn.RMSNorm(WIDTH)),
    "torch, two dimensions": (RMSNormStyle.Torch, lambda: nn.RMSNorm((3, WIDTH), eps=1e-3)),
    "torch, no weight": (RMSNormStyle.Torch, lambda: nn.RMSNorm(WIDTH, elementwise_affine=False)),
}  # fmt: skip


def made(name, dtype=torch.float32):
    module = MODULES[name][1]().to(dtype)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def inputs(dtype=torch.float32):
    """Rows of all magnitudes, some of them small beside eps."""
    x = torch.randn(2, 3, WIDTH) * torch.tensor([1e-3, 1.0, 10.0]).view(3, 1)
    return x.to(dtype).requires_grad_()


def results(run, x, *weights):
    """The output, and the gradients of x and of weights."""
    output = run(x)
    cotangent = torch.linspace(-1, 1, x.numel(), device=x.device).view(x.shape)
    return [output, *torch.autograd.grad(output, [x, *weights], cotangent.to(output.dtype))]


def assert_close(found, expected):
    """Up to rounding in the shortest of the types: of each element, or of the largest."""
    tolerance = max(1e-6, *(4 * torch.finfo(b.dtype).eps for b in expected))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.detach().abs().max()))


@pytest.mark.parametrize("name", MODULES)
def test_which_values_are_rounded_when_is_found_out(name):
    """Bit for bit in all types, and of weights and inputs in different ones."""
    fused = FusedRMSNorm.from_module(made(name))
    assert fused.style is MODULES[name][0]
    types = [*FLOATS, torch.float64]
    for of_weight, of_x in itertools.product(types, types):
        if name.startswith("torch") and of_weight != of_x:
            continue
        module, x = made(name, of_weight), inputs(of_x)
        expected = module(x)
        found = rms_norm(x, getattr(module, "weight", None), fused.eps, fused.style)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected), (of_weight, of_x)


def classes_of_transformers():
    """Those that are made of a width alone, and do what an RMS norm does first."""
    package = Path(importlib.util.find_spec("transformers").origin).parent
    for path in sorted(package.glob("models/*/modeling_*.py")):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^class (\w*Norm)\(nn.Module\):", text, re.MULTILINE) if "rsqrt" in text else []
        for name in names:
            with contextlib.suppress(Exception):
                yield getattr(importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}"), name)(8)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_the_norms_of_transformers():
    """docs/fused_modules.md has the number."""
    pytest.importorskip("transformers")
    known = set()
    for module in classes_of_transformers():
        with contextlib.suppress(aotkit.UnsupportedError):
            fused = FusedRMSNorm.from_module(module, backend="nop")
            x = torch.randn(5, 8)
            assert_close([fused(x)], [module(x)])
            known.add(type(module))
    assert len(known) >= 190, len(known)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_results_and_gradients_are_those_of_the_module(name, dtype, device):
    module = made(name, dtype).to(device)
    x = inputs(dtype).detach().to(device).requires_grad_()
    fused, weights = FusedRMSNorm.from_module(module), list(module.parameters())
    assert_close(results(fused, x, *weights), results(module, x, *weights))
    assert "fuser" in repr(fused._function)


@pytest.mark.parametrize(
    ("weight", "of_x"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str
)
def test_weights_in_another_type(weight, of_x):
    """T5's stays in float32 where its model is in float16."""
    module, x = made("t5", weight), inputs(of_x)
    fused = FusedRMSNorm.from_module(module, backend="nop")
    assert_close(results(fused, x, module.weight), results(module, x, module.weight))


@pytest.mark.parametrize(
    ("name", "dtype"), [("t5", torch.bfloat16), ("llama", torch.float32), ("gemma", torch.float16)]
)
def test_the_residual_is_added_before(name, dtype):
    """Rounded to the type of x, as it is without fusion."""
    module, x, residual = made(name, dtype), inputs(dtype), inputs(dtype)

    def unfused(x):
        added = residual + x
        return torch.cat([module(added), added])

    def fused(x):
        return torch.cat(FusedRMSNorm.from_module(module, backend="nop")(x, residual))

    def of_both(run):
        output = run(x)
        cotangent = torch.linspace(-1, 1, output.numel()).view(output.shape).to(dtype)
        return [output, *torch.autograd.grad(output, [x, residual, module.weight], cotangent)]

    assert_close(of_both(fused), of_both(unfused))


def test_the_parameter_is_shared():
    module = made("llama")
    fused = FusedRMSNorm.from_module(module.eval(), backend="nop")
    assert fused.weight is module.weight
    assert fused.eps == 1e-5
    assert not fused.training
    assert fused.state_dict().keys() == module.state_dict().keys()
    fused.load_state_dict(made("llama").state_dict())
    x = inputs()
    assert_close([fused(x)], [module(x)])


@pytest.mark.parametrize("place", ["meta", "cpu"])
def test_a_module_without_values_is_recognised(place):
    with torch.device(place):
        fused = FusedRMSNorm.from_module(MODULES["gemma2"][1]())
    assert fused.style is RMSNormStyle.Gemma
    assert fused.weight.device.type == place


def test_new_modules_scale_by_one():
    for style in RMSNormStyle:
        y = FusedRMSNorm(WIDTH, style=style, backend="nop")(inputs())
        torch.testing.assert_close(y[:, 1:].square().mean(-1), torch.ones(2, 2))


def test_copies_share_what_is_compiled_and_no_parameters():
    compiled = []

    def counting(gm, example_inputs):
        compiled.append(gm)
        return compile_graph(gm, example_inputs)

    fused = FusedRMSNorm.from_module(made("llama"), backend=aotkit.Backend(counting, decompositions={}))
    x = inputs()
    before, count = fused(x), len(compiled)
    assert count > 0
    other = copy.deepcopy(fused)
    assert torch.equal(other(x), before)
    assert len(compiled) == count
    nn.init.zeros_(other.weight)
    assert not torch.equal(other(x), before)
    assert torch.equal(fused(x), before)


def test_a_forward_for_modules_reads_what_they_are_now():
    module, x = made("t5"), inputs()
    forward = pickle.loads(pickle.dumps(rms_norm_forward(module, backend="nop")))
    assert_close([forward(module, x)], [module(x)])
    module.weight, module.variance_epsilon = nn.Parameter(torch.full((WIDTH,), 3.0)), 0.5
    assert_close(results(lambda x: forward(module, x), x, module.weight), results(module, x, module.weight))


def test_hooks_do_not_hear_of_probes():
    module = made("llama")
    module.register_forward_hook(lambda *_: pytest.fail("ran"))
    rms_norm_forward(module)
    with pytest.raises(aotkit.UnsupportedError, match="LlamaRMSNorm has hooks"):
        FusedRMSNorm.from_module(module)


COMPILERS = {
    "aotkit": lambda module: aotkit.compile(module, backend="nop"),
    "torch.compile": lambda module: torch.compile(module, backend="aot_eager", fullgraph=True),
    "vmap": torch.func.vmap,
    "checkpoint": lambda module: lambda x: checkpoint(module, x, use_reentrant=False),
}


@pytest.mark.filterwarnings("ignore::aotkit.errors.EagerCallWarning")
@pytest.mark.parametrize("compiler", COMPILERS)
def test_inside_of(compiler):
    module, x = made("t5"), inputs()
    fused = FusedRMSNorm.from_module(module, backend="nop")
    assert_close(results(COMPILERS[compiler](fused), x, module.weight), results(module, x, module.weight))


def test_under_autocast():
    module, x = made("llama"), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        assert_close([FusedRMSNorm.from_module(module, backend="nop")(x)], [module(x)])


class OfGroups(nn.RMSNorm):
    def forward(self, x):
        return super().forward(x.unflatten(-1, (2, -1)).flatten(0, 1)).view_as(x)


class Drawing(nn.RMSNorm):
    def forward(self, x):
        return super().forward(x) + torch.rand(())


def replaced():
    module = made("llama")
    module.forward = lambda x: x
    return module


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: nn.LayerNorm(WIDTH), "parameters besides weight: bias"),
        (lambda: nn.LayerNorm(WIDTH, bias=False), "it computes something else"),
        (lambda: nn.Sequential(made("t5")), "modules of its own"),
        (lambda: nn.BatchNorm1d(3, affine=False), "buffers: running_mean"),
        (lambda: of_transformers("mamba2", "MambaRMSNormGated")(WIDTH, 8), "forward takes hidden_states, gate"),
        (lambda: OfGroups(WIDTH // 2, elementwise_affine=False), "RMS norm: "),
        (lambda: Drawing(WIDTH), "it computes something else"),
        (lambda: nn.Embedding(3, 4), "RMS norm: "),
        (nn.Identity, "it computes something else"),
        (replaced, "its forward is replaced"),
    ],
)
def test_what_is_no_rms_norm_is_refused_with_the_reason(make, why):
    module, state = make(), torch.get_rng_state()
    with pytest.raises(aotkit.UnsupportedError, match=why):
        FusedRMSNorm.from_module(module)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_wrong_style_fails_at_once():
    with pytest.raises(ValueError, match=r"style must be one of 'llama', .*, not 'bloom'"):
        FusedRMSNorm(8, style="bloom")
