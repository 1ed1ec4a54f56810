"""Of small models: what is said to be saved is held between forward and backward; the peak is that of a step."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.autograd.profiler import profile

import aotkit
from aotkit.benchmark import transformers_models as hf
from aotkit.benchmark.models import MLP, ResNet, UNet
from aotkit.launches.allocations import most_allocated
from aotkit.text import bytes_name

SEED = 8  # bytes, for random numbers: an input of the graphs that no caller holds
SMALL = {"layers": 2, "heads": 4, "width": 64, "batch": 4, "length": 32}


def with_values(built):
    """Models of transformers are built without."""
    model, inputs = built
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.02)
    return model, [torch.randint(0, 256, x.shape) for x in inputs]


MODELS = {
    "mlp": lambda: (MLP(2, 64), [torch.randn(64, 64), torch.randn(64, 64)]),
    "gpt2": lambda: with_values(hf.gpt2(**SMALL)),
    "llama": lambda: with_values(hf.llama(**SMALL)),
    "bert": lambda: with_values(hf.bert(**SMALL)),
    "resnet": lambda: (ResNet((1, 1), 10), [torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))]),
    "unet": lambda: (UNet((8, 16)), [torch.randn(2, 3, 32, 32), torch.randint(0, 2, (2, 32, 32))]),
}


def held_between(call, inputs):
    """The bytes that the forward pass has allocated and that its loss keeps alive, besides itself."""
    with profile(profile_memory=True, use_kineto=True) as events:
        loss = call(*inputs)
    held = sum(e.nbytes() for e in events.kineto_results.events() if e.name() == "[memory]")
    return held - loss.untyped_storage().nbytes()


def told_to_hooks(call, inputs, others):
    """Bytes of the distinct storages that autograd is given to keep: those that the caller has not, and those of it."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = call(*inputs)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*inputs, *others, loss)}
    return sum(n for p, n in kept.items() if p not in own), sum(n for p, n in kept.items() if p in own)


def holds(model, inputs, backend, partition):
    """Compare all totals with the run."""
    call = aotkit.compile(model, backend=backend, partition=partition, check=False)
    with hf.single_sequences():
        call(*inputs).backward()
        graphs = call.explain(*inputs).graphs
        data, text = graphs.json(), str(graphs)
        totals = data["totals"]
        for x in (*inputs, *model.parameters()):
            x.grad = None
        held = held_between(call, inputs)
        hooks, alive = told_to_hooks(call, inputs, [*model.parameters(), *model.buffers()])
        measured = most_allocated(lambda: call(*inputs).backward(), torch.device("cpu"))
    assert totals["saved_bytes"] == pytest.approx(held, rel=0.01, abs=SEED)
    assert totals["saved_bytes"] == pytest.approx(hooks, rel=0.01, abs=SEED)
    assert totals["alive_bytes"] == pytest.approx(alive, rel=0.01, abs=SEED)
    assert f"saved activations: {bytes_name(totals['saved_bytes'])} in " in text
    storages = {row["storage"]: row["bytes"] for row in data["saved"] if row["kind"] == "activation"}
    assert sum(storages.values()) == totals["saved_bytes"]
    last = sum(node["graph"] == "forward" for node in data["nodes"]) - 1
    assert data["memory"]["saved"][last] == totals["saved_bytes"]
    assert max(kernel["peak_bytes"] for kernel in data["kernels"]) == totals["measured_peak_bytes"]
    assert totals["measured_peak_bytes"] == pytest.approx(measured, rel=0.1)
    if backend == "nop":  # whose operators may take memory for themselves, which the graphs do not say
        assert totals["peak_bytes"] <= totals["measured_peak_bytes"] + SEED
    return totals


@pytest.mark.sweep
def test_totals_are_those_of_a_step():
    holds(*MODELS["resnet"](), "nop", "min_cut")


def test_copies_that_inductor_keeps_are_saved():
    """It keeps images and weights of convolutions in another layout."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(3, 8, 3, bias=False)

        def forward(self, x):
            return self.layer(x).sum()

    model, x = Model(), torch.randn(2, 3, 16, 16, requires_grad=True)
    totals = holds(model, [x], "inductor", "min_cut")
    assert (totals["saved_bytes"], totals["alive_bytes"]) == (x.nbytes + model.layer.weight.nbytes, 0)
    totals = aotkit.extract(model, x).json()["totals"]
    assert (totals["saved_bytes"], totals["alive_bytes"]) == (0, x.nbytes + model.layer.weight.nbytes)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("backend", "partition"),
    [
        ("nop", "default"),
        ("nop", "min_cut"),
        ("nop", "nx_min_cut"),
        ("inductor", "min_cut"),
        ("inductor", "nx_min_cut"),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_totals_of_all_models_are_those_of_a_step(name, backend, partition):
    holds(*MODELS[name](), backend, partition)
