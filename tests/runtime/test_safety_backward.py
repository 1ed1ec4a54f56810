"""Backward passes in every form: twice, partial, with hooks, second derivatives, checkpointing, random numbers."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import aotkit
from tests.agreement import agrees, compare

PARTITIONERS = ["default", "min_cut", "nx_min_cut"]


@pytest.mark.parametrize("first_retains", [True, False])
@agrees
def test_retain_graph(compile, first_retains):
    f = compile(lambda x: x.exp().sin().sum())
    x = torch.randn(3, requires_grad=True)
    if not first_retains:
        f(x).backward()
    y = f(x)
    y.backward(retain_graph=True)
    yield x.grad
    y.backward()
    yield x.grad
    yield lambda: y.backward()


@agrees
def test_partial_backward(compile):
    f = compile(lambda x, y, z: (x * y.sin(), y * z.exp(), z.detach() + 1, x + 1))
    for used in ((0,), (1,), (0, 1), (3,), (0, 3), (1, 3), (0, 1, 3)):
        leaves = [torch.randn(3, requires_grad=True) for _ in range(3)]
        outs = f(*leaves)
        torch.stack([outs[i].sum() for i in used]).sum().backward()
        yield [t.grad for t in leaves]


@agrees
def test_outputs_one_after_the_other(compile):
    f = compile(lambda x, y: (x.sin() * y, y.cos()))
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    a, b = f(x, y)
    a.sum().backward(retain_graph=True)
    yield x.grad, y.grad
    b.sum().backward()
    yield x.grad, y.grad


@agrees
def test_output_without_gradient(compile):
    f = compile(lambda x: (x.detach() * 2, x.argmax(), x > 0, x.sum(), x.int(), torch.ones(2)))
    for grad in (True, False, True):
        x = torch.randn(3, requires_grad=grad)
        yield (out := f(x))
        if grad:
            out[3].backward()
            yield x.grad


@agrees
def test_unused_input(compile):
    f = compile(lambda x, y, z: x.sum() + y.detach().sum() + 0 * 1)
    leaves = [torch.randn(3, requires_grad=True) for _ in range(3)]
    f(*leaves).backward()
    yield [t.grad for t in leaves]
    yield lambda: torch.autograd.grad(f(*leaves), leaves)
    yield torch.autograd.grad(f(*leaves), leaves, allow_unused=True)


@agrees
def test_gradient_of_a_gradient_that_comes_as_none_or_expanded(compile):
    f = compile(lambda x: x * 2)
    x = torch.randn(3, 4, requires_grad=True)
    y = f(x)
    yield torch.autograd.grad(y, x, torch.ones(1).expand(3, 4), retain_graph=True)
    (gradient,) = torch.autograd.grad(y, x, torch.randn(4, 3).t(), retain_graph=True)
    yield gradient.contiguous()  # its strides are free
    yield lambda: torch.autograd.grad(y, x)
    yield lambda: torch.autograd.grad(y, x, torch.ones(3))


@agrees
def test_backward_of_another_kind_after_ordinary_ones(compile):
    """What the last backward pass was like is remembered."""
    f = compile(lambda x, y: (x * y, (x + y).sin(), x.detach()))
    x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    ones, more = torch.ones(3, 4), torch.randn(4, 3).t()

    def gradients(*cotangents):
        taken = [(out, g) for out, g in zip(f(x, y)[:2], cotangents, strict=True) if g is not None]
        return torch.autograd.grad([out for out, _ in taken], (x, y), [g for _, g in taken])

    for _ in range(3):
        yield gradients(ones, ones)
    yield [g.contiguous() for g in gradients(more, ones)]
    yield [g.contiguous() for g in gradients(ones, more)]
    yield [g.contiguous() for g in gradients(ones[:1].expand(3, 4), ones)]
    yield gradients(ones, None)
    yield gradients(None, ones)
    for _ in range(2):
        out, _, _ = f(x, y)
        with torch.autocast("cpu", torch.bfloat16):
            yield torch.autograd.grad(out, (x, y), ones)
        out, _, _ = f(x, y)
        with torch.inference_mode():
            yield torch.autograd.grad(out, (x, y), ones)
    yield gradients(ones, ones)


def test_switches_turned_on_after_ordinary_passes_are_refused():
    f = aotkit.compile(lambda x: x.sin().sum(), backend="nop")
    x = torch.randn(3, requires_grad=True)
    for _ in range(2):
        f(x).backward()
    y = f(x)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(aotkit.UnsupportedError, match="turned on between"):
            y.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    with pytest.raises(aotkit.UnsupportedError, match="create_graph"):
        torch.autograd.grad(f(x), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(f(x), x), (x.detach().cos(),))


def test_second_derivatives_are_refused():
    f = aotkit.compile(lambda x: x.sin().sum(), backend="nop")
    x = torch.randn(3, requires_grad=True)
    for _ in range(2):
        with pytest.raises(aotkit.UnsupportedError, match="create_graph"):
            torch.autograd.grad(f(x), x, create_graph=True)
    with pytest.raises(aotkit.UnsupportedError, match="create_graph"):
        torch.autograd.functional.hessian(f, x.detach())
    (first,) = torch.autograd.grad(f.__wrapped__(x), x, create_graph=True)
    first.sum().backward()
    torch.testing.assert_close(x.grad, -x.detach().sin())


@pytest.mark.parametrize("through", ["view", "input", "linear", "mutation", "multi", "chain", "detached first"])
def test_second_derivatives_never_vanish(through):
    functions = {
        "view": lambda x: (x.sin() * 2)[1:],
        "input": lambda x: (x.view(-1), x.sin())[1],
        "linear": lambda x: x * 2,
        "mutation": lambda x: x.clone().mul_(x),
        "multi": lambda x: (x.detach(), x.exp())[1],
        "chain": lambda x: x.sin().cos().exp(),
        "detached first": lambda x: (x.detach() + 1, x.sin().view(1, -1))[1],
    }
    f = aotkit.compile(functions[through], backend="nop")
    x = torch.randn(3, requires_grad=True)
    y = f(x)
    for _ in range(6):
        y = y.view(-1).expand(2, -1)[0] * 1.0
    with pytest.raises(aotkit.UnsupportedError):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@agrees
def test_saved_tensor_hooks(compile):
    packed = []

    def pack(t):
        packed.append(t.shape)
        return t.to(torch.float64)

    f = compile(lambda x: x.exp().sin().sum())
    for order in ((True, False), (False, True)):
        for hooked in order:
            x = torch.randn(3, requires_grad=True)
            if hooked:
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(torch.float32)):
                    y = f(x)
            else:
                y = f(x)
            y.backward()
            yield x.grad, bool(packed) or not hooked


@agrees
def test_save_on_cpu_and_disabled_hooks(compile):
    f = compile(lambda x: x.exp().sum())
    for context in (torch.autograd.graph.save_on_cpu(), torch.autograd.graph.disable_saved_tensors_hooks("no")):
        x = torch.randn(3, requires_grad=True)
        with context:
            y = f(x)
        y.backward()
        yield x.grad


@agrees
def test_hooks_on_tensors(compile):
    f = compile(lambda x: x.sin())
    x = torch.randn(3, requires_grad=True)
    x.register_hook(lambda g: g * 10)
    y = f(x)
    y.register_hook(lambda g: g * 3)
    y.retain_grad()
    y.sum().backward()
    yield x.grad, y.grad
    yield lambda: f(x.detach())


def test_hook_registered_inside():
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        return y.sum()

    eager = torch.randn(3, requires_grad=True)
    x = eager.detach().clone().requires_grad_()
    f(eager).backward()
    compiled = aotkit.compile(f, backend="nop", check=False)
    try:
        compiled(x).backward()
    except aotkit.AotkitError:
        return
    torch.testing.assert_close(x.grad, eager.grad)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 7


@agrees
def test_custom_autograd_function(compile):
    f = compile(lambda x: Double.apply(x).sin())
    x = torch.randn(3, requires_grad=True)
    f(x).sum().backward()
    yield x.grad, f(x.detach())


@pytest.mark.parametrize("partition", PARTITIONERS)
@pytest.mark.parametrize("check", [True, False])
def test_checkpoint_inside(partition, check):
    def scenario(compile):
        layers = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.5))
        f = compile(lambda x: checkpoint(layers, x, use_reentrant=False).sum())
        for _ in range(2):
            x = torch.randn(3, 4, requires_grad=True)
            f(x).backward()
            yield x.grad, [p.grad for p in layers.parameters()]

    compare(scenario, check, partition=partition)


@pytest.mark.filterwarnings("ignore:Error detected in CheckpointFunctionBackward")
@pytest.mark.parametrize("check", [True, False])
def test_reentrant_checkpoint_inside_is_an_error_that_names_the_way_out(check):
    linear = nn.Linear(4, 4)
    f = aotkit.compile(
        lambda x: checkpoint(linear, x, use_reentrant=True).sum(), backend="nop", check=check, capture="aot"
    )
    with pytest.raises(aotkit.TraceError, match="use_reentrant=False"):
        f(torch.randn(3, 4, requires_grad=True))


@agrees
def test_checkpoint_outside(compile):
    f = compile(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.5)))
    for _ in range(2):
        x = torch.randn(3, 4, requires_grad=True)
        checkpoint(f, x, use_reentrant=False).sum().backward()
        yield x.grad, [p.grad for p in f.parameters()]


RANDOM = {
    "dropout": lambda x: nn.functional.dropout(x, 0.5) * nn.functional.dropout(x, 0.5),
    "rand_like": lambda x: x * torch.rand_like(x) - torch.rand_like(x) * x,
    "randn": lambda x: x * torch.randn(x.shape) + torch.randn(x.shape),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "uniform_": lambda x: x * torch.empty_like(x).uniform_() + torch.empty_like(x).uniform_(),
    "randint": lambda x: x * torch.randint_like(x, 5) + torch.randint(0, 9, x.shape),
    "randperm": lambda x: x[torch.randperm(x.shape[0])],
    "multinomial": lambda x: x[torch.multinomial(torch.ones(x.shape[0]), 3)],
    "exponential_": lambda x: x * torch.empty_like(x).exponential_(),
    "rrelu": lambda x: nn.functional.rrelu(x, training=True),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
}


@pytest.mark.parametrize("partition", PARTITIONERS)
@pytest.mark.parametrize("name", RANDOM)
def test_random(name, partition):
    def scenario(compile):
        f = compile(RANDOM[name])
        for _ in range(3):
            x = torch.randn(4, 4, requires_grad=True)
            y = f(x.sin())
            y.sum().backward()
            yield y, x.grad
        yield f(x.detach()), torch.rand(3)

    compare(scenario, partition=partition)
    compare(scenario, check=False, partition=partition)


def no_bits(gm, example_inputs):
    """Takes only tensors whose values are those in their memory, as compiled kernels do."""

    def run(*args):
        assert not any(isinstance(x, torch.Tensor) and (x.is_neg() or x.is_conj()) for x in args)
        return gm(*args)

    return run


@pytest.mark.parametrize("mutates", [False, True])
def test_negated_and_conjugated_cotangents(mutates):
    """With and without AOTAutograd's wrappers, which hand such a cotangent on as it is."""

    def f(x, counter):
        if mutates:
            counter.add_(1)
        return x * 2

    compiled = aotkit.compile(f, backend=aotkit.Backend(no_bits))
    for dtype in (torch.float32, torch.complex64):
        x = torch.randn(3, dtype=dtype, requires_grad=True)
        lazy = torch.randn(3, dtype=torch.complex64).conj()
        cotangent = lazy.imag if dtype is torch.float32 else lazy
        assert cotangent.is_neg() or cotangent.is_conj()
        (got,) = torch.autograd.grad(compiled(x, torch.zeros(1)), x, cotangent)
        (want,) = torch.autograd.grad(f(x, torch.zeros(1)), x, cotangent)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("mutates", [False, True])
