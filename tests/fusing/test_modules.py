"""`fuse` on modules of the user's own: hooks, replicas, regions, wrapped forwards, failures."""

import copy
import types

import pytest
import torch
from torch import nn

import aotkit
from tests.fusing.models import config

# Said by TorchDynamo of any input that is no leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(4), Block()

    def forward(self, x, scale=1.0):
        return x + self.mlp(self.norm(x)) * scale


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.act = nn.ModuleList(Layer() for _ in range(3)), nn.Hardswish()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.act(x)


X = torch.linspace(-1, 1, 12).view(3, 4)


def outcomes(model):
    return {name: part.outcome for name, part in aotkit.fusion_report(model).modules.items()}


def graphs(model, name):
    return aotkit.fusion_report(model).modules[name].graphs


def test_what_is_compiled_of_a_model():
    model = aotkit.fuse(Model(), config())
    assert outcomes(model) == {
        "": "left", "layers.0.mlp": "compiled", "layers.1.mlp": "compiled", "layers.2.mlp": "compiled", "act": "left",
    }  # fmt: skip
    assert "one operator" in aotkit.fusion_report(model).modules["act"].reason


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["Layer"], ["layers.0", "layers.1", "layers.2"]),
        (["layers.1*", "Block"], ["layers.0.mlp", "layers.1", "layers.2.mlp"]),
        (["*.down"], ["layers.0.mlp.down", "layers.1.mlp.down", "layers.2.mlp.down"]),
        (["*"], [""]),
    ],
)
def test_regions_by_name_or_class(patterns, names):
    model = Model()
    wanted = model(X)
    aotkit.fuse(model, config(regions=patterns))
    assert sorted(name for name, outcome in outcomes(model).items() if outcome == "compiled") == names
    torch.testing.assert_close(model(X), wanted)


def test_a_region_that_is_not_there_is_told_with_the_nearest():
    with pytest.raises(aotkit.UnknownNameError, match=r"'layers\.1\.mpl'.*Did you mean 'layers\.1\.mlp'"):
        aotkit.fuse(Model(), config(regions=["layers.1.mpl"]))


def test_sizes_that_change_compile_twice():
    model = aotkit.fuse(Model(), config())
    for size in range(11, 17):
        model(torch.ones(size, 4))
    assert len(graphs(model, "layers.0.mlp")) == 2


class Numbered(nn.Module):
    """As layers are that have a place in a cache."""

    def __init__(self, number):
        super().__init__()
        self.number, self.up = number, nn.Linear(4, 4)

    def forward(self, x, places):
        places[self.number] = x
        return self.up(x) + self.number


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Numbered(i) for i in range(20))

    def forward(self, x):
        places = {}
        for layer in self.layers:
            x = layer(x, places)
        return x, places[19]


@pytest.mark.sweep
def test_modules_that_differ_are_compiled_for_a_few_at_a_time():
    model = Deep()
    wanted = model(X)
    aotkit.fuse(model, config(regions=["Numbered"]))
    torch.testing.assert_close(model(X), wanted)
    assert [len(graphs(model, f"layers.{i}")) for i in (0, 7, 8, 16, 19)] == [8, 8, 8, 4, 4]
    assert "20 graphs" in str(aotkit.fusion_report(model))
    assert len(graphs(copy.deepcopy(model), "layers.9")) == 8


def test_activations_that_take_no_vector():
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Conv2d(1, 3, 1))), nn.PReLU(3), nn.Softmax2d())
    aotkit.fuse(model, config())
    assert outcomes(model) == {"": "left", "1": "left", "2": "left"}
    assert "cannot be looked into by itself (" in aotkit.fusion_report(model).modules["2"].reason


def test_hooks_run_whenever_they_came():
    def model_with_hooks(fused):
        torch.manual_seed(0)
        model, calls = Model(), []

        def hook(name):
            return lambda module, args, output: calls.append((name, type(module).__name__)) or output * 2

        model.layers[0].mlp.register_forward_hook(hook("before"))
        model.layers[0].mlp.up.register_forward_hook(hook("inside, before"))
        model.register_full_backward_hook(lambda module, *gradients: calls.append("backward"))
        if fused:
            aotkit.fuse(model, config())
        outputs = [model(X)]
        handles = [m.register_forward_hook(hook("after")) for m in (model, model.layers[1].mlp, model.layers[2].mlp.up)]
        outputs.append(model(X))
        for handle in handles:
            handle.remove()
        outputs.append(model(X.clone().requires_grad_()))
        outputs[-1].sum().backward()
        return outputs, [call for call in calls if call[0] != "inside, before"]

    eager, fused = model_with_hooks(False), model_with_hooks(True)
    torch.testing.assert_close(fused[0], eager[0])
    assert fused[1] == eager[1]


