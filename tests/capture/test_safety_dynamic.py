"""`dynamic=True`: few graphs serve many sizes, and none serves a size that it is wrong for."""

import pytest
import torch
from torch import nn

import aotkit
from tests.agreement import agrees, compare

SIZES = [(4, 3), (5, 7), (2, 2)]


def trained(f, *shapes, **options):
    """Outputs and gradients of `f` for random inputs of these shapes."""
    xs = [torch.randn(shape, requires_grad=True, **options) for shape in shapes]
    outs = f(*xs)
    floating = [o for o in torch.utils._pytree.tree_leaves(outs) if isinstance(o, torch.Tensor) and o.requires_grad]
    if floating:
        sum(o.sum() for o in floating).backward()
    return outs, [x.grad for x in xs]


USES_OF_SIZES = {
    "mean": lambda x: x.sum(0) / x.shape[0],
    "sizes as outputs": lambda x: (x + 1, x.shape, x.shape[0] * 2, x.numel(), x.dim(), len(x), x.stride()),
    "new tensor": lambda x: torch.ones(x.shape[1], x.shape[0]) @ x,
    "arange": lambda x: x * torch.arange(x.shape[1]),
    "flatten": lambda x: x.reshape(-1).sin(),
    "swapped": lambda x: x.reshape(x.shape[1], x.shape[0]) * 2,
    "view": lambda x: x.view(x.shape[0], 1, -1).expand(-1, 2, -1),
    "half": lambda x: x[: x.shape[0] // 2].cos(),
    "last": lambda x: x[-1] * x[:, x.shape[1] - 1 :].sum(),
    "cat": lambda x: torch.cat([x, x[:1]], 0).exp(),
    "scale": lambda x: x * x.shape[0] ** -0.5 + float(x.shape[1]),
    "matmul": lambda x: (x @ x.t()).softmax(-1),
    "eye": lambda x: x @ torch.eye(x.size(-1)),
    "list": lambda x: [row.sum() for row in x.split(1)][-1] + x.numel(),
    "loop": lambda x: sum((x[i] * i for i in range(x.shape[0])), x[0]),
    "pad": lambda x: nn.functional.pad(x, (0, 8 - x.shape[1], 1, 0)),
    "roll": lambda x: x.roll(x.shape[0] // 2, 0),
    "max": lambda x: x.max(0).values * max(x.shape[0], 3),
}


@pytest.mark.parametrize("name", USES_OF_SIZES)
@agrees(dynamic=True, exact=False)
def test_uses_of_sizes(compile, name, order):
    f = compile(USES_OF_SIZES[name])
    for shape in SIZES[::order]:
        yield trained(f, shape) if order == 1 else f(torch.randn(shape))


@pytest.mark.parametrize("grad", [False, True])
@agrees(dynamic=True, graphs=1)
def test_one_graph_for_all_sizes(compile, grad):
    f = compile(lambda x: (x.sin() * 2).sum(1) / x.shape[0])
    for shape in ((4, 3), (8, 3), (4, 9), (100, 7), (2, 5), (3, 2)):
        yield trained(f, shape) if grad else f(torch.randn(shape))


@agrees(dynamic=True, graphs=2)
def test_branch_on_a_size(compile, order):
    f = compile(lambda x: x * 2 if x.shape[0] > 5 else x * 3)
    for n in (4, 8, 6, 5, 2, 100)[::order]:
        yield trained(f, (n, 3))


BRANCHES = {
    "even": lambda x: x * 2 if x.shape[0] % 2 == 0 else x * 3,
    "square": lambda x: x @ x if x.shape[0] == x.shape[1] else x + 1,
    "number": lambda x: x * 2 if x.numel() > 20 else x * 3,
    "contiguous": lambda x: x * 2 if x.is_contiguous() else x * 3,
    "stride": lambda x: x * x.stride(0) + x.stride(1),
    "named size": lambda x: x * {4: 1.0, 8: 2.0}.get(x.shape[0], 3.0),
    "int": lambda x: x * int(x.shape[0]),
    "truth": lambda x: x * 2 if x.shape[0] - 4 else x * 3,
    "range": lambda x: x[2:6].sum() + x[: min(x.shape[0], 5)].sum(),
    "chunks": lambda x: torch.stack([c.sum() for c in x.chunk(2)]),
}


@pytest.mark.parametrize("name", BRANCHES)
@agrees(dynamic=True, exact=False)
def test_branches(compile, name, order):
    f = compile(BRANCHES[name])
    for shape in [(4, 3), (8, 3), (5, 5), (10, 12)][::order]:
        yield trained(f, shape)
        yield f(torch.randn(shape).t())


@agrees(dynamic=True)
def test_sizes_of_zero_and_one(compile, order):
    f = compile(lambda x: (x.sum(0) / max(x.shape[0], 1), x.squeeze(0), x + torch.ones(x.shape[0], 1)))
    for shape in [(4, 3), (1, 3), (0, 3), (4, 1), (1, 1), (4, 0), (0, 0), (5, 3), (1, 3)][::order]:
        yield trained(f, shape)


@agrees(dynamic=True)
def test_broadcasting_of_equal_sizes_and_of_one(compile, order):
    f = compile(lambda x, y: x * y + x)
    pairs = [((4, 4), (4, 4)), ((4, 3), (4, 3)), ((4, 3), (1, 3)), ((4, 3), (4, 1)), ((1, 3), (4, 1)), ((4, 1), (4, 1))]
    for shapes in pairs[::order] * 2:
        yield trained(f, *shapes)


@agrees(dynamic=True)
def test_two_inputs_that_must_agree(compile):
    f = compile(lambda x, y: (x @ y).sum() + x.shape[1])
    for n, k, m in ((4, 3, 5), (4, 4, 4), (2, 6, 3), (5, 3, 4)):
        yield trained(f, (n, k), (k, m))
        yield lambda n=n, k=k, m=m: f(torch.randn(n, k), torch.randn(k + 1, m))
    g = compile(lambda x, y: x + y)
    yield g(torch.randn(4), torch.randn(4))
    yield lambda: g(torch.randn(4), torch.randn(5))
    yield g(torch.randn(4), torch.randn(1))


@agrees(dynamic=True)
def test_equal_sizes_do_not_stay_equal(compile):
    f = compile(lambda x, y: x.sum() * y.shape[0] + y.sum() * x.shape[0] + (1 if x.shape[0] == y.shape[0] else 2))
    for shapes in (((4,), (4,)), ((4,), (5,)), ((6,), (6,)), ((5,), (4,))):
        yield trained(f, *shapes)
    g = compile(lambda x: x.reshape(x.shape[1], x.shape[0]) * x.shape[0])
    for shape in ((4, 4), (4, 5), (6, 6), (5, 4)):
        yield trained(g, shape)


LAYOUTS = {
    "contiguous": lambda n: torch.randn(n, 4, 3, 3),
    "channels last": lambda n: torch.randn(n, 4, 3, 3).to(memory_format=torch.channels_last),
    "transposed": lambda n: torch.randn(n, 4, 3, 3).transpose(2, 3),
    "every other": lambda n: torch.randn(n, 8, 3, 3)[:, ::2],
    "expanded": lambda n: torch.randn(n, 1, 3, 3).expand(n, 4, 3, 3),
    "offset": lambda n: torch.randn(n + 1, 4, 3, 3)[1:],
    "permuted": lambda n: torch.randn(3, n, 3, 4).permute(1, 3, 0, 2),
}


@agrees(dynamic=True)
def test_strides(compile, order):
    f = compile(lambda x: (x * 2, x.stride(), x.is_contiguous(), x.flatten(1), torch.empty_like(x).fill_(1)))
    for n in (2, 5):
        for name in list(LAYOUTS)[::order]:
            x = LAYOUTS[name](n).requires_grad_()
            out = f(x)
            (out[0].sum() + out[3].sum()).backward()
            yield name, out, x.grad


@agrees(dynamic=True)
def test_view_that_eager_rejects(compile):
    f = compile(lambda x: x.view(-1) * 2)
    for shape in ((3, 4), (4, 5)):
        yield f(torch.randn(shape))
        yield lambda shape=shape: f(torch.randn(shape).t())
        yield f(torch.randn(shape)[:, :1])


@agrees(dynamic=True, graphs=2, exact=False)
def test_convolution_with_static_parameters(compile):
    m = compile(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)))
    for shape in ((2, 3, 8, 7), (5, 3, 6, 9), (7, 3, 8, 4)):
        yield trained(m, shape), [p.grad for p in m.parameters()], dict(m.named_buffers())
    with torch.no_grad():
        yield m(torch.randn(4, 3, 5, 6)), m(torch.randn(6, 3, 7, 5))


