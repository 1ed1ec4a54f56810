"""Inductor with launches from C++."""

import threading

import pytest
import torch

import aotkit
from aotkit import get_backend
from aotkit.torch_private import native

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="inductor_cpp needs a CUDA device")


def test_runs_in_a_thread_that_has_not_used_cuda():
    f = aotkit.compile(lambda x: x.view(-1) * 2 + 1, backend="inductor_cpp")
    x = torch.randn(4, 4, device="cuda")
    want, results = f(x), []
    thread = threading.Thread(target=lambda: results.append(f(x)))
    thread.start()
    thread.join()
    torch.testing.assert_close(results, [want])


def test_python_around_the_launches_is_known():
    """Else calls would take the long way, unnoticed."""
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    gm = aotkit.extract(lambda x: x.sin() * 2, x).forward
    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    native.build()
    run = get_backend("inductor_cpp").fw_compiler(gm, inputs)
    assert type(run).__module__ == "aotkit_native"
    assert run.target.__name__ == "inductor_entry_cpp"


@pytest.mark.parametrize("elements", [2**10, 2**21])
def test_small_and_large_tensors_equal_eager(elements):
    """Kernels of small ones are combined."""
    x = torch.randn(elements // 64, 64, device="cuda", requires_grad=True)
    scale, shift = (torch.randn(64, device="cuda", requires_grad=True) for _ in range(2))

    def norm(x, scale, shift):
        return torch.nn.functional.layer_norm(torch.nn.functional.gelu(x), (64,), scale, shift)

    report = aotkit.check(norm, x, scale, shift, backend="inductor_cpp")
    assert report.passed


@pytest.mark.parametrize("backend", ["inductor", "inductor_cpp"])
def test_kernels_beside_those_that_are_combined(backend):
    x, scale = torch.randn(64, 64, device="cuda", requires_grad=True), torch.randn(64, device="cuda")

    def norm(x, scale):
        rows = torch.nn.functional.layer_norm(x, (64,), scale)
        return [*torch._foreach_mul([*rows.split(16)], [scale] * 4), rows.softmax(0).sum(1)]

    assert aotkit.check(norm, x, scale, backend=backend).passed
