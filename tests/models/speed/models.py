"""Models of public libraries in the sizes in which people train them, with random weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.models.zoo import Training

MODELS: dict[str, Callable[[], Training]] = {}


def model(make: Callable[[], Training]) -> Callable[[], Training]:
    MODELS[make.__name__.replace("_", "-")] = make
    return make


def _transformers(kind: str, config: str, options: dict[str, Any], **inputs: Tensor) -> Training:
    import transformers

    configuration = transformers.AutoConfig.for_model(config, **options)
    return Training(getattr(transformers, f"AutoModelFor{kind}").from_config(configuration), kwargs=inputs)


def _text(batch: int, length: int, vocabulary: int, padding: int = 0) -> dict[str, Tensor]:
    """As a tokenizer gives it, the last text shorter than the others."""
    ids = torch.randint(3, vocabulary, (batch, length))
    mask = torch.ones_like(ids)
    if padding:
        ids[-1, -padding:], mask[-1, -padding:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _classified(config: str, batch: int, **options: Any) -> Training:
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
    return _transformers(
        "ImageClassification", config, {"num_labels": 1000, **options}, pixel_values=images, labels=labels
    )


@model
def gpt2() -> Training:
    text = _text(4, 1024, 50257)
    return _transformers("CausalLM", "gpt2", {}, **text, labels=text["input_ids"])


@model
def bert() -> Training:
    text = _text(16, 512, 30522, padding=100)
    return _transformers("MaskedLM", "bert", {}, **text, labels=text["input_ids"])


@model
def llama() -> Training:
    """Eight layers of width 2048."""
    options = {
        "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 2048,
    }  # fmt: skip
    text = _text(2, 2048, 32000)
    return _transformers("CausalLM", "llama", options, **text, labels=text["input_ids"])


@model
def t5_base() -> Training:
    options = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0}
    labels = torch.randint(3, 32128, (8, 128))
    return _transformers("Seq2SeqLM", "t5", options, **_text(8, 512, 32128, padding=100), labels=labels)


@model
def vit() -> Training:
    return _classified("vit", 32)


@model
def swin_tiny() -> Training:
    return _classified("swin", 32)


@model
def convnext_tiny() -> Training:
    return _classified("convnext", 32)


@model
def resnet50() -> Training:
    return _classified("resnet", 64)


@model
def efficientnet_b0() -> Training:
    options = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "dropout_rate": 0.2}
    return _classified("efficientnet", 64, image_size=224, **options)


@model
def whisper_small() -> Training:
    options = {
        "d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12,
        "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
    }  # fmt: skip
    features, labels = torch.randn(8, 80, 3000), torch.randint(3, 50000, (8, 128))
    return _transformers("SpeechSeq2Seq", "whisper", options, input_features=features, labels=labels)


@model
def wav2vec2_base() -> Training:
    """Ten seconds each, the last recording shorter."""
    waves, mask = torch.randn(8, 160_000), torch.ones(8, 160_000, dtype=torch.long)
    waves[-1, -40_000:], mask[-1, -40_000:] = 0.0, 0
    labels = torch.randint(1, 32, (8, 100))
    options = {"ctc_loss_reduction": "mean"}
    return _transformers("CTC", "wav2vec2", options, input_values=waves, attention_mask=mask, labels=labels)


@model
def unet_block() -> Training:
    """The two largest resolutions of Stable Diffusion 1.5's, down and up again."""
    from diffusers import UNet2DConditionModel

    net = UNet2DConditionModel(
        sample_size=64, block_out_channels=(320, 640), layers_per_block=2, attention_head_dim=8,
        cross_attention_dim=768, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    return Training(net, (torch.randn(4, 4, 64, 64), torch.tensor([3, 70, 500, 900]), torch.randn(4, 77, 768)))
