"""Decoders of transformers: predict the next token of padded texts, with caches at their defaults."""

import functools
from typing import Any

from tests.models.texts import SIZES, labels, tokens, training
from tests.models.zoo import Training, add

GROUPED = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GPT = {**SIZES, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}

DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": GPT,
    "gpt_neo": {
        **SIZES, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8,
    },
    "gptj": {**GPT, "rotary_dim": 8},
    "gpt_neox": SIZES,
    "opt": {**SIZES, "ffn_dim": 128, "word_embed_proj_dim": 64},
    "bloom": {**SIZES, "n_layer": 2, "n_head": 4},
    "falcon": SIZES,
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 8},
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "qwen2": GROUPED,
    "qwen3_moe": {**GROUPED, **EXPERTS, "head_dim": 16},
    "phi": SIZES,
    "gemma2": {**GROUPED, "head_dim": 16, "sliding_window": 8},
    "gemma3_text": {**GROUPED, "head_dim": 16, "sliding_window": 8},
    "olmo2": GROUPED,
    "cohere": GROUPED,
    "stablelm": GROUPED,
    "deepseek_v3": {
        **SIZES, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
        "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
    },
    "mamba": {**SIZES, "state_size": 8},
    "mamba2": {**SIZES, "state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8},
    "rwkv": {**SIZES, "attention_hidden_size": 64},
    "recurrent_gemma": {**SIZES, "num_key_value_heads": 1, "lru_width": 64, "num_hidden_layers": 3},
    "xlnet": {"vocab_size": 128, "pad_token_id": 0, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128},
}  # fmt: skip


def causal(name: str, options: dict[str, Any]) -> Training:
    inputs = tokens()
    return training("CausalLM", name, options, **inputs, labels=labels(inputs))


for name, options in DECODERS.items():
    add(name, "transformers", functools.partial(causal, name, options))
