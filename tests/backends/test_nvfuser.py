"""nvFuser: its table of operators against ATen, on a stand-in without a GPU; the real thing where there is one."""

import functools

import pytest
import torch

import aotkit
from aotkit.backends import nvfuser
from aotkit.backends.fusion_definition.region import compile_region
from aotkit.backends.fusion_definition.table import TABLE, declining
from aotkit.passes.graphs import copy_graph
from aotkit.torch_private.dispatch import pytree
from tests.backends import fusion_stand_in
from tests.backends.fusion_cases import CASES, FROM_INDUCTOR, inputs_of

ENGINE = nvfuser.Engine(fusion_stand_in)
# nvFuser reads nothing by index: `test_fuser` and `interpreted/test_by_index` have them.
BY_INDEX = {"aten.embedding.default", "aten.index.Tensor", "aten.index_select.default"}
NOP = aotkit.Backend(lambda gm, example_inputs: gm, decompositions=nvfuser.decompositions)
# Real half precision in whole functions; the other cases test single operators.
# Powers and long products round otherwise; a cast between half precisions sees what was not rounded in between.
TOLERANCES = {"two_operands": 1e-5, "reductions": 1e-6, "casts": 1e-2}
COMPOSITE = ["dropout_add_layer_norm", "rms_norm", "swiglu", "cross_entropy", "smelu", "chosen_of_rows"]
needs_nvfuser = pytest.mark.skipif(nvfuser.unavailable() is not None, reason=str(nvfuser.unavailable()))


def stand_in(regions=None):
    """The backend with the stand-in for nvFuser, on the CPU; it takes whole graphs, and keeps its regions in a list."""

    def compile_graph(gm, example_inputs):
        region = compile_region(ENGINE, gm, "cpu")
        if regions is not None:
            regions.append(region)
        return region

    return aotkit.Backend(compile_graph, decompositions=nvfuser.decompositions)


@functools.cache
def graphs_of(name, dtype=torch.float32):
    fn, args = inputs_of(name, dtype, "cpu")
    graphs = aotkit.extract(fn, *args, backend=NOP)
    return [gm for gm in (graphs.forward, graphs.backward) if gm is not None]


def values_of(gm, name):
    """Inputs for a graph: the function's own, and for others (a seed, saved values) numbers alike."""
    own = dict(zip([f"arg{i}_1" for i in range(9)], inputs_of(name, torch.float32, "cpu")[1], strict=False))
    values = []
    for node in gm.graph.find_nodes(op="placeholder"):
        like = node.meta["val"]
        if node.name in own:
            values.append(own[node.name])
            continue
        if like.dtype.is_floating_point:
            value = torch.rand(like.shape) * 0.8 + 0.1
        else:
            value = torch.randint(*((0, 2) if like.dtype is torch.bool else (1, 4)), like.shape)
        once = [1 if stride == 0 else size for size, stride in zip(like.shape, like.stride(), strict=True)]
        part = value.as_strided(once, value.stride())
        held = torch.empty_strided(once, like.stride(), dtype=like.dtype).copy_(part)
        values.append(held.expand(like.shape))
    return values


@pytest.mark.thinned
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_as_aten_in_float32(name):
    for gm in graphs_of(name):
        inputs = values_of(gm, name)
        expected = gm(*inputs)
        got = compile_region(ENGINE, copy_graph(gm), "cpu")(list(inputs))
        for g, e in zip(got, expected, strict=True):
            torch.testing.assert_close(
                g, e, rtol=(tolerance := TOLERANCES.get(name, 0)), atol=tolerance, equal_nan=True, check_stride=True
            )


@pytest.mark.sweep
def test_every_entry_of_the_table_is_in_a_case():
    met = {str(node.target) for name in CASES for gm in graphs_of(name) for node in gm.graph.nodes}
    assert {str(target) for target in TABLE} - met == FROM_INDUCTOR | BY_INDEX


@pytest.mark.sweep
def test_every_node_of_the_cases_is_taken():
    declines = declining("cpu", nvfuser.NAME)
    nodes = [n for name in CASES for gm in graphs_of(name) for n in gm.graph.nodes if n.op == "call_function"]
    assert {f"{n.target}: {reason}" for n in nodes if (reason := declines(n)) is not None} == set()


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", COMPOSITE)
def test_half_precision_is_as_near_to_float64_as_eager(name, dtype):
    fn, args = inputs_of(name, dtype, "cpu")
    assert aotkit.check(fn, *args, backend=stand_in()).passed


@pytest.mark.parametrize("draw", [lambda x: torch.dropout(x, 0.5, True), lambda x: x * torch.bernoulli(x)])
def test_no_decomposition_changes_what_torch_draws(draw):
    x = torch.rand(8, 8, requires_grad=True)
    compiled = aotkit.compile(draw, backend=NOP, random="torch")
    torch.manual_seed(1)
    got = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(got, draw(x))


# nvFuser 0.2.36 fails on an assertion of its own where a concatenation of parts of a tensor meets its rows' indices.
REFUSED = {"chosen_of_rows"}


@needs_nvfuser
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_eager(name, dtype):
    fn, args = inputs_of(name, dtype, "cuda")
    assert aotkit.check(fn, *args, backend=nvfuser.backend).passed
    fused = aotkit.compile(fn, backend=nvfuser.backend, check=False)
    leaves = [x for x in pytree.tree_leaves(fused(*args)) if x.requires_grad]
    if leaves:
        torch.autograd.backward(leaves, [torch.ones_like(x) for x in leaves])
    regions = [region for part in fused.graphs(*args).regions.values() for region in part.regions]
    assert regions
    assert bool([r.failure for r in regions if r.failure]) == (name in REFUSED)
