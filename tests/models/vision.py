"""Vision models of transformers: classification, segmentation, detection, and images with texts."""

import functools
from typing import Any

import torch

from tests.models.texts import BATCH, SIZES, classes, images, model_of, tokens, training
from tests.models.zoo import Training, add, step

TRANSFORMER: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
WINDOWS: dict[str, Any] = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip

CLASSIFIERS: dict[str, dict[str, Any]] = {
    "vit": TRANSFORMER,
    "deit": {**TRANSFORMER, "architectures": ["DeiTForImageClassification"]},
    "beit": TRANSFORMER,
    "dinov2": {**TRANSFORMER, "mlp_ratio": 2},
    "swin": WINDOWS,
    "swinv2": WINDOWS,
    "convnext": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "image_size": 32},
    "resnet": {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "layer_type": "basic"},
    "efficientnet": {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
    "mobilevit": {
        "image_size": 64, "hidden_sizes": [32, 40, 48], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64],
        "num_attention_heads": 2,
    },
    "mobilenet_v2": {"image_size": 64, "depth_multiplier": 0.35},
    "poolformer": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]},
    "levit": {
        "image_size": 64, "hidden_sizes": [16, 32, 48], "num_attention_heads": [1, 2, 3], "depths": [1, 1, 1],
        "key_dim": [8, 8, 8], "patch_size": 16, "architectures": ["LevitForImageClassification"],
    },
}  # fmt: skip


def classifier(name: str, options: dict[str, Any]) -> Training:
    inputs = images(options.get("image_size", 64))
    return training("ImageClassification", name, {**options, "num_labels": 5}, pixel_values=inputs, labels=classes(5))


for name, options in CLASSIFIERS.items():
    add(name, "transformers", functools.partial(classifier, name, options))


@step("transformers")
def segformer() -> Training:
    options = {
        "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2],
        "decoder_hidden_size": 32, "num_labels": 5,
    }  # fmt: skip
    maps = torch.randint(0, 5, (BATCH, 64, 64))
    return training("SemanticSegmentation", "segformer", options, pixel_values=images(64), labels=maps)


@step("transformers")
def vit_mae() -> Training:
    decoder = {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4}
    options = {**TRANSFORMER, **decoder, "decoder_intermediate_size": 64}
    return training("PreTraining", "vit_mae", options, pixel_values=images())


@step("transformers")
def dpt() -> Training:
    options = {
        **TRANSFORMER, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "is_hybrid": False,
        "neck_hidden_sizes": [8, 16, 16, 32], "fusion_hidden_size": 16, "readout_type": "ignore",
    }  # fmt: skip
    depths = torch.rand(BATCH, 64, 64)
    return Training(
        model_of("DepthEstimation", "dpt", **options), kwargs={"pixel_values": images()},
        loss=lambda output: (output.predicted_depth - depths).abs().mean(),
    )  # fmt: skip


@step("transformers")
def videomae() -> Training:
    options = {**TRANSFORMER, "num_frames": 4, "tubelet_size": 2, "num_labels": 5}
    frames = torch.randn(BATCH, 4, 3, 32, 32)
    return training("VideoClassification", "videomae", options, pixel_values=frames, labels=classes(5))


@step("transformers", "scipy")
def yolos() -> Training:
    """Its loss assigns boxes to predictions with scipy."""
    options = {**TRANSFORMER, "image_size": [32, 32], "num_detection_tokens": 6, "num_labels": 3}
    boxes = [
        {"class_labels": torch.tensor([0, 2]), "boxes": torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.6, 0.5, 0.3, 0.4]])},
        {"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.4, 0.2]])},
    ]
    return training("ObjectDetection", "yolos", options, pixel_values=images(), labels=boxes)


def _two_towers(name: str, model: str, text: dict[str, Any], **options: Any) -> Training:
    import transformers

    config = transformers.AutoConfig.for_model(
        name, text_config={**SIZES, **text}, vision_config=TRANSFORMER, projection_dim=32, **options
    )
    inputs = tokens()
    return Training(
        getattr(transformers, model)(config), kwargs={**inputs, "pixel_values": images(), "return_loss": True}
    )


@step("transformers")
def clip() -> Training:
    return _two_towers("clip", "CLIPModel", {"projection_dim": 32})


@step("transformers")
def siglip() -> Training:
    return _two_towers("siglip", "SiglipModel", {"projection_size": 64})


@step("transformers")
def vilt() -> Training:
    options = {**SIZES, "image_size": 32, "patch_size": 8, "num_labels": 4, "max_image_length": -1}
    import transformers

    model = transformers.ViltForQuestionAnswering(transformers.ViltConfig(**options))
    pixels = {"pixel_values": images(), "pixel_mask": torch.ones(BATCH, 32, 32, dtype=torch.long)}
    return Training(model, kwargs={**tokens(), **pixels, "labels": torch.rand(BATCH, 4)})


@step("transformers")
def llava() -> Training:
    """A language model that reads an image's patches in the places of their tokens."""
    import transformers

    text = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    tower = transformers.CLIPVisionConfig(**TRANSFORMER)
    config = transformers.LlavaConfig(vision_config=tower, text_config=text, image_token_index=3)
    inputs = tokens(length=32)
    inputs["input_ids"][inputs["input_ids"] == 3] = 4
    inputs["input_ids"][:, 1:17] = 3
    targets = inputs["input_ids"].masked_fill((inputs["attention_mask"] == 0) | (inputs["input_ids"] == 3), -100)
    model = transformers.LlavaForConditionalGeneration(config)
    return Training(model, kwargs={**inputs, "pixel_values": images(), "labels": targets})
