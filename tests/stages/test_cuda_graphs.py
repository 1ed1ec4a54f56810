"""CUDA graphs around backends. Without a GPU a stand-in records: it writes over the same memory at every replay."""

import ctypes
import dataclasses
import logging
import math
import random
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import aotkit
import aotkit.stages.calls
from aotkit.errors import UnavailableError
from aotkit.interfaces import Backend
from aotkit.passes.graphs import copy_graph
from aotkit.passes.new_storages import IS_NEW_STORAGE
from aotkit.registry import get_backend
from aotkit.stages.calls import Product
from aotkit.stages.cuda_graphs import recordings, replay
from aotkit.stages.cuda_graphs.compiler import Recorder, passed_on, why_not, with_cuda_graphs
from aotkit.stages.cuda_graphs.replay import Replayed
from aotkit.stages.graph_launches import explained, launches_of
from aotkit.torch_private.aotautograd import compile_alone, part_of_graph

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class StandIn:
    """Keeps its inputs and results, and computes into them again.

    Attributes:
        made: how many there are.
        read: addresses of the inputs of all replays.
    """

    made = 0
    read: ClassVar = set()

    def __init__(self, run, inputs, pool):
        StandIn.made += 1
        self._run, self._inputs = run, [_at_its_address(x) for x in inputs]
        self.results = list(run(list(inputs)))
        self._kept = [None if r is None or _is_inside(r, inputs) else r for r in self.results]
        for result in self._kept:
            if result is not None and result.is_floating_point():
                result.fill_(float("nan"))  # nothing is computed before the first replay

    def replay(self):
        StandIn.read |= {x.data_ptr() for x in self._inputs}
        for kept, result in zip(self._kept, self._run(list(self._inputs)), strict=True):
            if kept is not None:
                kept.copy_(result)


def _at_its_address(tensor):
    """As a kernel has it: nobody knows that it refers to that memory."""
    storage = tensor.untyped_storage()
    memory = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
    whole = torch.frombuffer(memory, dtype=tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _is_inside(tensor, others):
    return tensor.untyped_storage().data_ptr() in {x.untyped_storage().data_ptr() for x in others}


@pytest.fixture
def recorded(monkeypatch):
    """nop, recorded however few kernels there are; on a CPU by the stand-in."""
    monkeypatch.setattr(replay, "REPLAY", -math.inf)
    if torch.cuda.is_available():
        return with_cuda_graphs(get_backend("nop"))
    monkeypatch.setattr(recordings, "Capture", StandIn)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(replay, "current_stream", lambda device: 0)
    monkeypatch.setattr(StandIn, "made", 0)

    def compiler(gm, example_inputs):
        passed = passed_on(gm)
        return Replayed(aotkit.stages.calls.boxed_call(gm), passed, torch.device("cpu"), explained(Product(gm, gm)), 1)

    return Backend(compiler)


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def block(x, w, b):
    return F.dropout(F.gelu(x @ w + b), 0.25).view(-1, 4, 2).sum(1), x


def leaf(*shape):
    return torch.randn(*shape, device=DEVICE).requires_grad_()


def step(f, x, w, b):
    out, same = f(x, w, b)
    return out, same, torch.autograd.grad(out.square().sum() + same.sum(), (x, w, b))


def compare_steps(backend, plain):
    """Steps with new inputs, under a backend and another."""
    functions = [aotkit.compile(block, backend=b) for b in (backend, plain)]
    w, b = leaf(8, 8), leaf(8)
    for n in range(8):
        x = leaf(16, 8)
        results = []
        for f in functions:
            torch.manual_seed(n)
            results.append(step(f, x, w, b))
        torch.testing.assert_close(*results)


def test_steps_give_what_eager_gives(recorded):
    compare_steps(recorded, "nop")


def test_asking_what_is_launched_disturbs_no_recording(recorded):
    f = aotkit.compile(lambda x, w, b: F.gelu(x @ w + b), backend=recorded, check=False)
    inputs, cotangent = (leaf(16, 8), leaf(8, 8), leaf(8)), torch.randn(16, 8, device=DEVICE)
    for _ in range(4):
        torch.autograd.grad(f(*inputs), inputs, cotangent)
    made = StandIn.made
    explanation = f.explain(*inputs)
    assert explanation.kernels.failure is None
    assert "aten.mm.default" in [k.kernel.name for k in explanation.kernels.kernels]
    for _ in range(4):
        torch.autograd.grad(f(*inputs), inputs, cotangent)
    assert StandIn.made == made


def test_results_that_are_kept_are_not_overwritten(recorded):
    fast, plain = (aotkit.compile(block, backend=backend, check=False) for backend in (recorded, "nop"))
    w, b = leaf(8, 8), leaf(8)
    kept, wanted = [], []
    for n in range(12):
        x = leaf(16, 8)
        torch.manual_seed(n)
        kept.append(step(fast, x, w, b))
        torch.manual_seed(n)
        wanted.append(step(plain, x, w, b))
    torch.testing.assert_close(kept, wanted)


def test_forward_passes_before_their_backward_passes(recorded):
    fast, plain = (aotkit.compile(block, backend=backend, check=False) for backend in (recorded, "nop"))
    w, b = leaf(8, 8), leaf(8)
    for _ in range(4):
        found = []
        for f in (fast, plain):
            torch.manual_seed(0)
            losses = [f(n * torch.ones(16, 8, device=DEVICE), w, b)[0].square().sum() for n in range(3)]
            found.append(torch.autograd.grad(sum(losses), (w, b)))
        torch.testing.assert_close(*found)


def test_a_changed_result_is_noticed(recorded):
    fast, x = aotkit.compile(torch.tanh, backend=recorded, check=False), leaf(4, 4)
    for _ in range(4):
        out = fast(x)
        out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("function", [lambda x, w: x @ w, lambda x, w: x.view(-1, 8) @ w], ids=["input", "view"])
def test_saved_inputs_stay_those_of_their_call(recorded, function):
    fast, w = aotkit.compile(function, backend=recorded, check=False), leaf(8, 8)
    for _ in range(4):
        xs = [torch.randn(4, 2, 8, device=DEVICE)[0] for _ in range(3)]
        (found,) = torch.autograd.grad(sum((n + 1) * fast(x, w).sum() for n, x in enumerate(xs)), w)
        (wanted,) = torch.autograd.grad(sum((n + 1) * (x @ w).sum() for n, x in enumerate(xs)), w)
        torch.testing.assert_close(found, wanted)


def test_gradients_accumulate(recorded):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8, device=DEVICE) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    fast = aotkit.compile(layers[0], backend=recorded, check=False)
    for n in range(6):
        x = torch.randn(4, 8, device=DEVICE)
        for module, layer in ((fast, layers[0]), (layers[1], layers[1])):
            module(x).square().sum().backward()
            if n % 3 == 2:
                layer.zero_grad(set_to_none=n > 3)
        for ours, theirs in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_parameters_that_move_are_read_where_they_are(recorded):
    layer = torch.nn.Linear(8, 8, device=DEVICE)
    fast = aotkit.compile(layer, backend=recorded, check=False)
    x, held = torch.randn(4, 8, device=DEVICE), []
    for n in range(8):
        if n % 3 == 2:
            held.append(layer.weight.data)
            layer.weight.data = torch.randn_like(layer.weight)
        torch.testing.assert_close(fast(x), F.linear(x, layer.weight, layer.bias))