@agrees(dynamic=True)
def test_parameters_may_change_size(compile):
    m = nn.Linear(3, 3)
    f = compile(m)
    for n in (4, 5):
        yield trained(f, (n, 3))
    m.weight, m.bias = nn.Parameter(torch.randn(6, 3)), nn.Parameter(torch.randn(6))
    for n in (4, 5, 6):
        yield trained(f, (n, 3)), m.weight.grad
    yield lambda: f(torch.randn(4, 4))


@agrees(dynamic=True, graphs=1)
def test_mutation(compile):
    f = compile(lambda x, y: (x.mul_(2).add_(y), x[1:]))
    for n in (3, 5, 9):
        x = torch.randn(n)
        out = f(x, torch.ones(n))
        yield out, x, out[0] is x


@agrees(dynamic=True)
def test_aliased_inputs(compile, order):
    f = compile(lambda a, b: (a.mul_(2), a + b * 2)[1])
    for kind in ("distinct", "same", "overlap", "disjoint", "distinct", "same")[::order]:
        for n in (3, 6):
            base = torch.randn(3 * n)
            a, b = {
                "distinct": (torch.randn(n), torch.randn(n)),
                "same": (base, base),
                "overlap": (base[:n], base[1 : n + 1]),
                "disjoint": (base[:n], base[n : 2 * n]),
            }[kind]
            yield kind, f(a, b), a, b


