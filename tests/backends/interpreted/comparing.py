"""The backend `fuser` next to ATen: each compiled graph runs both ways, on the same inputs."""

import os
import zlib

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import aotkit
from aotkit.backends import fuser
from aotkit.backends.fuser.tuning import Tuning
from aotkit.backends.fusion_definition.region import Region, compile_region
from aotkit.backends.fusion_definition.table import declining
from aotkit.passes.graphs import copy_graph
from aotkit.torch_private.dispatch import pytree

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ENGINE = fuser.ENGINES["cuda" if IS_INTERPRETED else "cpu"]


def the_first_is_fastest(runs, device):
    """In place of a clock."""
    return [[1.0 + n] for n in range(len(runs))]


def engine_for(name):
    """For every third function, one that tries each schedule of each kernel, and warns where results differ.

    The interpreter does that for others than C++ does.
    """
    if zlib.crc32(name.encode()) % 3 != (1 if IS_INTERPRETED else 2):
        return ENGINE
    return fuser.Engine(ENGINE.target, Tuning(the_first_is_fastest, fewest=0))


TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def comparing(regions, tolerance=None, engine=ENGINE):
    """A backend that returns ATen's results if the kernels' are the same; it keeps its regions in a list."""

    def compile_graph(gm, example_inputs):
        region = compile_region(engine, copy_graph(gm), "cpu")
        assert isinstance(region, Region), "nothing is computed"
        regions.append(region)

        def run(*args):
            expected = gm(*args)
            same(region(list(args)), expected, tolerance)
            return expected

        return run

    backend = aotkit.Backend(
        compile_graph,
        decompositions=fuser.decompositions,
        fixed_sizes=True,
        declines=declining("cpu", fuser.NAME, engine),
    )
    return aotkit.by_region(backend, strict=True, min_region_size=1)


def by_region():
    """A backend of the engine's kernels; products and the like are ATen's."""
    engine = aotkit.Backend(
        lambda gm, example_inputs: compile_region(ENGINE, gm, "cpu"),
        decompositions=fuser.decompositions,
        declines=declining("cpu", fuser.NAME, ENGINE),
        fixed_sizes=True,
        horizontal=True,
    )
    return aotkit.by_region(engine, min_region_size=1)


def compiled(fn, *args):
    """A function as one region, or a graph that computes nothing, and as ATen's graph."""
    gm = make_fx(fn, tracing_mode="fake", decomposition_table=dict(fuser.decompositions()))(*args)
    gm.graph.eliminate_dead_code()
    output = gm.graph.output_node()
    if not isinstance(output.args[0], tuple | list):
        output.args = ((output.args[0],),)
        gm.recompile()
    return compile_region(ENGINE, copy_graph(gm), "cpu"), gm


def agree(fn, *args):
    """One region gives what ATen gives."""
    region, gm = compiled(fn, *args)
    assert isinstance(region, Region), "nothing is computed"
    same(region(list(args)), gm(*args))


def same(got, expected, tolerance=None):
    """Values, relative to the largest of each tensor, types and strides."""
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        if not isinstance(e, torch.Tensor):
            assert g == e
            continue
        largest = e[e.isfinite()].abs().max().item() if e.is_floating_point() and e.isfinite().any() else 0
        near = (tolerance or TOLERANCES[e.dtype]) if e.is_floating_point() else 0
        torch.testing.assert_close(g, e, rtol=near, atol=near * largest, equal_nan=True, check_stride=True)


def train(fn, *args, tolerance=None, engine=ENGINE):
    """Call the function and differentiate what it returns; the regions that computed both, which are compared."""
    regions = []
    results = aotkit.compile(fn, backend=comparing(regions, tolerance, engine), check=False)(*args)
    leaves = [x for x in pytree.tree_leaves(results) if x.requires_grad]
    if leaves:
        torch.autograd.backward(leaves, [torch.randn_like(x) for x in leaves])
    return regions


def fused(region):
    """The kernels of the region's last call."""
    return region._last[1]._definition.fused
