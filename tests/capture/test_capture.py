"""capture="dynamo": Python that depends on the values of tensors, and aotkit's backends under `torch.compile`."""

import copy
import gc
import threading
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import aotkit
from aotkit.benchmark import transformers_models
from tests.agreement import Tripling

# Dynamo looks at `.grad` of what a graph break passes on; so does plain torch.compile.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.compiler.reset()


def captured(function, **options):
    return aotkit.compile(function, **{"backend": "nop", "capture": "dynamo", **options})


def assert_trains_alike(compiled, eager, *calls, parameters=()):
    """The same outputs, gradients and random numbers, call by call."""
    for args in calls:
        runs = []
        for call in (eager, compiled):
            torch.manual_seed(0)
            leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad] + list(parameters)
            out = call(*args)
            runs.append((out, *torch.autograd.grad(out.square().sum(), leaves, allow_unused=True), torch.rand(2)))
        torch.testing.assert_close(runs[1], runs[0])


def altering_backward(alter):
    def compile_backward(gm, example_inputs):
        return lambda *inputs: alter(list(gm(*inputs)))

    return aotkit.Backend(lambda gm, inputs: gm, compile_backward)


# Python that depends on data.


def branch(x, w):
    if x.sum() > 0:
        return (x @ w).sin()
    return (x @ w).cos() * 2


def scaled_by_item(x, w):
    return (x @ w) * x.detach().max().item()


def breaks(x, w):
    hidden = (x @ w).sin()
    torch._dynamo.graph_break()
    return hidden.cos() * 3


@pytest.mark.parametrize("function", [branch, scaled_by_item, breaks])
def test_python_that_depends_on_data(function, partitioner):
    x, w = torch.rand(3, 4), torch.randn(4, 5, requires_grad=True)
    compiled = captured(function, partition=partitioner)
    inputs = [x.clone().requires_grad_(), (-x).requires_grad_(), (2 * x).requires_grad_()]
    assert_trains_alike(compiled, function, *((x, w) for x in inputs))


def test_inductor_compiles_what_dynamo_captures():
    x, w = torch.rand(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    assert_trains_alike(captured(branch, backend="inductor"), branch, (x, w), (-x.detach(), w))


def test_an_exception_of_the_function_comes_through():
    def refuse(x):
        if x.sum() > 0:
            raise ValueError("positive")
        return x

    compiled = captured(refuse)
    with pytest.raises(ValueError, match="positive"):
        compiled(torch.ones(2))
    assert compiled(-torch.ones(2)).tolist() == [-1, -1]


@pytest.mark.sweep
@pytest.mark.parametrize("partitioner", aotkit.list_partitioners(), indirect=True)
def test_a_language_model(partitioner):
    transformers = pytest.importorskip("transformers", reason="needs Hugging Face transformers")
    config = transformers.GPT2Config(vocab_size=256, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).train()
    compiled = captured(model, partition=partitioner, random="torch")
    tokens = torch.randint(256, (2, 8))
    runs = []
    for call in (model, compiled):
        torch.manual_seed(0)
        out = call(input_ids=tokens, labels=tokens)
        runs.append((out.loss, out.logits, *torch.autograd.grad(out.loss, list(model.parameters()))))
    torch.testing.assert_close(runs[1], runs[0])


@pytest.fixture
def language_model():
    """GPT-2, whose library reaches files, the network and the environment, but does not run that."""
    pytest.importorskip("transformers", minversion="5", reason="needs Hugging Face transformers 5")
    model, (tokens, labels) = transformers_models.gpt2(layers=1, heads=2, width=16, batch=2, length=8)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    with transformers_models.single_sequences():
        yield model, (tokens.random_(100), labels.random_(100))


def test_a_language_model_draws_shared_random_numbers(language_model):
    model, inputs = language_model
    compiled = aotkit.compile(model.train(), backend="nop")
    graphs = compiled.graphs(*inputs)
    assert graphs.input_names[-1] == "seed"
    assert torch.ops.aten.native_dropout.default not in {node.target for node in graphs.joint.graph.nodes}
    assert compiled.report(*inputs).passed


@pytest.mark.sweep
def test_a_language_model_may_change(language_model):
    model, inputs = language_model
    compiled = aotkit.compile(model.eval(), backend="nop", check=False)
    losses = []

    def agree():
        torch.testing.assert_close(compiled(*inputs), loss := model(*inputs))
        assert compiled.graphs(*inputs)
        losses.append(loss.item())

    agree()
    model.model.transformer.h[0].attn.scaling *= 10
    agree()
    model.model.loss_type = "ForMaskedLM"
    agree()
    model.model.config._attn_implementation = "eager"
    model.model.lm_head.register_forward_hook(lambda module, args, output: output * 2)
    agree()
    assert len(set(losses)) == 4


# Modules.


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.steps = 0
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.steps += 1
        self.mean.lerp_(x.detach().mean(0), 0.5)
        return (x - self.mean) * self.gain


def test_buffers_and_attributes_are_updated_once_a_call():
    eager, wrapped = Counting(), Counting()
    compiled = captured(wrapped)
    for _ in range(3):
        x = torch.randn(5, 4, requires_grad=True)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(wrapped.mean, eager.mean, rtol=1e-6, atol=1e-6)
    assert wrapped.steps == compiled.steps == 3


def test_batch_norm_keeps_its_running_statistics():
    eager = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    wrapped = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    wrapped.load_state_dict(eager.state_dict())
    compiled = captured(wrapped)
    for _ in range(2):
        x = torch.randn(6, 4)
        compiled(x).square().sum().backward()
        eager(x).square().sum().backward()
    torch.testing.assert_close(wrapped.state_dict(), eager.state_dict())
    torch.testing.assert_close([p.grad for p in wrapped.parameters()], [p.grad for p in eager.parameters()])


# Looking at the graphs.


def test_the_graphs_of_one_piece():
    layer = nn.Linear(4, 3)
    graphs = captured(layer, partition="default").graphs(torch.randn(2, 4, requires_grad=True))
    assert (graphs.backend, graphs.partition) == ("nop", "default")
    assert graphs.backward is not None
    assert {"weight", "bias"} <= set(graphs.input_names)
    assert "addmm" in str(graphs)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, *, scale=2.0):
        y = self.layer(x) * scale
        torch._dynamo.graph_break()
        return y.sin()


