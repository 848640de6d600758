"""Samples of every form, images of every mode, and datasets made of others."""

from __future__ import annotations

import io
import zipfile
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate, random_split
from torchvision import transforms as T

from .base import BATCH, COUNT, EVAL, RARE, Pictures, case


@case()
class Ordered(Pictures):
    def __getitem__(self, i: int) -> Any:
        return OrderedDict(label=i, image=self.transform(self.open(i)), name=self.paths[i].name)


@case()
class OtherMapping(Pictures):
    def __getitem__(self, i: int) -> Any:
        return UserDict(image=self.transform(self.open(i)), label=i)


Named = namedtuple("Named", "image label name")


@case()
class NamedTuples(Pictures):
    def __getitem__(self, i: int) -> Any:
        return Named(self.transform(self.open(i)), i, self.paths[i].name)


@case()
class Nested(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return {"inputs": {"pixel_values": x, "ids": [i, i + 1]}, "meta": (str(i), {"size": (20, 20)})}


@case()
class Targets(Pictures):
    """Labels of every type."""

    def __getitem__(self, i: int) -> Any:
        one_hot = torch.nn.functional.one_hot(torch.tensor(i), COUNT)
        return self.transform(self.open(i)), i, float(i), np.float32(i), np.int16(i), np.arange(3) * i, one_hot, str(i)


@case()
class BoolsAndBytes(Pictures):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), i % 2 == 0, bytes([i]), torch.tensor(i % 2 == 0)


@case()
class ImageAlone(Pictures):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i))


@case()
class ImageInAList(Pictures):
    def __getitem__(self, i: int) -> Any:
        return [self.transform(self.open(i))]


@case()
class ImageLast(Pictures):
    def __getitem__(self, i: int) -> Any:
        return i, (str(i), self.transform(self.open(i)))


@case()
class TypesThatChange(Pictures):
    """An int that is a float once: torch's collate function makes another type of that batch."""

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), float(i) if i == RARE - RARE % BATCH else i


@case()
class KeysThatChange(Pictures):
    def __getitem__(self, i: int) -> Any:
        sample = {"image": self.transform(self.open(i)), "label": i}
        return {**sample, "extra": 1} if i // BATCH == 1 else sample


def without_none(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample is not None])


@case(collate_fn=without_none)
class NoneOnce(Pictures):
    def __getitem__(self, i: int) -> Any:
        return None if i == RARE else super().__getitem__(i)


def ragged(samples: list[Any]) -> Any:
    images, *rest = zip(*samples, strict=True)
    return list(images), [list(part) for part in rest]


@case(collate_fn=ragged)
class Detection(Pictures):
    def __getitem__(self, i: int) -> Any:
        boxes = torch.arange(4.0).repeat(i % 3, 1)
        return self.transform(self.open(i)), {"boxes": boxes, "labels": torch.ones(i % 3), "image_id": i}


@case(collate_fn=ragged)
class SizesThatDepend(Pictures):
    def __getitem__(self, i: int) -> Any:
        return T.functional.to_tensor(self.open(i).resize((16 + i % 3, 16))), i


@case(collate_fn=ragged)
class KeepsTheSize(Pictures):
    """No crop, so the size of a result is the image's."""

    def __init__(self, root: Path):
        super().__init__(root, T.ToTensor())

    def open(self, i: int) -> Image.Image:
        image = super().open(i)
        return image.crop((0, 0, 30 - i % 4, 30))


def listed(samples: list[Any]) -> Any:
    return samples


@case(collate_fn=listed)
class AsItIs(Pictures):
    """Samples as a list."""


@dataclass
class Example:
    image: Any
    label: int


@case(collate_fn=listed)
class Dataclasses(Pictures):
    def __getitem__(self, i: int) -> Any:
        return Example(self.transform(self.open(i)), i)


@case(batch_size=None)
class NoBatches(Pictures):
    """Samples one by one."""


class ScriptBatch:
    def __init__(self, samples: list[Any]):
        images, labels = zip(*samples, strict=True)
        self.images, self.labels = torch.stack(images), torch.tensor(labels)


