"""What is saved is memory that holds what it says."""

import pytest
import torch

import aotkit
from aotkit.passes.saved_conjugates import LAZY


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
