"""`custom_kernels`: the kernels of `aotkit.nn` in a model of transformers."""

import copy

import pytest
import torch

pytest.importorskip("transformers")

import aotkit
from tests.fusing.models import built, config, gradients, pickled
from tests.fusing.test_generate import prompt_of, tokens
from tests.integrations.models import decoder

NORMS = config(custom_kernels=["FusedRMSNorm"])
NGRAMS = config(custom_kernels=["FusedNoRepeatNGram"])


def swapped(model):
    return [part for part in aotkit.fusion_report(model).modules.values() if part.outcome == "swapped"]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(
    ("name", "count"), [("llama", 5), pytest.param("t5", 12, marks=pytest.mark.sweep), ("gemma2", 9)]
)
def test_rms_norms_are_swapped_in_place(name, count):
    training = built(name)
    model, eager = training.model, copy.deepcopy(training.model)
    wanted = gradients(eager, training)
    aotkit.fuse(model, NORMS)
    assert len(swapped(model)) == count
    assert {part.reason for part in swapped(model)} == {"FusedRMSNorm"}
    torch.testing.assert_close(gradients(model, training), wanted)
    for copied in (copy.deepcopy(model), pickled(model)):
        assert len(swapped(copied)) == count
        torch.testing.assert_close(gradients(copied, training), wanted)
    norms = {name: model.get_submodule(name) for name in (part.name for part in swapped(model))}
    aotkit.unfuse(model)
    assert {name: type(norm) for name, norm in norms.items()} == {n: type(eager.get_submodule(n)) for n in norms}


def test_norms_of_another_kind_are_left_with_the_reason():
    model = aotkit.fuse(built("gpt2").model, NORMS)
    part = aotkit.fusion_report(model).modules["transformer.h.0.ln_1"]
    assert part.outcome == "left"
    assert part.reason


def processors(model, **options):
    """The list that `generate` runs."""
    chosen, _ = model._prepare_generation_config(None, **options)
    return [type(processor) for processor in model._get_logits_processor(chosen, 4)]


@pytest.mark.parametrize(
    "options", [{"do_sample": False}, {"do_sample": True, "num_return_sequences": 2}, {"num_beams": 3}]
)
def test_generate_bans_repeated_ngrams_by_our_kernels(options):
    eager = decoder().eval()
    model = aotkit.fuse(copy.deepcopy(eager), NGRAMS)
    for extra in ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 2, "repetition_penalty": 1.5}):
        given, prompt = {**options, **extra}, prompt_of([6, 3])
        assert torch.equal(tokens(model, prompt, 12, **given), tokens(eager, prompt, 12, **given))


def test_only_the_given_model_gets_our_processors():
    from transformers import NoRepeatNGramLogitsProcessor

    eager = decoder().eval()
    model = aotkit.fuse(copy.deepcopy(eager), NGRAMS)
    assert processors(eager, no_repeat_ngram_size=2) == [NoRepeatNGramLogitsProcessor]
    assert [kind.__module__.partition(".")[0] for kind in processors(model, no_repeat_ngram_size=2)] == ["aotkit"]
    assert processors(aotkit.unfuse(model), no_repeat_ngram_size=2) == [NoRepeatNGramLogitsProcessor]
