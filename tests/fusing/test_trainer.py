"""`FuseCallback`: a few steps of transformers' Trainer, with the losses of eager."""

import functools

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import LlamaForCausalLM, Trainer, TrainingArguments

import aotkit
from aotkit.fusing.callback import FuseCallback
from tests.fusing.models import STEPS, built, config
from tests.integrations.models import assert_same_parameters, decoder
from tests.integrations.test_transformers import checkpoint_activations, collate, examples, losses
from tests.models.texts import BATCH

# Said by TorchDynamo of any input that is no leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
REGION = config(regions=["LlamaDecoderLayer"])


def trained(model, folder, *callbacks, data=(examples, collate), **options):
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True,
        logging_steps=1, seed=0, data_seed=0, dataloader_pin_memory=False,
        **{"learning_rate": 0.01, "max_steps": 4, **options},
    )  # fmt: skip
    given = {"model_init": model} if callable(model) and not hasattr(model, "forward") else {"model": model}
    rows, collator = data
    done = Trainer(**given, args=arguments, train_dataset=rows(), data_collator=collator, callbacks=[*callbacks])
    done.train()
    return done


def outcome(model):
    return {part.outcome: part for part in aotkit.fusion_report(model).modules.values()}["compiled"]


def assert_trains_as_eager(model, eager, options, folder, **given):
    wanted = trained(eager, folder / "eager", save_steps=2, **given)
    found = trained(model, folder / "fused", FuseCallback(options), save_steps=2, **given)
    assert losses(found) == pytest.approx(losses(wanted), rel=1e-2 if given else 1e-5)  # bf16 rounds more
    part = outcome(model)
    assert part.graphs
    assert not part.eager
    if not given:
        assert_same_parameters(model, eager)
    loaded = LlamaForCausalLM.from_pretrained(folder / "fused/checkpoint-4")
    assert_same_parameters(loaded, aotkit.unfuse(model))


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (config(), {}),
        pytest.param(REGION, {"bf16": True}, marks=pytest.mark.sweep),
        pytest.param(config(memory_efficient_fusion=True), {}, marks=pytest.mark.sweep),
        pytest.param(config(memory_efficient_fusion=True), {"bf16": True}, marks=pytest.mark.sweep),
    ],
)
def test_a_trainer_trains_a_fused_model_as_eager(options, given, tmp_path):
    assert_trains_as_eager(decoder(use_cache=False), decoder(use_cache=False), options, tmp_path, **given)


@pytest.mark.sweep
@pytest.mark.parametrize("options", [REGION, config(), config(memory_efficient_fusion=True)])
def test_a_trainer_with_gradient_checkpointing(options, tmp_path):
    models = [decoder(use_cache=False) for _ in range(2)]
    for model in models:
        checkpoint_activations(model, reentrant=False)
    assert_trains_as_eager(*models, options, tmp_path)


def rows_of(name):
    """Three batches of a step of the zoo, row by row."""
    return [
        {key: value[i] for key, value in kwargs.items()}
        for kwargs in (STEPS[name].build(seed).kwargs for seed in range(3))
        for i in range(BATCH)
    ]


def stacked(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


ARCHITECTURES = [
    "gpt2", "opt", "llama", "qwen2", "gemma2", "phi", "bert", "distilbert", "modernbert", "t5", "bart", "vit",
]  # fmt: skip


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options", [{"memory_efficient_fusion": True}, {"backend": "inductor"}], ids=["whole", "parts"]
)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_thirty_steps_of_an_architecture_have_eagers_losses(name, options, tmp_path):
    torch._dynamo.reset()
    data = functools.partial(rows_of, name), stacked
    given = {"max_steps": 30, "learning_rate": 1e-3, "save_strategy": "no", "data": data}
    wanted = losses(trained(built(name).model, tmp_path / "eager", **given))
    model = built(name).model
    found = losses(trained(model, tmp_path / "fused", FuseCallback(config(**options)), **given))
    assert len(wanted) == 30
    assert wanted[-1] < wanted[0]
    assert found == pytest.approx(wanted, rel=1e-4)
    compiled = [part for part in aotkit.fusion_report(model).modules.values() if part.outcome == "compiled"]
    assert compiled or not options.get("memory_efficient_fusion")
    assert all(part.graphs and not part.eager for part in compiled)


@pytest.mark.sweep
def test_a_trainer_that_makes_its_model(tmp_path):
    done = trained(lambda: decoder(use_cache=False), tmp_path, FuseCallback(config()), save_strategy="no")
    assert outcome(done.model).graphs


def test_a_wrong_config_is_told_before_the_trainer_is_made():
    with pytest.raises(aotkit.UnknownNameError, match="Did you mean 'backend'"):
        FuseCallback({"kernel_fusion": {"backnd": "nop"}})
