"""What a partition is said to cost, against counting by hand and against what really is alive."""

import weakref

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import aotkit
from aotkit.benchmark.capture import joint_graph
from aotkit.benchmark.dataflow import Step, dataflow
from aotkit.benchmark.evaluation import evaluate, peak_bytes
from aotkit.benchmark.kernels import bytes_moved, fuse
from aotkit.benchmark.models import mlp
from aotkit.inspection.memory import Memory
from aotkit.joint.extraction import extract_forward_backward
from aotkit.joint.running import partition_copy
from aotkit.partitioners.rematerialization.devices import Device
from aotkit.torch_private.aotautograd import memory_budget
from aotkit.torch_private.fake_tensors import fake_tensors
from aotkit.torch_private.fx import boxed

SIDE = 32
UNIT = 4 * SIDE * SIDE  # bytes of one matrix


class Module(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *inputs):
        return self.fn(*inputs)


def joint_of(fn, count=1, random="shared"):
    with fake_tensors():
        inputs = [torch.zeros(SIDE, SIDE, requires_grad=True) for _ in range(count)]
    return joint_graph(Module(fn), inputs, random=random)


def saving(*names):
    """A partitioner that saves the nodes of these names, and recomputes the rest."""

    def partition(joint, joint_inputs, *, num_fwd_outputs, **kwargs):
        inputs = [node for node in joint.graph.find_nodes(op="placeholder") if "primals" in node.name]
        chosen = [node for node in joint.graph.nodes if node.name in names]
        assert len(chosen) == len(names)
        return extract_forward_backward(joint, [*inputs, *chosen], num_fwd_outputs=num_fwd_outputs)

    return partition


def judge(joint, partition, **devices):
    parts = partition_copy(partition, joint)
    return evaluate(*parts, joint.num_outputs, *([devices] if devices else []))


def sin_cos(x):
    return x.sin().cos()


def test_a_chain_of_pointwise_operators():
    # forward: sin, cos. backward, from x, sin and the tangent: sin, neg, mul, cos, mul.
    device = Device(bandwidth=2.0 * UNIT, flops=1.0, launch=0.25)
    found = judge(joint_of(sin_cos), saving("sin"), device=device)
    assert found.saved_bytes == UNIT
    # Most is alive when backward begins to compute: the output, sin, the tangent, and the first result.
    assert found.peak_bytes == 4 * UNIT
    assert found.fused_peak_bytes == 3 * UNIT  # the gradient takes the place of sin
    # One kernel each: x in, sin and cos out; x, sin and the tangent in, the gradient out.
    assert found.kernels == 2
    assert found.seconds == {"device": pytest.approx(7 / 2 + 2 * 0.25)}
    assert (found.redrawn, found.repeated, found.repeated_flops) == (0, 0, 0)


@pytest.mark.parametrize(("alone", "most"), [(False, 8), (True, 16)], ids=["fused", "of a library"])
def test_only_fused_kernels_write_into_what_they_read_for_the_last_time(alone, most):
    first, second = Memory(8), Memory(8)
    steps = [Step({}, [first], 0, alone), Step({("all", first): 8}, [second], 0, alone)]
    around = {"saved": [], "tangents": [], "kept": [second]}
    assert peak_bytes(steps, [], **around, in_place=True) == most
    assert peak_bytes(steps, [], **around) == 16
    assert peak_bytes(steps, [Step({("all", first): 8}, [], 0, False)], **around, in_place=True) == 16


def test_recomputing_the_chain_saves_nothing_and_moves_less():
    device = Device(bandwidth=2.0 * UNIT, flops=1.0, launch=0.25)
    found = judge(joint_of(sin_cos), saving(), device=device)
    assert found.saved_bytes == 0
    # Operator by operator, sin is made again: next to the output, the tangent, and the sine of itself.
    assert found.peak_bytes == 4 * UNIT
    assert found.fused_peak_bytes == 3 * UNIT  # the output, the tangent and the gradient
    assert found.seconds == {"device": pytest.approx(5 / 2 + 2 * 0.25)}


@pytest.mark.parametrize("names", [["view"], ["sin"], ["sin", "view"]], ids="+".join)
def test_a_view_is_the_memory_that_it_views(names):
    joint = joint_of(lambda x, y: (x.sin().view(-1) * y.view(-1)).cos(), 2)
    found = judge(joint, saving(*names, "mul"))
    assert found.saved_bytes == 2 * UNIT


def test_what_inputs_and_outputs_keep_alive_is_not_saved_memory():
    joint = joint_of(lambda x, y: x.exp() * y, 2)
    assert judge(joint, saving("exp")).saved_bytes == UNIT
    joint = joint_of(lambda x: x.exp())  # its gradient needs the result
    assert judge(joint, saving("exp")).saved_bytes == 0
    joint = joint_of(lambda x, y: x @ y, 2)  # its gradient needs transposed inputs
    transposed = [node.name for node in joint.gm.graph.nodes if node.target is torch.ops.aten.t.default]
    assert judge(joint, saving(*transposed)).saved_bytes == 0


def test_what_is_recomputed_takes_memory_of_its_own():
    """Also if a view of it is saved: the fake tensors of both are in one storage."""

    def fn(x):
        y = x.sin()
        return y.cos().sum() + y.view(-1).cos().sum()

    joint = joint_of(fn)
    once, twice = (dataflow(partition_copy(saving(name), joint)[1]) for name in ("sin", "view"))
    assert len(twice.steps) == len(once.steps) + 1
    assert all(len(step.writes) == 1 for step in twice.steps)


