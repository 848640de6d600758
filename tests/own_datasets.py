"""Datasets as scripts write them, whose samples torch's loader and gpupipe's must give alike."""

from __future__ import annotations

import contextlib
import copy
import pickle
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from support import N
from torch.utils import data
from torchvision_ops import define_missing_operators

define_missing_operators()  # also in a process that is spawned

from torchvision import transforms as tvt  # noqa: E402

EVAL = tvt.Compose([tvt.Resize(32), tvt.CenterCrop(32), tvt.ToTensor()])
TRAIN = tvt.Compose([tvt.RandomResizedCrop(24), tvt.RandomHorizontalFlip(), tvt.ToTensor()])
RARE = 5
"""Trials do not look at this sample."""


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


class Asks(Photos):
    """Asks the result of its transforms for what is known without pixels."""

    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.opened(i))
        assert isinstance(x, torch.Tensor) and torch.is_tensor(x) and not isinstance(x, Image.Image)
        assert x.shape == x.size() == (3, 32, 32) and x.ndim == x.dim() == 3 and len(x) == x.size(0) == 3
        assert x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() == 3072 and x.is_floating_point()
        assert not x.requires_grad and x.is_contiguous() and x.nbytes == 4 * 3072
        return x.float().clone().contiguous(), x.shape[1] * i


class Twice(Photos):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.opened(i))
        return x, x, i


class Stacked(Photos):
    def __getitem__(self, i: int) -> Any:
        image = self.opened(i)
        views = [self.transform(image) for _ in range(2)]
        return torch.stack(views), torch.cat(views)[None], i


class Scaled(Photos):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.opened(i)) * 2 - 1, (1 - self.transform(self.opened(i)) / 2).half(), i


class Steps(Photos):
    """Its transforms one after the other, with a look at the size in between."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.resize, self.crop, self.tensor = tvt.Resize(40), tvt.CenterCrop(32), tvt.ToTensor()

    def __getitem__(self, i: int) -> Any:
        image = self.resize(self.opened(i))
        width, height = image.size
        assert isinstance(image, Image.Image) and image.mode == "RGB" and min(image.size) == 40
        return self.tensor(self.crop(image)), width, height


class Pairs(Photos):
    def __getitem__(self, i: int) -> Any:
        return {"one": self.transform(self.opened(i)), "other": self.transform(self.opened((i * 7) % N)), "i": i}


class Turned(Photos):
    """It changes some images before its transforms."""

    def __getitem__(self, i: int) -> Any:
        image = self.opened(i)
        return (self.transform(image) if i % 10 != RARE else self.transform(image.rotate(90).resize((50, 60)))), i


CARRIED: list[type[Photos]] = [Asks, Twice, Stacked, Scaled, Steps, Pairs, Turned]
"""An engine makes all of their samples."""


class LooksNowAndThen(Photos):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.opened(i))
        if i % 10 == RARE:
            x[0] = x.mean()
        return x, i


class LooksAndCatches(Photos):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.opened(i))
        brightness = -1.0
        if i % 10 == RARE:
            with contextlib.suppress(Exception):
                brightness = float((x.mean() > 0) * i)
        return x, brightness


class CopiesOpened(Photos):
    def __getitem__(self, i: int) -> Any:
        image = self.opened(i)
        if i % 5 == 1:
            image = copy.deepcopy(image)
        if i % 5 == 2:
            image = pickle.loads(pickle.dumps(image))
        return self.transform(image), i


class CopiesResults(Photos):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.opened(i))
        if i % 10 == RARE:
            return pickle.loads(pickle.dumps(copy.deepcopy(x))), i
        return x, i


class Mixed(Photos):
    """Gray images among the others, which have to be converted."""

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i]).convert("L" if i % 10 == RARE else "RGB")
        x = self.transform(image)
        return (x if x.shape[0] == 3 else x.expand(3, -1, -1)), i


class AnotherInstead(Photos):
    """It answers to damaged files as most scripts do."""

    def __getitem__(self, i: int) -> Any:
        try:
            image = Image.open(self.paths[i]).convert("RGB")
        except Exception:
            return self[i + 1]
        return self.transform(image), i


RARELY: list[type[Photos]] = [LooksNowAndThen, LooksAndCatches, CopiesOpened, CopiesResults, Mixed, AnotherInstead]
"""Do now and then what trials do not show."""
