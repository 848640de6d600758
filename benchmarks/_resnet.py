"""ResNet-50 (He et al., *Deep Residual Learning for Image Recognition*, 2016), with the stride in the 3x3 convolutions:
the load that loaders are measured beside, without depending on a library of models."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["resnet50"]


class Bottleneck(nn.Module):
    """f[B, C, H, W] to f[B, 4 * width, H / stride, W / stride]."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.relu(self.body(x) + self.shortcut(x), inplace=True)
        return out


def resnet50(classes: int = 1000) -> nn.Module:
    """25.6 million parameters; f[B, 3, H, W] to f[B, classes]."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    channels = 64
    for number, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(count):
            layers.append(Bottleneck(channels, width, 2 if block == 0 and number > 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
