"""`generate` with fused logits processors: token for token what it gives with transformers' own."""

import pytest
import torch

import aotkit
from aotkit.nn import FusedEncoderNoRepeatNGram, FusedNoRepeatNGram, generate_fused

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 40, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
BART = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, **SMALL))


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **SMALL))


def bart():
    """With the tokens that its checkpoints force."""
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "decoder_start_token_id": 1, **BART}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **SMALL))
    model.generation_config.update(forced_bos_token_id=2, forced_eos_token_id=1)
    return model


WAYS = {
    "greedy": {"no_repeat_ngram_size": 2},
    "of one": {"no_repeat_ngram_size": 1},
    "encoder": {"encoder_no_repeat_ngram_size": 1},
    "beams": {"num_beams": 3, "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2},
    "sampled": {"do_sample": True, "top_k": 5, "no_repeat_ngram_size": 2},
    "sampled beams": {"do_sample": True, "num_beams": 2, "num_return_sequences": 2, "no_repeat_ngram_size": 3},
}


def inputs():
    """Padded on the left; n-grams come again."""
    ids = torch.randint(3, 8, (2, 12))
    mask = torch.ones_like(ids)
    mask[0, :3] = ids[0, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generated(model, given, **options):
    torch.manual_seed(0)
    return model.generate(**given, max_new_tokens=30, output_scores=True, return_dict_in_generate=True, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [gpt2, t5, bart])
def test_token_for_token(make, way, monkeypatch):
    model, given, ran = make().eval(), inputs(), set()
    for kind in (FusedNoRepeatNGram, FusedEncoderNoRepeatNGram):
        call = kind.__call__
        monkeypatch.setattr(kind, "__call__", lambda self, *args, call=call: ran.add(type(self)) or call(self, *args))
    expected = generated(model, given, **WAYS[way])
    assert not ran
    found = generated(model, given, custom_generate=generate_fused, **WAYS[way])
    assert len(ran) == sum("ngram" in option for option in WAYS[way])
    assert torch.equal(found.sequences, expected.sequences)
    for a, b in zip(found.scores, expected.scores, strict=True):
        assert torch.equal(a, b)


def test_the_models_own_config_is_heard():
    model, given = gpt2().eval(), inputs()
    without = generated(model, given).sequences
    model.generation_config.no_repeat_ngram_size = 1
    found = generated(model, given, custom_generate=generate_fused).sequences
    assert torch.equal(found, generated(model, given).sequences)
    assert not torch.equal(found, without)


def test_as_a_processor_that_is_passed():
    model, given = gpt2().eval(), inputs()
    found = generated(model, given, logits_processor=[FusedNoRepeatNGram(2)]).sequences
    assert torch.equal(found, generated(model, given, no_repeat_ngram_size=2).sequences)


def test_what_has_no_loop_of_its_own_is_an_error():
    with pytest.raises(aotkit.UnsupportedError, match="no loop for assisted_generation"):
        generated(gpt2().eval(), inputs(), custom_generate=generate_fused, prompt_lookup_num_tokens=3)
