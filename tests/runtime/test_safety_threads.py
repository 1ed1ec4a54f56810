"""Threads that share a compiled function: whatever they do at the same time, each gets eager's results."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import aotkit
from tests.agreement import Counter

THREADS = 6


def at_once(*jobs):
    """Start all jobs at the same time; their results."""
    barrier = threading.Barrier(len(jobs))

    def start(job):
        barrier.wait(30)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result(60) for future in [pool.submit(start, job) for job in jobs]]


@pytest.mark.parametrize("check", [True, False])
def test_first_call_in_many_threads_compiles_once(check):
    w, counter = torch.randn(3, requires_grad=True), Counter()
    f = aotkit.compile(lambda x: x.exp() * w, backend=counter.backend(), check=check)
    xs = [torch.randn(3, requires_grad=True) for _ in range(THREADS)]
    outs = at_once(*(lambda x=x: f(x) for x in xs))
    assert counter.compiled == 1
    for out, x in zip(outs, xs, strict=True):
        assert torch.equal(out, x.exp() * w)
        assert torch.equal(*torch.autograd.grad(out.sum(), w), x.exp().detach())


@pytest.mark.parametrize("check", [True, False])
def test_different_signatures_in_many_threads(check):
    w = torch.randn(1)
    f = aotkit.compile(lambda x, n: x * n + w, backend="nop", check=check)

    def use(size):
        return [f(torch.ones(i % 3 + size), size) for i in range(6)]

    for size, outs in enumerate(at_once(*(lambda size=size: use(size) for size in range(THREADS)))):
        for i, out in enumerate(outs):
            assert torch.equal(out, torch.ones(i % 3 + size) * size + w)


@pytest.mark.parametrize("shared", [True, False], ids=["one function", "a function each"])
def test_training_in_threads(shared):
    def train(step, model, seed):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            step(model, x).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    def loss(model, x):
        return model(x).square().sum()

    models = [[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(THREADS)] for _ in range(2)]
    for ours, eagers in zip(*models, strict=True):
        ours.load_state_dict(eagers.state_dict())
    one = aotkit.compile(loss, backend="nop")
    steps = [one if shared else aotkit.compile(loss, backend="nop") for _ in models[0]]
    got = at_once(*(lambda i=i: train(steps[i], models[0][i], i) for i in range(THREADS)))
    want = [train(loss, model, i) for i, model in enumerate(models[1])]
    for g, w in zip(got, want, strict=True):
        assert all(map(torch.equal, g, w))


def test_threads_have_their_own_modes():
    f = aotkit.compile(lambda x: x @ x, backend="nop")
    x = torch.randn(2, 2, requires_grad=True)

    def plain():
        return [f(x) for _ in range(20)]

    def no_grad():
        with torch.no_grad():
            return [f(x) for _ in range(20)]

    def autocast():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return [f(x) for _ in range(20)]

    trained, inferred, rounded = at_once(plain, no_grad, autocast)
    assert all(y.requires_grad for y in trained)
    assert not any(y.requires_grad for y in inferred)
    assert all(y.dtype is torch.bfloat16 for y in rounded)


# In its first call a function runs on copies for the check, and twice to be traced.
@pytest.mark.parametrize("stop_in", [1, 2, 3])
@pytest.mark.parametrize("kind", [nn.Parameter, torch.Tensor.requires_grad_], ids=["parameter", "tensor"])
def test_call_while_another_thread_compiles(stop_in, kind):
    w = kind(torch.randn(3))
    reached, go_on = threading.Event(), threading.Event()

    def pause():
        reached.set()
        go_on.wait(30)

    @aotkit.compile(backend="nop")
    def f(x):
        pauses = getattr(threading.current_thread(), "pauses", None)
        if pauses:
            pauses.pop()()
        return x * w

    def compile_slowly():
        threading.current_thread().pauses = [pause, *[int] * (stop_in - 1)]
        return f(new)

    known, new = torch.ones(3), torch.ones(2, 3)
    f(known)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(compile_slowly)
        assert reached.wait(30)
        other = pool.submit(f, known)
        time.sleep(0.05)
        go_on.set()
        y = other.result(60)
        assert torch.equal(slow.result(60), new * w)
    y.sum().backward()
    assert torch.equal(w.grad, torch.ones(3))
