"""Results in the memory of what they are the last to read: equal to those that are not, and less is allocated."""

import pytest
import torch
from torch.nn import functional as F

import aotkit
from aotkit.backends.fuser import launches
from tests.backends.interpreted.comparing import IS_INTERPRETED, by_region, compiled, fused

ROWS, WIDTH = 32, 64
FULL = 4 * ROWS * WIDTH  # bytes of a tensor


def weights(*shapes):
    return [torch.randn(shape) / 8 for shape in shapes]


def rms_norm(x, weight):
    return F.rms_norm(x, (WIDTH,), weight)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (WIDTH,), weight, bias)


def swiglu(x, gate):
    return F.silu(gate) * x


def geglu(x, gate):
    return F.gelu(gate, approximate="tanh") * x


def rotary(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def cross_entropy(logits):
    return F.cross_entropy(logits, torch.arange(ROWS) % WIDTH, label_smoothing=0.1)


# With the shapes of its other inputs; full tensors that are new in forward and in backward, at most.
FUNCTIONS = {
    "RMS norm": (rms_norm, [(WIDTH,)], 1, 0),
    "layer norm": (layer_norm, [(WIDTH,), (WIDTH,)], 1, 0),
    "SwiGLU": (swiglu, [(ROWS, WIDTH)], 1, 0),
    "GEGLU": (geglu, [(ROWS, WIDTH)], 1, 0),
    "rotary": (rotary, [(ROWS, WIDTH), (ROWS, WIDTH)], 1, 2),
    "softmax": (lambda x: x.softmax(-1), [], 0, 0),
    "cross entropy": (cross_entropy, [], 0, 0),
}


def between_products(fn):
    """A function of what products give: nothing else has that."""

    def surrounded(x, weight, *others):
        others = [y @ weight if y.shape == x.shape else y for y in others]
        found = fn(x @ weight, *others)
        return found @ weight if found.dim() else found

    return surrounded


def step(call, leaves):
    """What it returns, and the gradients."""
    result = call(*leaves)
    kept = result.detach().clone()
    return [kept, *torch.autograd.grad(result, leaves, torch.ones_like(result))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_patterns(name, memory):
    torch.manual_seed(0)
    fn, shapes, forward, backward = FUNCTIONS[name]
    leaves = [torch.randn(ROWS, WIDTH), *weights((WIDTH, WIDTH), *shapes)]
    leaves = [x.requires_grad_() for x in leaves]
    call = aotkit.compile(between_products(fn), backend=by_region(), check=False)
    memory.on = False
    for _ in range(2):  # the first one has what it overwrites
        expected, before = memory.of(lambda: step(call, leaves))
    memory.on = True
    found, allocated = memory.of(lambda: step(call, leaves))
    assert all(map(torch.equal, found, expected))
    assert allocated <= before
    if not IS_INTERPRETED:  # Triton's interpreter keeps hold of what kernels have had
        assert allocated < min(before, FULL * (forward + backward + 1))  # the rest are sums


def block(x, norm, into, gate, out):
    h = F.rms_norm(x, (WIDTH,), norm)
    return x + (F.silu(h @ gate) * (h @ into)) @ out


def model(x, norm, into, gate, out):
    for _ in range(2):
        x = block(x, norm, into, gate, out)
    return (x @ into).square().mean()


def test_a_model_that_is_trained_and_differentiated_twice(memory):
    torch.manual_seed(0)
    leaves = [x.requires_grad_() for x in weights((ROWS, WIDTH), (WIDTH,), *[(WIDTH, WIDTH)] * 3)]
    call = aotkit.compile(model, backend=by_region(), check=False)
    memory.on = False
    for _ in range(2):
        expected, before = memory.of(lambda: step(call, leaves))
    memory.on = True
    found, allocated = memory.of(lambda: step(call, leaves))
    assert all(map(torch.equal, found, expected))
    assert allocated < before / (1 if IS_INTERPRETED else 2)
    loss = call(*leaves)
    for retain in (True, True, False):
        assert all(map(torch.equal, torch.autograd.grad(loss, leaves, retain_graph=retain), expected[1:]))


@pytest.mark.parametrize("name", ["input", "gradient"])
def test_what_the_caller_has_stays(name, memory):
    """The gradient that it gives, and an input of which it has nothing but a view."""
    fn = {"input": lambda x: x.sin() + 1, "gradient": lambda x: x.tanh()}[name]
    call = aotkit.compile(fn, backend=by_region(), check=False)
    for _ in range(3):
        x = torch.randn(ROWS, WIDTH, requires_grad=name == "gradient")
        view, before = x.detach()[:1], x.detach().clone()
        given = torch.randn(ROWS, WIDTH)
        kept = given.clone()
        result = call(x)
        if name == "gradient":
            result.backward(given)
        del x
        assert torch.equal(view, before[:1])
        assert torch.equal(given, kept)


def test_a_gradient_that_is_passed_on_is_overwritten(memory):
    """As autograd adds gradients up in place, if nothing else has them."""
    call = aotkit.compile(swiglu, backend=by_region(), check=False)
    leaves = [torch.randn(ROWS, WIDTH, requires_grad=True) for _ in range(2)]
    for _ in range(3):
        loss = (call(*leaves) * 2).sin().sum()
        found, allocated = memory.of(lambda: torch.autograd.grad(loss, leaves))  # noqa: B023
    assert allocated == FULL  # of two gradients
    expected = torch.autograd.grad((swiglu(*leaves) * 2).sin().sum(), leaves)
    torch.testing.assert_close(found, expected)


def test_what_fails_in_its_first_run_has_overwritten_nothing(memory, monkeypatch):
    """ATen computes it then, of the same inputs."""
    compiled = launches.Fused._compiled

    def failing(self, device):
        *rest, (*kernels, ((_, *arguments), made, done)) = compiled(self, device)
        assert kernels
        self._ready = *rest, [*kernels, ((fail, *arguments), made, done)]
        return self._ready

    def fail(*args):
        raise RuntimeError("this kernel does not compile")

    monkeypatch.setattr(launches.Fused, "_compiled", failing)

    def fn(x, weight):
        y = (x @ weight).sin()
        return y, y.sum(0)

    inputs = torch.randn(20000, 16), torch.randn(16, 16)
    found = aotkit.compile(fn, backend=by_region(), check=False)(*inputs)
    for got, want in zip(found, fn(*inputs), strict=True):
        torch.testing.assert_close(got, want)
    assert memory.allocated  # a kernel ran before


# Kernels that may not.


def kernels_of(fn, *args):
    """The compiled kernels, and for each the buffers that may be in the memory of others."""
    region, _ = compiled(fn, *args)
    region(list(args))
    found = fused(region)
    return found.launches, [{i: able for i, able, *_ in made if able} for made in found._lives()[0]]


SQUARE = WIDTH, WIDTH
REFUSED = {
    "read at another place": (lambda x: x + x.t(), [SQUARE]),
    "shifted": (lambda x: torch.cat([x[:, 32:], x[:, :32]], 1) * x, [SQUARE]),
    "one for each row": (lambda x, y: x.sum(1) + y, [SQUARE, (WIDTH,)]),
    "of another type": (lambda x: (x.double() * 2, x.sum()), [SQUARE]),
    "a part of it": (lambda x, y: x[32:] * y, [SQUARE, (32, WIDTH)]),
    "of fewer elements": (lambda x, y: x * y, [(WIDTH,), SQUARE]),
    "not needed for it": (lambda x, y: (y * 2, (x + y).sum(1)), [SQUARE, SQUARE]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_read_otherwise_stays(name):
    """The first input; of none of its elements is the same one of a result computed, and written by who reads it."""
    fn, shapes = REFUSED[name]
    _, places = kernels_of(fn, *map(torch.randn, shapes))
    assert all(0 not in able for found in places for able in found.values())


def test_what_a_later_kernel_reads_stays():
    kernels, places = kernels_of(lambda x: (x.softmax(1), x.amax(0)), torch.randn(300, 200))
    assert any(kernel.in_place for kernel in kernels[:-1])
    for n, found in enumerate(places):
        later = {i for kernel in kernels[n + 1 :] for i in kernel.buffers}
        assert later.isdisjoint(i for able in found.values() for i in able)


@pytest.mark.parametrize("shared", [False, True])
def test_rows_in_chunks(shared, limit, memory):
    """A row that is walked several times is overwritten by the last walk; one that programs share is not."""
    limit(LONGEST_WHOLE_ROW=32, CHUNK=64, SHARED_CHUNK=64, TILE=64, ONE_PROGRAM=0)
    limit(FEWEST_ROWS=1000 if shared else 1, SHORT_ROW=64 if shared else 8192)

    def fn(y, g):
        rest = g - (g * y).sum(1, keepdim=True)
        return y * rest, rest.exp() + 1, g * 2

    inputs = torch.randn(3, 1000), torch.randn(3, 1000) / 1000
    region, _ = compiled(fn, *inputs)
    for _ in range(2):
        expected = region(list(inputs))
    assert memory.placed == 0
    assert all(map(torch.equal, region([x.clone() for x in inputs]), expected))
