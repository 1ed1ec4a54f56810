"""`FuseCallback`: a few steps of transformers' Trainer, with the losses of eager."""

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import LlamaForCausalLM, Trainer, TrainingArguments

import aotkit
from aotkit.fusing.callback import FuseCallback
from tests.fusing.models import config
from tests.integrations.models import assert_same_parameters, decoder
from tests.integrations.test_transformers import checkpoint_activations, collate, examples, losses

# Said by TorchDynamo of any input that is no leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
REGION = config(regions=["LlamaDecoderLayer"])


def trained(model, folder, *callbacks, **options):
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True,
        logging_steps=1, learning_rate=0.01, seed=0, data_seed=0, dataloader_pin_memory=False, max_steps=4,
        **options,
    )  # fmt: skip
    given = {"model_init": model} if callable(model) and not hasattr(model, "forward") else {"model": model}
    done = Trainer(**given, args=arguments, train_dataset=examples(), data_collator=collate, callbacks=[*callbacks])
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


@pytest.mark.sweep
def test_a_trainer_that_makes_its_model(tmp_path):
    done = trained(lambda: decoder(use_cache=False), tmp_path, FuseCallback(config()), save_strategy="no")
    assert outcome(done.model).graphs


def test_a_wrong_config_is_told_before_the_trainer_is_made():
    with pytest.raises(aotkit.UnknownNameError, match="Did you mean 'backend'"):
        FuseCallback({"kernel_fusion": {"backnd": "nop"}})
