"""Training on two ranks gives one process's gradients, whatever wraps what is compiled."""

import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import aotkit
from tests.distributed import models
from tests.distributed.models import Stage, batch, gradients_of_one_process, loss_of, losses_of, new_model, whole
from tests.distributed.ranks import RANKS, results_of

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch was built without gloo")
SHORT = ("ddp", "compiled_fsdp_layers", "tensor_parallel")


def compiler(**options):
    warnings.simplefilter("error", aotkit.EagerCallWarning)
    return partial(aotkit.compile, strict=True, **options)


def assert_gradients(parameters, wanted):
    for name, parameter in parameters:
        name = name.removeprefix("module.")
        torch.testing.assert_close(whole(parameter.grad), wanted[name], rtol=1e-4, atol=1e-6, msg=name)


def train(rank, way, options, steps):
    model = new_model()
    parallel, batches = getattr(models, way)(model, compiler(**options), rank)
    wanted = gradients_of_one_process()
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        losses_of(parallel, batches).backward()
        assert_gradients(model.named_parameters(), wanted)
        optimizer.step()


@pytest.mark.parametrize(
    "way", [pytest.param(way.__name__, marks=() if way.__name__ in SHORT else pytest.mark.sweep) for way in models.WAYS]
)
def test_gradients_are_one_processs(way):
    results_of(train, way, {"backend": "nop"}, 2)


@pytest.mark.sweep
@pytest.mark.parametrize("way", [way.__name__ for way in models.WAYS])
@pytest.mark.parametrize(
    "options", [{}, {"backend": "inductor", "partition": "nx_min_cut"}, {"capture": "dynamo"}], ids=str
)
def test_200_steps(way, options):
    results_of(train, way, options, 200)


def run_pipeline(rank, schedule):
    model = new_model()
    module = Stage(model, rank)
    stage = PipelineStage(compiler(backend="nop")(module), rank, RANKS, torch.device("cpu"))
    ids = torch.cat([batch(number) for number in range(RANKS)])
    wanted = gradients_of_one_process()
    run = schedule(stage, n_microbatches=2, loss_fn=loss_of).step
    run(ids) if rank == 0 else run(target=ids)
    assert_gradients([(n, p) for n, p in model.named_parameters() if p.grad is not None], wanted)
    return sum(p.grad is not None for p in model.parameters()), len(wanted)


@pytest.mark.parametrize("schedule", [ScheduleGPipe, pytest.param(Schedule1F1B, marks=pytest.mark.sweep)])
def test_stages_of_a_pipeline(schedule):
    (first, everything), (second, _) = results_of(run_pipeline, schedule)
    assert first + second == everything


def train_transformers(rank, folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, use_cache=False))
    if rank == 0:
        model.save_pretrained(folder)
    dist.barrier()
    ids = torch.randint(0, 64, (2, 8))
    model(ids, labels=ids).loss.backward()
    parallel = compiler(backend="nop")(LlamaForCausalLM.from_pretrained(folder, tp_plan="auto"))
    parallel(input_ids=ids, labels=ids).loss.backward()
    assert_gradients(parallel.named_parameters(), {n: p.grad for n, p in model.named_parameters()})


@pytest.mark.sweep
def test_plans_of_transformers(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    results_of(train_transformers, str(tmp_path))
