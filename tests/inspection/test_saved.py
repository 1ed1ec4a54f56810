"""Saved memory is counted by storage, what is alive anyway apart; recomputation is found by value."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import aotkit
from aotkit.inspection import Graphs, recomputed, recomputed_views, saved_bytes, saved_values
from aotkit.inspection.nodes import storage_roots

GraphsOf = Callable[..., Graphs]
MIB = 2**20


def parameter(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def tutorial(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    x = a + b + c + d
    return x.cos().cos()


def block(x: Tensor, qkv: Tensor, proj: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A transformer block with 4 heads; x: [batch, time, width]."""
    batch, time, width = x.shape
    y = F.layer_norm(x, (width,))
    q, k, v = (y @ qkv).view(batch, time, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
    scores = torch.softmax(q @ k.transpose(-1, -2), -1)
    x = x + (scores @ v).transpose(1, 2).reshape(batch, time, width) @ proj
    return x + F.gelu(F.layer_norm(x, (width,)) @ up) @ down


def block_graphs(graphs_of: GraphsOf, **options: Any) -> Graphs:
    shapes = [(2, 16, 64), (64, 192), (64, 64), (64, 256), (256, 64)]
    return graphs_of(block, *[parameter(*shape) for shape in shapes], **options)


def kinds(graphs: Graphs) -> dict[str, str]:
    return {value.name: value.kind for value in saved_values(graphs)}


@pytest.mark.parametrize(("partition", "mebibytes", "again"), [("default", 16, []), ("min_cut", 8, ["cos"])])
def test_tutorial_function(graphs_of: GraphsOf, partition: str, mebibytes: int, again: list[str]) -> None:
    graphs = graphs_of(tutorial, *[parameter(1024, 2048) for _ in range(4)], partition=partition)
    assert saved_bytes(graphs) == mebibytes * MIB
    assert [node.name for node in recomputed(graphs)] == again
    value = saved_values(graphs)[0]
    assert (value.kind, value.dtype, value.shape, value.nbytes) == ("activation", torch.float32, (1024, 2048), 8 * MIB)
    assert value.operator == "add"
    assert value.source is not None
    assert value.source.code == "x = a + b + c + d"


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_transformer_block_counts_each_storage_once(graphs_of: GraphsOf, partition: str) -> None:
    graphs = block_graphs(graphs_of, partition=partition)
    tokens, width, heads, statistics = 2 * 16, 64, 2 * 4 * 16 * 16, 2 * 2 * 16
    # layer norm in and out twice (x itself is an input), q k v, scores, attention out, up projection and gelu
    numbers = tokens * width * (1 + 3 + 1 + 1 + 1 + 2 * 4) + heads + 2 * statistics
    assert saved_bytes(graphs) == 4 * numbers
    activations = [value for value in saved_values(graphs) if value.kind == "activation"]
    shared = len(activations) - len({value.storage for value in activations})
    assert shared == (1 if partition == "default" else 0)  # the softmax, saved as itself and as a view


def test_storages_are_shared_exactly_by_views(graphs_of: GraphsOf) -> None:
    for partition in ("default", "min_cut"):
        graphs = block_graphs(graphs_of, partition=partition)
        for gm in (graphs.joint, graphs.forward, graphs.backward):
            assert gm is not None
            roots = storage_roots(gm)
            for node in gm.graph.nodes:
                schema = getattr(node.target, "_schema", None)
                if node.op == "call_function" and schema is not None:
                    is_view = any(argument.alias_info is not None for argument in schema.arguments)
                    assert not is_view or roots[node] is roots[node.args[0]]
                    assert is_view or roots[node] is node or "_unsafe_view" in str(node.target)


def test_what_is_alive_anyway_is_told_apart(graphs_of: GraphsOf) -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(x @ w.t())
        left, right = y.split(2, -1)
        return (left * right).sin(), y

    graphs = graphs_of(fn, parameter(3, 5), parameter(4, 5))
    assert set(kinds(graphs).values()) == {"input", "view of input", "view of output", "activation"}
    assert kinds(graphs)["t"] == "view of input"
    assert saved_bytes(graphs) == 3 * 2 * 4

    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    graphs = graphs_of(softmax, parameter(3, 5), partition="min_cut")
    assert list(kinds(graphs).values()) == ["view of output"]  # a detached alias
    assert saved_bytes(graphs) == 0


def test_the_new_value_of_a_mutated_input_is_an_activation(graphs_of: GraphsOf) -> None:
    def fn(x: Tensor, state: Tensor) -> Tensor:
        state.add_(1)
        return x * state

    graphs = graphs_of(fn, parameter(8), torch.zeros(8))
    assert graphs.num_outputs == 2
    assert kinds(graphs) == {"add": "activation"}
    assert saved_bytes(graphs) == 32


def test_a_saved_slice_keeps_its_whole_storage(graphs_of: GraphsOf) -> None:
    def fn(x: Tensor) -> Tensor:
        return x.exp()[:1].sin()

    graphs = graphs_of(fn, parameter(100))
    small = [value for value in saved_values(graphs) if value.shape == (1,)]
    assert [(value.nbytes, value.storage) for value in small] == [(400, "exp")]
    assert saved_bytes(graphs) == 400


def test_results_of_one_operator_are_separate_storages(graphs_of: GraphsOf) -> None:
    def fn(x: Tensor) -> Tensor:
        return F.layer_norm(x * 2, (8,)).sin()

    statistics = [v for v in saved_values(graphs_of(fn, parameter(4, 8))) if v.shape == (4, 1)]
    assert [value.operator for value in statistics] == ["native_layer_norm"] * 2
    assert len({value.storage for value in statistics}) == 2


def test_symbolic_sizes(graphs_of: GraphsOf) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin().reshape(-1).cos()

    graphs = graphs_of(fn, parameter(6, 5), parameter(5, 4), dynamic=True)
    values = saved_values(graphs)
    assert saved_bytes(graphs) == 2 * 6 * 4 * 4
    assert any(isinstance(size, torch.SymInt) for value in values for size in value.shape)
    assert {v.nbytes for v in values if v.kind == "symbolic size"} <= {0}


def test_a_saved_size_costs_nothing(graphs_of: GraphsOf) -> None:
    def fn(x: Tensor) -> Tensor:
        return x.sum(0).expand(x.shape[0], x.shape[1]).mean()

    graphs = graphs_of(fn, parameter(6, 5), dynamic=True)
    assert "symbolic size" in kinds(graphs).values()
    assert saved_bytes(graphs) == 0


def test_a_size_that_depends_on_data_is_unknown(graphs_of: GraphsOf) -> None:
    def fn(x: Tensor) -> Tensor:
        return x[x > 0].sin()

    graphs = graphs_of(fn, parameter(8), dynamic=True)
    assert {value.name: value.nbytes for value in saved_values(graphs) if value.dtype} == {"gt": 8, "index": None}
    assert saved_bytes(graphs) == 8
    assert "1 of unknown size" in str(graphs)


def test_sparse_gradients_have_no_storage(graphs_of: GraphsOf) -> None:
    def fn(index: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(index, weight, sparse=True).sin()

    graphs = graphs_of(fn, torch.tensor([1, 2]), parameter(4, 3))
    assert saved_bytes(graphs) == 2 * 3 * 4
    assert "_sparse_coo_tensor" in str(graphs)


def test_what_a_derivative_formula_computes_again_is_recomputed(graphs_of: GraphsOf) -> None:
    def fn(x: Tensor) -> Tensor:
        return x.sin() + x.cos()

    graphs = graphs_of(fn, parameter(64))
    assert {str(node.target) for node in recomputed(graphs)} == {"aten.sin.default", "aten.cos.default"}


def test_views_are_not_recomputed_operations(graphs_of: GraphsOf) -> None:
    graphs = block_graphs(graphs_of, partition="min_cut")
    views = recomputed_views(graphs)
    assert views
    assert not set(views) & set(recomputed(graphs))
    assert all(storage_roots(graphs.backward)[node] is not node for node in views if graphs.backward)


def test_random_operations_are_not_the_same_value(graphs_of: GraphsOf) -> None:
    def fn(x: Tensor) -> Tensor:
        return x * torch.rand_like(x) + x * torch.rand_like(x)

    assert recomputed(graphs_of(fn, parameter(8))) == []


def test_inference_saves_nothing(graphs_of: GraphsOf) -> None:
    graphs = graphs_of(tutorial, *[torch.randn(4) for _ in range(4)])
    assert graphs.backward is None
    assert saved_values(graphs) == recomputed(graphs) == recomputed_views(graphs) == []


def test_tokens_that_order_effects_are_no_outputs() -> None:
    """`torch.linalg.solve` raises for singular matrices, which is an effect."""
    a, b = torch.eye(3, requires_grad=True), torch.ones(3)
    graphs = aotkit.extract(torch.linalg.solve, a, b)
    assert graphs.num_outputs == 1
    assert len(saved_values(graphs)) == len(graphs.forward.graph.output_node().args[0]) - 1