def test_what_a_module_owns_is_called_by_its_path():
    first, _ = captured(Scaled()).explain(torch.randn(2, 4)).all_graphs
    assert {"layer.weight", "layer.bias", "x"} <= set(first.input_names)


def test_what_comes_before_a_graph_break_is_captured_as_often_as_by_torch_compile():
    """Dynamo captures each frame around a break from its start: there must be none more."""
    frames = []
    for compile in (captured, lambda model: torch.compile(model, backend="aot_eager")):
        torch.compiler.reset()
        counters.clear()
        compile(Scaled())(torch.randn(2, 4)).sum().backward()
        frames.append(dict(counters["frames"]))
    assert frames[0] == frames[1]


def test_a_break_before_any_graph_is_told():
    """What is called there is captured whole, so no graph of it knows of a break."""
    lock = threading.Lock()

    def layer(x):
        return (x.sin() * 2).exp()

    def locked(x):
        with lock:
            return layer(x)

    def fn(x):
        return layer(locked(x))

    explained = captured(fn).explain(torch.randn(4))
    assert (explained.pieces, explained.breaks) == (2, ["Unsupported context manager"])


def test_a_function_that_is_loaded_anew():
    def f(x, scale=2.0):
        return x.sin() * scale

    def other(x, scale=3.0):
        return x.cos() * scale

    compiled, x = captured(f), torch.randn(4)
    torch.testing.assert_close(compiled(x), x.sin() * 2)
    f.__defaults__ = other.__defaults__
    torch.testing.assert_close(compiled(x), x.sin() * 3)
    f.__code__ = other.__code__
    torch.testing.assert_close(compiled(x), x.cos() * 3)


