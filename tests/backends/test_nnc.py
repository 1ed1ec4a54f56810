"""NNC: the TorchScript that it is given computes what the graph computes; on CUDA it fuses."""

import pytest
import torch
from torch.nn import functional as F

import aotkit
from aotkit.backends import nnc


@pytest.fixture
def torchscript_alone(monkeypatch):
    """NNC's translation, run by TorchScript's interpreter where there is no LLVM."""
    monkeypatch.setattr(nnc, "nnc_fuses_on_cpu", lambda: True)
    return aotkit.Backend(nnc.compile_graph, decompositions=nnc.default_decompositions)


def factories(x):
    n = x.shape[-1]
    infinite = torch.full((n,), float("inf"), device=x.device)
    return x.cos() * torch.arange(n, device=x.device) + (-infinite).exp() + torch.ones_like(x, dtype=torch.float64)


def network(x, w, target):
    hidden = F.gelu(F.layer_norm(x, x.shape[-1:]) @ w)
    return F.cross_entropy(F.dropout(hidden, 0.3), target)


def casts(x):
    return (x.to(torch.bfloat16) * 2).float(), x.sum(), None, x[torch.tensor([0, 1])], x > 0


CASES = {
    "factories": (factories, lambda device: (torch.randn(3, 4, device=device, requires_grad=True),)),
    "network": (
        network,
        lambda device: (
            torch.randn(3, 4, device=device, requires_grad=True),
            torch.randn(4, 5, device=device, requires_grad=True),
            torch.tensor([1, 2, 3], device=device),
        ),
    ),
    "casts": (casts, lambda device: (torch.randn(3, 4, device=device, requires_grad=True),)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_torchscript_equals_the_graph(case, capture, torchscript_alone):
    fn, inputs = CASES[case]
    compiled = aotkit.compile(fn, backend=torchscript_alone, capture=capture, random="torch")
    for _ in range(3):  # TorchScript optimises on its second run
        args = inputs("cpu")
        torch.manual_seed(1)
        got = compiled(*args)
        torch.manual_seed(1)
        torch.testing.assert_close(got, fn(*args))


def test_a_copy_that_converts_nothing_is_a_copy(torchscript_alone):
    def f(x, q):
        return x @ q.t().to(torch.float32, copy=True)

    x, q = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
    (want,) = torch.autograd.grad(f(x, q).sum(), x)
    y = aotkit.compile(f, backend=torchscript_alone, partition="default")(x, q)
    q.zero_()
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], want)


def test_dynamic_sizes_become_fixed_ones(torchscript_alone):
    compiled = aotkit.compile(lambda x: (x * x.shape[0]).sin(), backend=torchscript_alone, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4, requires_grad=True)
        torch.testing.assert_close(compiled(x), (x * rows).sin())
        assert "sym_size" not in compiled.graphs(x).forward.code


@pytest.mark.skipif(torch.cuda.is_available() or nnc.nnc_fuses_on_cpu(), reason="NNC runs here")
def test_without_llvm_and_cuda_it_says_why():
    with pytest.raises(aotkit.UnavailableError, match="LLVM"):
        aotkit.compile(torch.sin, backend="nnc")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_fuses_on_cuda():
    kernels = []

    def recording(gm, example_inputs):
        kernels.append(nnc.compile_graph(gm, example_inputs))
        return kernels[-1]

    def f(a, b, c, d):
        return (a + b + c + d).cos().cos()

    args = [torch.randn(64, 128, device="cuda", requires_grad=True) for _ in range(4)]
    aotkit.compile(f, backend=aotkit.Backend(recording), partition="min_cut")(*args).sum().backward()
    assert len(kernels) == 2
    for kernel in kernels:
        assert "TensorExprGroup" in kernel.optimized_graph
        assert "aten::cos" not in kernel.optimized_graph.partition("with prim::TensorExprGroup")[0]


def test_what_torchscript_made_of_a_graph_is_read():
    """Constants are no kernels, and of `addmm`, which it takes apart, no part is at a place of the source.

    As printed for a CUDA device by torch 2.11.
    """
    source = (
        "def graph(x, w, b):\n"
        "    addmm = torch.ops.aten.addmm(b, x, w)\n"
        "    relu = torch.ops.aten.relu(addmm)\n"
        "    sum_1 = torch.ops.aten.sum(relu, [0])\n"
        "    return (sum_1,)\n"
    )
    optimized = (
        "graph(%x.1 : Tensor, %w.1 : Tensor, %b.1 : Tensor):\n"
        "  %4 : int = prim::Constant[value=0]() # <string>:4:12\n"
        "  %5 : Tensor = aten::mm(%x.1, %w.1) # <string>:3:24\n"
        "  %9 : Tensor = prim::TensorExprGroup_0(%5, %b.1)\n"
        "  %sum_1.1 : Tensor = aten::sum(%9, %4) # <string>:4:12\n"
        "with prim::TensorExprGroup_0 = graph(%5 : Tensor, %b.1 : Tensor):\n"
        "  %2 : Tensor = aten::add(%b.1, %5) # <string>:3:17\n"
        "  %relu.2 : Tensor = aten::relu(%2) # <string>:3:11\n"
    )
    found = [(k.name, k.operations) for k in nnc._kernels(optimized, source)]
    assert found == [("aten::mm", ()), ("prim::TensorExprGroup_0", ("relu",)), ("aten::sum", ("sum_1",))]
