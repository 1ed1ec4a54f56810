"""What a user gets has eager's strides, whatever a backend's decompositions and passes do."""

import dataclasses

import pytest
import torch

import aotkit

aten = torch.ops.aten
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def cached(x, w):
    """As a key cache does: the first step is put after nothing."""
    keys = (x @ w).view(2, -1, 3, 5).transpose(1, 2)
    return torch.cat([torch.tensor([], device=x.device), keys], dim=-2)


def transposed(x, w):
    return (x @ w).relu().t()


def expanded(x, w):
    return (x @ w).sum(0, keepdim=True).expand(3, -1).sin().t(), (x @ w)[:, ::2]


def without_mask(x, w):
    """As the weights of attention with sinks: dropout without a mask returns its input, not a copy."""
    weights = (x @ w).softmax(-1)[:, :-1]
    weights = torch.nn.functional.dropout(weights, p=0.0, training=True)
    return weights.exp(), torch.nn.functional.dropout(weights, p=0.5, training=False)


@pytest.mark.thinned
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("function", [cached, transposed, expanded, without_mask])
def test_strides_are_those_of_eager(function, grad, capture, backend):
    compiled = aotkit.compile(function, backend=backend, capture=capture)
    w = torch.randn(6, 15, requires_grad=True, device=DEVICE)
    with torch.set_grad_enabled(grad):
        for rows in (8, 12, 16):  # the second and third time, TorchDynamo leaves their number open
            x = torch.randn(rows, 6, device=DEVICE)
            outputs = torch.utils._pytree.tree_leaves(compiled(x, w))
            for got, want in zip(outputs, torch.utils._pytree.tree_leaves(function(x, w)), strict=True):
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want)


def test_what_is_saved_keeps_strides_of_open_sizes():
    """Inductor reads there which strides it may not choose; those that it chooses AOTAutograd tells as numbers."""
    seen = []

    def compile_graph(gm, inputs):
        seen.append(gm.graph.output_node())
        return gm

    def product(x, w):
        return (w.t() @ x.t()).sin().sum()

    spy = aotkit.Backend(fw_compiler=compile_graph, bw_compiler=lambda gm, inputs: gm)
    x, w = torch.randn(8, 6), torch.randn(6, 15, requires_grad=True)
    aotkit.compile(product, backend=spy, partition="default", dynamic=True)(x, w).backward()
    (results,), shown = seen[0].args, seen[0].meta["user_visible_output_idxs"]
    values = [node.meta["val"] for node in results]
    are_open = [isinstance(v, torch.Tensor) and any(type(n) is not int for n in v.stride()) for v in values]
    assert any(are_open)
    assert {i for i, is_open in enumerate(are_open) if is_open} <= {*shown}


