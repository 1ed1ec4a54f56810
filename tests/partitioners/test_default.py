"""The default partition: everything saved, nothing repeated, and eager's random numbers."""

import torch
import torch.nn.functional as F

from aotkit.partitioners.default import partition


def test_backward_repeats_no_work_of_forward(split):
    x = torch.randn(8, 8, requires_grad=True)
    graphs = split(partition, lambda x: (x @ x.sin()).cos().cos(), x)
    assert "cos" in {node.name for node in graphs.forward.graph.nodes}
    assert not {"cos", "cos_1", "mm"} & {n.name for n in graphs.backward.graph.nodes if n.op == "call_function"}


def test_dropout_whose_result_is_unused(split):
    """torch's own partitioner stops with an AssertionError here."""
    x = torch.randn(8, 8, requires_grad=True)
    graphs = split(partition, lambda x: (F.dropout(x), x.sin())[1], x)
    assert [n for n in graphs.forward.graph.nodes if n.target is torch.ops.aten.native_dropout.default]


def test_checkpointed_dropout_is_replayed(run_checkpointed):
    graphs = run_checkpointed(partition)
    assert "run_with_rng_state" in {str(node.target) for node in graphs.backward.graph.nodes}
