"""Products of matrices that are ATen's: padded where their rows take odd numbers of bytes, and of float32 at once."""

import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import aotkit
from aotkit.backends.fusion_definition import padded_products
from aotkit.backends.fusion_definition.padded_products import PERMUTATIONS, PRODUCTS, pad_products
from aotkit.backends.fusion_definition.permutations import merge_permutations
from aotkit.backends.fusion_definition.wide_products import widen_products

aten = torch.ops.aten
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def any_size(monkeypatch):
    """Small products are padded, too."""
    monkeypatch.setattr(padded_products, "COMPUTING", 1e6)
    monkeypatch.setattr(padded_products, "LEAST", 0)


def traced(function, *shapes, dtype=torch.bfloat16):
    """The graph of a function of tensors on a GPU, which runs on a CPU."""
    with FakeTensorMode():
        return make_fx(function)(*(torch.empty(s, dtype=dtype, device="cuda") for s in shapes))


def padded(function, *shapes, dtype=torch.bfloat16):
    """The graph with padded products, which gives what the function does, in the same strides."""
    gm = traced(function, *shapes, dtype=dtype)
    pad_products(gm)
    gm.graph.lint()
    inputs = [torch.randn(s, dtype=dtype) for s in shapes]
    for got, want in zip(gm(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        assert got.stride() == want.stride()
    return gm


def sizes(gm):
    """The sizes of each product: rows, what is summed over, columns."""
    found = []
    for node in gm.graph.nodes:
        if (place := PRODUCTS.get(node.target)) is not None:
            first, second = (x.meta["val"].shape for x in node.args[place : place + 2])
            found.append((*first[-2:], second[-1]))
    return found


def count(gm, target):
    return len(gm.graph.find_nodes(op="call_function", target=target))


def head(x, w, b):
    """Of a language model with a vocabulary of an odd size, and its gradients."""
    logits = F.linear(x, w, b)
    chances = logits.view(2, -1, logits.shape[-1]).float().softmax(-1)
    gradient = (chances * chances).view(-1, w.shape[0]).to(w.dtype)
    of_bias = gradient.sum(0, keepdim=True).view(-1)  # as autograd has it
    return chances, gradient @ w, gradient.t() @ x, of_bias.float()


def test_a_vocabulary_of_an_odd_size(any_size):
    gm = padded(head, (12, 16), (21, 16), (21,))
    assert sizes(gm) == [(12, 16, 24), (12, 24, 16), (24, 12, 16)]
    assert count(gm, aten.constant_pad_nd.default) == 3  # weight, bias and gradient, each once
    (total,) = gm.graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)
    assert total.args[0].target is aten.constant_pad_nd.default  # as the products read it
    assert cut_copies(gm) == 0


def attention(q, k, v):
    return (((q @ k.mT).softmax(-1)) @ v,)


def test_an_odd_number_of_keys(any_size):
    gm = padded(attention, (3, 21, 8), (3, 21, 8), (3, 21, 8))
    assert sizes(gm) == [(21, 8, 24), (21, 24, 8)]


def transposed_in_memory(x):
    return x.t().clone(memory_format=torch.contiguous_format).t()


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda x, w: (x @ w,), ((8, 13), (13, 24)), [(8, 16, 24)]),
        (lambda x, w: (x.t() @ w,), ((24, 13), (24, 8)), [(16, 24, 8)]),
        (lambda x, w: (x.t() @ transposed_in_memory(w),), ((24, 13), (24, 8)), [(16, 24, 8)]),
        (lambda x, w: ((x @ w).t() @ x,), ((16, 8), (8, 13)), [(16, 8, 16), (16, 16, 8)]),
        (lambda x, w, v: ((x @ w) @ v,), ((16, 8), (8, 13), (13, 8)), [(16, 8, 16), (16, 16, 8)]),
        (lambda x, w: ((y := x @ w) @ y,), ((13, 8), (8, 13)), [(13, 8, 16), (13, 16, 16)]),
        (lambda c, x, w: (torch.addmm(c, x, w, beta=0.5, alpha=2),), ((8, 13), (8, 16), (16, 13)), [(8, 16, 16)]),
        (lambda c, x, w: (torch.addmm(c, x, w),), ((8, 1), (8, 16), (16, 13)), [(8, 16, 16)]),
        (lambda c, x, w: (torch.addmm(c, x, w),), ((), (8, 16), (16, 13)), [(8, 16, 16)]),
        (lambda c, x, w: (torch.baddbmm(c, x, w),), ((2, 8, 13), (2, 8, 16), (2, 16, 13)), [(8, 16, 16)]),
        (lambda x, w: (x.permute(1, 0, 2) @ w,), ((8, 3, 13), (3, 13, 16)), [(8, 16, 16)]),
        (lambda x, w: (x.t().t() @ w.transpose(-1, 0),), ((8, 13), (16, 13)), [(8, 16, 16)]),
    ],
)  # fmt: skip
def test_each_product(function, shapes, expected, any_size):
    assert sizes(padded(function, *shapes)) == expected
    assert sizes(padded(function, *shapes, dtype=torch.float16)) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y,
        lambda y: y.view(2, 4, 13).transpose(0, 1),
        lambda y: y.view(-1).sin(),  # no view of what was cut is possible
        lambda y: torch.as_strided(y, (13,), (1,), 13).sin(),
        lambda y: torch.cat([part.exp() for part in y.split(3, 0)]),
        lambda y: y.t().clone(),
        lambda y: y.unsqueeze(0).expand(3, 8, 13).sum(0),
    ],
)
def test_what_reads_a_product_reads_the_same(function, any_size):
    gm = padded(lambda x, w: (function(x @ w),), (8, 16), (16, 13))
    assert sizes(gm) == [(8, 16, 16)]


