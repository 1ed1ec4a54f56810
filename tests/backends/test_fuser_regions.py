"""What the fuser tells of its regions, and what it declines: its kernels are written, and none runs."""

import contextlib
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import aotkit
from aotkit.backends import fuser
from aotkit.backends.fuser import launches, triton_target
from aotkit.backends.fuser.operations import OPERATIONS, REDUCTIONS
from aotkit.backends.fusion_definition.region import compile_region
from aotkit.backends.fusion_definition.table import declining
from aotkit.passes.graphs import copy_graph
from aotkit.stages import computes
from tests.backends.fusion_cases import CASES
from tests.backends.test_nvfuser import graphs_of
from tests.backends.test_nvfuser_regions import REFUSED, traced

DECLINES = declining("cpu", fuser.NAME, fuser.ENGINE)
BACKEND = aotkit.Backend(
    lambda gm, example_inputs: compile_region(fuser.ENGINE, gm, "cpu"), decompositions=fuser.decompositions
)
ROWS, COLUMNS = 4096, 1024


def normalized(x, weight, bias):
    return F.layer_norm(x, (COLUMNS,), weight, bias)


def arguments():
    return tuple(torch.rand(shape, requires_grad=True) for shape in ((ROWS, COLUMNS), (COLUMNS,), (COLUMNS,)))


def inputs_of(gm):
    like = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    return [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in like]


def kernels_of(gm):
    return compile_region(fuser.ENGINE, copy_graph(gm), "cpu").kernels(inputs_of(gm))


class Recorded:
    """In place of a module of kernels: notes what would be launched."""

    def __init__(self):
        self.launched = []

    def __getattr__(self, name):
        return _Kernel(name, self.launched)


class _Kernel:
    def __init__(self, name, launched):
        self.name, self.launched = name, launched

    def __getitem__(self, grid):
        return lambda *args, num_warps: self.launched.append((self.name, grid, num_warps, len(args)))


@pytest.fixture
def recorded(monkeypatch):
    module = Recorded()
    monkeypatch.setattr(triton_target, "imported", lambda code: module)
    return module


def test_a_region_tells_each_launch_with_its_loops_and_its_code():
    (kernel,) = kernels_of(aotkit.extract(normalized, *arguments(), backend=BACKEND).forward)
    assert (kernel.name, kernel.language, kernel.launches) == ("kernel0_sum_rsqrt", "Triton", 1)
    layout, rows, inner, first, *_ = kernel.code.splitlines()
    assert layout.startswith("kernel0_sum_rsqrt: tile ")
    assert " warps" in layout
    assert (rows, inner) == (f"  rows i0 = {ROWS}", f"  within a row i1 = {COLUMNS}")
    assert first == f"  %0 = load b0[i0 * {COLUMNS} + i1] : float32 [i0 i1]"
    for line in ("  %1 = sum %0 over i1 : float32 [i0]", "  store %", "def kernel0_sum_rsqrt(b0, ", "tl.store("):
        assert line in kernel.code


def test_the_page_shows_the_loops_of_a_layer_norm():
    """Paste what this finds missing into the page; of the schedule, only which numbers stand there."""
    page = Path(__file__).parents[2].joinpath("docs", "fuser.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```console\n(kernel0.*?)^```$", page, re.DOTALL | re.MULTILINE)
    graphs = aotkit.extract(normalized, *arguments(), backend=BACKEND)
    for text, gm in zip(shown, (graphs.forward, graphs.backward), strict=True):
        lines = [line for kernel in kernels_of(gm) for line in kernel.code.splitlines()]
        missing = {re.sub(r"\d+", "N", line) for line in text.splitlines()} - {
            re.sub(r"\d+", "N", line) for line in lines
        }
        assert missing <= {"    ...", "  ...", ""}


def test_a_kernel_has_the_operations_that_it_computes():
    """The gradients of weight and bias are added up by two kernels: the one of the input's gradient, and their own."""
    gm = aotkit.extract(normalized, *arguments(), backend=BACKEND).backward
    first, *last = kernels_of(gm)
    columns = [n.name for n in gm.graph.nodes if n.op == "call_function" and n.meta["val"].shape == (COLUMNS,)]
    assert len(columns) == 2
    assert sorted(name for kernel in last for name in kernel.operations) == sorted(columns)
    assert set(first.operations) == {n.name for n in gm.graph.nodes if n.op == "call_function"}
    assert "added up over i0 = 4096 by" in first.code
    assert "part of a sum" in first.code


@pytest.mark.thinned
@pytest.mark.parametrize("name", [name for name in CASES if name != "views"])
def test_every_operation_is_in_a_kernel(name):
    for gm in graphs_of(name):
        inside = {operation for kernel in kernels_of(gm) for operation in kernel.operations}
        for node in reversed(gm.graph.nodes):
            if node.op == "call_function" and {user.name for user in node.users} & inside:
                inside.add(node.name)  # merged into what reads it
        assert [n.name for n in gm.graph.nodes if computes(n) and n.name not in inside] == []


