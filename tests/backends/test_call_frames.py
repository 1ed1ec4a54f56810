"""A graph that makes many calls is as fast from any depth of the stack: CPython maps no memory for each of them."""

import sys

import pytest
import torch

import aotkit
from aotkit.backends.inductor_graphs.call_frames import FEW_CALLS, with_room_for_calls

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="page faults of a thread: Linux")

DEPTHS = range(150)  # of frames that take more than 16 KiB together
CALLS = 300


def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def most_faults(call, repeats=3):
    """The most page faults of one call, whatever the depth of the stack; the fewest of some calls at each depth."""

    def at(depth):
        if depth:
            return at(depth - 1)
        found = []
        for _ in range(repeats):
            before = faults()
            call()
            found.append(faults() - before)
        return min(found)

    return max(map(at, DEPTHS))


def leaf(x, scale, deeper=8):
    """Together its frames take more than one step of DEPTHS, so that the end of a chunk is met."""
    return leaf(x, scale, deeper - 1) if deeper else x * scale


class Kernel:
    run = staticmethod(leaf)


def runner(calls, line="kernel.run(x, scale=self.scale)"):
    """A method as Inductor writes it, and its source."""
    body = "".join(f"    b{i} = {line}\n" for i in range(calls))
    source = f"def call(self, x):\n{body}    return b{calls - 1}\n"
    written = {"kernel": Kernel}
    exec(source, written)
    return type("Runner", (), {"scale": 2, "call": written["call"]})().call, source


def test_from_any_depth_no_memory_is_mapped_for_each_call():
    method, source = runner(CALLS)
    roomy = with_room_for_calls(method, source)
    assert roomy(3) == method(3) == 6
    assert roomy.__self__ is method.__self__
    assert most_faults(lambda: roomy(3)) < CALLS / 4
    if sys.version_info < (3, 13):  # later ones keep a chunk
        assert most_faults(lambda: method(3)) >= CALLS


@pytest.mark.parametrize(("calls", "line"), [(FEW_CALLS - 1, "kernel.run(x, scale=2)"), (CALLS, "min(x, 2)")])
def test_a_frame_that_enters_python_seldom_stays_as_it_is(calls, line):
    """To begin a chunk takes 10 us: as long as a small graph on a CPU, whose calls are all in C."""
    method, source = runner(calls, line)
    assert with_room_for_calls(method, source) is method


@torch.library.custom_op("aotkit_tests::in_python", mutates_args=())
def in_python(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@in_python.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.thinned
@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_of_inductor(dynamic):
    """Here each call goes to an operator in Python, as kernels of Triton are launched from Python."""
    count = 2 * FEW_CALLS

    def function(x):
        for _ in range(count):
            x = in_python(x)
        return x

    compiled = aotkit.compile(function, backend="inductor", check=False, dynamic=dynamic)
    x = torch.ones(5)
    with torch.no_grad():
        compiled(x)
        compiled(x)
        assert most_faults(lambda: compiled(x)) < count / 2
