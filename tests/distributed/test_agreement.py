"""All ranks go on with what is compiled, or none does; nobody waits for ever."""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.nn.parallel import DistributedDataParallel

import aotkit
from tests.distributed.ranks import RANKS, on_ranks, results_of

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch was built without gloo")
nop = aotkit.get_backend("nop").fw_compiler


def reduced(x, weight):
    y = torch.sin(x @ weight)
    return (y * collectives.all_reduce(y.detach(), "sum", dist.group.WORLD)).sum()


def inputs(rows=4):
    return torch.randn(rows, 8), torch.randn(8, 2, requires_grad=True)


def wrong_on(rank):
    """A backend of which one rank's results are wrong."""

    def compile_graph(gm, example_inputs):
        run = nop(gm, example_inputs)
        if dist.get_rank() != rank:
            return run
        return lambda *inputs: [
            x * 2 if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in run(*inputs)
        ]

    return compile_graph


def failing_on(rank):
    """A backend that one rank cannot use."""

    def compile_graph(gm, example_inputs):
        if dist.get_rank() == rank:
            raise OSError("no space left on device")
        return nop(gm, example_inputs)

    return compile_graph


def call_communicating(rank, backend):
    aotkit.compile(reduced, backend=backend(1))(*inputs()).backward()


def call_in_ddp(rank, backend):
    model = DistributedDataParallel(aotkit.compile(nn.Linear(8, 2), backend=backend(1)))
    model(torch.randn(4, 8)).sum().backward()


def call_in_fsdp(rank, backend):
    from torch.distributed.fsdp import fully_shard

    layer = fully_shard(nn.Linear(8, 2), mesh=dist.init_device_mesh("cpu", (RANKS,)))
    aotkit.compile(layer, backend=backend(1))(torch.randn(4, 8)).sum().backward()


def call_tensor_parallel(rank, backend):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model = parallelize_module(layers, dist.init_device_mesh("cpu", (RANKS,)), plan)
    aotkit.compile(model, backend=backend(1))(torch.randn(4, 8)).sum().backward()


WRONG = (wrong_on, aotkit.MismatchError, "differs from eager")
FAILING = (failing_on, aotkit.CompileError, "no space left")
SHORT = ((call_in_ddp, *FAILING),)
LONG = [
    pytest.param(call, *how, marks=pytest.mark.sweep)
    for call in (call_communicating, call_in_ddp, call_in_fsdp, call_tensor_parallel)
    for how in (WRONG, FAILING)
    if (call, *how) not in SHORT
]


@pytest.mark.parametrize(("call", "backend", "error", "reason"), [*SHORT, *LONG])
def test_what_fails_on_one_rank_is_given_up_on_all(call, backend, error, reason):
    first, second = on_ranks(call, backend)
    assert type(second) is error
    assert "This is rank 1" in second.__notes__[0]
    assert type(first) is aotkit.RankError
    assert "failed on rank 1" in str(first)
    assert reason in str(first)


def cut_by_rank(joint, joint_inputs, **keywords):
    name = "default" if dist.get_rank() == 0 else "nx_min_cut"
    return aotkit.get_partitioner(name)(joint, joint_inputs, **keywords)


def other_cuts(rank):
    aotkit.compile(reduced, backend="nop", partition=cut_by_rank)(*inputs()).backward()


def test_other_cuts_are_refused():
    for result in on_ranks(other_cuts):
        assert type(result) is aotkit.RankError
        assert "is compiled to other graphs" in str(result)
        assert "is saved" in str(result)


def call_again(rank):
    """Another function of the same name, after one that rank 1 could not compile, and one that rank 0 alone has."""
    if rank == 0:
        aotkit.compile(nn.Linear(8, 2), backend="nop")(torch.ones(2, 8))
    with pytest.raises(aotkit.AotkitError, match="no space left"):
        call_in_ddp(rank, failing_on)
    call_in_ddp(rank, lambda rank: nop)
    return True


@pytest.mark.sweep
def test_another_function_of_the_same_name_is_compiled():
    assert results_of(call_again, timeout=20) == [True, True]


def raise_before(rank):
    fast = aotkit.compile(reduced, backend="nop")
    fast(*inputs(), *([None] if rank == 1 else []))


def test_an_error_of_the_users_own_ends_all():
    first, second = on_ranks(raise_before)
    assert type(second) is TypeError
    assert type(first) is aotkit.RankError
    assert "TypeError" in str(first)


def die(rank, after):
    fast = aotkit.compile(reduced, backend="nop")
    for step in range(3):
        if rank == 1 and step == after:
            os.kill(os.getpid(), signal.SIGKILL)
        fast(*inputs())


def test_a_rank_that_is_killed_is_missed_in_time():
    first, second = on_ranks(die, 0, timeout=2)
    assert second is None
    assert type(first) is aotkit.RankError
    assert "rank 1 did not come" in str(first)


@pytest.mark.sweep
def test_a_rank_that_is_killed_later_is_missed_as_in_eager():
    first, second = on_ranks(die, 1, timeout=5)
    assert second is None
    assert isinstance(first, RuntimeError)


def other_sizes_on_one_rank(rank):
    model = DistributedDataParallel(aotkit.compile(nn.Linear(8, 2), backend="nop", strict=True))
    for step in range(3):
        model(torch.randn(4 + step * rank, 8)).sum().backward()
    return model.module.weight.grad


@pytest.mark.sweep
def test_one_rank_may_compile_alone_later():
    first, second = results_of(other_sizes_on_one_rank)
    torch.testing.assert_close(first, second)


def alone(rank):
    """Only this rank compiles."""
    if rank == 0:
        return aotkit.compile(torch.sin, backend="nop")(torch.ones(2))
    return torch.ones(2).sin()


def test_what_does_not_communicate_waits_for_nobody():
    first, second = results_of(alone)
    torch.testing.assert_close(first, second)


def checks_of_another_length(rank):
    """Only one rank's values leave rounding in doubt, so that its check takes more runs."""
    x, weight = inputs()
    if rank == 1:
        x *= 1e4
    fast = aotkit.compile(reduced, backend=roughly)
    wanted = reduced(x, weight)
    torch.testing.assert_close(fast(x, weight), wanted, rtol=1e-3, atol=1e-3)
    report = fast.check(x, weight) if rank == 0 else fast.report(x, weight)  # even alone
    return str(report)


def roughly(gm, example_inputs):
    """As by another order of sums: it rounds once more."""
    run = nop(gm, example_inputs)
    scale = 1 + 3e-7 * dist.get_rank()
    return lambda *inputs: [
        x * scale if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in run(*inputs)
    ]


def test_a_check_communicates_with_nobody():
    for report in results_of(checks_of_another_length):
        assert "equals eager" in report or "may equal eager" in report