def test_a_matrix_product_that_runs_twice():
    joint = joint_of(lambda x, y: (x @ y).sin(), 2)
    once, twice = judge(joint, saving("mm")), judge(joint, saving())
    assert (once.saved_bytes, once.repeated, once.repeated_flops) == (UNIT, 0, 0)
    assert (twice.saved_bytes, twice.repeated, twice.repeated_flops) == (0, 1, 2 * SIDE**3)


@pytest.mark.parametrize("heads", [4, 2])
def test_fused_attention_on_a_cpu_is_counted_as_on_a_gpu(heads):
    with fake_tensors():
        q, k, v = (torch.zeros(2, n, 64, 16, requires_grad=True) for n in (4, heads, heads))
    joint = joint_graph(Module(lambda *qkv: F.scaled_dot_product_attention(*qkv, enable_gqa=heads < 4)), [q, k, v])
    forward, backward = partition_copy(aotkit.get_partitioner("min_cut"), joint)
    product = 2 * (2 * 4) * 64 * 64 * 16
    assert sum(step.flops for step in dataflow(forward).steps) == 2 * product
    assert sum(step.flops for step in dataflow(backward).steps) == 5 * product


def test_a_dropout_mask_that_is_drawn_again():
    joint = joint_of(lambda x: F.dropout(x.sin(), 0.5) * x, random="torch")

    def partition(*args, **kwargs):
        with memory_budget(0.0):
            return min_cut_rematerialization_partition(*args, **kwargs)

    assert judge(joint, partition).redrawn == 1
    assert judge(joint, aotkit.get_partitioner("min_cut")).redrawn == 0


def test_a_shared_mask_can_be_computed_again():
    found = judge(joint_of(lambda x: F.dropout(x.sin(), 0.5)), saving())
    assert (found.saved_bytes, found.redrawn) == (0, 0)


def test_kernels_end_where_a_matrix_product_begins():
    forward, _ = partition_copy(saving(), joint_of(lambda x, y: ((x.sin().cos() @ y).exp() + 1).sum(0), 2))
    kernels = fuse(dataflow(forward))
    assert [kernel.alone for kernel in kernels] == [False, True, False]
    assert [bytes_moved(kernel) for kernel in kernels] == [2 * UNIT, 3 * UNIT, UNIT + 4 * SIDE]


def test_a_kernel_computes_again_what_it_has_the_sources_of():
    """`x + b`, of a small `b`, is needed before and after the product, by kernels that read `x` for other reasons."""
    with fake_tensors():
        x, w, b = (torch.zeros(*shape, requires_grad=True) for shape in [(SIDE, SIDE), (SIDE, SIDE), (SIDE,)])

    def fn(x, w, b):
        moved = x + b
        return (moved.sin() @ w) * moved * x

    forward, _ = partition_copy(saving(), joint_graph(Module(fn), [x, w, b]))
    row = 4 * SIDE
    assert [bytes_moved(kernel) for kernel in fuse(dataflow(forward))] == [2 * UNIT + row, 3 * UNIT, 3 * UNIT + row]
    as_written = [bytes_moved(kernel) for kernel in fuse(dataflow(forward), again=False)]
    assert as_written == [3 * UNIT + row, 3 * UNIT, 4 * UNIT]


def test_what_would_have_to_be_read_in_its_place_is_not_less():
    def fn(x, y, w):
        both = x + y
        return (both.sin() @ w) * both

    forward, _ = partition_copy(saving(), joint_of(fn, 3))
    assert [bytes_moved(kernel) for kernel in fuse(dataflow(forward))] == [4 * UNIT, 3 * UNIT, 3 * UNIT]


def test_only_what_is_looked_at_is_read():
    with fake_tensors():
        table, index = torch.zeros(1000, 8, requires_grad=True), torch.zeros(4, dtype=torch.long)
    forward, _ = partition_copy(saving(), joint_graph(Module(lambda t, i: F.embedding(i, t).sin()), [table, index]))
    assert bytes_moved(*fuse(dataflow(forward))) == 2 * (4 * 8 * 4) + 4 * 8
    forward, _ = partition_copy(saving(), joint_of(lambda x: x[:8].sin() + x[:8].cos() + x[-8:]))
    assert bytes_moved(*fuse(dataflow(forward))) == 3 * UNIT // 4


class LiveBytes(TorchDispatchMode):
    """Follows the storages that operators make; `peak` is the most bytes of them alive at one time."""

    def __init__(self, known):
        super().__init__()
        self.known = {t.untyped_storage()._cdata for t in known}
        self.alive = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in filter(torch.is_tensor, tree_leaves(result)):
            storage = t.untyped_storage()
            if (key := storage._cdata) not in self.alive and key not in self.known:
                self.alive[key] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, key, None)
        self.peak = max(self.peak, sum(self.alive.values()))
        return result


@pytest.mark.thinned
@pytest.mark.parametrize("random", ["shared", "torch"])
def test_the_peak_is_what_really_is_alive(partitioner, random):
    module, (x, target) = mlp(rows=512, layers=4, width=64)
    joint = joint_graph(module, (x.normal_(), target.normal_()), random=random)
    forward, backward = partition_copy(aotkit.get_partitioner(partitioner), joint)
    inputs = [x, target, *(p.detach() for p in module.parameters())]
    inputs += [torch.tensor(1)] if len(joint.inputs[0]) > len(inputs) else []
    with LiveBytes(inputs) as live:
        loss, *saved = boxed(forward)(list(inputs))
        saved.append(torch.ones_like(loss))
        gradients = boxed(backward)(saved)
    assert sum(g is not None for g in gradients) == len(list(module.parameters()))
    expected = evaluate(forward, backward, joint.num_outputs).peak_bytes
    assert expected == pytest.approx(live.peak, rel=0.1)
