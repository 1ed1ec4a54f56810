"""The planted faults: each is one, aotkit's check catches it, and accepts the same plug-in without it."""

import json
import threading

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import aotkit
from aotkit.cli import main
from aotkit.testing.case import build, inputs
from aotkit.testing.faults import FAULTS, NotPlanted, caught
from aotkit.testing.faults.judge import refusal
from aotkit.testing.faults.planting import Subject

# They are for the check, also four that break a promise of partitioners: tests/stages/test_verifier.py names them.
pytestmark = pytest.mark.usefixtures("unverified")


def each(faults):
    """Every second one; `make sweep` has them all."""
    some = [pytest.param(f, marks=[pytest.mark.sweep] * (i % 2)) for i, f in enumerate(faults)]
    return pytest.mark.parametrize("fault", some, ids=lambda fault: fault.name)


@pytest.mark.thinned
@each(FAULTS)
@pytest.mark.usefixtures("only_the_verdict")
def test_is_caught(fault):
    assert refusal(fault, fault.plug_in(True)) is not None


@pytest.mark.thinned
@each({(fault.case.name, fault.dynamic): fault for fault in FAULTS}.values())  # without a fault, plug-ins are equal
def test_is_accepted_without_the_fault(fault):
    assert refusal(fault, fault.plug_in(False)) is None


@pytest.mark.thinned
@each([fault for fault in FAULTS if fault.subject in ("calls", "buffers")])
def test_makes_a_difference(fault):
    """What a first call does not show can be seen in later ones, in overlapping ones or in a second backward pass."""
    assert seen(fault, planted=False) == seen(fault, planted=False)
    assert seen(fault, planted=True) != seen(fault, planted=False)


def seen(fault, planted):
    """All that a user can see of three overlapping calls, two backward passes of each, and two calls at a time."""
    plug_in = fault.plug_in(planted)
    compiled = aotkit.compile(
        build(fault.case),
        backend=plug_in.backend,
        partition=plug_in.partition,
        check=False,
        dynamic=fault.dynamic,
        random="torch",
    )
    calls = []
    for seed in range(3):
        new, args = inputs(fault.case, seed)
        outputs = compiled(*args)
        calls.append((args, outputs, torch.get_rng_state(), new.leaves))
    looks = [look(call) for call in calls]
    looks += look([backward(outputs, leaves) for _, outputs, _, leaves in calls for _ in range(2)])
    return looks if fault.case.name == "noise" else [*looks, in_two_threads(compiled, fault.case)]


def look(value):
    leaves, structure = pytree.tree_flatten(value)
    tensors = [(str(t.dtype), str(t.device), t.requires_grad, numbers(t)) for t in leaves if isinstance(t, Tensor)]
    return str(structure), tensors


def numbers(tensor):
    tensor = tensor.detach()
    return list(tensor.shape) if tensor.is_meta else str(tensor.resolve_conj().contiguous().view(-1).tolist())


def backward(outputs, leaves):
    roots = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
    generator = torch.Generator().manual_seed(5)
    tangents = [torch.randn(t.shape, generator=generator) for t in roots]
    return torch.autograd.grad(roots, leaves, tangents, retain_graph=True), tangents


def in_two_threads(compiled, case):
    """Not for random functions: which of two threads draws first is anybody's guess."""
    results, barrier = {}, threading.Barrier(2)

    def call(seed):
        barrier.wait()
        results[seed] = compiled(*inputs(case, seed)[1])

    threads = [threading.Thread(target=call, args=(seed,)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [look(results[seed]) for seed in (0, 1)]


def test_there_are_at_least_sixty_with_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60
    assert all(fault.description.endswith(".") for fault in FAULTS)


def test_a_change_that_changes_nothing_is_no_fault():
    subject = Subject("none")

    @subject.graph("softmax")
    def nothing(gm):
        """Nothing."""

    with pytest.raises(NotPlanted, match="nothing changes nothing"):
        caught(subject.faults[0])


@pytest.mark.sweep
def test_the_command_prints_both_verdicts(capsys):
    assert main(["faults", "uniform_tangents", "sine_for_cosine"]) == 0
    printed = capsys.readouterr().out
    sine, uniform = printed.splitlines()[1:3]
    assert sine.split()[:4] == ["sine_for_cosine", "operators", "caught", "caught"]
    assert uniform.split()[:4] == ["uniform_tangents", "gradients", "caught", "MISSED"]
    assert "aotkit caught 2 of 2, torch's own check 1." in printed


def test_the_command_prints_json(capsys):
    assert main(["faults", "--json", "gradient_of_none"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["faults"]
    assert entry["name"] == "gradient_of_none"
    assert entry["caught"]
    assert entry["error"] == "CompileError"
    assert "NoneType" in entry["said"]


def test_an_unknown_name_is_a_usage_error(capsys):
    assert main(["faults", "sine_for_cosin"]) == 2
    assert "sine_for_cosine" in capsys.readouterr().err
