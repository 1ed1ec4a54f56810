"""`check="later"`: eager's results until a helper has compiled, too; then what was checked."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import aotkit
from aotkit.capture import later, piece, sent_graph
from aotkit.capture.helper import Helper, Preparation, helper
from aotkit.torch_private.fx import graph_module


class Ended(Preparation):
    """One that is done as soon as somebody waits for it."""

    def wait(self):
        self.end("")


@pytest.fixture
def preparations(monkeypatch):
    """What was asked of a helper, which is done when the test says so; any backend and partitioner will do."""
    found = []

    class Stub:
        def prepare(self, request):
            found.append(Ended())
            return found[-1]

    monkeypatch.setattr(later, "helper", Stub)
    monkeypatch.setattr(later, "request_for", lambda graph, recipe: b"")
    return found


@pytest.fixture
def compilations(monkeypatch):
    """The graphs that this process compiles."""
    found, compile = [], piece.CapturedGraph.compile

    def noted(graph, *args):
        found.append(graph)
        compile(graph, *args)

    monkeypatch.setattr(piece.CapturedGraph, "compile", noted)
    return found


def end(preparations):
    for preparation in preparations:
        preparation.end("")


def wrong(gm, example_inputs):
    """Returns one more than the graph does."""
    return lambda *inputs: [r + 1 if isinstance(r, torch.Tensor) else r for r in gm(*inputs)]


def broken(gm, example_inputs):
    raise RuntimeError("no such luck")


def test_calls_run_eagerly_until_it_is_compiled_and_checked(preparations, compilations):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    fast = aotkit.compile(model, backend="nop", check="later")
    x = torch.randn(3, 4)

    def step(module):
        module.zero_grad()
        module(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    want = step(model)
    for _ in range(3):
        torch.testing.assert_close(step(fast), want)
    assert len(preparations) == 1
    assert not compilations
    end(preparations)
    for _ in range(3):
        torch.testing.assert_close(step(fast), want)
    assert len(compilations) == len(preparations) == 1
    statistics = int(model[1].num_batches_tracked)
    assert fast.report(x).passed
    assert statistics == 7


@pytest.mark.parametrize("ended", [False, True])
def test_each_call_draws_random_numbers_as_eager_does(ended, preparations):
    def f(x):
        return torch.nn.functional.dropout(x, 0.5).sum()

    x = torch.ones(100)
    torch.manual_seed(5)
    want = [f(x), f(x), torch.rand(1)]
    compiled = aotkit.compile(f, backend="nop", check="later", random="torch")
    torch.manual_seed(5)
    got = [compiled(x)]
    if ended:
        end(preparations)
    got += [compiled(x), torch.rand(1)]
    assert got == want


@pytest.mark.parametrize(("backend", "error"), [(wrong, aotkit.MismatchError), (broken, aotkit.CompileError)])
def test_what_is_wrong_shows_in_the_call_that_would_run_it(backend, error, preparations, only_the_verdict):
    def sine(x):
        return x.sin()

    compiled = aotkit.compile(sine, backend=backend, check="later")
    x = torch.ones(3)
    assert torch.equal(compiled(x), x.sin())
    end(preparations)
    for _ in range(2):
        with pytest.raises(error, match="sine"):
            compiled(x)


@pytest.mark.parametrize("backend", [wrong, broken])
def test_what_is_wrong_may_run_eagerly(backend, preparations, only_the_verdict):
    compiled = aotkit.compile(torch.sin, backend=backend, check="later", on_error="eager")
    x = torch.ones(3)
    assert torch.equal(compiled(x), x.sin())
    end(preparations)
    with pytest.warns(aotkit.EagerFallbackWarning):
        assert torch.equal(compiled(x), x.sin())
    assert torch.equal(compiled(x), x.sin())


@pytest.mark.parametrize("ask", ["graphs", "report", "check", "explain", "timeline"])
@pytest.mark.parametrize("called", [False, True])
def test_who_asks_waits_for_the_answer(called, ask, preparations, compilations):
    compiled = aotkit.compile(lambda x: x.sin(), backend="nop", check="later")
    x = torch.ones(3)
    if called:
        compiled(x)
    assert getattr(compiled, ask)(x)
    assert len(compilations) == 1
    assert [p.is_done for p in preparations] == [True] * called
    assert compiled.graphs(x).input_names == ("x",)
    assert compiled.explain(x).eager is None


def test_each_kind_of_input_has_its_own_time(preparations, compilations):
    compiled = aotkit.compile(lambda x: x.sin(), backend="nop", check="later")
    a, b = torch.ones(3), torch.ones(3, dtype=torch.float64)
    compiled(a), compiled(b)
    preparations[1].end("")
    compiled(a), compiled(b)
    assert len(compilations) == 1
    preparations[0].end("")
    assert torch.equal(compiled(a), a.sin())
    assert len(compilations) == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_parts_of_a_function_have_it_too(preparations, compilations):
    def f(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    compiled = aotkit.compile(f, backend="nop", check="later")
    x = torch.randn(3, requires_grad=True)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(gradient, -x.sin().sin() * x.cos())
        assert not compilations or len(compilations) == 2
        end(preparations)
    assert len(preparations) == len(compilations) == 2


def test_what_cannot_wait_is_compiled_in_its_call(preparations, compilations):
    x = torch.randn(6)

    def calls(f, *args, **options):
        compiled = aotkit.compile(f, backend="nop", check="later", **options)
        assert torch.equal(compiled(*args), f(*args))
        return len(compilations), len(preparations)

    assert calls(lambda x: x.sin(), x, dynamic=True) == (1, 0)
    assert calls(lambda x, y: x + y, x, x.view(2, 3).view(6)) == (2, 0)
    with torch.autograd.graph.save_on_cpu():
        assert calls(lambda x: x.cos(), x) == (3, 0)


def test_of_what_only_this_process_knows_nothing_is_asked(monkeypatch, compilations):
    monkeypatch.setattr(later, "helper", None)
    x = torch.ones(3)
    for options in ({"backend": lambda gm, example_inputs: gm}, {"backend": "nop", "partition": lambda *args, **kw: 0}):
        compiled = aotkit.compile(lambda x: x.sin(), check="later", **options)
        assert torch.equal(compiled(x), x.sin())
    assert len(compilations) == 2


def test_a_checkpoint_recomputes_what_it_ran(preparations, compilations):
    """It takes it for an error if other tensors are saved in the backward pass than in the forward pass."""
    compiled = aotkit.compile(lambda x: x.sin().exp().tanh(), backend="nop", check="later")
    x = torch.randn(5, requires_grad=True)
    compiled(x)
    y = checkpoint(compiled, x, use_reentrant=False)
    end(preparations)
    y.sum().backward()
    want = torch.autograd.grad(x.sin().exp().tanh().sum(), x)
    torch.testing.assert_close((x.grad,), want)


def test_inputs_that_come_to_share_memory_are_not_mixed_up(preparations):
    def f(x, y):
        x.add_(1)
        return x * y

    compiled = aotkit.compile(f, backend="nop", check="later")
    compiled(torch.ones(4), torch.ones(4))
    end(preparations)
    x = torch.ones(4)
    with pytest.warns(aotkit.EagerCallWarning, match="share memory"):
        assert torch.equal(compiled(x, x.view(2, 2).view(4)), torch.full((4,), 4.0))
    assert torch.equal(compiled(torch.ones(4), torch.ones(4)), torch.full((4,), 2.0))


def test_threads_compile_it_once(preparations, compilations):
    compiled = aotkit.compile(lambda x: x.sin(), backend="nop", check="later")
    x, results = torch.ones(3), []
    compiled(x)
    end(preparations)
    both = threading.Barrier(2)

    def call():
        both.wait()
        results.append(compiled(x))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compilations) == 1
    assert all(torch.equal(r, x.sin()) for r in results)
    assert len(results) == 2


def test_torch_compile_takes_it_as_an_option(preparations, compilations):
    compiled = torch.compile(lambda x: x.sin(), backend="aotkit", options={"backend": "nop", "check": "later"})
    x = torch.ones(3)
    assert torch.equal(compiled(x), x.sin())
    assert not compilations
    end(preparations)
    assert torch.equal(compiled(x), x.sin())
    assert len(compilations) == 1


def test_under_a_dispatch_mode_nothing_is_compiled(preparations, compilations):
    from torch.utils.flop_counter import FlopCounterMode

    compiled = torch.compile(lambda x: x @ x, backend="aotkit", options={"backend": "nop", "check": "later"})
    x = torch.ones(3, 3)
    compiled(x)
    end(preparations)
    with FlopCounterMode(display=False) as flops:
        compiled(x)
    assert flops.get_total_flops() == 54


@pytest.mark.parametrize(("check", "capture"), [("later", "aot"), ("sooner", "auto"), (None, "auto")])
def test_other_values_are_refused(check, capture):
    with pytest.raises(ValueError, match="check"):
        aotkit.compile(check=check, capture=capture)


def test_a_fork_does_without(monkeypatch):
    preparation = Preparation()
    assert not preparation.is_done
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert preparation.is_done
    preparation.wait()


# With a helper.


@pytest.fixture
def asked(monkeypatch):
    """What is asked of the process's helper."""
    found, prepare = [], Helper.prepare

    def noted(self, request):
        found.append(prepare(self, request))
        return found[-1]

    monkeypatch.setattr(Helper, "prepare", noted)
    return found