def test_one_function_feeds_another(recorded):
    first = aotkit.compile(lambda x, w: (x @ w).relu(), backend=recorded, check=False)
    second = aotkit.compile(lambda x, w: (x @ w).tanh(), backend=recorded, check=False)
    w, losses, wanted = leaf(8, 8), [], []
    for _ in range(6):
        x = torch.randn(4, 8, device=DEVICE)
        losses.append(second(first(x, w), w).sum())
        wanted.append(((x @ w).relu() @ w).tanh().sum())
        ours, theirs = (torch.autograd.grad(loss, w)[0] for loss in (losses[-1], wanted[-1]))
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(losses, wanted)


def test_gradients_of_any_layout(recorded):
    fast = aotkit.compile(lambda x: x.sin().t(), backend=recorded, check=False)
    x = leaf(4, 6)
    for n in range(6):
        out = fast(x)
        cotangent = (torch.randn(6, 4, device=DEVICE), torch.ones((), device=DEVICE).expand(6, 4))[n % 2]
        (found,) = torch.autograd.grad(out, x, cotangent)
        torch.testing.assert_close(found, x.cos() * cotangent.t())


counted = pytest.mark.skipif(torch.cuda.is_available(), reason="counts what the stand-in of a GPU records")


@counted
def test_a_forward_graph_leaves_results_of_backward_alone(recorded):
    fast = aotkit.compile(lambda x, w: (x @ w).tanh(), backend=recorded, check=False)
    x, w, cotangent = torch.randn(4, 8), leaf(8, 8), torch.randn(4, 8)
    for _ in range(6):
        torch.autograd.grad(fast(x, w), w, cotangent)
    made, held = StandIn.made, torch.autograd.grad(fast(x, w), w, cotangent)
    assert StandIn.made == made
    fast(x, w)  # what its recording needs for a moment may lie where `held` does
    assert StandIn.made == made + 1
    del held
    fast(x, w)
    assert StandIn.made == made + 1


