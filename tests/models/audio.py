"""Models of transformers that hear: recognition and classification of padded recordings."""

from typing import Any

import torch

from tests.models.texts import BATCH, PAD, VOCABULARY, classes, training
from tests.models.zoo import Training, step

WAVES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 2), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "mask_time_length": 2, "pad_token_id": PAD,
}  # fmt: skip


def _recordings() -> dict[str, torch.Tensor]:
    """Two recordings, the second of them shorter."""
    waves, mask = torch.randn(BATCH, 2000), torch.ones(BATCH, 2000, dtype=torch.long)
    waves[1, -400:], mask[1, -400:] = 0.0, 0
    return {"input_values": waves, "attention_mask": mask}


def _transcripts() -> torch.Tensor:
    targets = torch.randint(1, 32, (BATCH, 8))
    targets[1, -2:] = -100
    return targets


@step("transformers")
def wav2vec2() -> Training:
    options = {**WAVES, "ctc_loss_reduction": "mean"}
    return training("CTC", "wav2vec2", options, **_recordings(), labels=_transcripts())


@step("transformers")
def hubert() -> Training:
    return training("CTC", "hubert", WAVES, **_recordings(), labels=_transcripts())


@step("transformers")
def wavlm() -> Training:
    options = {**WAVES, "num_labels": 4, "num_buckets": 16, "max_bucket_distance": 32}
    return training("AudioClassification", "wavlm", options, **_recordings(), labels=classes(4))


@step("transformers")
def whisper() -> Training:
    options = {
        "vocab_size": VOCABULARY, "num_mel_bins": 16, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
        "max_source_positions": 50, "max_target_positions": 32, "pad_token_id": PAD, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 3,
    }  # fmt: skip
    targets = torch.randint(4, VOCABULARY, (BATCH, 12))
    targets[1, -3:] = -100
    return training("SpeechSeq2Seq", "whisper", options, input_features=torch.randn(BATCH, 16, 100), labels=targets)


@step("transformers")
def audio_spectrogram_transformer() -> Training:
    options = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "num_labels": 4,
        "max_length": 64, "num_mel_bins": 32,
    }  # fmt: skip
    spectra = torch.randn(BATCH, 64, 32)
    return training(
        "AudioClassification", "audio-spectrogram-transformer", options, input_values=spectra, labels=classes(4)
    )
