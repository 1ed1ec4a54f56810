"""What no graph can stand for runs eagerly, with one warning that says why; what another way can take, without."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import aotkit

CAPTURES = ["auto", "aot", "dynamo"]


class Tags(nn.Module):
    """Mean embeddings of a few tags; of the table, gradients are sparse."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)
        self.head = nn.Linear(4, 2)

    def forward(self, tags):
        return self.head(self.table(tags).mean(1))


@pytest.mark.parametrize("capture", CAPTURES)
def test_sparse_gradients_are_those_of_eager(capture):
    model = Tags()
    fast = aotkit.compile(model, backend="nop", capture=capture)
    tags = torch.tensor([[1, 2], [2, 3]])
    model(tags).sum().backward()
    want = model.table.weight.grad.to_dense()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", aotkit.EagerCallWarning)
        for _ in range(3):
            model.zero_grad()
            fast(tags).sum().backward()
            assert model.table.weight.grad.is_sparse
            assert torch.equal(model.table.weight.grad.to_dense(), want)
    (warning,) = caught
    assert "computes sparse tensors" in str(warning.message)
    assert "sparse" in fast.explain(tags).eager


@pytest.mark.parametrize("capture", CAPTURES)
def test_strict_refuses_sparse_gradients(capture):
    fast = aotkit.compile(Tags(), backend="nop", capture=capture, strict=True)
    with pytest.raises(aotkit.TraceError, match="computes sparse tensors"):
        fast(torch.tensor([[1, 2]]))


def test_torch_compile_gets_sparse_gradients_too():
    model, tags = Tags(), torch.tensor([[1, 2], [2, 3]])
    torch.compile(model, backend=aotkit.torch_backend("nop"))(tags).sum().backward()
    assert model.table.weight.grad.is_sparse


def test_what_tracing_a_backward_pass_failed_at_is_not_told():
    """It is TorchDynamo's turn then; torch warns of the operation of autograd all the same."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return checkpoint(self.inner, self.inner(x), use_reentrant=True)

    fast = aotkit.compile(Block(), backend="nop")
    x = torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(x).sum().backward()
    assert fast.explain(x).capture == "dynamo"
