"""The backend `fuser_tuned`: which schedule is taken, that it stays right, and what is kept. No clock decides."""

import contextlib
import functools
import json
import os
import subprocess
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import aotkit
from aotkit.backends import fuser, fuser_tuned
from aotkit.backends.fuser import cpp_target, measuring
from aotkit.backends.fuser.measuring import fastest
from aotkit.backends.fuser.trials import Trials
from aotkit.backends.fuser.tuning import Tuning
from aotkit.backends.fusion_definition.region import compile_region
from aotkit.torch_private.native.building import can_build

pytestmark = pytest.mark.skipif(not can_build(), reason="no C++ compiler")
LARGE = 300  # rows and columns of a kernel that is worth it


class Clock:
    """In place of one: the last of the schedules is the fastest, and all of them are noted."""

    def __init__(self):
        self.measured = []

    def __call__(self, runs, device):
        self.measured.append(list(runs))
        return [[float(len(runs) - n)] for n in range(len(runs))]


def softmax(x):
    return (x.exp() + 1).softmax(-1)


def region_of(fn, x, clock, target=None, fewest=0):
    """A function as a region whose schedules are measured."""
    gm = make_fx(fn, tracing_mode="fake", decomposition_table=dict(fuser.decompositions()))(x)
    gm.graph.output_node().args = ((gm.graph.output_node().args[0],),)
    gm.graph.eliminate_dead_code()
    return compile_region(fuser.Engine(target or cpp_target.Cpp(), Tuning(clock, fewest)), gm, "cpu")


def code_of(region, x):
    return "\n".join(kernel.code for kernel in region.kernels([x]))


def test_the_fastest_schedule_is_taken_and_explained():
    clock, x = Clock(), torch.randn(5, LARGE)
    region = region_of(softmax, x, clock)
    before = code_of(region, x)
    for _ in range(2):
        torch.testing.assert_close(region([x])[0], softmax(x))
    after = code_of(region, x)
    assert (len(clock.measured), len(clock.measured[0]) > 3) == (1, True)
    assert "tuned" not in before
    last = "nothing held"
    assert last in after
    assert f"{last}: 1 s; the model's choice, 5 tasks, at most 1 threads, 4 vectors at a time: " in after
    assert [text.count("hold(") > 1 for text in (before, after)] == [True, False]


def test_equal_kernels_are_measured_once():
    clock, x = Clock(), torch.randn(5, LARGE)
    gm = make_fx(softmax, tracing_mode="fake", decomposition_table=dict(fuser.decompositions()))(x)
    gm.graph.output_node().args = ((gm.graph.output_node().args[0],),)
    engine = fuser.Engine(cpp_target.Cpp(), Tuning(clock, 0))
    first, second = (compile_region(type(engine)(engine.target, engine.tuning), gm, "cpu") for _ in range(2))
    assert torch.equal(first([x])[0], second([x])[0])
    assert len(clock.measured) == 1
    assert "tuned: " in code_of(second, x)
    assert code_of(first, x) == code_of(second, x)


@pytest.mark.sweep
def test_what_is_small_is_not_measured():
    clock, x = Clock(), torch.randn(5, LARGE)
    region_of(softmax, x, clock, fewest=5 * LARGE + 1)([x])
    assert not clock.measured
    region_of(softmax, x, clock, fewest=5 * LARGE)([x])
    assert clock.measured


def test_trials_write_to_tensors_of_their_own():
    clock, x = Clock(), torch.randn(5, LARGE)
    given, (result,) = x.clone(), region_of(softmax, x, clock)([x])
    kept = result.clone()
    for run in clock.measured[0]:
        run()
    tensors = [t for run in clock.measured[0] for t in run.args if isinstance(t, torch.Tensor)]
    assert len({t.data_ptr() for t in tensors} - {x.data_ptr()}) == 1
    assert result.data_ptr() not in {t.data_ptr() for t in tensors}
    assert torch.equal(result, kept)
    assert torch.equal(x, given)


