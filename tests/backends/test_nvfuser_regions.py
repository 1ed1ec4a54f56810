"""What surrounds nvFuser's kernels: strides, aliases, sharing, refusals. On a stand-in, without a GPU."""

import contextlib
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import aotkit
from aotkit.backends import nvfuser
from aotkit.backends.fusion_definition.draws import shape_indices
from aotkit.backends.fusion_definition.region import Region, compile_region
from aotkit.backends.fusion_definition.table import declining
from aotkit.random.draws import hashed, key
from tests.backends import fusion_stand_in

ENGINE = nvfuser.Engine(fusion_stand_in)
NOP = aotkit.Backend(lambda gm, example_inputs: gm, decompositions=nvfuser.decompositions)


def traced(fn, *args):
    gm = make_fx(fn, tracing_mode="fake", decomposition_table=dict(nvfuser.decompositions()))(*args)
    output = gm.graph.output_node()
    if not isinstance(output.args[0], tuple | list):
        output.args = ((output.args[0],),)
        gm.recompile()
    return gm


def region_of(fn, *args):
    return compile_region(ENGINE, traced(fn, *args), "cpu")


def built(action):
    before = fusion_stand_in.FusionDefinition.built
    found = action()
    return fusion_stand_in.FusionDefinition.built - before, found


def scaled(x, y):
    return (x * 2 + y).sum(0), (x - y).exp()


def test_equal_graphs_share_a_fusion_while_one_is_in_use():
    args = torch.rand(3, 4), torch.rand(4)
    count, regions = built(lambda: [region_of(scaled, *args) for _ in range(3)])
    assert count == 1
    assert built(lambda: region_of(scaled, torch.rand(4, 3), torch.rand(3)))[0] == 1
    assert built(lambda: region_of(lambda x, y: ((x * 3 + y).sum(0), (x - y).exp()), *args))[0] == 1
    del regions
    assert built(lambda: region_of(scaled, *args))[0] == 1


def test_layers_with_different_draws_share_a_fusion():
    def dropped(number):
        return lambda x, seed: x * (hashed(torch.arange(4, dtype=torch.int32), *key(seed, number)) > 0)

    args = torch.rand(3, 4), torch.tensor(12345)
    count, regions = built(lambda: [region_of(dropped(number), *args) for number in range(3)])
    assert count == 1
    for number, region in enumerate(regions):
        torch.testing.assert_close(region(list(args))[0], dropped(number)(*args), rtol=0, atol=0)


def test_inputs_of_other_strides_get_a_fusion_of_their_own():
    x, y = torch.rand(3, 4), torch.rand(4)
    region = region_of(scaled, x, y)
    layouts = [x, torch.rand(4, 3).t(), torch.rand(3, 1).expand(3, 4), torch.rand(6, 8)[::2, ::2]]
    for expected in (3, 0):  # the first one is there already
        count, results = built(lambda: [region([given, y]) for given in layouts])
        assert count == expected
        for given, result in zip(layouts, results, strict=True):
            torch.testing.assert_close(result, scaled(given, y), rtol=0, atol=0)


class Executor:
    """What nvFuser made of a definition."""

    @staticmethod
    def get_scheduled_ir(inputs):
        return f"scheduled for {len(inputs)} inputs"

    @staticmethod
    def get_cuda_kernel(inputs):
        bounds = "__launch_bounds__(/*maxThreadsPerBlock=*/128)"
        return f"__global__ void {bounds} nvfuser_f0(Tensor<float> T0)\n__global__ void nvfuser_f1(Tensor<float> T1)"


