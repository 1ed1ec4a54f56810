"""Encoder-decoders of transformers: translate padded texts, with caches at their defaults."""

import functools
from typing import Any

from tests.models.texts import END, PAD, START, VOCABULARY, labels, tokens, training
from tests.models.zoo import Training, add

BART: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 64,
    "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": END,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2,
    "num_heads": 4, "pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD,
}  # fmt: skip

ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "t5": T5,
    "longt5": {**T5, "local_radius": 3, "encoder_attention_type": "local"},
    "switch_transformers": {**T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "bart": {**BART, "forced_eos_token_id": END},
    "pegasus": BART,
    "marian": BART,
    "m2m_100": BART,
    "led": {
        **{k: v for k, v in BART.items() if k != "max_position_embeddings"}, "attention_window": 4,
        "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64,
    },
    "prophetnet": {
        "vocab_size": VOCABULARY, "hidden_size": 64, "encoder_ffn_dim": 128, "num_encoder_layers": 2,
        "num_encoder_attention_heads": 4, "decoder_ffn_dim": 128, "num_decoder_layers": 2,
        "num_decoder_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": PAD, "bos_token_id": START,
        "eos_token_id": END, "decoder_start_token_id": PAD,
    },
}  # fmt: skip


def translation(name: str, options: dict[str, Any]) -> Training:
    source, target = tokens(), tokens(length=12, padding=3)
    return training("Seq2SeqLM", name, options, **source, labels=labels(target))


for name, options in ENCODER_DECODERS.items():
    add(name, "transformers", functools.partial(translation, name, options))
