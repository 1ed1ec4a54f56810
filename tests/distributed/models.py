"""A model as Llama, and the ways to train it on two ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.ranks import RANKS

WIDTH, HEADS, WORDS, LAYERS = 16, 2, 32, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        heads = (part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in self.inputs())
        return self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))

    def inputs(self):
        return self.query, self.key, self.value


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.norm2, self.mlp = nn.RMSNorm(WIDTH), Attention(), nn.RMSNorm(WIDTH), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def batch(number):
    return torch.randint(0, WORDS, (2, 8), generator=torch.Generator().manual_seed(number))


def loss_of(logits, ids):
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def losses_of(model, batches):
    """The mean loss of batches."""
    return sum(loss_of(model(ids), ids) for ids in batches) / len(batches)


def ddp(model, compiled, rank):
    parallel = DistributedDataParallel(compiled(model))
    return parallel, [batch(rank)]


def around_ddp(model, compiled, rank):
    return compiled(DistributedDataParallel(model)), [batch(rank)]


def fsdp_of_compiled_layers(model, compiled, rank):
    mesh = dist.init_device_mesh("cpu", (RANKS,))  # else it takes the parameters to a GPU, which gloo does not serve
    for i, layer in enumerate(model.layers):
        model.layers[i] = fully_shard(compiled(layer), mesh=mesh)
    return fully_shard(model, mesh=mesh), [batch(rank)]


def compiled_fsdp_layers(model, compiled, rank):
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    for i, layer in enumerate(model.layers):
        model.layers[i] = compiled(fully_shard(layer, mesh=mesh))
    return fully_shard(model, mesh=mesh), [batch(rank)]


def compiled_fsdp(model, compiled, rank):
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return compiled(fully_shard(model, mesh=mesh)), [batch(rank)]


def tensor_parallel(model, compiled, rank):
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    columns = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
    plan = {name: ColwiseParallel() for name in columns}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan | {"attention.out": RowwiseParallel(), "mlp.down": RowwiseParallel()})
    return compiled(model), [batch(number) for number in range(RANKS)]


def sequence_parallel(model, compiled, rank):
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    rows = RowwiseParallel(output_layouts=Shard(1))
    columns = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {"norm": SequenceParallel(), "norm2": SequenceParallel(), "attention": whole, "mlp": whole}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan | {"attention.out": rows, "mlp.down": rows})
    ends = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return compiled(parallelize_module(model, mesh, ends)), [batch(number) for number in range(RANKS)]


WAYS = (
    ddp,
    around_ddp,
    fsdp_of_compiled_layers,
    compiled_fsdp_layers,
    compiled_fsdp,
    tensor_parallel,
    sequence_parallel,
)


class Stage(nn.Module):
    """A half of the model."""

    def __init__(self, model, rank):
        super().__init__()
        self.words = model.words if rank == 0 else nn.Identity()
        self.layers = nn.ModuleList([model.layers[rank]])
        self.end = nn.Identity() if rank == 0 else nn.Sequential(model.norm, model.head)

    def forward(self, x):
        return self.end(self.layers[0](self.words(x)))


def gradients_of_one_process():
    """Those of the mean loss of the batches of all ranks, by name."""
    model = new_model()
    losses_of(model, [batch(number) for number in range(RANKS)]).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def new_model():
    torch.manual_seed(0)
    return Llama()


def whole(tensor):
    """What a tensor is over all ranks."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