@agrees(dynamic=True)
def test_ranks_dtypes_and_gradients(compile, order):
    f = compile(lambda x: (x * x.shape[-1], x.sum(-1), x.to(torch.float32)))
    kinds = [(torch.float32, True), (torch.float64, False), (torch.int64, False), (torch.float32, False)]
    for shape in [(3,), (3, 4), (2, 3, 4), (5,), (6, 7)][::order]:
        for dtype, grad in kinds[::order]:
            x = torch.ones(shape, dtype=dtype, requires_grad=grad)
            out = f(x)
            yield out
            if grad:
                out[0].sum().backward()
                yield x.grad


@agrees(dynamic=True)
def test_python_numbers_stay_constants(compile):
    f = compile(lambda x, n: x.reshape(n, -1) * n)
    for n, shape in ((2, (4, 3)), (4, (4, 3)), (2, (8, 5)), (2.0, (4, 3)), (True, (4, 3))):
        yield lambda n=n, shape=shape: f(torch.randn(shape), n)


@agrees(dynamic=True)
def test_lists_of_tensors(compile):
    f = compile(lambda xs, by: torch.cat([x * len(xs) for x in xs]) + sum(b.sum() for b in by.values()))
    for sizes in ((2, 3), (3, 2), (2, 3, 4), (3, 3), (5,)):
        yield f([torch.randn(n) for n in sizes], {"a": torch.randn(sizes[0]), "b": torch.randn(7)})


@agrees(dynamic=True)
def test_partial_backward_and_graph_kept(compile):
    f = compile(lambda x, y: (x.sin() * x.shape[0], y.exp().sum()))
    for n in (3, 4):
        x, y = torch.randn(n, requires_grad=True), torch.randn(n + 1, requires_grad=True)
        a, b = f(x, y)
        a.sum().backward(retain_graph=True)
        yield x.grad, y.grad
        (a.sum() + b).backward()
        yield x.grad, y.grad


def test_results_of_one_function_are_inputs_of_the_next():
    """torch marks them with an attribute, for TorchDynamo."""
    double = aotkit.compile(lambda x: (x * 2, x.sin()), backend="nop", dynamic=True)
    triple = aotkit.compile(lambda x: x * 3, backend="nop", dynamic=True)
    for y in double(torch.randn(5, 3, requires_grad=True)):
        assert "runs compiled graphs" in str(triple.explain(y))


def test_size_as_text_is_found_by_the_check():
    def scenario(compile):
        f = compile(lambda x: x * len(f"{x.shape[0]}"))
        for n in (5, 50, 7):
            yield f(torch.randn(n, 3))

    compare(scenario, check=True, dynamic=True)


@pytest.mark.sweep
@agrees(dynamic=True, exact=False)
def test_transformer_layer(compile):
    m = compile(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
    for batch, length in ((2, 5), (3, 7), (4, 4), (2, 1)):
        yield trained(m, (batch, length, 8)), [p.grad for p in m.parameters()]


@agrees(dynamic=True)
def test_random(compile):
    f = compile(lambda x: nn.functional.dropout(x, 0.5) * torch.rand(x.shape[0], 1))
    for n in (3, 5, 100):
        yield trained(f, (n, 4))


@pytest.mark.sweep
@pytest.mark.parametrize("check", [True, False])
def test_sizes_with_inductor(check):
    def scenario(compile):
        f = compile(lambda x: x.softmax(-1).sum(0) / x.shape[0] if x.shape[0] > 5 else x.sum(0) * x.shape[1])
        for shape in ((8, 3), (6, 5), (4, 3), (2, 7), (1, 3), (6, 1)):
            yield trained(f, shape)

    compare(scenario, check, backend="inductor", dynamic=True, exact=False)


def test_sizes_of_one_function_say_nothing_about_another():
    """TorchDynamo leaves sizes open that have changed in calls of the same code: not in those of other functions."""

    class Scaled(nn.Module):
        def forward(self, x):
            return 2 * x

    for size, fn in enumerate([Scaled(), torch.sin, lambda x: x.cos(), Scaled(), torch.cos, lambda x: x.tan()], 2):
        x = torch.randn(size)
        compiled = aotkit.compile(fn, backend="nop", capture="dynamo")
        compiled(x)
        sizes = [node.meta["val"] for node in compiled.graphs(x).forward.graph.find_nodes(op="placeholder")]
        assert [tuple(value.shape) for value in sizes] == [(size,)]
