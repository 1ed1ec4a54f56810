"""Reductions of 8-bit integers, which Inductor computes wrongly."""

import pytest
import torch

import aotkit


def reductions(x):
    return (
        x.amin(-1), x.amax(-1), x.amin(0), x.min(), x.max(), *x.min(-1), *x.max(-1, keepdim=True),
        x.argmin(-1), x.argmax(-1), x.argmax(), *torch.aminmax(x, dim=-1), *torch.aminmax(x),
        (x * 2 + 1).amin(-1), x.any(-1), x.any(), x.all(-1),
    )  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("width", [16, 1000])  # full vectors, and what is left of them
@pytest.mark.parametrize(("dtype", "sign"), [(torch.int8, 1), (torch.int8, -1), (torch.uint8, 1)])
def test_extrema_of_eight_bits_are_those_of_the_values(device, dtype, sign, width):
    x = (sign * torch.randint(5, 60, (8, width), device=device)).to(dtype)
    expected = reductions(x)
    for found, right in zip(aotkit.compile(reductions, backend="inductor")(x), expected, strict=True):
        assert found.dtype == right.dtype
        assert torch.equal(found, right)
