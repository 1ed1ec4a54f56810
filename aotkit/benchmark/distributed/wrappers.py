"""What torch.distributed makes of a model that is compiled: each gives a training step on this rank.

A step takes the batches of all ranks, and leaves the gradients of their mean loss.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, autograd, nn
from torch.nn.parallel import DistributedDataParallel

from aotkit.benchmark.distributed.model import Llama, Stage, loss_of

Compiled = Callable[[Any], Any]  # as `aotkit.compile`
TrainingStep = Callable[[Sequence[Tensor]], Any]
Wrapper = Callable[[Llama, Compiled, Any], TrainingStep]  # the last one is a mesh of all ranks
COLUMNS = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")


def _on_own_batch(model: nn.Module) -> TrainingStep:
    """Where each rank has a batch, and gradients are averaged."""
    return lambda batches: autograd.backward(loss_of(model(batches[dist.get_rank()]), batches[dist.get_rank()]))


def _on_all_batches(model: nn.Module) -> TrainingStep:
    """Where all ranks have the same batches."""
    return lambda batches: autograd.backward(loss_of(model(torch.cat([*batches])), torch.cat([*batches])))


def ddp(model: Llama, compiled: Compiled, mesh: Any) -> TrainingStep:
    return _on_own_batch(DistributedDataParallel(compiled(model)))


def around_ddp(model: Llama, compiled: Compiled, mesh: Any) -> TrainingStep:
    return _on_own_batch(compiled(DistributedDataParallel(model)))


def fsdp(model: Llama, compiled: Compiled, mesh: Any, first: str = "shard") -> TrainingStep:
    """Layer by layer, which are sharded first, or compiled first."""
    from torch.distributed.fsdp import fully_shard

    shard: Any = partial(fully_shard, mesh=mesh)
    for i, layer in enumerate(model.layers):
        model.layers[i] = compiled(shard(layer)) if first == "shard" else shard(compiled(layer))
    return _on_own_batch(shard(model))


def around_fsdp(model: Llama, compiled: Compiled, mesh: Any) -> TrainingStep:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return _on_own_batch(compiled(fully_shard(model, mesh=mesh)))


def tensor_parallel(model: Llama, compiled: Compiled, mesh: Any) -> TrainingStep:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan: dict[str, Any] = {name: ColwiseParallel() for name in COLUMNS}
    plan |= {"attention.out": RowwiseParallel(), "mlp.down": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    return _on_all_batches(compiled(model))


def sequence_parallel(model: Llama, compiled: Compiled, mesh: Any) -> TrainingStep:
    """Tensor parallel, with the positions of a sequence shared out in between."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    whole = tp.PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    rows = partial(tp.RowwiseParallel, output_layouts=Shard(1))
    plan: dict[str, Any] = {name: tp.ColwiseParallel() for name in COLUMNS}
    plan |= {"norm": tp.SequenceParallel(), "norm2": tp.SequenceParallel(), "attention": whole, "mlp": whole}
    for layer in model.layers:
        tp.parallelize_module(layer, mesh, plan | {"attention.out": rows(), "mlp.down": rows()})
    ends = {
        "words": rows(input_layouts=Replicate()),
        "norm": tp.SequenceParallel(),
        "head": tp.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return _on_all_batches(compiled(tp.parallelize_module(model, mesh, ends)))


def pipeline(model: Llama, compiled: Compiled, mesh: Any, schedule: str = "Schedule1F1B") -> TrainingStep:
    """A stage on each rank, and a microbatch for each."""
    from torch.distributed import pipelining

    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = next(model.parameters()).device
    stage = pipelining.PipelineStage(compiled(Stage(model, rank, ranks)), rank, ranks, device)
    run = getattr(pipelining, schedule)(stage, n_microbatches=ranks, loss_fn=loss_of).step

    def step(batches: Sequence[Tensor]) -> None:
        ids = torch.cat([*batches])
        run(*([ids] if rank == 0 else []), **({"target": ids} if rank == ranks - 1 else {}))

    return step


WRAPPERS: Mapping[str, Wrapper] = {
    "DDP": ddp,
    "around DDP": around_ddp,
    "FSDP2 by layer": fsdp,
    "FSDP2 of compiled layers": partial(fsdp, first="compile"),
    "around FSDP2": around_fsdp,
    "tensor parallel": tensor_parallel,
    "sequence parallel": sequence_parallel,
    "pipeline 1F1B": pipeline,
    "pipeline GPipe": partial(pipeline, schedule="ScheduleGPipe"),
}
