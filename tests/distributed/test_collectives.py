"""What processes do together is never repeated, merged, left out or reordered, whatever cuts the graph."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor  # it registers an operator
from torch.distributed import _functional_collectives as functional

import aotkit
from aotkit.checking.alone import Alone
from aotkit.passes import collectives, must_save, program
from tests.distributed.ranks import results_of

ops = torch.ops._c10d_functional

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch was built without gloo")


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory):
    """A group of this process alone."""
    folder = tmp_path_factory.mktemp("world")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def total(x):
    return functional.all_reduce(x, "sum", dist.group.WORLD)


def gathered(x):
    return ops.wait_tensor(ops.all_gather_into_tensor(x, 1, dist.group.WORLD.group_name))


def equal_ones(x, weight):
    """Two collectives that are the same, of which backward could have one by doing it again."""
    first, second = total(x), total(x)
    return (first * (x @ weight).sin()).sum() + (second * (x @ weight).cos()).sum(), first, second


def chain(x, weight):
    """Cheap to repeat, but for the communication: activations of a tensor-parallel layer."""
    y = total(torch.relu(x @ weight))
    y = gathered(torch.relu(y @ weight))
    return (y.sin() * y.cos()).sum()


def moved(x, weight):
    """An operator that torch's partitioners do not know to communicate."""
    y = torch.ops._dtensor.shard_dim_alltoall((x @ weight).detach().exp(), 0, 1, dist.group.WORLD.group_name)
    return (y.exp() * weight).sum()


CASES = (equal_ones, chain, moved)


def inputs():
    return torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)


@pytest.mark.parametrize("function", CASES)
@pytest.mark.parametrize("partition", aotkit.list_partitioners())
def test_every_partitioner_keeps_them(function, partition):

    joint = aotkit.extract(function, *inputs(), partition="default").joint
    graphs = aotkit.extract(function, *inputs(), partition=partition)
    wanted = program(joint)
    assert wanted
    assert [*program(graphs.forward), *program(graphs.backward)] == wanted


@pytest.mark.parametrize("partition", aotkit.list_partitioners())
def test_results_of_equal_ones_have_memory_of_their_own(partition):
    _, first, second = aotkit.compile(equal_ones, backend="nop", partition=partition)(*inputs())
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("function", CASES)
def test_partitioners_are_told_to_save_them(function):
    seen = []

    def partition(joint, joint_inputs, **keywords):
        seen.extend(map(must_save, collectives(joint)))
        return aotkit.get_partitioner("default")(joint, joint_inputs, **keywords)

    aotkit.extract(function, *inputs(), partition=partition)
    assert seen
    assert all(seen)


def merging(joint, joint_inputs, **keywords):
    first, second = collectives(joint)[:2]
    second.replace_all_uses_with(first)
    return aotkit.get_partitioner("default")(joint, joint_inputs, **keywords)


def swapping(joint, joint_inputs, **keywords):
    first, second = collectives(joint)[:2]
    wait = next(iter(second.users))
    second.args = (first.args[0], "max", *second.args[2:])
    first.prepend(second)
    second.append(wait)
    return aotkit.get_partitioner("default")(joint, joint_inputs, **keywords)


@pytest.mark.parametrize("partition", [merging, swapping])
def test_a_partitioner_that_does_not_is_refused(partition):
    with pytest.raises(aotkit.CompileError, match="as often and in the same order"):
        aotkit.compile(equal_ones, backend="nop", partition=partition)(*inputs())


def stand_ins(rank):
    """Each collective as it is where all ranks have the same values, and as it is alone."""
    group = dist.group.WORLD
    x = torch.arange(8.0).reshape(4, 2)
    found = []
    for alone in (False, True):
        with Alone() if alone else torch.no_grad():
            results = [
                functional.all_reduce(x, "sum", group),
                functional.all_reduce(x, "max", group),
                ops.wait_tensor(ops.all_gather_into_tensor(x, 2, group.group_name)),
                ops.wait_tensor(ops.reduce_scatter_tensor(x, "sum", 2, group.group_name)),
                functional.broadcast(x, 0, group),
                *functional.all_reduce_coalesced([x, x[:1]], "sum", group),
                ops.wait_tensor(ops.all_reduce_(x.clone(), "sum", group.group_name)),
            ]
            found.append([result + 0 for result in results])
    return found


def test_alone_they_give_what_they_would_if_all_ranks_had_the_same():
    for together, alone in results_of(stand_ins):
        for wanted, value in zip(together, alone, strict=True):
            torch.testing.assert_close(value, wanted)


def answer_needed(rank):
    """Alone, what only other ranks can answer is refused, and not waited for."""
    with Alone(), pytest.raises(aotkit.TraceError, match="other ranks have to answer"):
        dist.all_reduce(torch.ones(2))
    return True


def test_what_others_have_to_answer_is_refused_alone():
    assert results_of(answer_needed) == [True, True]
