"""`nx_min_cut` on joint graphs of networks: optimal, certified, monotone, never slower than torch's by estimated time.

Two small networks always; `pytest -m sweep` takes those of `python -m aotkit bench partitioners`, at real sizes.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch

import aotkit
from aotkit.benchmark import transformers_models
from aotkit.benchmark.capture import joint_graph
from aotkit.benchmark.evaluation import evaluate
from aotkit.benchmark.kernels import DEVICES
from aotkit.benchmark.models import DEFAULT_MODELS, MODELS, Bottleneck, ResNet, UNet, mlp
from aotkit.benchmark.partitioners import decomposition_table, min_cut_within
from aotkit.joint.running import Joint, partition_copy
from aotkit.joint.sides import classify, simplify
from aotkit.partitioners import nx_min_cut
from aotkit.partitioners.rematerialization.blocks import solve
from aotkit.partitioners.rematerialization.costs import fewest_bytes, tradeoff
from aotkit.partitioners.rematerialization.problem import Problem
from aotkit.partitioners.rematerialization.tradeoff import GAP, Tradeoff, fastest, fastest_within, smallest
from aotkit.partitioners.rematerialization.values import values_of
from aotkit.torch_private.fake_tensors import fake_tensors
from tests.partitioners.mixed_integer import by_mixed_integer_programming

A100 = DEVICES["A100"]
SECONDS = 120.0  # for each program of HiGHS
ROUNDING = 1e-6  # of HiGHS
NOISE = 0.005  # of the estimate of time
SUM = 1e-9  # rounding, where the same kernels add up in another order


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Bottleneck(64, 16, 1)

    def forward(self, x):
        return self.block(x).square().mean()


def small_gpt2():
    pytest.importorskip("transformers", minversion="5")
    return transformers_models.gpt2(layers=2, heads=4, width=256, batch=2, length=128)


SHALLOW: dict[str, Callable[[], Any]] = {
    "mlp of 2 layers": lambda: mlp(layers=2),
    "resnet of 2 blocks": lambda: (ResNet((1, 1)), [torch.zeros(8, 3, 224, 224), torch.zeros(8, dtype=torch.long)]),
    "unet of 1 level": lambda: (UNet((32,)), [torch.zeros(4, 3, 256, 256), torch.zeros(4, 256, 256).long()]),
}
SMALL: dict[str, Callable[[], Any]] = {
    "gpt2 of 2 layers": small_gpt2,
    "block of resnet": lambda: (Block(), [torch.zeros(8, 64, 28, 28)]),
}
NETWORKS = [*SMALL, *(pytest.param(name, marks=pytest.mark.sweep) for name in DEFAULT_MODELS)]


def with_fractions(*fractions: Any) -> Any:
    """Small networks with the fraction 0.5 alone."""
    large = [pytest.param(name, f, marks=pytest.mark.sweep) for name in DEFAULT_MODELS for f in fractions]
    return pytest.mark.parametrize(("name", "fraction"), [*((name, 0.5) for name in SMALL), *large])


@functools.cache
def joint_of(name: str) -> Joint:
    with fake_tensors():
        module, inputs = {**MODELS, **SMALL, **SHALLOW}[name]()
    with transformers_models.single_sequences():
        return joint_graph(module.train(), inputs, decompositions=decomposition_table("inductor"))


@dataclass
class Costs:
    """bytes: without the work, which decides between choices that save as many; HiGHS's numbers are not so long."""

    exact: Problem
    bytes: Problem
    time: Tradeoff


@functools.cache
def costs_of(name: str) -> Costs:
    found: list[Costs] = []

    def look(joint, joint_inputs, *, num_fwd_outputs, **keywords):
        simplify(joint)
        sides = classify(joint, num_fwd_outputs)
        values = values_of(joint, sides)
        exact = fewest_bytes(values)
        save = [None if save is None else kept for save, kept in zip(exact.save, values.kept, strict=True)]
        recompute = [None if work is None else 0 for work in exact.recompute]
        only_bytes = replace(exact, save=save, recompute=recompute)
        found.append(Costs(exact, only_bytes, tradeoff(values, sides, A100)))
        return joint, joint

    partition_copy(look, joint_of(name))
    return found[0]