@pytest.mark.sweep
def test_what_the_helper_compiled_need_not_be_compiled_again(asked, monkeypatch, tmp_path):
    pytest.importorskip("aotkit.backends.inductor")
    if aotkit.backend_status()["inductor"] is not None:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LayerNorm(4))
    fast = aotkit.compile(model, backend="inductor", check="later")

    def block(x):
        return checkpoint(model, x, use_reentrant=False)

    x = torch.randn(3, 4)
    fast_block = aotkit.compile(block, backend="inductor", check="later")
    for f in (fast, fast_block):
        f(x).sum().backward()
    for preparation in asked:
        preparation.wait()
    assert [preparation.said for preparation in asked] == ["", ""]
    before = dict(counters["inductor"])
    for f in (fast, fast_block):
        f(x).sum().backward()
    new = {name: count - before.get(name, 0) for name, count in counters["inductor"].items()}
    assert new["fxgraph_cache_hit"] == 4
    assert not new.get("fxgraph_cache_miss")
    assert fast.report(x).passed
    assert fast_block.report(x).passed


@pytest.mark.sweep
def test_without_the_helper_it_is_compiled_here(asked, compilations):
    f, g = (aotkit.compile(fn, backend="nop", check="later") for fn in (torch.sin, torch.cos))
    x = torch.ones(3)
    f(x)
    asked[0].wait()
    helper()._process.kill()
    g(x)
    asked[1].wait()
    assert asked[1].said
    assert torch.equal(g(x), x.cos())
    assert len(compilations) == 1
    h = aotkit.compile(torch.tan, backend="nop", check="later")
    h(x)  # a new one
    asked[2].wait()
    assert asked[2].said == ""


