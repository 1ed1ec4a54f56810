"""Parts of joint graphs, and graphs whose equal nodes are merged, are what torch's own functions make of the same."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch._functorch import partitioners as functorchs
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from aotkit.joint import parts, sides
from aotkit.joint.equal_nodes import merge_equal_nodes
from aotkit.joint.extraction import extract_forward_backward
from aotkit.partitioners.nx_min_cut import partition
from aotkit.torch_private import partitioners


def described(graph: Graph) -> list[tuple]:
    own = [set(node.meta) - {"mutation_region_id", "output_stack_traces"} for node in graph.nodes]
    values = [[id(value) for value in tree_leaves(node.meta.get("val"))] for node in graph.nodes]
    nodes = [(n.op, n.name, n.target, str(n.args), str(n.kwargs), [u.name for u in n.users]) for n in graph.nodes]
    return [*zip(nodes, own, values, strict=True), graph.output_node().meta.get("desc")]


@pytest.fixture
def compared(monkeypatch):
    """What has been found equal to torch's: graphs of parts, and names of nodes in parts."""
    ours, its_nodes, found = parts.part_of, parts.nodes_of_part, []

    def both(*args, **keywords):
        part, torchs = ours(*args, **keywords), partitioners.extract(*args, **keywords)
        part.lint()
        assert described(part) == described(torchs)
        found.append(part)
        return part

    def names_of_both(*args, **keywords):
        nodes, torchs = its_nodes(*args, **keywords), partitioners.extract(*args, **keywords)
        found.append([node.name for node in nodes.nodes])
        assert found[-1] == [node.name for node in torchs.nodes if node.op != "output"]
        return nodes

    monkeypatch.setattr(parts, "part_of", both)
    monkeypatch.setattr(sides, "nodes_of_part", names_of_both)
    return found


@pytest.mark.thinned
@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_are_torchs(compared, split, workload, dynamic):
    split(partition, workload.function, *workload.inputs(), dynamic=dynamic)
    graphs = [found for found in compared if isinstance(found, Graph)]
    assert len(compared) - len(graphs) == 1  # to see what forward needs
    assert len(graphs) == 2  # backward is extracted once, as it reads all that is saved


def test_backward_is_extracted_again_if_it_does_not_read_what_is_saved(compared):
    graph = make_fx(lambda x, tangent: (x.sin(), x.cos() * tangent), tracing_mode="fake")(torch.ones(3), torch.ones(3))
    nodes = {node.name: node for node in graph.graph.nodes}
    nodes["tangent_1"].name = nodes["tangent_1"].target = "tangents_1"
    nodes["x_1"].name = nodes["x_1"].target = "primals_1"
    graph.graph.output_node().meta["desc"] = [None, None]
    extract_forward_backward(graph, [nodes["cos"], nodes["sin"]], num_fwd_outputs=1)
    assert len(compared) == 3


def test_parts_of_checkpointed_functions_are_torchs(compared, run_checkpointed):
    run_checkpointed(partition)
    assert compared


def test_torch_extracts_as_before_afterwards(split):
    before = functorchs._extract_graph_with_inputs_outputs
    split(partition, lambda x: x.sin().cos(), torch.randn(3, requires_grad=True))
    assert functorchs._extract_graph_with_inputs_outputs is before


def test_other_threads_extract_as_torch_does():
    graph = make_fx(lambda x: x.sin(), tracing_mode="fake")(torch.ones(3)).graph
    asked = graph, graph.find_nodes(op="placeholder"), [next(n for n in graph.nodes if n.op == "call_function")], [None]
    with partitioners.extracting_by(parts.nodes_of_part), ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(lambda: functorchs._extract_graph_with_inputs_outputs(*asked)).result()
        here = functorchs._extract_graph_with_inputs_outputs(*asked)
    assert isinstance(elsewhere, Graph)
    assert not isinstance(here, Graph)


def merged(function, *inputs) -> list[str]:
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    merge_equal_nodes(graph, apart=())
    names = [str(node.target) for node in graph.nodes]
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
        by_torch = described(functorchs.fx_graph_cse(joint.graph))
        merge_equal_nodes(joint.graph, apart)
        assert described(joint.graph) == by_torch
        return partition(joint, joint_inputs, **keywords)

    split(both, workload.function, *workload.inputs())
