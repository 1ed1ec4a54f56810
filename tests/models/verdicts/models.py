"""Vision models of timm, one for each kind of architecture."""

import functools
from collections.abc import Callable

import torch

from tests.models.zoo import Training

SIZE = 96  # pixels, where a model does not ask for others: not all stages of those of 224 shrink to one pixel
NAMES = [
    "resnet18", "resnet50", "resnext50_32x4d", "seresnet50", "regnety_008", "densenet121", "dla34",
    "hrnet_w18_small", "vgg11_bn", "mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_b0", "mnasnet_100",
    "ghostnet_100", "convnext_atto", "convnextv2_atto", "vit_tiny_patch16_224", "deit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224", "levit_128s", "poolformer_s12", "pvt_v2_b0", "twins_svt_small", "mixer_s32_224",
    "resmlp_12_224", "coat_lite_tiny", "xcit_nano_12_p16_224", "mobilevit_xxs", "efficientformer_l1",
    "inception_v3",
]  # fmt: skip


def classifier(name: str, batch: int) -> Training:
    """A step of one of timm's models, with random weights and images."""
    import timm

    model = timm.create_model(name, num_classes=10)
    size = model.default_cfg["input_size"][-1] if model.default_cfg.get("fixed_input_size") else SIZE
    images, targets = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))

    def loss(output: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(output.float(), targets.to(output.device))

    return Training(model, (images,), loss=loss)


def models(batch: int) -> dict[str, Callable[[], Training]]:
    """All of them by their names here."""
    return {f"timm_{name}": functools.partial(classifier, name, batch) for name in NAMES}
