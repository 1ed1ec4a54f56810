"""The exact cut: legal, and optimal in bytes under its rules."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

from aotkit.partitioners.nx_min_cut import partition


# Small functions whose every set of saved values can be tried. Their operators are of two kinds only: matrix
# products, which run once, and pointwise operators, views, sums and casts, which may run again.
def diamond(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    return (y.sin() + y.cos()).exp() @ w


def reduction(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).exp()
    return (y / y.sum(1, keepdim=True)).sin()


def half(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w).to(torch.bfloat16).sin() @ w.to(torch.bfloat16)).cos().float()


def view_of_product(x: Tensor, w: Tensor) -> Tensor:
    left, right = (x @ w).view(8, 2, -1).unbind(1)
    return left.sin() * right


def two_outputs(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w).tanh() @ w).relu().square()


@pytest.mark.parametrize("function", [diamond, reduction, half, view_of_product, two_outputs])
def test_no_other_set_of_saved_values_is_smaller(split, function):
    graphs = split(partition, function, torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True))
    assert graphs.saved_bytes == smallest_by_enumeration(graphs)


def smallest_by_enumeration(graphs) -> int:
    """The fewest bytes of any set of memory blocks from which the backward pass can be computed."""
    nodes = [n for n in graphs.joint.graph.nodes if n.op != "output"]
    outputs = graphs.joint.graph.output_node().args[0]
    late: set[Node] = set()
    for node in nodes:
        if node.name.startswith("tangents") or any(i in late for i in node.all_input_nodes):
            late.add(node)
    needed = {i for n in late for i in n.all_input_nodes} - late
    key = {n: n.meta["val"].untyped_storage()._cdata for n in nodes if isinstance(n.meta["val"], Tensor)}
    size = {key[n]: n.meta["val"].untyped_storage().nbytes() for n in key}
    alive = {key[n] for n in nodes if n.op == "placeholder"} | {key[n] for n in outputs[: graphs.num_outputs]}
    choices = sorted({key[n] for n in nodes if n in key and n not in late} - alive)
    assert 0 < len(choices) <= 14

    def enough(saved: set[int]) -> bool:
        def available(node: Node) -> bool:
            if key.get(node) in saved:
                return True
            return node.op == "call_function" and "mm" not in node.name and all(map(available, node.all_input_nodes))

        return all(map(available, needed))

    sets = (set(chosen) for k in range(len(choices) + 1) for chosen in itertools.combinations(choices, k))
    return min(sum(size[s] for s in chosen) for chosen in sets if enough(chosen | alive))


def test_inputs_and_outputs_are_free(split):
    a, b = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    tutorial = split(partition, lambda a, b: (a + b).cos().cos(), a, b)
    assert tutorial.saved_bytes == 0
    returned = split(partition, lambda a, b: (a @ b).exp(), a, b)
    assert "exp" in {node.name for node in returned.saved}
    assert returned.saved_bytes == 0


def test_ties_are_broken_by_the_work_to_recompute(split):
    """The product, its negative and its absolute value have the same size: the one that needs no more work is saved."""
    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    graphs = split(partition, lambda x, w: (x @ w).detach().neg().abs() * w + x, x, w)
    assert [node.name for node in graphs.saved] == ["abs_1"], graphs.saved


def test_what_is_small_is_saved_rather_than_computed_for_each_element(split):
    """The key of a dropout, and two numbers for each row; not its mask, nor what can be had with what is large."""
    x = torch.randn(32, 256, requires_grad=True)

    def function(x: Tensor, seed: Tensor) -> Tensor:
        key = (seed * 0x2545F4914F6CDD1D >> 33) ^ seed
        kept = (torch.arange(x.numel()).view_as(x) * key) % 1000 > 100
        y = x * kept
        return y * (y.square().mean(1, keepdim=True) + 1e-5).rsqrt()

    graphs = split(partition, function, x, torch.tensor(5))
    assert {str(node.target) for node in graphs.saved if node.op != "placeholder"} == {
        "aten.rsqrt.default",
        "aten.bitwise_xor.Tensor",
    }
    normed = split(partition, lambda x: F.layer_norm(x, (256,)).sin(), x)
    assert normed.saved_bytes == 0


def test_a_dropout_mask_is_saved_and_no_copy_of_its_input(split):
    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    graphs = split(partition, lambda x, w: F.dropout(x @ w), x, w)
    assert graphs.saved_bytes == 64  # one byte for each element


def test_symbolic_sizes_are_saved_as_integers(split):
    """A gradient that depends on the shape of its input only does not keep that input alive."""
    graphs = split(partition, lambda x: x.sum(0).sum(0), torch.randn(8, 6, requires_grad=True), dynamic=True)
    assert graphs.saved
    assert all(isinstance(node.meta["val"], torch.SymInt) for node in graphs.saved)


def test_checkpointed_values_are_recomputed_and_their_draws_replayed(run_checkpointed):
    graphs = run_checkpointed(partition)
    backward = [str(node.target) for node in graphs.backward.graph.nodes]
    assert backward.count("run_with_rng_state") == 2
    # The four products of the two blocks run again; each of five has two gradients.
    assert backward.count("aten.mm.default") == 4 + 5 * 2


def test_value_that_must_be_saved_is_not_recomputed(split):
    def tagged(joint, joint_inputs, **keywords):
        for node in joint.graph.nodes:
            if node.name == "mul":
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        return partition(joint, joint_inputs, **keywords)

    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    graphs = split(tagged, lambda x, w: (x * w).sin(), x, w)
    assert "mul" not in {n.name for n in graphs.backward.graph.nodes if n.op == "call_function"}