def padding(joint, joint_inputs):
    """Like Inductor's pass on a GPU: a product is padded and sliced, and what follows still tells the old strides."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.mm.default):
        with joint.graph.inserting_after(node):
            padded = joint.graph.call_function(aten.constant_pad_nd.default, (node, [0, 3]))
            padded.meta["val"] = aten.constant_pad_nd.default(node.meta["val"], [0, 3])
        with joint.graph.inserting_after(padded):
            sliced = joint.graph.call_function(aten.slice.Tensor, (padded, 1, 0, node.meta["val"].shape[1]))
            sliced.meta["val"] = aten.slice.Tensor(padded.meta["val"], 1, 0, node.meta["val"].shape[1])
        node.replace_all_uses_with(sliced, delete_user_cb=lambda user, own=padded: user is not own)
    joint.recompile()


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
def test_padded_products_are_copied_where_a_user_sees_them(capture, partitioner):
    def losses(x, w):
        logits = torch.nn.functional.linear(x, w)
        return logits, logits.flatten(0, 1).log_softmax(-1).sum()

    nop = aotkit.get_backend("nop")
    compiled = aotkit.compile(
        losses, backend=dataclasses.replace(nop, joint_pass=padding), partition=partitioner, capture=capture
    )
    x, w = torch.randn(2, 4, 6), torch.randn(5, 6, requires_grad=True)
    logits, loss = compiled(x, w)
    assert logits.stride() == (20, 5, 1)
    loss.backward()


@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("part", [lambda y: y[:, ::2], lambda y: y[1:, 1:4].t(), lambda y: y.view(2, 4, 5)[0, :, 2:]])
def test_parts_of_padded_products_have_the_strides_of_parts(part, capture):
    """They leave gaps, so that no copy of the part itself has them."""
    backend = dataclasses.replace(aotkit.get_backend("nop"), joint_pass=padding)
    compiled = aotkit.compile(lambda x, w: part(x @ w), backend=backend, capture=capture)
    x, w = torch.randn(8, 6), torch.randn(6, 5, requires_grad=True)
    got, want = compiled(x, w), part(x @ w)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), w) for y in (got, want)))


@pytest.mark.thinned
@pytest.mark.parametrize("capture", ["aot", "dynamo"])
@pytest.mark.parametrize("grad", [True, False])
def test_kernels_that_give_other_strides_than_the_trace_takes_them_to(grad, capture, backend):
    """On a CPU, batch norm gives a contiguous result where the trace has it transposed: no view of it is possible."""

    def fn(x):
        y = torch.nn.functional.batch_norm(x.transpose(1, 2), None, None, training=True)
        return y.transpose(1, 2).reshape(-1).sin()

    x = torch.randn(3, 4, 5, requires_grad=grad, device=DEVICE)
    got, want = aotkit.compile(fn, backend=backend, capture=capture)(x), fn(x)
    torch.testing.assert_close(got, want)
    if grad:
        torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Inductor pads products on a GPU alone")
@pytest.mark.parametrize("grad", [True, False])
def test_padded_products_are_not_handed_out(grad):
    def logits(x, w):
        return x @ w.t()

    x = torch.randn(1024, 768, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(50257, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with torch.set_grad_enabled(grad):
        assert aotkit.compile(logits, backend="inductor")(x, w).stride() == (50257, 1)


class Rows(torch.nn.Module):
    """As in ConvNeXt: linear layers read channels last, between convolutions."""

    def __init__(self):
        super().__init__()
        self.before, self.after = torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.down = torch.nn.Linear(4, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        rows = torch.nn.functional.gelu(self.up(self.before(x).relu().permute(0, 2, 3, 1)))
        return self.after(self.down(rows).permute(0, 3, 1, 2).sin())


class Attention(torch.nn.Module):
    """As in PVT: between convolutions, with the heads of one row side by side in memory."""

    def __init__(self):
        super().__init__()
        self.before, self.after = torch.nn.Conv2d(4, 64, 3, padding=1), torch.nn.Conv2d(64, 64, 3, padding=1)
        self.queries, self.keys = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        rows = self.before(x).flatten(2).transpose(1, 2)
        queries, keys = (layer(rows).unflatten(2, (2, 32)).transpose(1, 2) for layer in (self.queries, self.keys))
        found = torch.nn.functional.scaled_dot_product_attention(queries, keys, keys)
        return self.after(found.transpose(1, 2).flatten(2).transpose(1, 2).unflatten(2, (7, 7)))


def kept_strides(model, x):
    """Shape of what is saved -> whether Inductor is asked to keep its strides, and those."""
    kept = {}

    def forward(gm, inputs):
        output = gm.graph.output_node()
        shown = output.meta["user_visible_output_idxs"]
        values = [node.meta["val"] for node in output.args[0]]
        kept.update({tuple(v.shape): (i in shown, v.stride()) for i, v in enumerate(values) if i})
        return nop.fw_compiler(gm, inputs)

    nop = aotkit.get_backend("nop")
    backend = dataclasses.replace(nop, fw_compiler=forward, bw_compiler=nop.fw_compiler)
    aotkit.compile(model, backend=backend, partition="default")(x).sum().backward()
    return kept


def test_inductor_keeps_the_strides_of_saved_rows_and_chooses_those_of_images():
    kept = kept_strides(Rows(), torch.randn(2, 4, 6, 6))
    assert kept[2, 6, 6, 16][0]  # of gelu's two factors
    assert not kept[2, 4, 6, 6][0]  # what the second convolution reads


def test_inductor_keeps_the_strides_that_attention_gave_its_output():
    """cuDNN's backward pass would read another layout by the strides of eager's, as for PVT v2 on a GPU."""
    assert kept_strides(Attention(), torch.randn(2, 4, 7, 7))[2, 2, 49, 32] == (True, (3136, 32, 64, 1))


def test_inductor_keeps_the_strides_of_gradients():
    """Padded, as large ones are on a GPU, they would be copied into the strides that autograd wants."""
    seen = []
    inductor = aotkit.get_backend("inductor")

    def backward(gm, inputs):
        compiled = inductor.bw_compiler(gm, inputs)
        output = gm.graph.output_node()
        gradients = [i for i, node in enumerate(output.args[0]) if node is not None]
        seen.append(output.meta["user_visible_output_idxs"] == gradients)
        return compiled

    def product(x, w):
        return (x * w).sin()

    compiled = aotkit.compile(product, backend=dataclasses.replace(inductor, bw_compiler=backward))
    compiled(torch.randn(3, 5, requires_grad=True), torch.randn(3, 5)).sum().backward()
    assert seen == [True]
