"""Graphs that TorchDynamo captured: open sizes, failures, and what a failed check means for later calls."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import aotkit
import aotkit.capture.piece
import aotkit.capture.signature


def wrong(gm, example_inputs):
    """Returns one more than the graph does."""
    return lambda *inputs: [r + 1 if isinstance(r, torch.Tensor) else r for r in gm(*inputs)]


def test_a_failed_check_is_an_error_in_each_call():
    compiled = aotkit.compile(torch.sin, backend=wrong, capture="dynamo")
    for _ in range(3):
        with pytest.raises(aotkit.MismatchError):
            compiled(torch.ones(3))


def test_after_a_failed_check_eager_may_run():
    compiled = aotkit.compile(torch.sin, backend=wrong, capture="dynamo", on_error="eager")
    with pytest.warns(aotkit.EagerFallbackWarning):
        assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin())
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin())


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("in_eager", [False, True])
def test_a_check_that_memory_does_not_suffice_for_is_left_out(in_eager, capture, monkeypatch):
    """Training that just fits beside nothing else is not to fail for it."""
    runs = []

    def tight(run):
        def first_without_memory(*args):
            runs.append(run)
            if len(runs) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return run(*args)

        return first_without_memory

    if in_eager:
        for module in (aotkit.capture.piece, aotkit.capture.signature):
            monkeypatch.setattr(module, "run_on_copies", tight(module.run_on_copies))
    backend = "nop" if in_eager else lambda gm, example_inputs: tight(gm)
    compiled = aotkit.compile(lambda x: x.sin(), backend=backend, capture=capture)
    with pytest.warns(aotkit.UndecidedWarning, match="may equal eager:\n  everything +undecided: there is no memory"):
        assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin())
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin())
    assert compiled.report(torch.ones(3)).undecided
    assert not compiled.check(torch.ones(3)).undecided


def test_what_cannot_be_traced_is_a_trace_error():
    def mutates_views_of_two_types(x, y):
        y.add_(1)
        return x * 2

    compiled = aotkit.compile(mutates_views_of_two_types, backend="nop", capture="dynamo")
    x = torch.ones(4)
    with pytest.raises(aotkit.TraceError, match=r"captured of 'test_.*cannot be traced"):
        compiled(x, x.view(torch.int32))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning", "ignore:Error detected in:UserWarning")  # torch's
def test_what_has_no_graph_stays_in_python():
    """As speech models mask what they hear: how many elements the backward pass takes out is in the mask."""

    def masked(x, mask, embedding):
        y = (x * 2).sin()
        torch._dynamo.graph_break()
        y[mask] = embedding
        return y.cos()

    compiled = aotkit.compile(masked, backend="nop", capture="dynamo")
    inputs = [torch.randn(6, 4, requires_grad=True), torch.rand(6) > 0.5, torch.randn(4, requires_grad=True)]
    found, wanted = compiled(*inputs), masked(*inputs)
    torch.testing.assert_close(found, wanted)
    gradients = (torch.autograd.grad(y.square().sum(), inputs[::2]) for y in (found, wanted))
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want)
    explained = compiled.explain(*inputs)
    assert explained.pieces == 1
    assert any("cannot be traced" in reason and "aten.nonzero" in reason for reason in explained.breaks)


@pytest.mark.parametrize("fixed", [False, True])
def test_sizes_stay_fixed_for_a_backend_that_takes_no_others(fixed):
    found = []

    def compile_graph(gm, example_inputs):
        found.append(all(isinstance(x, torch.Tensor) for x in example_inputs))
        return gm

    backend = aotkit.Backend(compile_graph, fixed_sizes=fixed)
    compiled = aotkit.compile(torch.sin, backend=backend, capture="dynamo")
    for n in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(n)), torch.ones(n).sin())
    assert all(found) == fixed


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_of_several_outputs_with_open_sizes(dynamic):
    def outputs(x, y, w):
        return x * len(x), y @ w

    compiled = aotkit.compile(outputs, backend="nop", capture="dynamo", dynamic=dynamic)
    for n in (3, 5, 7):
        inputs = [torch.randn(n, 4, requires_grad=True), torch.randn(n, 2, requires_grad=True), torch.randn(2, 3)]
        for chosen in (0, 1):
            found = torch.autograd.grad(compiled(*inputs)[chosen].sum(), inputs[:2], allow_unused=True)
            wanted = torch.autograd.grad(outputs(*inputs)[chosen].sum(), inputs[:2], allow_unused=True)
            assert [g is None for g in found] == [g is None for g in wanted]
            torch.testing.assert_close(found[chosen], wanted[chosen])


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize(
    "layer", [nn.LayerNorm(8), nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.LayerNorm(8, bias=False)], ids=repr
)
def test_normalization_under_autocast(layer, capture, dtype):
    model = nn.Sequential(nn.Linear(8, 8), layer, nn.GELU())
    compiled = aotkit.compile(model, backend="nop", capture=capture)
    x = torch.randn(3, 4, 8)
    with torch.autocast("cpu", dtype):
        found = compiled(x)
    found.float().square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("backend", ["nop", "inductor"])
def test_what_is_saved_by_mixed_normalization_is_described_as_it_is(backend):
    layer = nn.LayerNorm(8)
    x = torch.randn(4, 8, dtype=torch.bfloat16, requires_grad=True)
    compiled = aotkit.compile(layer, backend=backend, capture="aot")
    compiled(x).float().sum().backward()
    nodes = compiled.graphs(x).forward.graph.find_nodes(
        op="call_function", target=torch.ops.aten.native_layer_norm.default
    )
    assert [[v.dtype for v in n.meta["val"][1:]] for n in nodes] in ([], [[torch.float32, torch.float32]])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(3), nn.Linear(3, 3)

    def forward(self, x):
        return x + self.linear(self.norm(x)).relu()


class Dropping(nn.Module):
    """Each layer is a graph of its own: whether it is left out depends on a random number."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            if torch.rand([]) < 2:
                x = layer(x)
        return x.sum()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at what it is given