@pytest.mark.sweep
def test_the_helper_ends_with_the_program():
    program = """if True:
        import torch, aotkit
        from aotkit.capture import helper
        f = aotkit.compile(torch.sin, backend="nop", check="later")
        f(torch.ones(3))
        started, begun = helper._started, helper.Preparation()
        helper.helper().prepare(b"nonsense").wait()
        print(helper.helper()._process.pid)
        f = aotkit.compile(torch.cos, backend="nop", check="later")
        f(torch.ones(3))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


# The graph.


def sent(f, *args):
    """The graph that TorchDynamo captures of a function, and the same, as it arrives."""
    found = []

    def backend(gm, example_inputs):
        found.append((gm, example_inputs, sent_graph.unpacked(sent_graph.packed(gm, example_inputs))))
        return gm

    torch.compile(f, backend=backend)(*args)
    ((gm, inputs, (arrived, fakes, _)),) = found
    return gm, inputs, arrived, fakes


def test_what_has_a_state_is_not_sent():
    """A copy of a generator would draw the same numbers once more."""
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.rand, (3,), {"generator": torch.Generator()}),))
    with pytest.raises(sent_graph.NotSendable, match="Generator"):
        sent_graph.packed(graph_module({}, graph), [])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_graph_arrives_as_it_was_sent():
    def pooled(x):
        return torch.nn.functional.max_pool2d(torch.ops.aten.cos(torch.ops.aten.sin.default(x)), 2)

    gm, _, arrived, _ = sent(pooled, torch.ones(1, 1, 4, 4))
    assert [n.target for n in arrived.graph.nodes] == [n.target for n in gm.graph.nodes]
    layer, weight = nn.Linear(4, 4), torch.randn(4, 4, requires_grad=True)
    inner = (weight * 2).t()

    def f(x):
        return checkpoint(lambda y: layer(y).sin(), x[:, 1:] @ inner[1:], use_reentrant=False), x[..., None].add_(1)

    x = torch.randn(3, 8)[:, ::2]
    gm, inputs, arrived, fakes = sent(f, x)
    assert [(n.op, n.name) for n in arrived.graph.nodes] == [(n.op, n.name) for n in gm.graph.nodes]

    def kinds(tensors):
        return [
            (x.shape, x.stride(), x.storage_offset(), x.dtype, x.requires_grad, x.is_leaf, isinstance(x, nn.Parameter))
            for x in tensors
        ]

    assert kinds(fakes) == kinds(inputs)
