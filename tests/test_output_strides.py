"""What a user gets has eager's strides, whatever a backend's decompositions and passes do."""

import pytest
import torch

import aotkit


def cached(x, w):
    """As a key cache does: the first step is put after nothing."""
    keys = (x @ w).view(2, -1, 3, 5).transpose(1, 2)
    return torch.cat([torch.tensor([], device=x.device), keys], dim=-2)


def transposed(x, w):
    return (x @ w).relu().t()


def expanded(x, w):
    return (x @ w).sum(0, keepdim=True).expand(3, -1).sin().t(), (x @ w)[:, ::2]


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("function", [cached, transposed, expanded])
def test_strides_are_those_of_eager(function, grad, capture, backend):
    compiled = aotkit.compile(function, backend=backend, capture=capture)
    w = torch.randn(6, 15, requires_grad=True)
    with torch.set_grad_enabled(grad):
        for rows in (8, 12, 16):  # the second and third time, TorchDynamo leaves their number open
            x = torch.randn(rows, 6)
            outputs = torch.utils._pytree.tree_leaves(compiled(x, w))
            for got, want in zip(outputs, torch.utils._pytree.tree_leaves(function(x, w)), strict=True):
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Inductor pads products on a GPU alone")
@pytest.mark.parametrize("grad", [True, False])
def test_padded_products_are_not_handed_out(grad):
    def logits(x, w):
        return x @ w.t()

    x = torch.randn(1024, 768, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(50257, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with torch.set_grad_enabled(grad):
        assert aotkit.compile(logits, backend="inductor")(x, w).stride() == (50257, 1)
