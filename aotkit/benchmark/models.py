"""The models that `python -m aotkit bench partitioners` cuts: at real sizes, built of fake tensors.

Each entry of `MODELS` is called under a fake tensor mode, and gives a training loss and its inputs.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aotkit.benchmark import transformers_models as hf
from aotkit.benchmark.transformers_models import Model


class MLP(nn.Module):
    """Residual layers of layer norm, linear, GELU and dropout: x and target [rows, width] -> loss."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = x + F.dropout(F.gelu(linear(norm(x))), 0.1, self.training)
        return F.mse_loss(x, target)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and batch norm."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions (He et al., 2015)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.narrow = convolution(inputs, width, 1)
        self.middle = convolution(width, width, 3, stride)
        self.wide = convolution(width, outputs, 1)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(F.relu(self.middle(F.relu(self.narrow(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-50 by default: images [N, 3, height, width] and classes [N] -> loss."""

    def __init__(self, blocks: Sequence[int] = (3, 4, 6, 3), classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for stage, count in enumerate(blocks):
            for i in range(count):
                layers.append(Bottleneck(channels, 64 << stage, 2 if stage and not i else 1))
                channels = 4 * (64 << stage)
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.features(images).mean((2, 3))), classes)


class Double(nn.Sequential):
    """Two convolutions, each with group norm and SiLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        halves = [(nn.Conv2d(n, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()) for n in (inputs, outputs)]
        super().__init__(*halves[0], *halves[1])


class UNet(nn.Module):
    """U-Net (Ronneberger et al., 2015): images [N, 3, height, width] and labels [N, height, width] -> loss."""

    def __init__(self, channels: Sequence[int] = (32, 64, 128, 256), classes: int = 2) -> None:
        super().__init__()
        before = (3, *channels)
        self.down = nn.ModuleList(map(Double, before, channels))
        self.middle = Double(channels[-1], 2 * channels[-1])
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2) for c in reversed(channels))
        self.up = nn.ModuleList(Double(2 * c, c) for c in reversed(channels))
        self.head = nn.Conv2d(channels[0], classes, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.middle(x)
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat([widen(x), skips.pop()], 1))
        return F.cross_entropy(self.head(x), labels)


def mlp(rows: int = 8192, layers: int = 12, width: int = 2048) -> Model:
    return MLP(layers, width), (torch.zeros(rows, width), torch.zeros(rows, width))


def resnet50() -> Model:
    return ResNet(), (torch.zeros(32, 3, 224, 224), torch.zeros(32, dtype=torch.long))


def unet() -> Model:
    return UNet(), (torch.zeros(8, 3, 256, 256), torch.zeros(8, 256, 256, dtype=torch.long))


MODELS: dict[str, Callable[[], Model]] = {
    "mlp": mlp,
    "gpt2": hf.gpt2,
    "gpt2-xl": hf.gpt2_xl,
    "bert": hf.bert,
    "t5": hf.t5,
    "llama": hf.llama,
    "vit": hf.vit,
    "resnet50": resnet50,
    "unet": unet,
}
DEFAULT_MODELS = tuple(name for name in MODELS if name != "gpt2-xl")  # that takes minutes
