"""The loss of a language model's last layer: what torch computes of all logits at once."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import aotkit
from aotkit.nn import LinearCrossEntropy, linear_cross_entropy
from aotkit.passes import is_in_chunks
from aotkit.stages.chunks import choosing

FEATURES, CLASSES = 8, 300
CONFIGURATIONS = {
    "plain": {},
    "smoothed sum": {"label_smoothing": 0.1, "reduction": "sum"},
    "capped": {"softcap": 3.0, "ignore_index": 7},
    "z-loss": {"z_loss": 1e-2},
    "weighted, of each row": {"reduction": "none", "class_weight": torch.linspace(0.5, 2, CLASSES), "z_loss": 0.1},
}


@pytest.fixture
def in_chunks(monkeypatch):
    for name, value in (("LEAST", 1000), ("FEWEST_ROWS", 4), ("ROWS", 8)):
        monkeypatch.setattr(choosing, name, value)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr("aotkit.nn.fused._COMPILED", [])


def inputs(dtype=torch.float32):
    x = torch.randn(2, 12, FEATURES, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, CLASSES, (2, 12))
    targets[0, :3] = -100
    targets[1, 2] = 7
    return x, targets


def reference(module, x, targets, softcap=None, z_loss=0.0, class_weight=None, **options):
    logits = F.linear(x, module.weight, module.bias).flatten(0, 1)
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    options = {"ignore_index": -100, "reduction": "mean", **options}
    flat = targets.flatten().where(targets.flatten() != options["ignore_index"], -100)
    flat_options = {**options, "ignore_index": -100}
    squares = logits.logsumexp(-1)[flat != -100] ** 2
    if options["reduction"] == "none":
        whole = torch.zeros(len(flat), dtype=logits.dtype).masked_scatter(flat != -100, squares)
        found = F.cross_entropy(logits, flat, class_weight, **flat_options) + z_loss * whole
        return found.view(targets.shape)
    added = squares.sum() if options["reduction"] == "sum" else squares.mean()
    return F.cross_entropy(logits, flat, class_weight, **flat_options) + z_loss * added


@pytest.mark.thinned
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_it_is_what_torch_computes(name, bias, in_chunks):
    as_it_is = aotkit.Backend(lambda gm, _: gm, decompositions=aotkit.get_backend("inductor").decompositions)
    module = LinearCrossEntropy(FEATURES, CLASSES, bias, **CONFIGURATIONS[name], backend=as_it_is)
    if name == "capped":
        x, targets = inputs()
        targets = targets.where(targets != -100, 7)  # one index is ignored
    else:
        x, targets = inputs()
    results = []
    for run in (module, lambda x, y: reference(module, x, y, **CONFIGURATIONS[name])):
        loss = run(x, targets)
        results.append([loss, *torch.autograd.grad(loss.sum(), [x, *module.parameters()])])
    for found, want in zip(*results, strict=True):
        torch.testing.assert_close(found, want, rtol=2e-5, atol=1e-6)


def test_it_is_computed_in_chunks(in_chunks):
    module = LinearCrossEntropy(FEATURES, CLASSES)
    x, targets = inputs()
    graphs = module._compiled().graphs(x, module.weight, targets, None, None, *module._configuration())
    assert any(map(is_in_chunks, graphs.forward.graph.nodes))


def test_the_parameters_are_those_of_a_linear_layer():
    linear = nn.Linear(FEATURES, CLASSES)
    module = LinearCrossEntropy(FEATURES, CLASSES, bias=True)
    module.load_state_dict(linear.state_dict())
    x, targets = inputs()
    torch.testing.assert_close(module(x, targets), F.cross_entropy(linear(x).flatten(0, 1), targets.flatten()))
    torch.testing.assert_close(module.logits(x), linear(x))


def test_a_tied_weight_gets_both_gradients():
    embedding = nn.Embedding(CLASSES, FEATURES)
    module = LinearCrossEntropy(FEATURES, CLASSES)
    module.weight = embedding.weight
    _, targets = inputs()
    ids = torch.randint(0, CLASSES, (2, 12))
    module(embedding(ids), targets).backward()
    found, embedding.weight.grad = embedding.weight.grad, None
    F.cross_entropy((embedding(ids) @ embedding.weight.t()).flatten(0, 1), targets.flatten()).backward()
    torch.testing.assert_close(found, embedding.weight.grad)


def test_modules_and_the_function_share_what_is_compiled():
    first, second = LinearCrossEntropy(FEATURES, CLASSES), LinearCrossEntropy(FEATURES, CLASSES)
    x, targets = inputs()
    assert first._compiled() is second._compiled() is copy.deepcopy(first)._compiled()
    torch.testing.assert_close(linear_cross_entropy(x, first.weight, targets), first(x, targets))


def test_it_runs_inside_of_torch_compile_and_under_autocast():
    module = LinearCrossEntropy(FEATURES, CLASSES)
    x, targets = inputs()
    torch.testing.assert_close(torch.compile(module, backend="eager")(x, targets), module(x, targets))
    with torch.autocast("cpu", torch.bfloat16):
        found = module(x, targets)
        torch.testing.assert_close(found, reference(module, x, targets))
    assert torch.autograd.grad(found, module.weight)[0].dtype == torch.float32


@pytest.mark.parametrize(
    "wrong", [{"reduction": "max"}, {"label_smoothing": 2.0}, {"softcap": 0.0}, {"backend": "absent"}], ids=str
)
def test_bad_arguments_fail_at_once(wrong):
    with pytest.raises((ValueError, aotkit.UnknownNameError)):
        LinearCrossEntropy(FEATURES, CLASSES, **wrong)
