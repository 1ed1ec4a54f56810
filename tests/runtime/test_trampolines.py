"""What stands between calls and compiled graphs does the same in Python and in C++."""

import gc
import weakref

import pytest
import torch
from torch import fx
from torch._inductor import compile_fx
from torch._subclasses import FakeTensorMode

from aotkit.backends.inductor_graphs.cpp_launches import launched_graph
from aotkit.runtime.trampolines import if_on_cpu, relay, unless_retained, with_seed
from aotkit.stages.calls import boxed_call
from aotkit.torch_private import native

needs_compiler = pytest.mark.skipif(native.library_path() is None, reason="no C++ compiler")


@pytest.fixture(autouse=True, params=["python", pytest.param("native", marks=needs_compiler)])
def tier(request, monkeypatch):
    monkeypatch.setenv("AOTKIT_NATIVE", "1" if request.param == "native" else "0")


def test_relay_calls_its_target_of_now_and_takes_attributes():
    call = relay(lambda inputs: ["first", *inputs])
    assert call([1]) == ["first", 1]
    call.target = lambda inputs: ["then", *inputs]
    assert call([2]) == ["then", 2]
    call.kernels = len
    assert call.kernels("ab") == 2


def test_errors_go_through():
    def fail(inputs):
        raise ZeroDivisionError(len(inputs))

    for call in (relay(fail), with_seed(fail), if_on_cpu(fail, fail, [0])):
        with pytest.raises(ZeroDivisionError):
            call([torch.ones(2)])


def test_relay_that_its_target_refers_to_is_collected():
    def made():
        def target(inputs):
            return call, inputs

        call = relay(target)
        return weakref.ref(target)

    gone = made()
    gc.collect()
    assert gone() is None


def test_other_one_where_the_graph_is_kept():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return call([g])

    call = unless_retained(lambda inputs: inputs[0] * 2, lambda inputs: inputs[0] * 3)
    x = torch.ones((), requires_grad=True)
    y = Doubled.apply(x)
    assert torch.autograd.grad(y, x, retain_graph=True) == (3.0,)
    assert torch.autograd.grad(y, x) == (2.0,)


def test_other_one_where_a_number_is_not_on_the_cpu():
    call = if_on_cpu(lambda inputs: "here", lambda inputs: "there", [0, 2])
    here, there = torch.ones(()), torch.ones((), device="meta")
    assert call([here, there, here]) == "here"
    assert call([here, here, there]) == "there"
    assert call([there, here, here]) == "there"


def test_seed_is_the_last_input():
    call = with_seed(list)
    torch.manual_seed(3)
    first, second = call([torch.ones(2)]), call([])
    assert [t.dtype for t in first] == [torch.float32, torch.int64]
    torch.manual_seed(3)
    assert [call([])[0], call([])[0]] == [first[1], second[0]]


def test_graph_without_operations_is_called_as_it_is():
    """Inductor returns a function for it."""
    x = torch.ones(4)
    graph = fx.symbolic_trace(lambda x: (None, x))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
    run = launched_graph(compile_fx.compile_fx_inner(graph, [fake], cpp_wrapper=True))
    assert boxed_call(run)([x]) == (None, x)


@needs_compiler
def test_graphs_that_cpp_launches():
    """As Inductor calls them: handles in capsules go in and come out."""
    library = native.library() or pytest.skip("it is in C++ alone")
    aoti, ways = torch._C._aoti, []

    def entry(handles):
        ways.append("quick")
        x, y = aoti.alloc_tensors_by_stealing_from_void_ptrs(handles)
        results = aoti.unsafe_alloc_void_ptrs_from_tensors([x + y, y])
        return [*results, None]

    def otherwise(inputs):
        ways.append("long")
        x, y = inputs
        return [x + y, y, None]

    call = library.launched(entry, otherwise, (0,))
    x, y = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    for _ in range(2):
        inputs = [x, y]
        total, same, nothing = call(inputs)
        torch.testing.assert_close(total, x + y)
        assert same is y
        assert nothing is None
    assert ways == ["long", "quick"]
    assert inputs == []
    odd = torch.randn(9, dtype=torch.float64)[1:]
    torch.testing.assert_close(call([odd, y])[0], odd + y)  # misaligned
    torch.testing.assert_close(call([x, odd])[0], odd + x)  # it need not be aligned
    torch.testing.assert_close(call([x, 2])[0], x + 2)  # not a tensor
    assert ways[2:] == ["long", "quick", "long"]
    freed = weakref.ref(odd)
    del odd, total, same
    assert freed() is None
    with pytest.raises(TypeError, match="one list"):
        call((x, y))
    with pytest.raises(ValueError, match="numbers from 0"):
        library.launched(entry, otherwise, (-1,))