@case(collate_fn=ScriptBatch)
class BatchesOfItsOwn(Pictures):
    pass


# ---- images


@case()
class Palettes(Pictures):
    def open(self, i: int) -> Image.Image:
        return super().open(i).quantize(64).convert("RGB")


@case()
class FilesOfPalettes(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        target = root / "palettes"
        target.mkdir(exist_ok=True)
        for path in self.paths:
            Image.open(path).quantize(64).save(target / path.name)
        self.paths = sorted(target.iterdir())


class OfMode(Pictures):
    mode = ""

    def __init__(self, root: Path):
        super().__init__(root)
        target = root / self.mode.replace(";", "")
        target.mkdir(exist_ok=True)
        for path in self.paths:
            image: Image.Image = Image.open(path)
            if self.mode == "I;16":
                image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 200)
            else:
                image = image.convert(self.mode)
            image.save(target / (path.stem + (".tif" if self.mode in ("CMYK", "F") else ".png")))
        self.paths = sorted(target.iterdir())

    def open(self, i: int) -> Image.Image:
        return Image.open(self.paths[i])


MODES = {
    "Gray": "L", "GrayWithAlpha": "LA", "Alpha": "RGBA", "Sixteen": "I;16", "Printed": "CMYK", "BlackAndWhite": "1",
    "Floats": "F",
}  # fmt: skip
for name, mode in MODES.items():
    globals()[name] = case()(type(name, (OfMode,), {"mode": mode, "__module__": __name__}))


@case(collate_fn=ragged)
class MixedModes(Pictures):
    """Some files are gray."""

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i])
        return self.transform(image.convert("L") if i % 5 == 2 else image), i


def to_rgb(image: Any) -> Any:
    return image if image.mode == "RGB" else image.convert("RGB")


@case()
class RareModes(Pictures):
    """Transforms see to it that all images have three channels; trials see none that has others."""

    def __init__(self, root: Path):
        super().__init__(root, T.Compose([T.Lambda(to_rgb), T.CenterCrop(20), T.ToTensor()]))

    def open(self, i: int) -> Image.Image:
        image = super().open(i)
        return image.convert({RARE: "RGBA", RARE + 3: "P", RARE + 6: "LA", RARE + 9: "L"}.get(i, "RGB"))


@case()
class ArraysOfArrays(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.of_class = np.array([np.arange(3), np.arange(5)], dtype=object)

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), len(self.of_class[i % 2])


@case()
class OpenedInAWith(Pictures):
    """As torchvision's ``pil_loader``."""

    def open(self, i: int) -> Image.Image:
        with self.paths[i].open("rb") as file:
            return Image.open(file).convert("RGB")


@case()
class FromBytes(Pictures):
    def open(self, i: int) -> Image.Image:
        return Image.open(io.BytesIO(self.paths[i].read_bytes())).convert("RGB")


@case()
class FromAZip(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.zip = root / "all.zip"
        with zipfile.ZipFile(self.zip, "w") as file:
            for path in self.paths:
                file.write(path, path.name)

    def open(self, i: int) -> Image.Image:
        with zipfile.ZipFile(self.zip) as file:
            return Image.open(io.BytesIO(file.read(self.paths[i].name))).convert("RGB")


@case()
class FromArrays(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        for i, path in enumerate(self.paths):
            np.save(path.with_suffix(".npy"), np.asarray(self.open(i)))

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.fromarray(np.load(self.paths[i].with_suffix(".npy")))), i


@case()
class Made(Pictures):
    """An image that comes from no file."""

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.new("RGB", (40, 30), (i, 2 * i, 9 * i))), i


