"""Losses of rows as long as a vocabulary: in chunks they are what they are at once."""

import copy
import dataclasses
import logging
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import aotkit
from aotkit.partitioners.nx_min_cut import peak
from aotkit.passes import flops, is_in_chunks, temporary_bytes
from aotkit.stages.chunks import choosing

patterns = import_module("tests.stages.chunks.patterns")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Chunks of a few rows, of whatever size the whole is."""
    monkeypatch.setattr(choosing, "LEAST", 1000)
    monkeypatch.setattr(choosing, "FEWEST_ROWS", 8)
    monkeypatch.setattr(choosing, "ROWS", 15)


def as_it_is():
    """A backend that runs the graphs that Inductor would get."""
    return aotkit.Backend(lambda gm, _: gm, decompositions=aotkit.get_backend("inductor").decompositions)


def chunked(graphs):
    return [node for node in graphs.forward.graph.nodes if is_in_chunks(node)]


def largest(graphs):
    """Bytes of the largest tensor outside of chunks."""
    nodes = [*graphs.forward.graph.nodes, *(graphs.backward.graph.nodes if graphs.backward else ())]
    values = [node.meta.get("val") for node in nodes]
    return max(value.untyped_storage().nbytes() for value in values if isinstance(value, torch.Tensor))


def compared(fn, inputs, **options):
    """The compiled function, whose results and gradients are eager's."""
    fast = aotkit.compile(fn, check=False, capture="aot", **options)
    results, wanted = [], []
    for run, found in ((fast, results), (fn, wanted)):
        result = run(*inputs)
        first = result[0] if isinstance(result, tuple) else result
        found += [first, *torch.autograd.grad(3 * first, inputs[:2])]
    for found, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-5, atol=2e-6 * want.detach().abs().max().item())
    return fast


@pytest.mark.thinned
@pytest.mark.parametrize("partition", ["default", "min_cut", "nx_min_cut"])
@pytest.mark.parametrize("fn", patterns.TAKEN, ids=lambda fn: fn.__name__)
def test_losses_are_computed_in_chunks(fn, partition, device):
    inputs = patterns.inputs(device=device)
    fast = compared(fn, inputs, backend=as_it_is(), partition=partition)
    assert chunked(fast.graphs(*inputs))
    assert largest(fast.graphs(*inputs)) < 4 * patterns.ROWS * patterns.WORDS / 2


@pytest.mark.parametrize("fn", patterns.REFUSED, ids=lambda fn: fn.__name__)
def test_what_needs_all_rows_at_once_is_left(fn, caplog):
    inputs = patterns.inputs()
    fast = aotkit.compile(fn, backend=as_it_is(), partition="min_cut", check=fn is not patterns.dropped, capture="aot")
    with caplog.at_level(logging.INFO, logger="aotkit"):
        fast(*inputs)
    assert not chunked(fast.graphs(*inputs))
    assert "are not computed in chunks: " in caplog.text


@pytest.mark.parametrize("rows", [61, 64, 127])
def test_rows_that_are_left_over(rows):
    inputs = patterns.inputs(rows=rows)
    fast = compared(patterns.cross_entropy, inputs, backend=as_it_is(), partition="min_cut")
    (node,) = chunked(fast.graphs(*inputs))
    assert (node.args[1] is None) == (rows % 16 == 0)


def test_a_loss_without_gradients():
    inputs = patterns.inputs()
    fast = aotkit.compile(patterns.smoothed_and_ignored, backend=as_it_is(), capture="aot")
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), patterns.smoothed_and_ignored(*inputs))
    with torch.no_grad():
        assert chunked(fast.graphs(*inputs))


def test_small_losses_are_computed_at_once(monkeypatch):
    monkeypatch.undo()
    inputs = patterns.inputs()
    fast = aotkit.compile(patterns.cross_entropy, backend=as_it_is(), capture="aot")
    assert not chunked(fast.graphs(*inputs))


def test_open_sizes_are_left():
    inputs = patterns.inputs()
    fast = aotkit.compile(patterns.cross_entropy, backend=as_it_is(), capture="aot", dynamic=True)
    torch.testing.assert_close(fast(*inputs), patterns.cross_entropy(*inputs))
    assert not chunked(fast.graphs(*inputs))


def test_bfloat16_is_rounded_about_as_often_as_in_eager(device):
    inputs = patterns.inputs(torch.bfloat16, device=device)
    exact = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    want = torch.autograd.grad(patterns.z_loss(*exact), exact[:2])
    fast = aotkit.compile(patterns.z_loss, backend=as_it_is(), capture="aot")  # and its check passes
    loss = fast(*inputs)
    assert chunked(fast.graphs(*inputs))
    for found, eager, exactly in zip(
        torch.autograd.grad(loss, inputs[:2]), torch.autograd.grad(patterns.z_loss(*inputs), inputs[:2]), want,
        strict=True,
    ):  # fmt: skip
        assert found.dtype == torch.bfloat16
        assert (found - exactly).norm() < 2 * (eager - exactly).norm()


