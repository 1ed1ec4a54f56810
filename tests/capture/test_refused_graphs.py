"""What no graph can stand for runs eagerly, with one warning that says why; what another way can take, without."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import aotkit
from aotkit.passes import has_sizes_of_data

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


PADDING = torch.tensor([[False] * 5, [False, False, False, True, True]])


@pytest.fixture
def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_an_encoder_that_leaves_padding_out_is_evaluated_as_in_eager(encoder):
    """Eager makes zeros of what is padding; a trace computes it."""
    fast, x = aotkit.compile(encoder, backend="nop"), torch.randn(2, 5, 8)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*enable_nested_tensor=False", aotkit.EagerCallWarning)
            want = encoder(x, src_key_padding_mask=PADDING)
            assert torch.equal(fast(x, src_key_padding_mask=PADDING), want)
            assert not want[1, 3:].any()
    fast.train()
    fast(x, src_key_padding_mask=PADDING).sum().backward()
    assert fast.explain(x, src_key_padding_mask=PADDING).eager is None


def test_what_that_warning_says_helps(encoder):
    encoder.use_nested_tensor = False  # as by enable_nested_tensor=False
    fast, x = aotkit.compile(encoder, backend="nop"), torch.randn(2, 5, 8)
    with torch.no_grad():
        fast(x, src_key_padding_mask=PADDING)
        assert fast.explain(x, src_key_padding_mask=PADDING).eager is None


def test_without_padding_the_encoder_is_compiled(encoder):
    fast, x = aotkit.compile(encoder, backend="nop"), torch.randn(2, 5, 8)
    with torch.no_grad():
        assert torch.allclose(fast(x), encoder(x), atol=1e-6)
        assert fast.explain(x).eager is None


@pytest.mark.sweep
def test_a_wrong_compiler_of_the_encoder_is_found(encoder):
    def compile_graph(gm, example_inputs):
        def run(*inputs):
            first, *rest = gm(*inputs)
            return [first if first is None else first * 1.01, *rest]

        return run

    fast, x = aotkit.compile(encoder, backend=compile_graph), torch.randn(2, 5, 8)
    with pytest.raises(aotkit.MismatchError):
        fast(x, src_key_padding_mask=PADDING)


def sizes_from_one_test(x):
    return x[x > 0].sum(), torch.nonzero(x > 0), torch.masked_select(x, x > 0)


def without_sizes_of_data(gm, example_inputs):
    if has_sizes_of_data(gm):
        raise NotImplementedError("no such sizes")
    return gm


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # Dynamo's
@pytest.mark.parametrize("backend", ["inductor", without_sizes_of_data], ids=["inductor", "another"])
def test_sizes_that_data_decide_are_left_to_eager_where_the_backend_cannot_compile_them(backend):
    """Inductor takes the two sizes for different ones, which torch.compile does not ask of it, either."""
    fast = aotkit.compile(sizes_from_one_test, backend=backend)
    for _ in range(2):
        x = torch.randn(6, 8, requires_grad=True)
        for got, want in zip(fast(x), sizes_from_one_test(x), strict=True):
            assert torch.equal(got, want)
    assert fast.explain(x).capture == "dynamo"
    with pytest.raises(aotkit.CompileError, match="failed on the forward graph"):
        aotkit.compile(sizes_from_one_test, backend=backend, capture="aot")(x)


def test_an_ensemble_calls_a_module_without_data():
    """As torch's tutorial has it: the module gives the code, `functional_call` the parameters."""
    models = [nn.Linear(4, 3) for _ in range(2)]
    stacked, _ = torch.func.stack_module_state(models)
    base = nn.Linear(4, 3, device="meta")

    def ensemble(parameters, x):
        return torch.vmap(lambda p: torch.func.functional_call(base, p, (x,)))(parameters)

    fast, x = aotkit.compile(ensemble, backend="nop"), torch.randn(5, 4)
    fast(stacked, x).sum().backward()
    assert torch.allclose(fast(stacked, x), torch.stack([m(x) for m in models]))
    assert torch.allclose(stacked["weight"].grad[1], x.sum(0).expand(3, 4))
    assert fast.explain(stacked, x).eager is None


@pytest.mark.parametrize("capture", CAPTURES)
def test_what_computes_without_data_runs_as_in_eager(capture):
    model = nn.Linear(4, 3, device="meta")
    fast, x = aotkit.compile(model, backend="nop", capture=capture), torch.randn(5, 4, device="meta")
    with pytest.warns(aotkit.EagerCallWarning, match="without data"):
        result = fast(x)
    assert result.is_meta
    result.sum().backward()
    assert model.weight.grad.shape == (3, 4)