@counted
def test_training_records_each_graph_once(recorded):
    layer = torch.nn.Linear(8, 8)
    fast = aotkit.compile(layer, backend=recorded, check=False)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    batches, cotangent = torch.randn(20, 4, 8), torch.randn(4, 8)
    for batch in batches:
        optimizer.zero_grad()
        fast(batch).backward(cotangent)
        optimizer.step()
    assert StandIn.made == 2


@counted
def test_inputs_that_stay_are_read_where_they_are(recorded):
    fast = aotkit.compile(block, backend=recorded)  # the check runs it on copies
    inputs = leaf(16, 8), leaf(8, 8), leaf(8)
    for _ in range(40):
        StandIn.read.clear()
        step(fast, *inputs)
    assert StandIn.read.issuperset(x.data_ptr() for x in inputs)


@counted
def test_a_result_that_is_kept_is_read_where_it_is(recorded):
    first = aotkit.compile(lambda x, w: (x @ w).relu(), backend=recorded, check=False)
    second = aotkit.compile(lambda h, x: (h @ x).tanh(), backend=recorded, check=False)
    x, y, w = (torch.randn(8, 8) for _ in range(3))
    for _ in range(3):
        h = first(x, w)
    for other in [x] * 4 + [y] * 20:  # where it moves, all that is in the same memory is recorded anew
        StandIn.read.clear()
        torch.testing.assert_close(second(h, other), (h @ other).tanh())
    assert StandIn.read.issuperset([h.data_ptr(), y.data_ptr()])