def test_what_a_chunk_takes_counts():
    """Budgets hold, and tables tell, with the memory of a chunk; the work is that of all rows."""
    inputs = patterns.inputs()
    fast = aotkit.compile(patterns.cross_entropy, backend=as_it_is(), capture="aot", check=False)
    graphs = fast.graphs(*inputs)
    (node,) = chunked(graphs)
    chunk = 2 * 4 * 15 * patterns.WORDS  # logits and their gradient, in float32
    assert chunk <= temporary_bytes(node) < chunk + 2**13
    assert flops(node) == 3 * 2 * patterns.ROWS * patterns.WIDTH * patterns.WORDS
    weight = 4 * patterns.WORDS * patterns.WIDTH
    limited = aotkit.compile(patterns.cross_entropy, backend=as_it_is(), partition=peak(1), capture="aot")
    with pytest.raises(aotkit.BudgetError) as e:
        limited(*inputs)
    assert e.value.least > chunk + 2 * weight


def test_a_graph_may_be_run_backward_twice():
    h, w, y = patterns.inputs()
    fast = aotkit.compile(patterns.cross_entropy, backend=as_it_is(), capture="aot", check=False)
    loss = fast(h, w, y)
    first = torch.autograd.grad(loss, (h, w), retain_graph=True)
    for one, two in zip(first, torch.autograd.grad(loss, (h, w)), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.thinned
@pytest.mark.parametrize("backend", ["fuser", "inductor", ["fuser", "inductor"]], ids=str)
def test_chunks_are_compiled(backend, device):
    for name in [backend] if isinstance(backend, str) else backend:
        if (reason := aotkit.get_backend(name).unavailable()) is not None:
            pytest.skip(reason)
    inputs = patterns.inputs(device=device)
    fast = compared(patterns.shifted, inputs, backend=backend, partition="min_cut")
    graphs = fast.graphs(*inputs)
    (node,) = chunked(graphs)
    launched = fast.explain(*inputs).kernels.of("forward")
    assert len([kernel for kernel in launched if node.name in kernel.operations]) > 3
    assert "chunks" in str(graphs)


class Model(nn.Module):
    """Tied embeddings, buffers that change, dropout before the head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(patterns.WORDS, patterns.WIDTH)
        self.norm = nn.BatchNorm1d(patterns.WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, ids):
        hidden = self.norm(self.embedding(ids).flatten(0, 1)).view(*ids.shape, -1)
        logits = F.linear(self.dropout(hidden), self.embedding.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


@pytest.mark.sweep
@pytest.mark.thinned
@pytest.mark.parametrize("backend", ["fuser", "inductor"])
@pytest.mark.parametrize("partition", ["default", "nx_min_cut"])
def test_a_model_that_changes_buffers_and_draws(backend, partition, device):
    if (reason := aotkit.get_backend(backend).unavailable()) is not None:
        pytest.skip(reason)
    model = Model().to(device)
    eager = copy.deepcopy(model)
    ids = torch.randint(0, patterns.WORDS, (4, 15), device=device)
    fast = aotkit.compile(model, backend=backend, partition=partition, capture="aot")  # and its check passes
    fast(ids).backward()
    assert chunked(fast.graphs(ids))
    eager(ids)
    torch.testing.assert_close(model.norm.running_mean, eager.norm.running_mean)
    with torch.autocast(device.type, torch.bfloat16):
        fast(ids).backward()
        assert chunked(fast.graphs(ids))


def test_what_was_compiled_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr("aotkit.keep.store.cache_folder", lambda: tmp_path)
    monkeypatch.setenv("AOTKIT_KEEP", "1")
    inputs = patterns.inputs()

    def run():
        fast = aotkit.compile(patterns.cross_entropy, backend="fuser", capture="aot", check=False)
        loss = fast(*inputs)
        stages = {stage.name for stage in fast.timeline(*inputs).stages}
        return fast, [loss, *torch.autograd.grad(loss, inputs[:2])], "trace, cut and compile" not in stages

    (_, first, was_kept), (fast, second, is_kept) = run(), run()
    assert (was_kept, is_kept) == (False, True)
    assert chunked(fast.graphs(*inputs))
    for one, two in zip(first, second, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_a_step_with_chunks_can_be_saved(tmp_path):
    inputs = patterns.inputs()
    fast = aotkit.compile(patterns.cross_entropy, backend="fuser", capture="aot", check=False)
    want = fast(*inputs)
    fast.save(tmp_path / "step.aotkit", *inputs)
    step = aotkit.load(tmp_path / "step.aotkit", patterns.cross_entropy, trusted=True)
    torch.testing.assert_close(step(*inputs), want, rtol=0, atol=0)


@pytest.mark.sweep
def test_a_wrong_chunk_is_found():
    """A backend that computes the exponential wrongly does so in a chunk, too, and the check tells."""

    def wrong(gm, _):
        for node in gm.graph.nodes:
            if node.target is torch.ops.aten.exp.default:
                node.target = torch.ops.aten.exp2.default
        return gm

    inputs = patterns.inputs()
    fast = aotkit.compile(
        patterns.cross_entropy, backend=dataclasses.replace(as_it_is(), fw_compiler=wrong), capture="aot"
    )
    with pytest.raises(aotkit.MismatchError) as e:
        fast(*inputs)
    assert "in_chunks" in str(e.value)
