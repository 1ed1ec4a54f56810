"""A cheap value that kernels apart from one another read is computed in each of them, where that moves less."""

import pytest
import torch
import torch.nn.functional as F

from aotkit.benchmark.evaluation import evaluate
from aotkit.partitioners import nx_min_cut


def joined(x, w, v):
    """Two batch norms whose sum has one gradient; a product more lies before one of them."""
    near, far = x @ w, (x @ v).cos() @ w
    return (F.batch_norm(near, None, None, training=True) + F.batch_norm(far, None, None, training=True)).sin() @ w


def inputs():
    return [torch.randn(4096, 16, requires_grad=True), *(torch.randn(16, 16, requires_grad=True) for _ in range(2))]


def copies(graphs):
    return [node for node in graphs.backward.graph.nodes if node.name.endswith("_again")]


@pytest.fixture
def cut(split):
    return lambda function, *given: split(nx_min_cut.partition, function, *given)


def test_to_copy_moves_fewer_bytes(cut, monkeypatch):
    def seconds(graphs):
        return evaluate(graphs.forward, graphs.backward, graphs.num_outputs).seconds["A100"]

    with_copies = cut(joined, *inputs())
    assert copies(with_copies)
    monkeypatch.setattr(nx_min_cut, "compute_where_read", lambda backward: None)
    without = cut(joined, *inputs())
    assert not copies(without)
    assert seconds(with_copies) < seconds(without)
    assert with_copies.saved_bytes == without.saved_bytes


def test_what_a_product_reads_is_in_memory_and_not_copied(cut):
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    assert not copies(cut(lambda x, w: ((x @ w).sin() @ w).cos() @ w, x, w))