def cut_copies(gm):
    """Copies of products without their zeros: kernels of a fuser's, where `clone` would be a slow one of ATen's."""
    pads = gm.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    return sum(min(node.args[1]) < 0 for node in pads)


def test_what_may_count_on_strides_reads_a_copy(any_size):
    gm = padded(lambda x, w: ((x @ w).view(8, 13).sort(-1)[0],), (8, 16), (16, 13))
    assert cut_copies(gm) == 1
    assert cut_copies(padded(lambda x, w: ((x @ w).view(8, 13).exp(),), (8, 16), (16, 13))) == 0


def test_a_result_is_handed_out_and_read_in_one_place(any_size):
    def losses(x, w):
        y = x @ w
        return y, y.view(2, 4, 13).exp()

    gm = padded(losses, (8, 16), (16, 13))
    assert cut_copies(gm) == 1


@pytest.mark.parametrize(
    ("function", "shapes", "dtype"),
    [
        (lambda x, w: (x @ w,), ((8, 16), (16, 24)), torch.bfloat16),
        (lambda x, w: (x @ w,), ((8, 13), (13, 21)), torch.float32),
        (lambda x, w: (x @ w,), ((8, 13), (13, 1)), torch.bfloat16),
        (lambda x, w: (x.t() @ w,), ((24, 16), (24, 8)), torch.bfloat16),
        (lambda x, w: (x @ w,), ((13, 16), (16, 8)), torch.bfloat16),  # rows are counted in whole ones
    ],
)
def test_even_products_stay(function, shapes, dtype, any_size):
    gm = padded(function, *shapes, dtype=dtype)
    assert count(gm, aten.constant_pad_nd.default) == 0


def test_what_does_not_pay_off_stays():
    assert count(padded(head, (12, 16), (21, 16), (21,)), aten.constant_pad_nd.default) == 0
    gm = traced(head, (8192, 768), (50257, 768), (50257,))
    pad_products(gm)
    assert count(gm, aten.constant_pad_nd.default) == 3


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: (x.t().t().exp(),), 0),
        (lambda x: (x.t().t(), x.t().exp()), 2),  # what is returned is no input
        (lambda x: (x.view(2, 3, 4).permute(2, 0, 1).transpose(0, 1).exp(),), 1),
        (lambda x: (x.view(2, 3, 4).permute(2, 0, 1).permute(-2, -1, 0).exp(),), 0),
        (lambda x: ((y := x.view(2, 3, 4).permute(1, 2, 0)).exp(), y.permute(2, 0, 1).sin()), 1),
        (lambda x: (x.t().t().t().t().exp(),), 0),
    ],
)
def test_permutations_of_permutations(function, left):
    x = torch.randn(6, 4)
    gm = make_fx(function, tracing_mode="fake")(x)
    merge_permutations(gm)
    gm.graph.lint()
    for got, want in zip(gm(x), function(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.stride() == want.stride()
    assert sum(node.target in PERMUTATIONS for node in gm.graph.nodes) == left


class Program:
    """Random operators of matrices, of which many are products of odd sizes."""

    def __init__(self, seed):
        self._seed = seed
        sizes = random.Random(seed).choices([5, 8, 13, 16, 21], k=3)
        self.shapes = [tuple(random.Random(seed + i).choices(sizes, k=2)) for i in range(3)]

    def __call__(self, *values):
        choose = random.Random(self._seed)
        values = list(values)
        for _ in range(choose.randint(4, 12)):
            values.append(self._next(choose, choose.choice(values), values))
        return *choose.sample(values, 3), values[-1]

    def _next(self, choose, a, values):
        if a.dim() == 3:
            return a.reshape(-1, a.shape[-1]).sigmoid()
        matrices = [m for v in values if v.dim() == 2 for m in (v, v.t())]
        others = [(x, y) for x in (a, a.t()) for y in matrices if x.shape[1] == y.shape[0]]
        if others and choose.random() < 0.5:
            x, y = choose.choice(others)
            return x @ y / 16 if choose.random() < 0.7 else torch.addmm(aten.sum.dim_IntList(y, [0]), x, y)
        dim = choose.randrange(2)
        steps = [
            lambda: a.t(),
            lambda: a.softmax(-1),
            lambda: aten.slice(a, dim, 0, choose.randint(2, a.shape[dim])),
            lambda: aten.unsqueeze(a, dim),
            lambda: aten.sum.dim_IntList(a, [dim], True) + a,
            lambda: aten.sort(a, -1)[0],
        ]
        return choose.choice(steps)()


class Noted(Interpreter):
    """Runs a graph, and compares what its nodes note."""

    def run_node(self, n):
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            assert (value.shape, value.stride()) == (n.meta["val"].shape, n.meta["val"].stride()), n
        return value


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.sweep) for n in (15, 30, 45))])
def test_random_programs(first, any_size):
    pads = 0
    for seed in range(first, first + 15):
        program = Program(seed)
        gm = traced(program, *program.shapes)
        merge_permutations(gm)
        pad_products(gm)
        gm.graph.lint()
        pads += count(gm, aten.constant_pad_nd.default)
        inputs = [torch.randn(s, dtype=torch.bfloat16) for s in program.shapes]
        for got, want in zip(Noted(gm).run(*inputs), program(*inputs), strict=True):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want, rtol=0.1, atol=0.1 * (1 + want.abs().max().item()))
    assert pads > 15


