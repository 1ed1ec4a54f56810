"""Every function of the zoo under every backend and partitioner computes what eager computes, forward and backward.

A backend that compiles slowly meets one partitioner for every ninth function, another for each, and no function that
another one resembles; one that does not meets one partitioner for every function. `pytest -m sweep` runs all pairs.
"""

import pytest

import aotkit
from aotkit.testing.conformance.compare import equals_eager
from aotkit.testing.conformance.requirements import Subject
from aotkit.testing.zoo import CASES

COMPILE_IN_NO_TIME = ("nop",)
# To a compiler of graphs they are like another one: they differ in Python, or in which of several operators they have.
RESEMBLING = {
    *("log_softmax", "rms_norm", "group_norm", "masked_fill", "gelu_mlp", "conv1d_padded", "expand"),
    *("embedding_and_norm", "loop", "pytrees", "unused_and_detached", "no_grad_inside"),
    *("several_losses", "one_tensor_twice", "ResNetBlock", "CountingModule", "closure_over_a_module"),
}

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
                turn, is_alike = (b + c) % (9 * len(partitioners)), case.name in RESEMBLING
                is_quick = backend in COMPILE_IN_NO_TIME
                runs = turn % len(partitioners) == p if is_quick else turn == p and not is_alike
                marks = [] if runs else [pytest.mark.sweep]
                yield pytest.param(case, backend, partitioner, marks=marks, id=f"{case.name}-{backend}-{partitioner}")


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators:UserWarning")
@pytest.mark.parametrize(("case", "backend", "partitioner"), list(combinations()), indirect=["backend", "partitioner"])
def test_equals_eager(case, backend, partitioner, device, request):
    if backend == "nnc" and device.type == "cpu":
        pytest.skip("nnc fuses CPU code only in PyTorch builds with LLVM")
    if reason := KNOWN_GAPS.get((backend, device.type, case.name)):
        request.applymarker(pytest.mark.xfail(raises=aotkit.AotkitError, reason=reason, strict=True))
    equals_eager(Subject("backend", backend, device), case, partition=partitioner, check=True)
