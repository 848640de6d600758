"""A residual network small enough to train on two CPU cores: what the examples use where torchvision is not there."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["SmallResNet"]


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


class SmallResNet(nn.Module):
    """f32[B, 3, H, W] to logits f32[B, num_classes]; H and W at least 32."""

    def __init__(self, num_classes: int, *, width: int = 16):
        super().__init__()
        w = width
        self.features = nn.Sequential(
            nn.Conv2d(3, w, 5, 4, 2, bias=False),
            nn.BatchNorm2d(w),
            nn.ReLU(),
            _Block(w, w, 1),
            _Block(w, 2 * w, 2),
            _Block(2 * w, 4 * w, 2),
            _Block(4 * w, 8 * w, 2),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(8 * w, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).flatten(1))
        return logits