def test_a_region_tells_its_fusion_and_what_remains(monkeypatch):
    monkeypatch.setattr(fusion_stand_in.FusionDefinition, "fec", Executor, raising=False)
    args = [torch.rand(3, 4), torch.rand(4)]
    region = region_of(lambda x, y: (*scaled(x, y), (x + y).t()), *args)
    seen = []

    @contextlib.contextmanager
    def around(number):
        seen.append(number)
        yield

    (fusion,) = region.kernels(args)
    assert fusion.launches == 2
    assert {"mul", "sum_1", "exp"} <= set(fusion.operations)
    for text in ("FusionDefinition object", "scheduled for 2 inputs", "nvfuser_f1"):
        assert text in fusion.code
    for got, want in zip(region.observed([*args], around), region(list(args)), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert seen == [0]


def test_several_threads_with_several_layouts():
    y = torch.rand(4)
    inputs = [torch.rand(3, 4), torch.rand(4, 3).t()] * 2
    region, wrong = region_of(scaled, inputs[0], y), []

    def work(x):
        for _ in range(30):
            wrong.extend(g for g, e in zip(region([x, y]), scaled(x, y), strict=True) if not torch.equal(g, e))

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def aliases(x):
    y = x * 2
    part, rest = y.split([1, 2])
    return x, x.view(-1), x.clone(), y, y.t(), y.clone(), y.to(torch.float32), part, rest, x.t().clone(), None, y


def test_results_share_memory_as_in_aten():
    x = torch.rand(3, 4)
    region = region_of(aliases, x)
    assert isinstance(region, Region)
    got, expected = region([x]), aliases(x)
    assert places(x, got) == places(x, expected)
    assert got[0] is x
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert [r.stride() for r in got if r is not None] == [r.stride() for r in expected if r is not None]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2, x + 1),
        lambda x: (x + 1, None, x, x * 2, x),
        lambda x: [y := x * 2, y, x + 1],
        lambda x: (x * 2, x.sum() * 2, torch.arange(3)),
    ],
    ids=["all that is computed", "inputs and nothing", "one twice", "one of no tensor"],
)
def test_results_are_those_of_the_graph_in_its_order(fn):
    x = torch.rand(3, 4)
    region = region_of(fn, x)
    assert isinstance(region, Region)
    for _ in range(2):
        got, expected = list(region([x])), list(fn(x))
        assert places(x, got) == places(x, expected)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def places(x, results):
    """For each result, the number of the first tensor that is in the same memory."""
    at = [None if t is None else t.untyped_storage().data_ptr() for t in (x, *results)]
    return [at.index(place) for place in at]


def test_results_have_the_strides_of_the_graph():
    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def fn(x):
        return x * 2, (x + 1).contiguous(), x.permute(3, 0, 1, 2) * 2

    for got, expected in zip(region_of(fn, x)([x]), fn(x), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, check_stride=True)


def test_inputs_are_given_up():
    x = torch.rand(3, 4)
    args = [x, torch.rand(4)]
    region_of(scaled, *args)(args)
    assert args == []


@pytest.mark.parametrize("fn", [lambda x: (x, x.t()), lambda x: torch.full((2, 3), 1.0)])
def test_what_needs_no_kernel_runs_as_it_is(fn):
    x = torch.rand(3, 4)
    count, region = built(lambda: region_of(fn, x))
    assert count == 0
    torch.testing.assert_close(region(x)[-1], fn(x)[-1] if isinstance(fn(x), tuple) else fn(x))


def test_masks_are_made_in_the_shape_of_the_tensor():
    """Views of theirs and of other tensors do not go into one kernel."""
    x = torch.rand(2, 1, 5, 4)
    gm = aotkit.extract(lambda x: F.dropout(x, 0.5), x, backend=NOP).forward
    before = [n for n in gm.graph.nodes if n.target is torch.ops.aten.view.default]
    args = [x, torch.tensor(12345)]
    expected = gm(*args)
    shape_indices(gm.graph)
    gm.recompile()
    assert len(before) == 1
    assert not [n for n in gm.graph.nodes if n.target is torch.ops.aten.view.default]
    torch.testing.assert_close(gm(*args), expected, rtol=0, atol=0)


def test_what_is_compared_is_rounded_first():
    """Else a maximum that was saved would not be found among values that are computed again."""

    def fn(x, largest):
        return (x * 3.7 == largest).float()

    x = torch.rand(8, 16).bfloat16()
    largest = (x * 3.7).amax(1, keepdim=True)
    (found,) = region_of(fn, x, largest)([x, largest])
    assert torch.equal(found, fn(x, largest))


def test_an_index_out_of_range_is_seen():
    x, index = torch.rand(3, 4), torch.tensor([[1], [2], [3]])
    region = region_of(lambda x, index: x.gather(1, index), x, index)
    assert region([x, index + 1])[0].isnan().tolist() == [[False], [False], [True]]


