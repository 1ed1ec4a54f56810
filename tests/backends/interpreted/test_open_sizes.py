"""Regions whose sizes are open: many sizes through one compiled graph, and few kernels for all of them."""

import contextlib

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import aotkit
from aotkit.backends import fuser
from aotkit.backends.fuser import triton_target
from aotkit.backends.fuser.templates import Templates, count, literal, number
from aotkit.backends.fuser.tuning import Tuning
from aotkit.backends.fusion_definition.open_sizes import OpenRegion
from aotkit.backends.fusion_definition.region import Region, compile_region
from aotkit.backends.fusion_definition.table import declining
from aotkit.passes.graphs import copy_graph
from aotkit.torch_private.dispatch import pytree
from tests.backends.fusion_cases import CASES, inputs_of
from tests.backends.interpreted.comparing import IS_INTERPRETED, same

pytestmark = pytest.mark.skipif(not IS_INTERPRETED, reason="is of Triton's kernels")
SIZES = [(5, 7), (6, 11), (2, 97), (31, 17), (16, 64), (1, 9), (8, 1), (5, 7), (13, 13), (0, 4), (33, 32)]
TOLERANCES = {"two_operands": 1e-4, "casts": 1e-2}


class Compilations:
    """A backend whose results are compared with ATen's.

    Attributes:
        regions: those that are compiled.
        graphs: how many graphs are.
    """

    def __init__(self):
        self.regions, self.graphs, self.tolerance = [], 0, None

    def compile_graph(self, gm, example_inputs):
        region, self.graphs = compile_region(fuser.ENGINE, copy_graph(gm), "cpu"), self.graphs + 1
        self.regions.append(region)

        def run(*args):
            expected = gm(*args)
            same(region(list(args)), expected, self.tolerance)
            return expected

        return run

    def backend(self):
        engine = aotkit.Backend(
            self.compile_graph,
            decompositions=fuser.decompositions,
            declines=declining("cpu", fuser.NAME, fuser.ENGINE),
            horizontal=True,
        )
        return aotkit.by_region(engine, min_region_size=1)


@pytest.fixture
def kernels(monkeypatch):
    """The texts of the kernels that are compiled; the templates are new."""
    texts, imported = {}, triton_target.imported
    monkeypatch.setattr(fuser, "ENGINE", type(fuser.ENGINE)(triton_target.Triton()))
    monkeypatch.setattr(triton_target, "imported", lambda code: (texts.setdefault(code), imported(code))[1])
    return texts


def differentiated(fn, *args):
    leaves = [x for x in pytree.tree_leaves(fn(*args)) if isinstance(x, torch.Tensor) and x.requires_grad]
    if leaves:
        torch.autograd.backward(leaves, [torch.randn_like(x) for x in leaves])


def rand(*shape):
    return torch.randn(shape, requires_grad=True)


def block(x, weight):
    h = F.gelu(F.layer_norm(x, (x.shape[1],)) * weight)
    return torch.cat([h.softmax(0), x[:, 1:] / x.shape[0]], 1).sum(0), F.dropout(h, 0.5) + F.pad(x, (1, 2))[:, 1:-2]


@pytest.mark.filterwarnings("ignore:var_mean:UserWarning")  # of no rows
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_many_sizes_are_right(capture, kernels):
    made = Compilations()
    fn = aotkit.compile(block, backend=made.backend(), dynamic=True, check=False, capture=capture)
    graphs = []
    for rows, columns in SIZES:
        differentiated(fn, rand(rows, columns), rand(columns))
        graphs.append(made.graphs)
    assert any(isinstance(region, OpenRegion) for region in made.regions)
    assert len({*graphs[:5]}) == 1  # 0 and 1 are sizes that torch compiles for on their own


def test_sizes_that_turn_out_to_change(kernels):
    made = Compilations()
    fn = aotkit.compile(block, backend=made.backend(), check=False, capture="dynamo")
    graphs = []
    for rows in (5, 6, 7, 9, 17):
        differentiated(fn, rand(rows, 11), rand(11))
        graphs.append(made.graphs)
    assert len({*graphs}) == 2
    assert {type(region) for region in made.regions} == {Region, OpenRegion}


def test_open_sizes_make_no_more_regions(kernels):
    counts = []
    for dynamic in (False, True):
        made = Compilations()
        fn = aotkit.compile(block, backend=made.backend(), dynamic=dynamic, check=False)
        differentiated(fn, rand(5, 7), rand(7))
        counts.append(made.graphs)
    assert counts[0] == counts[1]


def test_strides_that_do_not_follow_from_sizes(kernels):
    gm = make_fx(
        lambda x: [(x * 2).softmax(-1) + x], tracing_mode="symbolic", decomposition_table=dict(fuser.decompositions())
    )(torch.randn(6, 9)[:, 2:7])
    region = compile_region(fuser.ENGINE, copy_graph(gm), "cpu")
    for x in (torch.randn(6, 9)[:, 2:7], torch.randn(6, 12)[:, 2:7], torch.randn(8, 30)[:, :20], torch.randn(5, 7)):
        same(region([x]), [(x * 2).softmax(-1) + x])