def least(problem: Problem, *budget: Any) -> Any:
    found = by_mixed_integer_programming(problem, *budget, seconds=SECONDS)
    if not found.finished:
        pytest.skip(f"HiGHS did not finish within {SECONDS:.0f} s: nothing was compared")
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_the_cut_saves_as_few_bytes_as_mixed_integer_programming_finds(name):
    costs = costs_of(name)
    assert costs.bytes.cost(solve(costs.exact)) == pytest.approx(least(costs.bytes).cost, rel=ROUNDING)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_fastest_choice_is_as_fast_as_mixed_integer_programming_finds(name):
    costs = costs_of(name).time
    assert fastest(costs).time == pytest.approx(least(costs.time).cost, rel=ROUNDING)


@with_fractions(0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05)
def test_no_choice_within_a_budget_is_faster_than_its_certificate_says(name, fraction):
    costs = costs_of(name).time
    limit = int(fraction * fastest(costs).kept)
    found = fastest_within(costs, limit)
    assert found.kept <= limit
    assert found.gap <= GAP
    best = least(costs.time, costs.kept, limit).cost
    whole = costs.anyway + found.time
    assert -ROUNDING <= (found.time - best) / whole <= found.gap + ROUNDING


@pytest.mark.sweep
@pytest.mark.parametrize("name", NETWORKS)
def test_more_memory_is_used_and_never_takes_more_time(name):
    costs = costs_of(name).time
    lowest, highest = smallest(costs).kept, fastest(costs).kept
    limits = [lowest + (highest - lowest) * i // 19 for i in range(20)]
    choices = [fastest_within(costs, limit) for limit in limits]
    for (less, before), (more, after) in pairwise(zip(limits, choices, strict=True)):
        assert after.time <= before.time, (less, more)
        assert after.kept >= before.kept, (less, more)
    for limit, choice in zip(limits, choices, strict=True):
        if choice.kept < nx_min_cut.USED * limit:
            assert costs.kept[choice.indivisible] > limit - choice.kept, limit


def seconds(name, partition):
    forward, backward = partition_copy(partition, joint_of(name))
    found = evaluate(forward, backward, joint_of(name).num_outputs)
    assert not found.redrawn
    return found.saved_bytes, found.seconds


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*SHALLOW, *DEFAULT_MODELS])
def test_on_a_gpu_it_is_hardly_slower_than_torchs(name, monkeypatch):
    """Where the fewest bytes take up to 10 % more time. Graphs so small that launches rule are not among these."""
    monkeypatch.setattr(nx_min_cut, "typical_gpu_of", lambda values: A100)
    most, theirs = seconds(name, aotkit.get_partitioner("min_cut"))
    saved, ours = seconds(name, nx_min_cut.partition)
    assert saved <= most * 1.001
    assert ours["A100"] <= theirs["A100"] * (1 + nx_min_cut.SLOWER + NOISE)


@with_fractions(1.0, 0.9, 0.7, 0.5, 0.3, 0.1)
def test_no_slower_than_torchs_partition_of_the_same_bytes(name, fraction):
    most, theirs = seconds(name, min_cut_within(fraction))
    saved, ours = seconds(name, nx_min_cut.budget(most, A100))
    assert saved <= most
    assert all(ours[device] <= theirs[device] * (1 + NOISE) for device in theirs)


@pytest.mark.thinned
@pytest.mark.parametrize("name", [*SHALLOW, *(pytest.param(n, marks=pytest.mark.sweep) for n in (*SMALL, *MODELS))])
def test_never_slower_than_torch_without_a_budget(name):
    """By estimated time, on either device, whatever torch's partitions save."""
    torchs = [seconds(name, aotkit.get_partitioner(partition))[1] for partition in ("min_cut", "default")]
    for device, speed in DEVICES.items():
        _, ours = seconds(name, nx_min_cut.budget(1.0, speed))
        assert ours[device] <= min(theirs[device] for theirs in torchs) * (1 + SUM)


def test_a_residual_stream_is_saved_and_random_bits_are_not():
    """Recomputing the stream would read every layer before; sharing the bits' constant part would read that."""
    saved, ours = seconds("mlp of 2 layers", nx_min_cut.budget(1.0, A100))
    most, default = seconds("mlp of 2 layers", aotkit.get_partitioner("default"))
    assert saved < most
    assert ours["A100"] < default["A100"]