def test_a_shallow_copy_runs_with_its_own_parameters():
    """As the replicas are that `nn.DataParallel` makes."""
    model = aotkit.fuse(Block(), config(regions=["Block"]))
    model(X)
    twin = copy.copy(model)
    twin._modules = {**model._modules, "down": nn.Linear(8, 4)}
    wanted = twin.down(twin.act(twin.up(X)))
    torch.testing.assert_close(twin(X), wanted)
    assert not torch.equal(model(X), wanted)


def test_a_wrapped_forward_outlives_unfuse():
    """Such as accelerate makes for mixed precision."""
    model = aotkit.fuse(Block(), config(regions=["Block"]))
    function = model.forward.__func__
    model.forward = types.MethodType(lambda self, x: function(self, x) * 2, model)
    wanted = model.down(model.act(model.up(X))) * 2
    torch.testing.assert_close(model(X), wanted)
    assert len(graphs(model, "")) == 1
    torch.testing.assert_close(aotkit.unfuse(model)(X), wanted)


def test_a_module_with_a_forward_of_its_own_is_left():
    model = Model()
    block = model.layers[1].mlp
    block.forward = lambda x: x * 3
    wanted = model(X)
    aotkit.fuse(model, config())
    assert outcomes(model)["layers.1.mlp"] == "left"
    assert "own attributes" in aotkit.fusion_report(model).modules["layers.1.mlp"].reason
    torch.testing.assert_close(model(X), wanted)


def test_the_second_config_takes_the_place_of_the_first():
    model = aotkit.fuse(Model(), config())
    aotkit.fuse(model, config(regions=["Layer"]))
    assert "layers.0.mlp" not in outcomes(model)
    assert type(model.layers[0].mlp) is Block
    assert type(aotkit.unfuse(aotkit.unfuse(model))) is Model


def test_a_class_that_was_changed_since_is_not_guessed_at():
    model = aotkit.fuse(Model(), config(regions=["*.up"]))
    nn.utils.parametrizations.weight_norm(model.layers[1].mlp.up)
    wanted = aotkit.fusion_report(model).modules
    with pytest.raises(aotkit.UnsupportedError, match=r"layers\.1\.mlp\.up is a ParametrizedLinear"):
        aotkit.unfuse(model)
    assert aotkit.fusion_report(model).modules == wanted
    nn.utils.parametrize.remove_parametrizations(model.layers[1].mlp.up, "weight")
    assert type(aotkit.unfuse(model).layers[1].mlp.up) is nn.Linear


def broken(gm, example_inputs):
    raise ValueError("no such instruction")


def test_what_fails_runs_as_it_is_and_is_reported():
    model = Model()
    wanted = model(X)
    aotkit.fuse(model, aotkit.FusionConfig(backend=broken))
    with pytest.warns(aotkit.EagerFallbackWarning, match="no such instruction"):
        torch.testing.assert_close(model(X), wanted)
    report = aotkit.fusion_report(model)
    assert "no such instruction" in report.modules["layers.0.mlp"].eager[0]
    assert "runs eagerly: " in str(report)


def wrong(gm, example_inputs):
    return lambda *args: [x + 1 if isinstance(x, torch.Tensor) else x for x in gm(*args)]


@pytest.mark.usefixtures("unverified", "only_the_verdict")
def test_what_is_wrong_runs_as_it_is_and_is_reported():
    model = Model()
    wanted = model(X)
    aotkit.fuse(model, aotkit.FusionConfig(backend=wrong))
    with pytest.warns(aotkit.EagerFallbackWarning):
        torch.testing.assert_close(model(X), wanted)
    assert aotkit.fusion_report(model).modules["layers.0.mlp"].eager


def test_a_limit_is_kept():
    x = torch.randn(64, 4, requires_grad=True)
    saved = []
    for limit in (1.0, 0.5):
        model = aotkit.fuse(Block(), config(regions=["Block"], memory_limit=limit))
        model(x).sum().backward()
        saved.append(graphs(model, "")[0].saved_bytes)
    assert saved[1] <= 0.5 * saved[0]


def test_inside_of_other_compilers_and_transforms_it_is_a_part():
    model = Model()
    wanted = model(X)
    aotkit.fuse(model, config())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), wanted)
    torch.testing.assert_close(aotkit.compile(model, backend="nop")(X), wanted)
    assert not graphs(model, "layers.0.mlp")


def test_a_part_may_be_unfused_or_moved():
    model = aotkit.fuse(Model(), config())
    aotkit.unfuse(model.layers[0])
    assert type(model.layers[0].mlp) is Block
    wanted = model(X)
    assert outcomes(model)["layers.0.mlp"] == "left"
    torch.testing.assert_close(model.double()(X.double()).float(), wanted)
    model.layers = model.layers[:1]
    assert outcomes(model) == {"": "left", "layers.0.mlp": "left", "act": "left"}