@counted
def test_inputs_that_move_now_and_then_are_recorded_seldom(recorded):
    fast, w = aotkit.compile(lambda x, w: (x @ w).tanh(), backend=recorded, check=False), leaf(8, 8)
    xs, cotangent = [torch.randn(4, 8) for _ in range(3)], torch.randn(4, 8)
    for n in range(150):
        x = xs[n // 10 % 3]
        (found,) = torch.autograd.grad(fast(x, w), w, cotangent)
        torch.testing.assert_close(found, x.t() @ (cotangent * (1 - (x @ w).tanh() ** 2)))
    assert StandIn.made <= 8  # of two graphs, whose x moves 14 times


@counted
def test_what_does_not_pay_is_not_recorded_before_its_inputs_stay(recorded, monkeypatch):
    monkeypatch.setattr(replay, "REPLAY", replay.LAUNCH - 1)  # pays for one kernel if nothing is copied
    fast = aotkit.compile(torch.tanh, backend=recorded, check=False)
    held = [torch.randn(4, 4) for _ in range(30)]
    for x in held:
        torch.testing.assert_close(fast(x), x.tanh())
    assert StandIn.made == 0
    for _ in range(150):
        torch.testing.assert_close(fast(x), x.tanh())
    assert StandIn.made == 1


@pytest.mark.thinned
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_calls(recorded, seed):
    """Results are kept or not, inputs move or not, and passes wait for their backward passes, in any order."""
    choose = random.Random(seed)
    functions = [aotkit.compile(block, backend=backend, check=False) for backend in (recorded, "nop")]
    w, b, xs = leaf(8, 8), leaf(8), [leaf(16, 8) for _ in range(2)]
    kept, waiting = [], []
    for n in range(60):
        x = choose.choice([*xs, leaf(16, 8)]) if choose.random() < 0.3 else xs[0]
        if choose.random() < 0.05:
            w.data = torch.randn_like(w)
            waiting.clear()
        outs = []
        for f in functions:
            torch.manual_seed(n)
            outs.append(f(x, w, b))
        waiting.append((x, outs))
        while waiting and choose.random() < 0.6:
            x, outs = waiting.pop(choose.randrange(len(waiting)))
            scale = choose.choice([1, 2])
            grads = [torch.autograd.grad(scale * (o.square().sum() + same.sum()), (x, w, b)) for o, same in outs]
            torch.testing.assert_close(*grads)
            if choose.random() < 0.3:
                kept.append((outs, grads))
        del outs
        del waiting[6:], kept[:-4]
        for outs, grads in kept:
            torch.testing.assert_close(*outs)
            torch.testing.assert_close(*grads)


class Spy:
    """A compiler that runs graphs as they are, and keeps on what devices their inputs are."""

    def __init__(self):
        self.devices = []

    def __call__(self, gm, example_inputs):
        self.devices.append([x.device.type for x in example_inputs])
        placeholders = gm.graph.find_nodes(op="placeholder")
        assert [n.meta["val"].device.type for n in placeholders] == self.devices[-1]
        return gm


def graph_on_a_gpu(function, *sizes):
    """A graph of tensors on a GPU and numbers on the CPU, with the inputs that a compiler gets. It needs no GPU."""
    with FakeTensorMode():
        inputs = [torch.empty(size, device="cuda" if size else "cpu") for size in sizes]
        return make_fx(function)(*inputs), inputs


def test_a_graph_of_few_kernels_is_not_recorded():
    def kind(count):
        return type(Recorder(Spy())(*graph_on_a_gpu(lambda x: [x := x.sin() for _ in range(count)], (4,))))

    assert issubclass(kind(1), torch.fx.GraphModule)
    assert kind(9) is Replayed


def test_a_graph_of_few_kernels_takes_numbers_from_the_cpu():
    spy = Spy()
    run = Recorder(spy)(*graph_on_a_gpu(lambda x, n: [x * n], (4,), ()))
    assert spy.devices == [["cuda", "cuda"], ["cuda", "cpu"]]
    x, n = torch.ones(4, device=DEVICE), torch.tensor(3.0)
    for number in (n, n.to(DEVICE)):
        assert run([x, number])[0].tolist() == [3] * 4


def test_a_backward_graph_learns_nothing_of_where_the_forward_graph_takes_numbers():
    """torch's partitioners give an input of both one note of its device and size."""
    spy = Spy()
    forward, backward = (graph_on_a_gpu(lambda x, n: [x * n, n], (4,), ()) for _ in range(2))
    for ours, its in zip(*(gm.graph.find_nodes(op="placeholder") for gm, _ in (forward, backward)), strict=True):
        its.meta = ours.meta
    Recorder(spy)(*forward)
    assert why_not(backward[0]) is None
    Recorder(spy)(*backward)
    assert spy.devices == 2 * [["cuda", "cuda"], ["cuda", "cpu"]]


def test_what_an_input_gets_as_its_storage_is_not_recorded():
    gm, _ = graph_on_a_gpu(lambda x: [x.sin()], (4,))
    assert why_not(gm) is None
    gm.graph.output_node().args[0][0].meta[IS_NEW_STORAGE] = True
    assert "is given to an input" in why_not(gm)


def test_what_cannot_be_recorded_says_why(caplog):
    def reason(function, *args, dynamic=False):
        found = []

        def compiler(gm, example_inputs):
            found.append(why_not(gm))
            return gm

        aotkit.compile(function, backend=compiler, check=False, random="torch", dynamic=dynamic)(*args)
        return found[0]

    x = torch.randn(4, 4)
    assert "is not on a CUDA device" in reason(lambda x: x.sin(), x)
    assert "has open sizes" in reason(lambda x: x.sin(), x, dynamic=True)
    with caplog.at_level(logging.WARNING, "aotkit"):
        Recorder(get_backend("nop").fw_compiler)(aotkit.extract(torch.sin, x).forward, [x])
    assert "runs without CUDA graphs: " in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_backend_is_unavailable():
    with pytest.raises(UnavailableError, match="CUDA graphs need a CUDA device"):
        aotkit.compile(block, backend="cudagraphs:nop")


@needs_gpu
@pytest.mark.parametrize("name", ["nop", "inductor"])
def test_training_with_dropout_on_a_gpu(name):
    compare_steps(f"cudagraphs:{name}", name)


@needs_gpu
def test_a_graph_of_one_kernel_on_a_gpu():
    """It runs as it is, with the seed on the CPU."""
    x = leaf(64, 32)
    fast, plain = (aotkit.compile(draw, backend=name) for name in ("cudagraphs:inductor", "inductor"))
    for n in range(6):
        steps = []
        for function in (fast, plain):
            torch.manual_seed(n)
            result = function(x)
            steps.append((result, *torch.autograd.grad(result.square().sum(), x)))
        torch.testing.assert_close(*steps, rtol=0, atol=0)


def draw(x):
    return F.dropout(x, 0.25)


def test_a_compiler_may_compile_a_graph_twice():
    inductor = get_backend("inductor")

    def twice(gm, example_inputs):
        inductor.fw_compiler(copy_graph(gm), example_inputs)
        with part_of_graph():
            return inductor.fw_compiler(gm, example_inputs)

    x = leaf(16, 8)
    compiled = aotkit.compile(draw, backend=dataclasses.replace(inductor, fw_compiler=twice))
    torch.autograd.grad(compiled(x).sum(), x)


@pytest.mark.parametrize("function", [lambda x: [x.sin().cos()], lambda x: [x]], ids=["fused", "empty"])
def test_inductor_tells_how_much_it_launches(function):
    x = torch.ones(4)
    graph = make_fx(function, tracing_mode="fake")(x)
    assert launches_of(compile_alone(get_backend("inductor").fw_compiler, graph, [x])) == (function(x)[0] is not x)
