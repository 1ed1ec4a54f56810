"""Every function of the zoo under every backend and partitioner computes what eager computes, forward and backward.

A backend that compiles slowly meets one partitioner a function, another for each; `pytest -m sweep` runs all pairs.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import aotkit
from aotkit.testing.case import Inputs
from aotkit.testing.zoo import CASES

COMPILE_IN_NO_TIME = ("nop",)
TOLERANCE = {torch.bfloat16: 4e-2, torch.float32: 1e-4, torch.complex64: 1e-4, torch.float64: 1e-8}


# What a backend cannot do on a device, with the words in which it says so.
KNOWN_GAPS = {
    ("nnc", "cuda", "scaled_dot_product_attention"): "TorchScript takes no None for attn_bias",
    ("nnc", "cuda", "TransformerBlock"): "TorchScript takes no None for attn_bias",
    ("inductor", "cuda", "bernoulli"): "Inductor draws with rand_like, which is another stream there",
    ("inductor_cpp", "cuda", "bernoulli"): "Inductor draws with rand_like, which is another stream there",
}


def combinations():
    partitioners = aotkit.list_partitioners()
    for b, backend in enumerate(aotkit.list_backends()):
        for c, case in enumerate(CASES):
            for p, partitioner in enumerate(partitioners):
                its_turn = (b + c) % len(partitioners) == p
                marks = [] if its_turn or backend in COMPILE_IN_NO_TIME else [pytest.mark.sweep]
                yield pytest.param(case, backend, partitioner, marks=marks, id=f"{case.name}-{backend}-{partitioner}")


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators:UserWarning")
@pytest.mark.parametrize(("case", "backend", "partitioner"), list(combinations()), indirect=["backend", "partitioner"])
def test_equals_eager(case, backend, partitioner, device, request):
    if backend == "nnc" and device.type == "cpu":
        pytest.skip("nnc fuses CPU code only in PyTorch builds with LLVM")
    if reason := KNOWN_GAPS.get((backend, device.type, case.name)):
        request.applymarker(pytest.mark.xfail(raises=aotkit.AotkitError, reason=reason, strict=True))
    eager, wrapped = build(case, device), build(case, device)
    compiled = aotkit.compile(wrapped, backend=backend, partition=partitioner, random="torch")

    first = [run(eager, eager, case, device, seed=1), run(compiled, wrapped, case, device, seed=1)]
    compiled.graphs(*case.inputs(Inputs(device, seed=1)))  # raises if that call ran eagerly
    second = [run(eager, eager, case, device, seed=2), run(compiled, wrapped, case, device, seed=2)]

    for want, got in (first, second):
        assert got.keys() == want.keys()
        for what in want:
            assert_equal(got[what], want[what], what)


def build(case, device):
    torch.manual_seed(3)
    return case.build(device)


def run(call, function, case, device, seed):
    """Whatever a caller can observe of one call, by name. `function` is what `call` runs, compiled or not."""
    inputs, modules = Inputs(device, seed), modules_of(function)
    args = case.inputs(inputs)
    leaves = inputs.leaves + [p for m in modules for p in m.parameters()]
    torch.manual_seed(seed)
    outputs = call(*args)
    seen = {
        "outputs": outputs,
        "arguments after the call": args,
        "buffers after the call": [b for m in modules for b in m.buffers()],
        "random state after the call": torch.get_rng_state(),
    }
    seen = {what: snapshot(value) for what, value in seen.items()}
    results = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
    if results:
        seen["gradients"] = gradients(results, leaves)
        for i, result in enumerate(results if len(results) > 1 else ()):
            seen[f"gradients of result {i}"] = gradients([result], leaves)
    return seen


def modules_of(function):
    if isinstance(function, nn.Module):
        return [function]
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    return [value for value in held if isinstance(value, nn.Module)]


def snapshot(value):
    """A copy of every tensor in it, with what autograd knows of it."""
    leaves, structure = pytree.tree_flatten(value)
    return [(t.detach().clone(), t.requires_grad) if isinstance(t, Tensor) else t for t in leaves], structure


def gradients(results, leaves):
    torch.manual_seed(0)  # no two elements weigh the same: a permuted gradient cannot pass
    weights = [torch.randn(t.shape, dtype=t.dtype).to(t.device) for t in results]
    return torch.autograd.grad(results, leaves, weights, retain_graph=True, allow_unused=True)


def assert_equal(got, want, what):
    got_leaves, got_structure = pytree.tree_flatten(got)
    want_leaves, want_structure = pytree.tree_flatten(want)
    assert got_structure == want_structure, what
    for g, w in zip(got_leaves, want_leaves, strict=True):
        if isinstance(w, Tensor):
            tolerance = TOLERANCE.get(w.dtype, 0)
            torch.testing.assert_close(
                g, w, rtol=tolerance, atol=tolerance, check_stride=False, msg=lambda m: f"{what}: {m}"
            )
        else:
            assert (type(g), g) == (type(w), w), what