@pytest.mark.parametrize("name", CASES)
def test_each_operator_with_open_sizes(name, kernels):
    made = Compilations()
    made.tolerance = TOLERANCES.get(name)
    function, args = inputs_of(name, torch.float32, "cpu")
    fn = aotkit.compile(function, backend=made.backend(), dynamic=True, check=False)
    differentiated(fn, *args)
    before = made.graphs
    if not any(x.dim() > 1 and x.requires_grad for x in args):
        return
    first = args[0].shape[0]
    for rows in (first + 3, first + 8):
        others = [
            torch.cat([x.detach()] * 5)[:rows].clone().requires_grad_(x.requires_grad) if x.shape[0] == first else x
            for x in args
        ]
        try:
            function(*others)
        except RuntimeError:  # its sizes are written in it
            return
        differentiated(fn, *others)
    assert made.graphs <= 2 * before


def test_two_kernels_serve_all_sizes_of_a_template(kernels):
    made = Compilations()
    fn = aotkit.compile(lambda x: x.softmax(-1) * x.shape[0], backend=made.backend(), dynamic=True, check=False)
    for rows, columns, most in [(5, 37, 1), (6, 41, 2), (7, 63, 2), (9, 33, 2), (8, 48, 3), (11, 32, 4), (5, 37, 4)]:
        fn(torch.randn(rows, columns))
        assert len(kernels) == most, (rows, columns)
    assert made.graphs == 1
    code = [*kernels][1]
    assert "do_not_specialize" in code
    assert "r < s" in code


def test_schedules_are_measured_for_the_first_size_of_a_template():
    measured = []

    def last_is_fastest(runs, device):
        measured.append(len(runs))
        return [[float(len(runs) - n)] for n in range(len(runs))]

    engine = type(fuser.ENGINE)(triton_target.Triton(), Tuning(last_is_fastest, fewest=0))
    gm = make_fx(lambda x: [x.softmax(-1)], tracing_mode="symbolic", decomposition_table=dict(fuser.decompositions()))(
        torch.randn(5, 37)
    )
    region = compile_region(engine, gm, "cpu")
    for rows, columns, times in [(5, 37, 1), (6, 41, 1), (7, 63, 1), (8, 48, 1), (9, 80, 2)]:
        x = torch.randn(rows, columns)
        same(region([x]), [x.softmax(-1)])
        assert len(measured) == times, (rows, columns)
        assert "tuned: tile" in region.kernels([x])[0].code


def test_sizes_that_stay_are_literals(kernels):
    fn = aotkit.compile(
        lambda x, w: F.rms_norm(x, (24,)) * w, backend=Compilations().backend(), dynamic=True, check=False
    )
    w = torch.randn(24)
    for rows in (3, 5, 7, 11):
        fn(torch.randn(rows, 24), w)
    assert len(kernels) == 2


def test_sizes_that_are_not_taken_run_as_they_are(kernels):
    def fn(x, n):
        return [(x * 2).view(-1, n.shape[0]).exp() / n.shape[0]]

    gm = make_fx(fn, tracing_mode="symbolic", decomposition_table=dict(fuser.decompositions()))(
        torch.randn(6, 4), torch.randn(2)
    )
    region = compile_region(fuser.ENGINE, copy_graph(gm), "cpu")
    for shape, columns, taken in [((6, 4), 2, True), ((6, 4), 3, False), ((9, 4), 36, True), ((0, 4), 2, False)]:
        args = [torch.randn(shape), torch.randn(columns)]
        same(region([*args]), fn(*args))
        same(region.observed([*args], lambda number: contextlib.nullcontext()), fn(*args))
        assert all((kernel.language, kernel.why) == ("Triton", "") for kernel in region.kernels(args)) == taken
        assert all(kernel.why for kernel in region.kernels(args)) == (not taken)


def test_sizes_on_which_kernels_fail_run_as_they_are(kernels, monkeypatch):
    gm = make_fx(lambda x: [x.exp() * 2], tracing_mode="symbolic")(torch.randn(6, 4))
    region = compile_region(fuser.ENGINE, copy_graph(gm), "cpu")
    region([torch.randn(6, 4)])

    def failing(*args):
        raise ValueError("no kernel")

    monkeypatch.setattr(triton_target, "imported", failing)
    x = torch.randn(7, 300)
    same(region([x]), [x.exp() * 2])
    assert {kernel.why for kernel in region.kernels([x])} == {"ValueError: no kernel"}


def test_numbers_that_differ_become_arguments():
    def text(rows, columns, stride):
        return f"x < {count(rows)}; r < {number(columns)}; r * {number(stride)} + {number(columns)}"

    templates = Templates()
    assert templates.fitted(text(5, 7, 3), 4) == (literal(text(5, 7, 3)), {}, [])
    code, arguments, plain = templates.fitted(text(5, 8, 3), 4)
    assert (code, arguments, plain) == ("x < 5; r < s0; r * 3 + s0", {"s0": 8}, ["s0"])
    assert templates.fitted(text(5, 32, 3), 4) == (code, {"s0": 32}, [])
    code, arguments, plain = templates.fitted(text(16, 32, 3), 4)
    assert (code, arguments, plain) == ("x < s0; r < s1; r * 3 + s1", {"s0": 16, "s1": 32}, ["s0"])
    assert templates.fitted(text(1, 1, 3), 4) == (code, {"s0": 1, "s1": 1}, ["s0", "s1"])
    assert templates.fitted(text(5, 7, 3), 8)[1] == {}