def test_a_region_is_observed_launch_by_launch(recorded):
    gm = aotkit.extract(normalized, *arguments(), backend=BACKEND).backward
    region, args, seen = compile_region(fuser.ENGINE, copy_graph(gm), "cpu"), inputs_of(gm), []

    @contextlib.contextmanager
    def around(number):
        before = len(recorded.launched)
        yield
        seen.append((number, [name for name, *_ in recorded.launched[before:]]))

    kernels = region.kernels(args)
    assert not recorded.launched
    results = region.observed([*args], around)
    assert seen == [(i, [kernel.name]) for i, kernel in enumerate(kernels)]
    assert [r.shape for r in results] == [r.meta["val"].shape for r in gm.graph.output_node().args[0]]
    once, recorded.launched = recorded.launched, []
    region(args)
    assert recorded.launched == [] != once  # the module was asked for its kernels before


def test_explain_has_the_time_of_each_launch(recorded):
    args = arguments()
    explanation = aotkit.compile(normalized, backend=BACKEND, check=False).explain(*args)
    kernels = explanation.kernels
    assert kernels.failure is None
    assert {k.kernel.language for k in kernels.kernels} == {"Triton"}
    assert kernels.launches("backward") > kernels.launches("forward") == 1
    assert all(k.seconds for k in kernels.kernels)
    assert "@triton.jit" in explanation.code("backward")


def test_it_launches_on_the_device_of_the_graph(recorded, monkeypatch):
    devices = [0]

    @contextlib.contextmanager
    def device(wanted):
        devices.append(wanted.index)
        yield
        devices.pop()

    def new(size, stride, dtype):
        made.append(devices[-1])
        return torch.empty_strided(size, stride, dtype=dtype)

    made = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: devices[-1])
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(launches, "empty_strided_on", {"cuda": new}.__getitem__)
    with fuser.ENGINE.definition() as definition:
        x = definition.define_tensor(sizes=[3, 4], strides=[4, 1], dtype=torch.float32, static_sizes=True, is_cpu=False)
        definition.add_output(definition.ops.exp(x))
    for index in (0, 1):
        definition.execute([torch.rand(3, 4)], device=torch.device("cuda", index))
    assert made == [0, 1]
    assert devices == [0]
    assert len(recorded.launched) == 2


def test_messages_name_the_engine_that_is_asked():
    (node,) = (n for n in traced(lambda x: x.cumsum(0), torch.rand(3, 4)).graph.nodes if n.op == "call_function")
    assert DECLINES(node) == "the fuser has no such operator"
    gm = traced(lambda x: x * 2 + x.cumsum(0), torch.rand(3, 4))
    with pytest.raises(aotkit.CompileError, match="the fuser does not take %cumsum"):
        compile_region(fuser.ENGINE, gm, "cpu")


def reasons(fn, *args):
    nodes = [n for n in traced(fn, *args).graph.nodes if n.op == "call_function"]
    return [reason for n in nodes if (reason := DECLINES(n)) is not None]


@pytest.mark.parametrize("reason", sorted({*REFUSED} - {"more than one index"}))  # of which nvFuser has none
def test_what_the_table_does_not_take_is_declined(reason):
    assert any(reason.replace("nvFuser", "the fuser") in r for r in reasons(REFUSED[reason], torch.rand(3, 4)))


def test_a_view_that_splits_no_axis_is_declined():
    x = torch.rand(6, 4)
    assert reasons(lambda x: x.view(8, 3) * 2, x) == ["an axis of 4 does not split into ones of 3"]
    assert reasons(lambda x: x.view(2, 3, 2, 2).view(2, 12) * 2, x) == []


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.roll(x.view(4, 7, 7, 8, 8, 6).transpose(2, 3).reshape(4, 56, 56, 6), (4, 4), (1, 2)),
        lambda x: torch.roll(x.view(4, 56, 56, 6), 5) * 2,
    ],
    ids=["windows that are put together", "all elements"],
)
def test_views_that_make_an_operation_hard_are_atens(fn):
    """Of parts that begin within a row of what a view merged, no loop is made: the view is taken before."""
    x = torch.randn(4, 56 * 56 * 6, requires_grad=True)
    fast = aotkit.compile(fn, backend="fuser")
    report = fast.check(x)
    assert report.passed, report
    names = [k.kernel.name for k in fast.explain(x).kernels.kernels if k.role == "forward"]
    assert [name.startswith("kernel") for name in names].count(True) == 1
    assert {name for name in names if not name.startswith("kernel")} <= {"aten.clone.default"}


def test_an_operation_without_code_is_declined(monkeypatch):
    monkeypatch.delitem(OPERATIONS, "lgamma")
    monkeypatch.delitem(REDUCTIONS, "prod")
    x = torch.rand(6, 4)
    assert reasons(lambda x: x.lgamma() + x.prod(1, keepdim=True), x) == [
        "the fuser has no code for lgamma",
        "the fuser has no code for prod",
    ]
    with pytest.raises(aotkit.CompileError, match="the fuser has no code for lgamma"):
        compile_region(fuser.ENGINE, traced(lambda x: x.lgamma() * 2, x), "cpu")


@pytest.mark.sweep
def test_every_node_of_the_cases_but_views_is_taken():
    nodes = {str(n.target): n for name in CASES for gm in graphs_of(name) for n in gm.graph.nodes}
    declined = {name for name, n in nodes.items() if n.op == "call_function" and DECLINES(n) is not None}
    assert declined <= {"aten.view.default"}
