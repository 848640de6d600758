"""Files that are damaged, and code that raises."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile, UnidentifiedImageError
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from .base import BATCH, EVAL, RARE, Pictures, case
from .structures import without_none


class Damaged(Pictures):
    """One file ends too early, one is empty, one is a text."""

    def __init__(self, root: Path):
        super().__init__(root)
        target = root / "damaged"
        target.mkdir(exist_ok=True)
        for i, path in enumerate(self.paths):
            content = path.read_bytes()
            bad = {RARE: content[: len(content) // 2], RARE + 6: b"", RARE + 8: b"no image"}
            (target / path.name).write_bytes(bad.get(i, content))
        self.paths = sorted(target.iterdir())


@case()
class NextInstead(Damaged):
    def __getitem__(self, i: int) -> Any:
        try:
            return super().__getitem__(i)
        except Exception:
            return self[(i + 1) % len(self)]


@case(collate_fn=without_none)
class NoneInstead(Damaged):
    def __getitem__(self, i: int) -> Any:
        try:
            return super().__getitem__(i)
        except (OSError, SyntaxError):
            return None


@case()
class BlackInstead(Damaged):
    def open(self, i: int) -> Image.Image:
        try:
            return super().open(i)
        except UnidentifiedImageError:
            return Image.new("RGB", (36, 32), (1, 1, 1))
        except OSError:
            return Image.new("RGB", (36, 32), (2, 2, 2))


@case()
class MarksThem(Damaged):
    def __getitem__(self, i: int) -> Any:
        try:
            x, ok = self.transform(self.open(i)), True
        except Exception:
            x, ok = torch.zeros(3, 20, 20), False
        return x, ok, i


@case()
class SaysWhatFailed(Damaged):
    def __getitem__(self, i: int) -> Any:
        try:
            return self.transform(self.open(i)), ""
        except Exception as e:
            return torch.zeros(3, 20, 20), type(e).__name__


@case()
class LoopsUntilOneWorks(Damaged):
    def __getitem__(self, i: int) -> Any:
        while True:
            try:
                return self.transform(self.open(i)), i
            except Exception:
                i = (i + 7) % len(self)


class Raises(Pictures):
    def __getitem__(self, i: int) -> Any:
        if i == RARE:
            raise ValueError(f"sample {i}")
        return super().__getitem__(i)


def as_far_as_it_goes(loader: Any) -> Any:
    """The batches, with the types of exceptions in the places of those that raised."""
    found, iterator = list[Any](), iter(loader)
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception:
            found.append("failed")


@case()
def a_sample_that_raises(Loader: Any, root: Path, **arguments: Any) -> Any:
    return as_far_as_it_goes(Loader(Raises(root), BATCH, **arguments))


@case()
def damage_that_nobody_catches(Loader: Any, root: Path, **arguments: Any) -> Any:
    return as_far_as_it_goes(Loader(Damaged(root), BATCH, **arguments))


def fails_at_four(samples: list[Any]) -> Any:
    if samples[0][1] == 4:
        raise RuntimeError("these samples do not fit")
    return torch.utils.data.default_collate(samples)


@case()
def a_collate_function_that_raises(Loader: Any, root: Path, **arguments: Any) -> Any:
    return as_far_as_it_goes(Loader(Pictures(root), BATCH, collate_fn=fails_at_four, **arguments))


class RaisesAtBlue:
    def __call__(self, image: Image.Image) -> Image.Image:
        if np.asarray(image)[0, 0, 2] == 10 * RARE:
            raise RuntimeError("too blue")
        return image


@case()
def a_transform_that_raises(Loader: Any, root: Path, **arguments: Any) -> Any:
    transform = T.Compose([RaisesAtBlue(), T.CenterCrop(20), T.ToTensor()])
    return as_far_as_it_goes(Loader(Pictures(root, transform), BATCH, **arguments))


@case()
def a_crop_that_is_too_large_for_one(Loader: Any, root: Path, **arguments: Any) -> Any:
    class Cut(Pictures):
        def open(self, i: int) -> Image.Image:
            image = super().open(i)
            return image.crop((0, 0, 16, 16)) if i == RARE else image

    if arguments.get("multiprocessing_context") == "spawn":
        return None  # a class of a function's does not pickle
    return as_far_as_it_goes(Loader(Cut(root, T.Compose([T.RandomCrop(20), T.ToTensor()])), 1, **arguments))[RARE]


@case()
class Warns(Pictures):
    def __getitem__(self, i: int) -> Any:
        warnings.warn("something", UserWarning, stacklevel=1)
        return super().__getitem__(i)


@case()
class EndsByIndexError(Pictures):
    def __getitem__(self, i: int) -> Any:
        if i >= len(self.paths):
            raise IndexError(i)
        return self.transform(self.open(i)), i

    def __len__(self) -> int:
        return len(self.paths) - 3


@case()
class AsksTheDisk(Pictures):
    """A file that is there only for some."""

    def __getitem__(self, i: int) -> Any:
        label = self.paths[i].with_suffix(".txt")
        if i % 9 == RARE:
            label.write_text(str(i))
        return self.transform(self.open(i)), (int(label.read_text()) if label.exists() else -1)


class RaisesWhenShown(T.CenterCrop):
    def __repr__(self) -> str:
        raise RuntimeError("cannot be shown")


@case()
def a_transform_that_cannot_be_shown(Loader: Any, root: Path, **arguments: Any) -> Any:
    return list(Loader(Pictures(root, T.Compose([RaisesWhenShown(20), T.ToTensor()])), BATCH, **arguments))


class CannotBeShown(Pictures):
    def __repr__(self) -> str:
        raise RuntimeError("cannot be shown")


@case()
def a_dataset_that_cannot_be_shown(Loader: Any, root: Path, **arguments: Any) -> Any:
    loader = Loader(CannotBeShown(root), BATCH, **arguments)
    repr(loader)
    return list(loader)


@case()
def scripted_transforms(Loader: Any, root: Path, **arguments: Any) -> Any:
    scripted = torch.jit.script(T.Normalize([0.5] * 3, [1.0] * 3))
    transform = T.Compose([T.CenterCrop(20), T.ToTensor(), scripted])
    return list(Loader(Pictures(root, transform), BATCH, **arguments))


@case()
def reads_truncated_files_later(Loader: Any, root: Path, **arguments: Any) -> Any:
    """The setting that scripts find when their first epoch has failed."""
    folder = root / "folder" / "a"
    folder.mkdir(parents=True, exist_ok=True)
    for path in root.glob("*.jpg"):
        Image.open(path).convert("RGB").save(folder / f"{path.stem}.jpg", quality=95)
    cut = folder / f"{RARE:02}.jpg"
    cut.write_bytes(cut.read_bytes()[:-200])
    loader = Loader(ImageFolder(str(folder.parent), EVAL), batch_size=BATCH, **arguments)
    try:
        seen: Any = list(loader)
    except Exception:
        seen = "it fails"
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        return [seen, list(loader)]
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
