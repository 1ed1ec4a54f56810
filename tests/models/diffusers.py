"""Models of diffusers: what predicts the noise, and what makes latents of images."""

import torch

from tests.models.zoo import Training, step


@step("diffusers")
def unet_2d() -> Training:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return Training(model, (torch.randn(2, 3, 16, 16), torch.tensor([3, 700])))


@step("diffusers")
def unet_2d_condition() -> Training:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, attention_head_dim=8,
        cross_attention_dim=24, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return Training(model, (torch.randn(2, 4, 16, 16), torch.tensor([3, 700]), torch.randn(2, 7, 24)))


@step("diffusers")
def dit() -> Training:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, num_layers=2, sample_size=8, num_embeds_ada_norm=100,
        norm_num_groups=8,
    )  # fmt: skip
    inputs = {"timestep": torch.tensor([3, 70]), "class_labels": torch.tensor([1, 5])}
    return Training(model, (torch.randn(2, 4, 8, 8),), inputs)


@step("diffusers")
def autoencoder_kl() -> Training:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(16, 32), norm_num_groups=8, latent_channels=4, sample_size=16,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    return Training(model, (torch.randn(2, 3, 16, 16),), {"sample_posterior": False})


@step("diffusers")
def flux() -> Training:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(2, 16, 4), "encoder_hidden_states": torch.randn(2, 6, 32),
        "pooled_projections": torch.randn(2, 32), "timestep": torch.tensor([0.1, 0.7]),
        "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3),
    }  # fmt: skip
    return Training(model, (), inputs)
