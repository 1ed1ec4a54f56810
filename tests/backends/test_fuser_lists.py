"""The fuser in lists: graphs come as the decompositions of another backend leave them."""

import dataclasses
from importlib import import_module

import pytest
import torch

import aotkit
from aotkit.backends import fuser
from aotkit.backends.fusion_definition.table import TABLE

cases = import_module("tests.backends.fusion_cases")
pytestmark = pytest.mark.skipif(
    fuser.backend.unavailable() is not None, reason="needs a C++ compiler, or a GPU and Triton"
)
# Random words have a lowering of Inductor's; a fused multiply-add is rounded once; splits into views stay outside.
LEFT = {"aotkit.random_words.default", "prims.fma.default", "aten.unbind.int"}


def as_inductor_gets_them():
    return dataclasses.replace(fuser.backend, decompositions=aotkit.get_backend("inductor").decompositions)


@pytest.mark.thinned
@pytest.mark.parametrize("name", cases.CASES)
def test_the_table_has_what_inductor_decomposes_into(name):
    left = set()

    def note(gm, _):
        left.update(str(n.target) for n in gm.graph.nodes if n.op == "call_function" and n.target not in TABLE)
        return gm

    backend = aotkit.Backend(note, decompositions=as_inductor_gets_them().decompositions)
    fn, inputs = cases.inputs_of(name, torch.float32, "cpu")
    results = aotkit.compile(fn, backend=backend, partition="min_cut", check=False)(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    differentiable = [r for r in results if r.requires_grad]
    if differentiable:
        torch.autograd.grad([r.sum() for r in differentiable], inputs[:1], allow_unused=True)
    assert left <= LEFT


@pytest.mark.thinned
@pytest.mark.parametrize(
    "name", ["cross_entropy", "chosen_of_rows", "activations", "views", "casts", "scattered_parts"]
)
def test_what_inductor_decomposes_is_computed_rightly(name):
    fn, inputs = cases.inputs_of(name, torch.float32, "cpu")
    fast = aotkit.compile(fn, backend=as_inductor_gets_them(), partition="min_cut")
    fast(*inputs)  # its check compares results and gradients
    assert "no such operator" not in str(fast.graphs(*inputs)).replace("no such operator: unbind", "")
