"""What is saved is memory that holds what it says."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import aotkit
from aotkit.passes.saved_conjugates import LAZY, save_unconjugated
from aotkit.torch_private.native import building


def product(z, x):
    return (z * torch.complex(x, x.sin())).abs(), z.conj() * z.exp()


@pytest.mark.parametrize("partition", ["default", "min_cut", "nx_min_cut"])
def test_conjugates_are_saved_as_what_they_are_of(partition):
    z, x = torch.randn(3, 4, dtype=torch.complex64, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    backend = aotkit.Backend(lambda gm, _: gm, decompositions=aotkit.get_backend("inductor").decompositions)
    fast = aotkit.compile(product, backend=backend, partition=partition)
    fast(z, x)  # and the check passes
    graphs = fast.graphs(z, x)
    saved = graphs.forward.graph.output_node().args[0][graphs.num_outputs :]
    assert not [node for node in saved if node.target in LAZY]
    given = graphs.backward.graph.find_nodes(op="placeholder")
    assert not [node for node in given if node.meta["val"].is_conj()]


def test_one_that_is_saved_twice_is_conjugated_twice():
    z, w = (torch.randn(3, dtype=torch.complex64) for _ in "zw")

    def saving(z):
        conjugate = torch.ops.aten._conj.default(z * 2)
        return z + 1, conjugate, conjugate

    forward, backward = make_fx(saving)(z), make_fx(lambda a, b, t: (a * t + b,))(z, z, w)
    for node in forward.graph.nodes:
        node.meta["val"] = torch.empty(3, dtype=torch.complex64)
    _, *saved = forward(z)
    (want,) = backward(*saved, w)
    save_unconjugated(forward, backward, 1)
    _, *saved = forward(z)
    assert not any(value.is_conj() for value in saved)
    (found,) = backward(*saved, w)
    torch.testing.assert_close(found, want)


def correlation(x, y):
    """The gradient of `x` reads the conjugate of a conjugate, whose first one is lazy as well."""
    return torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.fft.rfft(y, dim=1).conj(), n=12, dim=1)


def test_the_conjugate_of_a_conjugate_is_saved_as_what_both_are_of():
    x, y = (torch.randn(2, 12, requires_grad=True) for _ in "xy")
    backend = aotkit.Backend(lambda gm, _: gm, decompositions=aotkit.get_backend("inductor").decompositions)
    fast = aotkit.compile(correlation, backend=backend)
    fast(x, y)
    graphs = fast.graphs(x, y)
    given = graphs.backward.graph.find_nodes(op="placeholder")
    assert not [node for node in given if node.meta["val"].is_conj()]


@pytest.mark.skipif(not building.can_build(), reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_inductors_gradients_of_a_correlation_are_eagers():
    x, y = (torch.randn(2, 12, requires_grad=True) for _ in "xy")
    fast = aotkit.compile(correlation, backend="inductor")
    found, want = (torch.autograd.grad(f(x, y).square().sum(), (x, y)) for f in (fast, correlation))
    torch.testing.assert_close(found, want)