def test_what_a_kernel_writes_in_place_is_tried_on_copies():
    def doubled(x):
        x.mul_(2)

    def doubled_twice(x):
        x.mul_(4)

    x = torch.ones(4, 6)[:, ::2]
    trials = Trials((doubled, (0,), ()), [x], [0])
    assert trials.is_right((lambda x: x.add_(x), (0,), ()))
    assert not trials.is_right((doubled_twice, (0,), ()))
    assert trials.is_right((doubled, (0,), ()))
    assert torch.equal(x, torch.ones(4, 3))


def summed(order):
    return lambda x, result: result.copy_(functools.reduce(torch.add, x[order]))


def test_another_order_of_a_sum_is_right_where_little_is_left_of_it():
    """As of gradients of what a softmax does not depend on, of which rounding is all that there is."""
    x = torch.randn(1000, 8)
    x -= x.mean(0)
    first, second = torch.arange(1000), torch.arange(999, -1, -1)
    values = [x, torch.empty(8)]
    trials = Trials((summed(first), (0, 1), ()), values, [1])
    assert trials.is_right((summed(second), (0, 1), ()))
    assert not trials.is_right((summed(second[1:]), (0, 1), ()))


def test_nan_and_infinities_are_results_like_others():
    x = torch.tensor([1.0, torch.inf, torch.nan])
    trials = Trials((lambda x, y: y.copy_(x), (0, 1), ()), [x, torch.empty(3)], [1])
    assert trials.is_right((lambda x, y: y.copy_(x + 0), (0, 1), ()))
    assert not trials.is_right((lambda x, y: y.copy_(x.nan_to_num(7.0)), (0, 1), ()))


class Planted(cpp_target.Cpp):
    """One of the schedules gets other code."""

    def __init__(self, old, new):
        self.old, self.new = old, new

    def launch(self, loops, kernel, name, preference=""):
        made = super().launch(loops, kernel, name, preference)
        if preference != "more vectors":
            return made
        assert self.old in made.code
        code = made.code.replace(self.old, self.new)
        return type(made)(**{**made.__dict__, "code": code, "template": made.template + self.new})


def test_a_schedule_that_computes_something_else_is_refused_with_a_warning():
    clock, x = Clock(), torch.randn(5, LARGE)
    region = region_of(lambda x: x.exp() + 1, x, clock, Planted("all((float)1.0)", "all((float)1.01)"))
    with pytest.warns(RuntimeWarning, match=r"kernel0_exp .* \(.* 8 vectors .*\) than with another \(.* 4 vectors"):
        (result,) = region([x])
    torch.testing.assert_close(result, x.exp() + 1)
    assert "8 vectors" not in code_of(region, x)
    assert clock.measured


def test_a_schedule_that_does_not_compile_is_left_out():
    clock, x = Clock(), torch.randn(5, LARGE)
    region = region_of(lambda x: x.exp() + 1, x, clock, Planted("const whole there{};", "#error"))
    torch.testing.assert_close(region([x])[0], x.exp() + 1)
    assert "tuned: " in code_of(region, x)
    assert "8 vectors" not in code_of(region, x)


def test_kernels_are_observed_in_the_call_that_chooses():
    clock, x, entered = Clock(), torch.randn(5, LARGE), []
    region = region_of(softmax, x, clock)
    (result,) = region.observed([x], lambda n: (entered.append(n), contextlib.nullcontext())[1])
    torch.testing.assert_close(result, softmax(x))
    assert clock.measured
    assert entered == [0]


@pytest.mark.sweep
def test_nothing_is_measured_while_a_cuda_graph_is_recorded(monkeypatch):
    clock, x = Clock(), torch.randn(5, LARGE)
    region = region_of(softmax, x, clock)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        torch.testing.assert_close(region([x])[0], softmax(x))
    assert not clock.measured
    region([x])
    assert clock.measured


