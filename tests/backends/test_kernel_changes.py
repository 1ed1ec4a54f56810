"""Changes to how Inductor writes kernels that this version of torch does not allow are off, alone, and reported."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.virtualized import V

import aotkit
from aotkit.cli import machine
from aotkit.torch_private import kernel_changes
from aotkit.torch_private.kernel_changes import CHANGES, Change, switched_off

THIS = tuple(map(int, torch.__version__.split(".")[:2]))


def reported():
    return [f for f in machine.findings() if f.subject == "kernel changes"]


def test_those_that_were_tried_with_this_torch_are_on():
    assert switched_off().keys() == {change.name for change in CHANGES if change.newest < THIS}
    assert ("2.13" in " ".join(f.problem for f in reported())) == (THIS > (2, 13))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change("realizing.without_stored_random_bits", (2, 10)), "written for torch up to 2.10"),
        (
            Change("realizing.renamed", THIS),
            "not in this torch: module 'aotkit.torch_private.kernel_changes.realizing' has no attribute",
        ),
        (Change("removed.change", THIS), "not in this torch: No module named"),
    ],
)
def test_one_that_cannot_be_made_is_off_with_a_reason_and_the_others_stay(change, reason, monkeypatch):
    before = switched_off()
    monkeypatch.setattr(kernel_changes, "CHANGES", (change, *CHANGES[1:]))
    assert switched_off().keys() - before.keys() == {change.name}
    assert any(f.problem.startswith(reason) and change.name in f.problem for f in reported())
    x = torch.randn(4, requires_grad=True)
    assert aotkit.check(lambda x: x.sin().sum(), x, backend="inductor").passed


def test_early_launches_are_for_fused_kernels_alone(monkeypatch):
    """They cost a network time that launches products and convolutions, too."""
    (change,) = (change for change in CHANGES if change.fused_only)
    entered = []

    @contextlib.contextmanager
    def enter():
        entered.append(change)
        yield

    monkeypatch.setattr(kernel_changes, "_found", lambda found: enter if found == change else "off")
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    assert aotkit.check(lambda x: (x @ w).sin() @ w, x, backend="inductor").passed
    assert not entered
    assert aotkit.check(lambda x: (x * w).sin().softmax(-1), x, backend="inductor").passed
    assert len(entered) == 2  # forward and backward


def test_one_that_does_not_find_what_it_patches_is_off(monkeypatch):
    change = Change("extrema.extrema_in_one_instruction", THIS)
    monkeypatch.delattr("torch._inductor.codegen.triton.get_triton_reduction_function")
    kernel_changes._tried.cache_clear()
    try:
        monkeypatch.setattr(kernel_changes, "CHANGES", (change,))
        (reason,) = switched_off().values()
        assert "get_triton_reduction_function" in reason
    finally:
        kernel_changes._tried.cache_clear()


@pytest.mark.parametrize("at_hand", [True, False])
def test_a_mask_is_kept_of_what_the_kernel_has_computed(at_hand, monkeypatch):
    """What Inductor makes of it is tested on a GPU: `test_single_pixels.py`."""
    from aotkit.torch_private.kernel_changes import masked_loads

    load = SimpleNamespace(target="load", args=("ops", "buf0", 0))
    nodes = [SimpleNamespace(args=[load])]
    body = SimpleNamespace(graph=SimpleNamespace(find_nodes=lambda op: nodes))
    asked = []
    monkeypatch.setattr(masked_loads, "_masked", lambda mask, body, other: asked.append(body))
    kernel = SimpleNamespace(cse=SimpleNamespace(store_cache={"buf0": "tmp0"} if at_hand else {}))
    with V.set_kernel_handler(kernel), masked_loads.masked_values_at_hand():
        masked_loads.TritonKernelOverrides.masked("mask", body, 0.0)
    (((value,),),) = [[node.args for node in body.graph.find_nodes(op="output")] for body in asked]
    assert (value.target == "load") != at_hand
