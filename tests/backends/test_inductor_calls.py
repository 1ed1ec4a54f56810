"""The short way into Inductor's compiled graphs: one guard for all inputs, and no wrong result without it."""

import dataclasses
import inspect

import pytest
import torch

import aotkit
from aotkit.backends.inductor import backend as inductor


def compiled_graphs(function, *inputs, dynamic=False):
    """What Inductor makes of the graphs of a call: role -> its callable and the inputs of the first run."""
    found = {}

    def watched(role, compiler):
        def compile_graph(gm, example_inputs):
            run = compiler(gm, example_inputs)

            def call(args):
                found.setdefault(role, (run, list(args)))
                return run(args)

            call._boxed_call = True
            return call

        return compile_graph

    roles = ("fw_compiler", "bw_compiler", "inference_compiler")
    backend = dataclasses.replace(inductor, **{role: watched(role, getattr(inductor, role)) for role in roles})
    compiled = aotkit.compile(function, backend=backend, check=False, dynamic=dynamic)
    compiled(*inputs).sum().backward()
    with torch.no_grad():
        compiled(*inputs)
    return found


def written(call):
    """The function that Inductor wrote; on CUDA, what copies misaligned inputs may stand around it."""
    return inspect.getclosurevars(call).nonlocals["run"] if inspect.isfunction(call) else call


def function(a, b):
    return (a + b).cos() * b


def test_every_graph_has_a_short_way(device):
    inputs = [torch.randn(4, 3, requires_grad=True, device=device) for _ in range(2)]
    found = compiled_graphs(function, *inputs)
    assert len(found) == 3
    for run, args in found.values():
        names = written(run.unchecked).__code__.co_names
        assert "empty_strided_" + device.type in names
        assert "assert_size_stride" not in names
        for call in (run, run.unchecked):
            given = list(args)
            torch.testing.assert_close(call(given), written(run.unchecked).compiled(list(args)))
            assert not given  # so that inputs are freed after their last use


def test_other_strides_are_refused(device):
    found = compiled_graphs(function, *(torch.randn(4, 3, requires_grad=True, device=device) for _ in range(2)))
    for run, args in found.values():
        transposed = [torch.randn(3, 4, device=device).t() for _ in args]
        shared = written(run.unchecked).compiled  # what `torch.compile` would find in Inductor's cache
        for call in (run, shared):
            with pytest.raises(AssertionError, match="stride"):
                call(list(transposed))
        run(list(args))


@torch.library.custom_op("aotkit_tests::misdescribed", mutates_args=())
def misdescribed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


@misdescribed.register_fake
def _(x):
    return torch.empty_like(x)


def test_results_of_other_kernels_are_checked(device):
    """Some of torch's operators return other strides than they say; the next kernel would read them wrongly."""
    x = torch.randn(4, 3, device=device)
    with torch.no_grad(), pytest.raises(aotkit.CompileError, match="stride"):
        aotkit.compile(lambda x: misdescribed(x) + 1, backend="inductor", check=False)(x)


def test_results_of_other_kernels_are_checked_on_later_calls(device):
    wrong = False

    @torch.library.custom_op("aotkit_tests::moody", mutates_args=())
    def moody(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t() if wrong else x.clone()

    moody.register_fake(torch.empty_like)
    x = torch.randn(4, 3, device=device)
    compiled = aotkit.compile(lambda x: moody(x) + 1, backend="inductor", check=False)
    with torch.no_grad():
        compiled(x)
        compiled(x)
        wrong = True
        with pytest.raises(AssertionError, match="stride"):
            compiled(x)


def test_saved_tensors_that_a_hook_brings_back_otherwise(device):
    """`save_on_cpu` brings them back contiguous: they must not be read with the strides of before."""
    x = torch.randn(4, 3, device=device).t().requires_grad_()
    compiled = aotkit.compile(lambda x: x.sin().exp().sin(), backend="inductor")
    compiled(x).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.contiguous()):
        result = compiled(x)
    with pytest.raises(AssertionError, match="stride"):
        result.sum().backward()


def test_open_sizes_are_asserted(device):
    inputs = [torch.randn(4, 3, requires_grad=True, device=device) for _ in range(2)]
    found = compiled_graphs(function, *inputs, dynamic=True)
    assert not any(hasattr(run, "unchecked") for run, _ in found.values())


def test_misaligned_inputs(device):
    x = torch.randn(65, device=device, requires_grad=True)
    compiled = aotkit.compile(lambda a, b: (a + b).sin(), backend="inductor")
    b = torch.randn(64, device=device)
    for a in (x[:64], x[1:], x[:64]):
        torch.testing.assert_close(compiled(a, b), (a + b).sin())
