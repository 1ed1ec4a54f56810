"""Training on two ranks gives one process's gradients, whatever wraps what is compiled."""

import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist

import aotkit
from aotkit.benchmark.distributed.model import Llama, batch, loss_of, whole
from aotkit.benchmark.distributed.wrappers import WRAPPERS
from tests.distributed.ranks import RANKS, results_of

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch was built without gloo")
SHORT = ("DDP", "FSDP2 by layer", "tensor parallel", "pipeline 1F1B")  # the others: in `make sweep`
OPTIONS = ({"backend": "inductor", "partition": "nx_min_cut"}, {"backend": "nop", "capture": "dynamo"})


def new_model():
    torch.manual_seed(0)
    return Llama(width=16, heads=2, layers=2, words=32)


def batches():
    return [batch(number, 2, 8, 32, "cpu") for number in range(RANKS)]


def compiler(**options):
    warnings.simplefilter("error", aotkit.EagerCallWarning)
    return partial(aotkit.compile, strict=True, **options)


def assert_gradients(parameters, wanted):
    for name, parameter in parameters:
        torch.testing.assert_close(whole(parameter.grad), wanted[name], rtol=1e-4, atol=1e-6, msg=name)


def gradients_of_one_process():
    model = new_model()
    loss_of(model(torch.cat(batches())), torch.cat(batches())).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def train(rank, wrappers, options, steps):
    """For each wrapper, the names of the parameters that this rank has gradients of."""
    names = []
    for wrapper in wrappers:
        model, wanted = new_model(), gradients_of_one_process()
        step = WRAPPERS[wrapper](model, compiler(**options), dist.init_device_mesh("cpu", (RANKS,)))
        for _ in range(steps):
            model.zero_grad()
            step(batches())
            found = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
            assert_gradients(found, wanted)
        names.append({name for name, _ in found})
    return names


def assert_trains(wrappers, options, steps):
    wanted = {name for name, _ in new_model().named_parameters()}
    for names in zip(*results_of(train, wrappers, options, steps), strict=True):
        assert set().union(*names) == wanted


def test_gradients_are_one_processs():
    assert_trains(SHORT, {"backend": "nop"}, 2)


@pytest.mark.sweep
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_200_steps(wrapper, options):
    assert_trains([wrapper], options, 200)


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


def switch_reduction_off(rank):
    from torch.distributed.fsdp import fully_shard

    model = compiler(backend="nop")(fully_shard(torch.nn.Linear(4, 4), mesh=dist.init_device_mesh("cpu", (RANKS,))))
    model.set_requires_gradient_sync(False)
    model(torch.ones(2, 4)).sum().backward()
    assert model.weight.grad is None  # it waits, unsharded, for a step that reduces
    return True


def test_a_compiled_module_is_its_own_to_fsdp():
    assert results_of(switch_reduction_off) == [True, True]


def drop_out_of_shards(rank, random):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    warnings.filterwarnings("ignore", "DTensor random operators may not")
    layers = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 8))
    plan = {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()}
    model = parallelize_module(layers, dist.init_device_mesh("cpu", (RANKS,)), plan)
    x = torch.ones(4, 8)
    torch.manual_seed(1)
    wanted = model(x)
    torch.manual_seed(1)
    torch.testing.assert_close(compiler(backend="nop", random=random)(model)(x), wanted)
    return True


@pytest.mark.parametrize("random", ["shared", pytest.param("torch", marks=pytest.mark.sweep)])
def test_draws_for_dtensors_are_eagers(random):
    assert results_of(drop_out_of_shards, random) == [True, True]