def test_another_schedule_has_to_be_faster_by_more_than_what_varies():
    assert fastest([[1.0], [0.98], [0.99]]) == 0
    assert fastest([[1.0], [0.96], [0.9], [2.0]]) == 2
    assert fastest([[0.8, 1.0, 1.2], [0.7, 0.9, 1.1]]) == 0
    assert fastest([[0.99, 1.0, 1.01], [0.89, 0.9, 0.91]]) == 1


def test_each_schedule_is_timed_by_turns():
    order = []
    found = measuring.measured([lambda: order.append("a"), lambda: order.append("b")], "cpu")
    assert order == (["a", "b", "b", "a"] * len(order))[: len(order)]
    assert len(found[0]) == len(found[1]) >= measuring.FEWEST


PROGRAM = """
import json, sys, torch, aotkit
from aotkit.backends.fuser import cpp_target
from aotkit.backends import fuser_tuned

def measure(runs, device):
    measured.append(len(runs))
    return [[float(len(runs) - n)] for n in range(len(runs))]

def start(build, start=cpp_target.Build._start):
    built.append(1)
    start(build)

measured, built = [], []
cpp_target.Build._start = start
fuser_tuned.ENGINES["cpu"].tuning.measure = measure
x = torch.linspace(-1, 1, 128 * 300).reshape(128, 300).requires_grad_()
options = {"backend": json.loads(sys.argv[1]), "capture": sys.argv[3]}
fast = aotkit.compile(lambda x: (x.exp() + 1).softmax(-1).square(), **options)
fast(x).sum().backward()
if sys.argv[2]:
    fast.save(sys.argv[2], x)
told = [line.strip() for part in ("forward", "backward") for line in fast.explain(x).code(part).splitlines()]
is_traced = "trace, cut and compile" in {stage.name for stage in fast.timeline(x).stages}
told = [text for text in told if text.startswith("tuned")]
print(json.dumps([measured, len(built), is_traced, fast.report(x).kept, told, x.grad.sum(1).abs().max().item()]))
"""


def process(folder, backend, saved="", capture="auto"):
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "AOTKIT_KEEP": "1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(backend), saved, capture]
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


@pytest.mark.sweep
@pytest.mark.parametrize("spec", ["fuser_tuned", ["fuser_tuned", "nop"]], ids=str)
def test_the_next_process_takes_what_has_won(tmp_path, spec):
    measured, built, _, _, told, off = process(tmp_path, spec)
    assert len(measured) == 2
    assert built > 2
    assert len(told) == 2
    assert process(tmp_path, spec) == [[], 0, "nop" in spec, True, told, off]  # of graphs, `nop` keeps none


@pytest.mark.sweep
def test_nothing_is_measured_without_being_asked_for(tmp_path):
    """Not even where it has been measured: `fuser` has its model's choice, which has not been checked yet."""
    process(tmp_path, "fuser_tuned", capture="dynamo")
    measured, _, _, is_checked, told, _ = process(tmp_path, "fuser", capture="dynamo")
    assert (measured, is_checked, told) == ([], False, [])


@pytest.mark.sweep
def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "step"
    process(tmp_path, "fuser_tuned", str(path))
    x = torch.linspace(-1, 1, 128 * 300).reshape(128, 300).requires_grad_()
    step = aotkit.load(path, lambda x: (x.exp() + 1).softmax(-1).square(), trusted=True)
    torch.testing.assert_close(step(x), (x.exp() + 1).softmax(-1).square())


@pytest.mark.sweep
def test_it_trains_a_model_right(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(fuser_tuned.ENGINES["cpu"].tuning, "measure", clock)
    x, weight = (torch.randn(shape, requires_grad=True) for shape in ((128, LARGE), (LARGE,)))
    report = aotkit.check(lambda x, weight: F.gelu(F.layer_norm(x, (LARGE,), weight)), x, weight, backend="fuser_tuned")
    assert report.passed
    assert len(clock.measured) >= 2
