"""Parts of joint graphs, and graphs whose equal nodes are merged, are what torch's own functions make of the same."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from aotkit.aot import parts
from aotkit.aot.equal_nodes import merge_equal_nodes
from aotkit.partitioners.nx_min_cut import partition


def described(graph: Graph) -> list[tuple]:
    own = [set(node.meta) - {"mutation_region_id", "output_stack_traces"} for node in graph.nodes]
    values = [[id(value) for value in tree_leaves(node.meta.get("val"))] for node in graph.nodes]
    nodes = [(n.op, n.name, n.target, str(n.args), str(n.kwargs), [u.name for u in n.users]) for n in graph.nodes]
    return [*zip(nodes, own, values, strict=True), graph.output_node().meta.get("desc")]


@pytest.fixture
def compared(monkeypatch):
    """How many parts have been found equal to torch's."""
    ours, found = parts.part_of, []

    def both(*args, **keywords):
        part, torchs = ours(*args, **keywords), parts._extract(*args, **keywords)
        part.lint()
        assert described(part) == described(torchs)
        found.append(part)
        return part

    monkeypatch.setattr(parts, "part_of", both)
    return found


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_are_torchs(compared, split, workload, dynamic):
    split(partition, workload.function, *workload.inputs(), dynamic=dynamic)
    assert len(compared) == 4  # one to see what forward needs, and three of torch's extraction


def test_parts_of_checkpointed_functions_are_torchs(compared, run_checkpointed):
    run_checkpointed(partition)
    assert compared


def test_torch_extracts_as_before_afterwards(split):
    before = parts.partitioners._extract_graph_with_inputs_outputs
    split(partition, lambda x: x.sin().cos(), torch.randn(3, requires_grad=True))
    assert parts.partitioners._extract_graph_with_inputs_outputs is before


def merged(function, *inputs) -> list[str]:
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    names = [str(node.target) for node in merge_equal_nodes(list(graph.nodes), apart=()).nodes]
    return [name for name in names if name.startswith("aten.")]


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: (x + 1).sin() * (x + 1).sin(), 3),
        (lambda x: (x + 1).sin() * (x + 1.0).sin(), 5),
        (lambda x: (x + 0.0).sin() * (x + -0.0).sin(), 5),
        (lambda x: (x.sum([0]) * x.sum([0])).sin(), 3),
        (lambda x: (x.sin() + 0, x.sin() + 0), 3),  # each result has its own memory
        (lambda x: (x.sin() * x.add_(1)) * x.sin(), 5),
        (lambda x: F.relu(torch.empty(3) * torch.empty(3)), 4),
    ],
    ids=["equal", "integer", "negative_zero", "lists", "results", "in_place", "uninitialised"],
)
def test_equal_nodes_are_merged(function, count):
    assert len(merged(function, torch.randn(3))) == count


def test_workloads_are_merged_as_by_torch(split, workload):
    def both(joint, joint_inputs, **keywords):
        joint.graph.eliminate_dead_code()
        apart = {node for node in joint.graph.nodes if "random" in str(node.target)}
        assert described(merge_equal_nodes(list(joint.graph.nodes), apart)) == described(
            parts.partitioners.fx_graph_cse(joint.graph)
        )
        return partition(joint, joint_inputs, **keywords)

    split(both, workload.function, *workload.inputs())
