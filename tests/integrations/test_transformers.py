"""Hugging Face's transformers: Trainer, generate(), gradient checkpointing, saving and loading."""

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import LlamaForCausalLM, Trainer, TrainingArguments

from tests.integrations.models import assert_same_parameters, batch, compiled, decoder, train, twins

LENGTHS = [(5, 7), (4, 4), (9, 6), (3, 8)]


def examples():
    return [{"input_ids": b["input_ids"][0].tolist()} for b in (batch([n], seed=n) for n in (5, 7, 4, 4, 9, 6))]


def collate(rows):
    """Pads to the longest of a batch, so that lengths differ from batch to batch."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def trainer(model, folder, **options):
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, per_device_eval_batch_size=2, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_steps=1, learning_rate=0.01, seed=0, data_seed=0, dataloader_pin_memory=False,
        **{"max_steps": 3, "save_steps": 2, **options},
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=examples(), eval_dataset=examples()[:4], data_collator=collate)


def losses(done):
    return [entry["loss"] for entry in done.state.log_history if "loss" in entry]


@pytest.mark.sweep
def test_trainer_trains_evaluates_saves_and_resumes(tmp_path):
    model, ours = twins(decoder())
    eager = trainer(model, tmp_path / "eager")
    eager.train()
    done = trainer(ours, tmp_path / "compiled")
    done.train()
    assert losses(done) == pytest.approx(losses(eager), rel=1e-3)
    assert_same_parameters(ours, model)
    assert done.evaluate()["eval_loss"] == pytest.approx(eager.evaluate()["eval_loss"], rel=1e-4)

    resumed = compiled(decoder())
    trainer(resumed, tmp_path / "compiled").train(resume_from_checkpoint=str(tmp_path / "compiled/checkpoint-2"))
    assert_same_parameters(resumed, model)

    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "compiled/checkpoint-3")
    assert_same_parameters(loaded, model)


def test_saving_and_loading(tmp_path):
    ours = compiled(decoder())
    train(ours, [batch([4, 6])])
    ours.save_pretrained(tmp_path)
    again = compiled(LlamaForCausalLM.from_pretrained(tmp_path))
    assert_same_parameters(again, ours)
    assert train(again, [batch([4, 6])]) == pytest.approx(train(ours, [batch([4, 6])]))


@pytest.mark.sweep
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generation_compiles_no_graph_for_each_length(options):
    model, ours = twins(decoder().eval())
    prompt = batch([5, 3], left=True)
    del prompt["labels"]
    options = {**options, "do_sample": False, "max_new_tokens": 4, "min_new_tokens": 4}
    wanted, found = model.generate(**prompt, **options), ours.generate(**prompt, **options)
    assert torch.equal(found, wanted)
    with torch.no_grad():
        entries = ours.explain(**prompt).entries
    options.update(max_new_tokens=9, min_new_tokens=9)
    assert torch.equal(ours.generate(**prompt, **options), model.generate(**prompt, **options))
    with torch.no_grad():
        assert ours.explain(**prompt).entries == entries


def checkpoint_activations(model, reentrant):
    """`gradient_checkpointing_enable()` by the name that this version has for it."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})


@pytest.mark.sweep
@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_gradient_checkpointing(reentrant):
    model, ours = twins(decoder(use_cache=False))
    for each in (model, ours):
        checkpoint_activations(each, reentrant)
        each.train()
    batches = [batch(lengths) for lengths in LENGTHS[:2]]
    assert train(ours, batches) == pytest.approx(train(model, batches), rel=1e-5)
    assert_same_parameters(ours, model)


@pytest.mark.sweep
def test_training_under_inductor():
    model, ours = twins(decoder(), backend="inductor", partition="nx_min_cut")
    batches = [batch(lengths) for lengths in LENGTHS]
    assert train(ours, batches) == pytest.approx(train(model, batches), rel=1e-4)
    assert_same_parameters(ours, model)
