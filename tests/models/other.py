"""Models of transformers for time series and for reinforcement learning."""

import torch

from tests.models.texts import BATCH
from tests.models.zoo import Training, step


@step("transformers")
def patchtst() -> Training:
    import transformers

    config = transformers.PatchTSTConfig(
        num_input_channels=3, context_length=32, prediction_length=8, patch_length=8, patch_stride=8, d_model=32,
        num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
    )  # fmt: skip
    series = {"past_values": torch.randn(BATCH, 32, 3), "future_values": torch.randn(BATCH, 8, 3)}
    return Training(transformers.PatchTSTForPrediction(config), kwargs=series)


@step("transformers")
def patchtsmixer() -> Training:
    import transformers

    config = transformers.PatchTSMixerConfig(
        num_input_channels=3, context_length=32, prediction_length=8, patch_length=8, patch_stride=8, d_model=16,
        num_layers=2,
    )  # fmt: skip
    series = {"past_values": torch.randn(BATCH, 32, 3), "future_values": torch.randn(BATCH, 8, 3)}
    return Training(transformers.PatchTSMixerForPrediction(config), kwargs=series)


@step("transformers")
def time_series_transformer() -> Training:
    import transformers

    config = transformers.TimeSeriesTransformerConfig(
        prediction_length=8, context_length=16, lags_sequence=[1, 2, 3], num_time_features=2, d_model=32,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64,
    )  # fmt: skip
    past = 16 + 3
    observed = torch.ones(BATCH, past)
    observed[1, :4] = 0
    inputs = {
        "past_values": torch.randn(BATCH, past), "past_time_features": torch.randn(BATCH, past, 2),
        "past_observed_mask": observed, "future_values": torch.randn(BATCH, 8),
        "future_time_features": torch.randn(BATCH, 8, 2),
    }  # fmt: skip
    return Training(transformers.TimeSeriesTransformerForPrediction(config), kwargs=inputs)


@step("transformers")
def decision_transformer() -> Training:
    import transformers

    config = transformers.DecisionTransformerConfig(
        state_dim=5, act_dim=3, hidden_size=32, n_layer=2, n_head=2, n_positions=64
    )
    steps = 6
    mask = torch.ones(BATCH, steps, dtype=torch.long)
    mask[1, :2] = 0  # episodes are padded on the left
    inputs = {
        "states": torch.randn(BATCH, steps, 5), "actions": torch.randn(BATCH, steps, 3),
        "rewards": torch.randn(BATCH, steps, 1), "returns_to_go": torch.randn(BATCH, steps, 1),
        "timesteps": torch.arange(steps).expand(BATCH, steps), "attention_mask": mask,
    }  # fmt: skip
    return Training(transformers.DecisionTransformerModel(config), kwargs=inputs)