REFUSED = {
    "nvFuser has no such operator": lambda x: x.cumsum(0),
    "nvFuser has no tensors of torch.uint8": lambda x: x.to(torch.uint8),
    "nvFuser has no tensors of torch.complex64": lambda x: x * 1j,
    "a tensor without elements": lambda x: x[3:] * 2,
    "more than 8 dimensions": lambda x: x.view(1, 1, 1, 1, 1, 1, 1, 3, 4) * 2,
    "a step that does not divide": lambda x: x[:, ::3] * 2,
    "the floor of a quotient": lambda x: x // 0.3,
    "arithmetic of booleans": lambda x: (x > 0.5) - (x > 0.2).to(torch.int32) + torch.add(x > 0.5, x > 0.2, alpha=2),
    "powers of integers": lambda x: x.int() ** 5,
    "shifts by other than": lambda x: x.int() >> 40,
    "4294967296 is no torch.int32": lambda x: x.int() & 2**32,
    "range of floating-point": lambda x: torch.arange(0.0, 1.0, 0.25) * x,
    "more than one index": lambda x: x.gather(1, torch.zeros(3, 2).long()),
    "gathering integers": lambda x: x.int().gather(1, torch.zeros(3, 1).long()),
    "scattering part": lambda x: x.scatter(1, torch.zeros(3, 1).long(), x),
    "with the correction 2": lambda x: x[:2].var(0, correction=2),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_node_is_refused_with_its_reason_and_then_not_compiled(reason):
    gm = traced(REFUSED[reason], torch.rand(3, 4))
    reasons = [declining("cpu", nvfuser.NAME)(n) for n in gm.graph.nodes if n.op == "call_function"]
    assert any(reason in r for r in reasons if r is not None), reasons
    with pytest.raises(aotkit.CompileError, match="nvFuser does not take"):
        compile_region(ENGINE, gm, "cpu")


def test_the_cpu_has_numbers_alone():
    gm = traced(lambda x, seed: (x + 1, seed * 2), torch.rand(3), torch.tensor(3))
    add, multiply = (n for n in gm.graph.nodes if n.op == "call_function")
    assert declining("cuda", nvfuser.NAME)(add) == "a tensor on cpu"
    assert declining("cuda", nvfuser.NAME)(multiply) is None


def test_symbolic_sizes_are_refused():
    def compile_graph(gm, example_inputs):
        declined = {declining("cpu", nvfuser.NAME)(n) for n in gm.graph.nodes if n.op == "call_function"}
        assert declined >= {"sizes are symbols; compile with dynamic=False"}
        return compile_region(ENGINE, gm, "cpu")

    backend = aotkit.Backend(compile_graph, decompositions=nvfuser.decompositions)
    with pytest.raises(aotkit.CompileError, match="compile with dynamic=False"):
        aotkit.compile(lambda x: x.cos(), backend=backend, dynamic=True)(torch.rand(3, 4))


@pytest.fixture
def machine(monkeypatch):
    """A machine on which nvFuser runs."""
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace())
    monkeypatch.setitem(sys.modules, nvfuser.MODULE, fusion_stand_in)
    return monkeypatch


def test_it_runs_where_everything_is_there(machine):
    assert nvfuser.backend.unavailable() is None


def test_too_new_a_torch(machine):
    machine.setattr(torch, "__version__", "2.12.1+cu130")
    assert "corrupt memory in 2.12.1" in nvfuser.unavailable()
    assert "Use PyTorch 2.11" in nvfuser.unavailable()


def test_no_cuda_device(machine):
    machine.setattr(torch.cuda, "is_available", lambda: False)
    assert nvfuser.unavailable() == "there is no CUDA device. Use backend 'inductor'."


def test_not_installed(machine):
    machine.setattr("importlib.util.find_spec", lambda name: None)
    assert "`pip install nvfuser-cu130-torch210`" in nvfuser.unavailable()


def test_an_import_that_fails(machine):
    def fail(name):
        raise ImportError("undefined symbol: MessageLogger")

    machine.setattr("importlib.import_module", fail)
    assert "raised ImportError: undefined symbol: MessageLogger" in nvfuser.unavailable()
