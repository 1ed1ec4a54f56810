"""What calls leave behind: nothing, however many there are; and what a check takes meanwhile."""

import contextlib
import gc
import itertools
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import aotkit

WARM_UP, CALLS = 50, 1000
# Caches in torch and in Python grow in the first calls, now and then; a leak has an object for each call.
MOST_BLOCKS = CALLS // 2


def live_bytes():
    """Bytes of all tensors that Python knows."""
    storages = {}
    for x in gc.get_objects():
        if type(x) in (torch.Tensor, nn.Parameter) and x.layout is torch.strided:
            storages[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
    return sum(storages.values())


def growth(call):
    """(bytes of tensors, blocks of Python's memory, bytes of the device) that calls leave behind.

    Where those are many blocks, a second round of calls tells caches that fill from what grows for ever.
    """

    def measure():
        gc.collect()
        device = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
        return live_bytes(), sys.getallocatedblocks(), device

    for i in range(WARM_UP):
        call(i)
    for _ in range(2):
        before = measure()
        for i in range(CALLS):
            call(i)
        grown = [b - a for a, b in zip(before, measure(), strict=True)]
        if grown[1] < MOST_BLOCKS:
            break
    return grown


def trains(compiled, device):
    leaves = [torch.randn(8, 16, requires_grad=True, device=device) for _ in range(2)]

    def call(i):
        compiled(*leaves).sum().backward()
        for x in leaves:
            x.grad = None

    return call


def without_gradients(compiled, device):
    x = torch.randn(8, 16, device=device)

    def call(i):
        with torch.no_grad():
            compiled(x, x + 1)

    return call


def several_kinds(compiled, device):
    """Signatures and modes in turn."""

    def call(i):
        x = torch.randn(1 + i % 4, 16, requires_grad=i % 3 == 0, device=device)
        with torch.no_grad() if i % 2 else contextlib.nullcontext():
            y = compiled(x, x.detach())
        if y.requires_grad:
            y.sum().backward()

    return call


def abandoned(compiled, device):
    """Outputs whose backward never runs, or runs twice."""
    x = torch.randn(8, 16, requires_grad=True, device=device)

    def call(i):
        y = compiled(x, x)
        if i % 2:
            y.sum().backward(retain_graph=True)
            y.sum().backward()
        x.grad = None

    return call


def failing(compiled, device):
    """Calls that raise."""
    x, y = torch.randn(8, 16, requires_grad=True, device=device), torch.randn(3, 5, device=device)

    def call(i):
        with contextlib.suppress(RuntimeError):
            compiled(x, y)

    return call


USES = [trains, without_gradients, several_kinds, abandoned]
CALLS_SO_FAR = torch.zeros(())

BODIES = {
    "plain": lambda a, b: (a * b).exp() + b,
    "mutating": lambda a, b: (CALLS_SO_FAR.add_(1), a * b)[1],
    "view": lambda a, b: (a * b + a).t(),
}


OPTIONS = {"checked": {}, "unchecked": {"check": False}, "dynamic": {"dynamic": True}, "dynamo": {"capture": "dynamo"}}


PAIRS = list(itertools.product(BODIES, OPTIONS))
QUICK = [pair for pair in PAIRS if pair[0] == "plain" or pair[1] == "checked"]


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("body", "options"), [*QUICK, *(pytest.param(*p, marks=pytest.mark.sweep) for p in PAIRS if p not in QUICK)]
)
@pytest.mark.parametrize("use", USES)
def test_calls_leave_nothing_behind(use, body, options, device):
    call = use(aotkit.compile(BODIES[body], backend="nop", **OPTIONS[options]), device)
    tensors, blocks, allocated = growth(call)
    assert (tensors, allocated) == (0, 0)
    assert blocks < MOST_BLOCKS


def test_calls_that_raise_leave_nothing_behind(device):
    tensors, blocks, allocated = growth(failing(aotkit.compile(BODIES["plain"], backend="nop"), device))
    assert (tensors, allocated) == (0, 0)
    assert blocks < MOST_BLOCKS


def test_calls_of_every_backend(backend, device):
    if backend == "nnc" and device.type == "cpu":
        pytest.skip("nnc fuses CPU code only in PyTorch builds with LLVM")
    with contextlib.redirect_stdout(None):
        tensors, blocks, allocated = growth(trains(aotkit.compile(BODIES["plain"], backend=backend), device))
    assert (tensors, allocated) == (0, 0)
    assert blocks < MOST_BLOCKS


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU())

    def forward(self, x):
        return self.layers(x) + x


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_training_a_module(device, capture):
    module = aotkit.compile(Block().to(device), backend="nop", capture=capture)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    x = torch.randn(4, 16, device=device)

    def call(i):
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()

    tensors, blocks, allocated = growth(call)
    assert (tensors, allocated) == (0, 0)
    assert blocks < MOST_BLOCKS


@pytest.mark.filterwarnings("ignore::aotkit.RecompilationWarning")
def test_entries_hold_no_inputs(device):
    f = aotkit.compile(lambda x, n: x * n, backend="nop", check=False)
    gc.collect()
    before = live_bytes()
    for n in range(40):
        f(torch.randn(100, 100, device=device), n)
    gc.collect()
    assert live_bytes() == before


# A gradient before batch norm is rounding alone: it takes the runs that tell rounding from faults.
MODELS = {
    "certain": "nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))",
    "doubtful": "nn.Sequential(nn.Linear(2048, 2048), nn.BatchNorm1d(2048), nn.Linear(2048, 2048))",
}

# The most that a process has taken so far, in KiB; `getrusage` would begin with what its parent has. Large blocks go
# back to the system when they are freed.
PEAK_OF_A_CHECK = """
import re, sys, torch, aotkit
from pathlib import Path
from torch import nn

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text()).group(1))

aotkit.check(nn.Linear(8, 8), torch.randn(2, 8), backend=sys.argv[1])
model, x = eval(sys.argv[2]), torch.randn(4, 2048)
parameters = sum(p.numel() * p.element_size() for p in model.parameters()) / 1024
before = peak() - parameters
gradients = torch.autograd.grad(model(x).sum(), list(model.parameters()))
eager, gradients = peak() - before, None
assert aotkit.check(model, x, backend=sys.argv[1]).repeated
print((peak() - before) / eager)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak so")
@pytest.mark.parametrize(
    ("backend", "model", "most"),
    [
        pytest.param("nop", "certain", 4, marks=pytest.mark.sweep),
        pytest.param("inductor", "certain", 4, marks=pytest.mark.sweep),
        pytest.param("inductor", "doubtful", 5.5, marks=pytest.mark.sweep),
    ],
)
def test_a_check_of_many_parameters(backend, model, most):
    """At most so many times as much as training eagerly: parameters and gradients."""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", PEAK_OF_A_CHECK, backend, MODELS[model]]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    assert 1 < float(done.stdout) <= most