@pytest.mark.parametrize("mark", [torch.compiler.disable, torch._dynamo.allow_in_graph])
def test_functions_that_dynamo_is_told_not_to_capture(mark):
    def f(x):
        return x.sin() * 2

    compiled, x = captured(mark(f), on_error="eager"), torch.randn(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", aotkit.EagerCallWarning)
        torch.testing.assert_close(compiled(x), x.sin() * 2)


def test_a_generator_runs_as_in_eager():
    def f(x):
        yield x.sin()
        yield x.cos()

    x = torch.randn(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", aotkit.EagerCallWarning)
        torch.testing.assert_close(list(captured(f)(x)), [x.sin(), x.cos()])


def test_several_pieces_have_no_single_graphs():
    x, w = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    with pytest.raises(aotkit.TraceError, match=r"'breaks' runs 2 graphs for these inputs, .*graph_break"):
        captured(breaks).graphs(x, w)


def test_each_piece_has_graphs_of_its_own():
    x, w = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    first, second = captured(breaks, partition="default").explain(x, w).all_graphs
    assert "mm.default" in str(first.forward.graph)
    assert "cos.default" in str(second.forward.graph)
    assert second.backward is not None


def test_graphs_leave_the_random_state_alone():
    compiled = captured(lambda x: F.dropout(x, 0.5))
    state = torch.get_rng_state()
    compiled.graphs(torch.ones(3, requires_grad=True))
    assert torch.equal(torch.get_rng_state(), state)


# Faults.


def test_a_wrong_gradient_of_a_captured_graph_is_found():
    layer = nn.Linear(4, 3)
    backend = altering_backward(lambda gradients: [g if g is None else g * 1.01 for g in gradients])
    with pytest.raises(aotkit.MismatchError, match="gradient of weight") as e:
        captured(layer, backend=backend)(torch.randn(2, 4))
    assert "'Linear.forward' with backend" in str(e.value)
    assert any(c.problem for c in e.value.report.comparisons)


def test_check_false_does_not_look():
    layer = nn.Linear(4, 3)
    backend = altering_backward(lambda gradients: [g if g is None else g * 2 for g in gradients])
    x = torch.randn(2, 4)
    got = torch.autograd.grad(captured(layer, backend=backend, check=False)(x).sum(), layer.bias)
    assert got[0].tolist() == [4, 4, 4]


def test_a_failing_backend_is_named():
    def broken(gm, example_inputs):
        raise ValueError("no such instruction")

    with pytest.raises(aotkit.CompileError, match="backend 'broken' failed on the forward graph of 'branch'"):
        captured(branch, backend=broken)(torch.rand(3, 4), torch.randn(4, 5, requires_grad=True))


@pytest.mark.parametrize("wrong", ["compiling", "gradient"])
def test_on_error_eager_warns_and_gives_eagers_result(wrong):
    def broken(gm, example_inputs):
        raise ValueError("no such instruction")

    faulty = altering_backward(lambda gradients: [g if g is None else g * 2 for g in gradients])
    compiled = captured(branch, backend=broken if wrong == "compiling" else faulty, on_error="eager")
    x, w = torch.rand(3, 4), torch.randn(4, 5, requires_grad=True)
    with pytest.warns(aotkit.EagerFallbackWarning, match="'branch' runs eagerly"):
        compiled(x, w)
    assert_trains_alike(compiled, branch, (x, w), (2 * x, w))


# Many signatures.


def test_twenty_signatures_live_side_by_side():
    compiles = []

    def counting(gm, example_inputs):
        compiles.append(gm)
        return gm

    def f(x):
        return x.sin() * 2

    compiled = captured(f, backend=aotkit.Backend(counting))
    inputs = [torch.randn(*(1,) * (i % 4), 2 + i, dtype=d) for i in range(10) for d in (torch.float32, torch.float64)]
    for _ in range(2):
        for x in inputs:
            torch.testing.assert_close(compiled(x), f(x))
    before = len(compiles)
    assert before >= 9  # torch would have stopped at 8, and run eagerly from there
    compiled.graphs(inputs[-1])  # raises if this call runs eagerly
    assert len(compiles) == before


def test_dynamic_sizes_compile_once():
    compiles = []

    def counting(gm, example_inputs):
        compiles.append(gm)
        return gm

    def f(x, w):
        return (x @ w).softmax(0)

    w = torch.randn(4, 3, requires_grad=True)
    compiled = captured(f, backend=aotkit.Backend(counting, lambda gm, inputs: gm), dynamic=True)
    calls = [(torch.randn(n, 4, requires_grad=True), w) for n in (5, 9, 3, 31)]
    assert_trains_alike(compiled, f, *calls)
    assert len(compiles) == 1


# Under torch.compile.


@pytest.mark.parametrize("function", [branch, breaks])
def test_a_backend_of_torch_compile(function):
    x, w = torch.rand(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    compiled = torch.compile(function, backend=aotkit.torch_backend("nop", "nx_min_cut"))
    assert_trains_alike(compiled, function, (x, w), (-x.detach(), w))


def test_a_backend_of_torch_compile_is_checked():
    backend = altering_backward(lambda gradients: [g if g is None else g * 2 for g in gradients])
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    with pytest.raises(aotkit.MismatchError):
        torch.compile(layer, backend=aotkit.torch_backend(backend))(x)
    torch.compiler.reset()
    torch.compile(layer, backend=aotkit.torch_backend(backend, check=False))(x)


# Activation checkpointing.


def block(x, w):
    return F.dropout(F.gelu(x @ w).sin() @ w, 0.3)


def checkpointed(x, w):
    return checkpoint(block, x, w, use_reentrant=False)


@pytest.mark.filterwarnings("ignore::aotkit.EagerFallbackWarning")
def test_checkpointing_repeats_the_mask_uncompiled():
    def broken(gm, example_inputs):
        raise ValueError("no such instruction")

    x, w = torch.randn(256, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    assert_trains_alike(captured(checkpointed, backend=broken, on_error="eager"), checkpointed, (x, w))


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_checkpointing_saves_less_and_repeats_the_mask(capture, partitioner):
    x, w = torch.randn(256, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    options = {"capture": capture, "partition": partitioner, "backend": "nop", "random": "torch"}
    compiled = aotkit.compile(checkpointed, **options)
    assert_trains_alike(compiled, checkpointed, (x, w), (2 * x.detach(), w))
    less = aotkit.inspection.saved_bytes(compiled.graphs(x, w))
    more = aotkit.inspection.saved_bytes(aotkit.compile(block, **options).graphs(x, w))
    if capture == "dynamo":
        assert less < more
    else:  # traced through the checkpoint, so that the partitioner alone decides
        assert less <= more


def test_gradients_stay_apart_where_sizes_are_open():
    """One output of two takes part in the backward pass; the second batch is smaller, so its size is an input, too."""

    def f(x, w, v):
        return x @ w, (x * v).sum(0)

    w, v = torch.randn(4, 5, requires_grad=True), torch.randn(4, requires_grad=True)
    compiled = captured(f)
    for rows in (5, 3, 2):
        x = torch.randn(rows, 4)
        got, want = (torch.autograd.grad(call(x, w, v)[0].sum(), [w, v], allow_unused=True) for call in (compiled, f))
        torch.testing.assert_close(got[0], want[0])
        assert got[1] is None
        assert want[1] is None


@pytest.mark.parametrize("random", ["shared", "torch"])
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_dropout_without_a_mask_returns_its_input(capture, random):
    def doubled(x, w):
        y = x * 1
        F.dropout(y[:, 1:], 0.5, training=False).mul_(2)
        F.dropout(y[1:], 0.0).mul_(w)
        return y

    compiled = aotkit.compile(doubled, backend="nop", capture=capture, random=random)
    x, w = torch.randn(3, 4), torch.randn(4, requires_grad=True)
    torch.testing.assert_close(compiled(x, w), doubled(x, w))
    for fn in (compiled, doubled):
        fn(x, w).sum().backward()
    torch.testing.assert_close(w.grad, 2 * torch.autograd.grad(doubled(x, w).sum(), w)[0])


@pytest.mark.filterwarnings("ignore::aotkit.EagerCallWarning")
def test_operators_that_an_input_overrides_stay_in_python():
    """In TorchDynamo's graphs they would be done twice, and results would lose their type."""

    def f(x, w):
        return torch.sin(torch.matmul(x, w)), w.exp()

    x, w = torch.randn(2, 3).as_subclass(Tripling), torch.randn(3, 3, requires_grad=True)
    compiled = aotkit.compile(f, backend="nop", capture="dynamo")
    for _ in range(2):
        for got, want in zip(compiled(x, w), f(x, w), strict=True):
            assert type(got) is type(want)
            torch.testing.assert_close(got.as_subclass(torch.Tensor), want.as_subclass(torch.Tensor))


class Averaging(nn.Module):
    """Saves what a buffer was before the call, and moves it on."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        y = self.linear(x) * self.scale.clone()
        with torch.no_grad():
            self.scale.mul_(0.5).add_(y.mean(0))
        return y * self.scale.clone()


class Codebook(nn.Module):
    """Backward needs a view of what a buffer was before the call."""

    def __init__(self, view):
        super().__init__()
        self.linear, self.view = nn.Linear(4, 4), view
        self.register_buffer("book", torch.randn(4, 4))

    def forward(self, x):
        y = (self.linear(x) @ self.view(self.book.clone())).sin()
        with torch.no_grad():
            self.book.mul_(0.5).add_(y.mean())
        return y


MUTATING = {
    "averaging": Averaging,
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()),
    "transposed": lambda: Codebook(lambda book: book.t()),
    "sliced": lambda: Codebook(lambda book: book[:, 1:]),
    "viewed": lambda: Codebook(lambda book: book.view(2, 8).view(4, 4)),
}


@pytest.mark.thinned
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("name", ["inductor", "nop"])
@pytest.mark.parametrize("make", MUTATING.values(), ids=MUTATING)
def test_buffers_that_a_graph_writes_to(make, name, partitioner, capture):
    eager = make()
    compiled = captured(copy.deepcopy(eager), backend=name, partition=partitioner, capture=capture, check=False)
    x = torch.randn(5, 4)
    runs = []
    for module in (eager, compiled):
        for _ in range(3):
            module(x).square().sum().backward()
        with torch.no_grad():
            runs.append((module(x), [p.grad for p in module.parameters()], module.state_dict()))
    torch.testing.assert_close(runs[1], runs[0])


def test_a_captured_module_is_freed():
    module = nn.Linear(3, 3)
    weight = weakref.ref(module.weight)
    compiled = captured(module)
    compiled(torch.randn(2, 3)).sum().backward()
    del module, compiled
    torch.compiler.reset()
    gc.collect()
    assert weight() is None
