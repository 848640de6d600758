"""Datasets as scripts write them, whose samples torch's loader and gpupipe's must give alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils import data
from torchvision_ops import define_missing_operators

define_missing_operators()  # also in a process that is spawned

from torchvision import transforms as tvt  # noqa: E402

EVAL = tvt.Compose([tvt.Resize(32), tvt.CenterCrop(32), tvt.ToTensor()])


class Photos(data.Dataset[Any]):
    """A list of files, Pillow, a transform."""

    def __init__(self, root: Path, transform: Any = EVAL):
        self.paths = sorted(root.rglob("*.jpg"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def opened(self, i: int) -> Image.Image:
        return Image.open(self.paths[i]).convert("RGB")

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.opened(i)), i