def test_pieces_of_a_model_are_entered_as_what_is_traced_directly():
    """Not through AOTAutograd's wrappers, which take longer than the kernels of a small layer."""
    module, x = Dropping(), torch.ones(2, 3)
    direct = aotkit.compile(module.layers[0], backend="nop", capture="aot")
    pieces = aotkit.compile(module.layers[1], backend="nop", capture="dynamo")
    dropping = aotkit.compile(module, backend="nop")
    for _ in range(2):
        assert direct(x).grad_fn.name() == pieces(x).grad_fn.name() == "CompiledBackward"
        loss = dropping(x)
        (last, _), *_ = loss.grad_fn.next_functions
        assert last.name() == "CompiledBackward"
        loss.backward()


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_compiled_autograd_takes_the_backward_graph(capture):
    """It knows AOTAutograd's node, and none in C++ that does not describe itself."""
    module, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), torch.ones(3, 4)
    want = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    with torch._dynamo.config.patch(compiled_autograd=True):
        loss = aotkit.compile(module, backend="nop", capture=capture)(x).sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()
    torch.testing.assert_close([p.grad for p in module.parameters()], list(want))


class Clipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        self.linear.weight.data.clamp_(-0.1, 0.1)
        return self.linear(x)


@pytest.mark.parametrize("tier", ["0", ""])
def test_weights_may_be_changed_behind_autograds_back(tier, monkeypatch):
    monkeypatch.setenv("AOTKIT_NATIVE", tier)
    module, x = Clipped(), torch.ones(1, 3)
    for compiled in (
        aotkit.compile(module, backend="nop"),
        aotkit.compile(module, backend="nop", capture="dynamo", check=False),
    ):
        for _ in range(3):
            nn.init.ones_(module.linear.weight)
            assert torch.equal(compiled(x), module(x))
            assert (module.linear.weight == 0.1).all()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at what it is given
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("draws", [False, True])  # with a seed, one more input
def test_inputs_that_overlap_and_are_mutated_are_not_taken_for_leaves(draws, capture):
    def function(w, a, b):
        total = (nn.functional.dropout(w, 0.5, training=draws) * 0 + w).sum()
        a.mul_(2)
        return total + b.sum() + a.sum()

    def inputs():
        memory = torch.ones(8, requires_grad=True) * 1
        return torch.ones(3, requires_grad=True), memory[:5], memory[2:]

    compiled = aotkit.compile(function, backend="nop", capture=capture)
    for _ in range(2):
        assert torch.equal(compiled(*inputs()), function(*inputs()))


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("tier", ["0", ""])
def test_a_function_may_enable_gradients_itself(capture, tier, monkeypatch):
    monkeypatch.setenv("AOTKIT_NATIVE", tier)

    def function(x):
        with torch.enable_grad():
            return (x * x).sin()

    compiled = aotkit.compile(function, backend="nop", capture=capture)
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        with torch.no_grad():
            got, want = compiled(x), function(x)
            assert not torch.is_grad_enabled()
        assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, want)))