# A conversion of what a product gives is the product's own.


def widened(function, *shapes):
    gm = traced(function, *shapes)
    results = [r.meta["val"] for r in gm.graph.output_node().args[0]]
    widen_products(gm)
    gm.graph.lint()
    for node, was in zip(gm.graph.output_node().args[0], results, strict=True):
        now = node.meta["val"]
        assert (now.shape, now.stride(), now.dtype) == (was.shape, was.stride(), was.dtype)
    return count(gm, aten.mm.dtype), count(gm, aten._to_copy.default)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, w: ((x @ w).float(),), (1, 0)),
        (lambda x, w: ((x @ w).t().float(),), (1, 0)),
        (lambda x, w: (aten.slice(x @ w, 0, 0, 3).float(), x.float()), (1, 1)),
        (lambda x, w: ((x @ w).view(-1).float(),), (1, 0)),
        (lambda x, w: ((x @ w).double(),), (0, 1)),
        (lambda x, w: (aten.slice(x @ w, 1, 0, 3).float(),), (0, 1)),  # the conversion gives it other strides
        (lambda x, w: ((x @ w).split(2)[0].float(),), (0, 1)),
        (lambda x, w: ((y := x @ w).float(), y.exp()), (0, 1)),
        (lambda x, w: ((y := (x @ w).t()).float(), y.exp()), (0, 1)),
        (lambda x, w: ((x @ w).exp().float(),), (0, 1)),
        (lambda x, w: ((x @ w).float().exp(),), (0, 1)),  # which reads half as much
        (lambda x, w: ((y := (x @ w).float()), y.exp()), (0, 1)),
    ],
)
def test_products_give_what_they_are_converted_to(function, expected):
    assert widened(function, (8, 16), (16, 8)) == expected


@ON_GPU
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("vocabulary", [50257, 50264])
def test_a_head_on_a_gpu(vocabulary, dynamic, grad):
    def loss(x, w, labels):
        logits = F.linear(x, w)
        return F.cross_entropy(logits.float(), labels), logits[:, :3]

    x = torch.randn(1024, 768, device="cuda", requires_grad=True)
    w = (torch.randn(vocabulary, 768, device="cuda") / 30).requires_grad_()
    labels = torch.randint(vocabulary, (1024,), device="cuda")
    compiled = aotkit.compile(loss, backend="fuser", dynamic=dynamic)
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.set_grad_enabled(grad):
        got, some = compiled(x, w, labels)
        want, others = loss(x, w, labels)
        graphs = compiled.graphs(x, w, labels)
    assert some.stride() == others.stride()
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    assert ("constant_pad_nd" in graphs.forward.code) == (vocabulary == 50257 and not dynamic)
    if grad:
        assert "mm.dtype" in graphs.backward.code
        own, eager = (torch.autograd.grad(y, [x, w]) for y in (got, want))
        for a, b in zip(own, eager, strict=True):
            assert (a - b).norm() < 0.01 * b.norm()
