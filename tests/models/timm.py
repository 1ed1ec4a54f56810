"""Models of timm, which needs torchvision."""

import functools

import torch

from tests.models.zoo import Training, add

SIZES = {
    "resnet18": 64,
    "efficientnet_b0": 64,
    "mobilenetv3_small_050": 64,
    "vit_tiny_patch16_224": 64,
    "convnext_atto": 64,
    "mixer_s32_224": 64,
}


def classifier(name: str, size: int) -> Training:
    import timm

    sized = {"img_size": size} if name.startswith(("vit", "mixer")) else {}
    model = timm.create_model(name, num_classes=5, drop_rate=0.1, **sized)
    images, targets = torch.randn(4, 3, size, size), torch.randint(0, 5, (4,))
    return Training(model, (images,), loss=lambda output: torch.nn.functional.cross_entropy(output, targets))


for name, size in SIZES.items():
    add(f"timm_{name}", "timm", functools.partial(classifier, name, size), "torchvision")