class Waiting(torch.Tensor):
    """As torch's AsyncCollectiveTensor: a gradient that another process is about to send."""

    def __coerce_same_metadata_as_tangent__(self, expected, expected_type=None):
        return self.as_subclass(torch.Tensor) if expected_type is torch.Tensor else None


class SendsBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return (gradient * 2).as_subclass(Waiting)


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("tier", ["0", ""])
def test_gradients_that_other_processes_send_are_waited_for(capture, tier, monkeypatch):
    monkeypatch.setenv("AOTKIT_NATIVE", tier)
    compiled = aotkit.compile(torch.sin, backend="nop", capture=capture)
    x = torch.ones(3, requires_grad=True)
    (got,) = torch.autograd.grad(SendsBack.apply(compiled(x)).sum(), x)
    assert torch.equal(got, 2 * x.cos())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at what it is given
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("tier", ["0", ""])
def test_a_backend_may_return_an_input(capture, tier, monkeypatch):
    """It has found that nothing is to be done; the caller's tensor keeps the history that it has."""
    monkeypatch.setenv("AOTKIT_NATIVE", tier)

    def simplifying(gm, example_inputs):
        return lambda *inputs: (
            [inputs[0]]
            if len(inputs) == 1 and gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
            else gm(*inputs)
        )

    compiled = aotkit.compile(torch.clone, backend=simplifying, capture=capture, check=False)
    x = torch.ones(3, requires_grad=True) * 1
    for _ in range(2):
        before = x.grad_fn
        y = compiled(x)
        assert x.grad_fn is before
        assert y is not x
        assert torch.equal(torch.autograd.grad(y.sum() + x.sum(), x)[0], torch.full((3,), 2.0))


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("check", [True, False])
def test_nested_tensors_stay_in_python(check):
    """As the images of several sizes in vit-pytorch's NaViT: the check can neither copy nor compare them."""

    class Head(nn.Module):
        def forward(self, x):
            return x.cos() * 2

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
            self.head = Head()

        def forward(self, *images):
            x = torch.nested.nested_tensor([i.sin() for i in images], layout=torch.jagged)
            torch._dynamo.graph_break()
            q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            x = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            torch._dynamo.graph_break()
            return self.head(torch.stack([t.sum(0) for t in x.unbind()]))

    net = Net()
    compiled = aotkit.compile(net, backend="nop", check=check)
    for _ in range(2):
        images = torch.randn(3, 8), torch.randn(5, 8)
        got, want = compiled(*images), net(*images)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), [*net.parameters()]) for y in (got, want)))
    explanation = compiled.explain(*images)
    assert explanation.pieces == 1
    assert "nested tensor" in str(explanation)