def test_an_input_has_no_gradient_in_just_those_backward_passes_that_it_takes_no_part_in(capture, mutates):
    count = torch.zeros(())

    def f(x, y):
        if mutates:
            count.add_(1)
        return x.sin(), y.cos()

    compiled = aotkit.compile(f, backend="nop", capture=capture)
    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    a, b = compiled(x, y)

    def gradients(*roots):
        found = torch.autograd.grad([r.sum() for r in roots], [x, y], retain_graph=True, allow_unused=True)
        return [g is not None for g in found]

    for _ in range(2):
        assert gradients(a, b) == [True, True]
        assert gradients(a) == [True, False]
        assert gradients(b) == [False, True]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # said by TorchDynamo
@pytest.mark.parametrize("backend", ["nop", "inductor"])
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("mutates", [False, True])
def test_what_only_an_unused_output_of_another_graph_reads_has_no_gradient(backend, capture, mutates):
    """Autograd goes on to what computed it, with no gradient; an optimizer does not step where there is none."""
    count = torch.zeros(())

    def scaled(x, w):
        if mutates:
            count.add_(1)
        return x * w

    def both(x, y):
        return x.sin(), y.cos()

    scaled, both = (aotkit.compile(f, backend=backend, capture=capture) for f in (scaled, both))
    v, w = (torch.randn(3, requires_grad=True) for _ in range(2))
    x = torch.randn(3)
    a, b = both(scaled(x, v), scaled(x, w))
    for root, read, unread in ((a, v, w), (b, w, v)):
        found = torch.autograd.grad(root.sum(), [read, unread], retain_graph=True, allow_unused=True)
        assert [g is not None for g in found] == [True, False]
    torch.autograd.backward([(a * b).sum()])
    assert v.grad is not None
    assert w.grad is not None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_what_only_an_unused_piece_reads_has_no_gradient():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            y = self.used(x)
            torch._dynamo.graph_break()
            z = self.unused(x)
            torch._dynamo.graph_break()
            return y.sin(), z.cos()

    model = Two()
    aotkit.compile(model, backend="nop", capture="dynamo")(torch.randn(2, 3))[0].sum().backward()
    assert model.used.weight.grad is not None
    assert model.unused.weight.grad is None
    assert model.unused.bias.grad is None