@case()
class Turned(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        target = root / "turned"
        target.mkdir(exist_ok=True)
        for i in range(len(self)):
            exif = Image.Exif()
            exif[0x112] = 1 + i % 8
            self.open(i).save(target / f"{i:02}.jpg", exif=exif, quality=100, subsampling=0)
        self.paths = sorted(target.iterdir())


@case()
class ToPIL(Pictures):
    """An array by way of ``ToPILImage``."""

    def __init__(self, root: Path):
        super().__init__(root, T.Compose([T.ToPILImage(), T.Resize(24), T.CenterCrop(20), T.ToTensor()]))

    def __getitem__(self, i: int) -> Any:
        return self.transform(np.asarray(self.open(i))), i


# ---- datasets made of others


class Wrapped(Dataset[Any]):
    def __init__(self, ds: Any, transform: Any):
        self.ds, self.transform = ds, transform

    def __len__(self) -> int:
        return len(self.ds)

    def __getitem__(self, i: int) -> Any:
        image, label = self.ds[i]
        return self.transform(image), label + 100


def bare(root: Path) -> Any:
    return Pictures(root, T.Lambda(_as_it_is))


def _as_it_is(image: Any) -> Any:
    return image


@case()
def a_wrapper(Loader: Any, root: Path, **arguments: Any) -> Any:
    return list(Loader(Wrapped(bare(root), EVAL), BATCH, **arguments))


@case()
def a_wrapper_of_a_part(Loader: Any, root: Path, **arguments: Any) -> Any:
    one, other = random_split(bare(root), [16, 8], torch.Generator().manual_seed(1))
    parts = Wrapped(one, EVAL), Wrapped(other, T.Compose([T.CenterCrop(12), T.ToTensor()]))
    return [list(Loader(part, BATCH, **arguments)) for part in parts]


@case()
def parts_one_after_the_other(Loader: Any, root: Path, **arguments: Any) -> Any:
    other = Pictures(root, T.Compose([T.CenterCrop(20), T.RandomVerticalFlip(1.0), T.ToTensor()]))
    return list(Loader(ConcatDataset([Pictures(root), other, Subset(other, [5, 3, 5])]), 7, **arguments))


@case()
def a_part_of_a_part(Loader: Any, root: Path, **arguments: Any) -> Any:
    return list(Loader(Subset(Subset(Pictures(root), range(3, 20)), [9, 1, 1, -1]), 3, **arguments))


GLOBAL = T.Compose([T.Resize(24), T.CenterCrop(20), T.ToTensor()])


@case()
class TransformOfAGlobal(Pictures):
    def __getitem__(self, i: int) -> Any:
        return GLOBAL(self.open(i)), i


@case()
class TransformMadeEachTime(Pictures):
    def __getitem__(self, i: int) -> Any:
        transform = T.Compose([T.Resize(20 + i % 2), T.CenterCrop(20), T.ToTensor()])
        return transform(self.open(i)), i


@case()
class TransformsByName(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.transforms = {"train": EVAL, "other": T.Compose([T.CenterCrop(20), T.ToTensor()])}
        self.split = "train"

    def __getitem__(self, i: int) -> Any:
        return self.transforms[self.split](self.open(i)), i


@case()
class TransformByMethod(Pictures):
    def preprocess(self, image: Image.Image) -> Any:
        return T.functional.to_tensor(image.resize((20, 20), Image.Resampling.BILINEAR)) - 0.5

    def __getitem__(self, i: int) -> Any:
        return self.preprocess(self.open(i)), i


@case()
class TransformIsNone(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.transform = None

    def __getitem__(self, i: int) -> Any:
        image = self.open(i)
        return (np.asarray(image) if self.transform is None else self.transform(image)), i


@case()
def nothing_in_it(Loader: Any, root: Path, **arguments: Any) -> Any:
    dataset = Pictures(root)
    dataset.paths = []
    loader = Loader(dataset, BATCH, **arguments)
    return len(loader), list(loader)


@case()
class SmallAndLarge(Pictures):
    """As scripts of super-resolution: the small image is made of the large one's tensor."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.large = T.Compose([T.CenterCrop(20), T.ToTensor()])
        self.small = T.Compose([T.ToPILImage(), T.Resize(10), T.ToTensor()])

    def __getitem__(self, i: int) -> Any:
        large = self.large(self.open(i))
        return self.small(large), large


@case()
class ArrayToTensor(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, T.Compose([T.ToTensor(), T.CenterCrop(20)]))

    def __getitem__(self, i: int) -> Any:
        return self.transform(np.array(self.open(i))), i
