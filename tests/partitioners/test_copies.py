"""A cheap value that kernels apart from one another read is computed in each of them, where that moves less."""

import pytest
import torch

from aotkit.benchmark.capture import joint_graph
from aotkit.benchmark.evaluation import evaluate
from aotkit.benchmark.models import ResNet
from aotkit.benchmark.partitioners import decomposition_table
from aotkit.joint.running import partition_copy
from aotkit.partitioners import nx_min_cut


@pytest.fixture(scope="module")
def joint():
    """Two batch norms of a block share a gradient; one of them runs late, as its branch is shorter."""
    inputs = (torch.randn(4, 3, 32, 32), torch.arange(4))
    return joint_graph(ResNet((1, 1), classes=8).train(), inputs, decompositions=decomposition_table("inductor"))


def copies(backward):
    return [node for node in backward.graph.nodes if node.name.endswith("_again")]


@pytest.fixture
def parts(joint, monkeypatch):
    """(forward, backward) with copies, and without."""
    with_copies = partition_copy(nx_min_cut.partition, joint)
    monkeypatch.setattr(nx_min_cut, "compute_where_read", lambda backward: None)
    return with_copies, partition_copy(nx_min_cut.partition, joint)


def test_to_copy_moves_fewer_bytes(joint, parts):
    found, plain = (evaluate(*both, joint.num_outputs) for both in parts)
    assert copies(parts[0][1])
    assert not copies(parts[1][1])
    assert found.seconds["A100"] < plain.seconds["A100"]
    assert found.saved_bytes == plain.saved_bytes


def test_a_copy_is_the_same_value(parts):
    (_, backward), (_, plain) = parts
    given = [random_like(node.meta["val"]) for node in plain.graph.find_nodes(op="placeholder")]
    for found, expected in zip(backward(*given), plain(*given), strict=True):
        assert found is expected is None or torch.equal(found, expected)


def random_like(value):
    """Real, of the shape and type of a fake tensor."""
    if value.is_floating_point():
        return torch.rand(value.shape, dtype=value.dtype)
    return torch.full(value.shape, 4, dtype=value.dtype)  # a label, and the middle of a window of 3 x 3
