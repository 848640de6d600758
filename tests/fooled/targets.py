"""Samples whose masks, boxes, keypoints and second images go through torchvision's transforms with the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from .base import Pictures, case

FLOAT = v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True)
PLAIN = v2.Compose([v2.Resize(24), v2.CenterCrop(20), v2.ToImage(), FLOAT])
RANDOM = v2.Compose([v2.RandomCrop(20), v2.RandomHorizontalFlip(), v2.ToImage(), FLOAT])
HEIGHT, WIDTH = 32, 36


def columns() -> Any:
    """A mask that says where a column was."""
    return tv_tensors.Mask(torch.arange(WIDTH, dtype=torch.uint8).repeat(HEIGHT, 1))


def boxes(count: int) -> Any:
    corners = torch.tensor([[2.0, 3, 30, 28], [0, 0, 6, 5], [12, 9, 20, 17]])[:count]
    return tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(HEIGHT, WIDTH))


def target(i: int) -> dict[str, Any]:
    found = {"boxes": boxes(i % 4), "labels": torch.arange(min(i % 4, 3)), "masks": columns()[None], "image_id": i}
    return found | {"keypoints": tv_tensors.KeyPoints([[3.0, 4], [20, 15]], canvas_size=(HEIGHT, WIDTH))}


def listed(samples: list[Any]) -> Any:
    return tuple(zip(*samples, strict=True))


def together(epochs: list[Any]) -> list[Any]:
    """Return whether images and masks show the same window, whether it differs between epochs, and the masks' types."""
    pairs = [
        (image, mask) for epoch in epochs for images, masks in epoch for image, mask in zip(images, masks, strict=True)
    ]
    apart = [(image[0] * 255 / 7 - mask).abs().max() for image, mask in pairs]
    places = [mask[0].tolist() for _, mask in pairs]
    half = len(places) // 2
    return [bool(max(apart) < 0.5), places[:half] != places[half:], {mask.dtype for _, mask in pairs}]


class Joint(Pictures):
    """Calls a transform with an image and something else."""

    def __init__(self, root: Path, transforms: Any = PLAIN):
        super().__init__(root, transforms)


@case(together)
class Segmentation(Joint):
    def __init__(self, root: Path):
        super().__init__(root, RANDOM)

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), columns())


@case(collate_fn=listed)
class DetectionTargets(Joint):
    """Boxes that leave the image and their labels go together; some samples have none."""

    def __init__(self, root: Path):
        small = v2.SanitizeBoundingBoxes(min_size=3)
        super().__init__(root, v2.Compose([*PLAIN.transforms, v2.ConvertBoundingBoxFormat("CXCYWH"), small]))

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), target(i))


@case(collate_fn=listed)
class OwnLabelsGetter(Joint):
    def __init__(self, root: Path):
        getter = v2.SanitizeBoundingBoxes(min_size=3, labels_getter=lambda sample: (sample[1]["labels"],))
        super().__init__(root, v2.Compose([v2.Resize((10, 12)), v2.ToImage(), getter, v2.ToPureTensor()]))

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), target(i))


@case(collate_fn=listed)
class LabelsGetterThatLooks(Joint):
    """It drops boxes by the image."""

    def __init__(self, root: Path):
        def getter(sample: Any) -> Any:
            return sample[1]["labels"] if sample[0].shape[-1] > 10 else None

        super().__init__(root, v2.Compose([*PLAIN.transforms, v2.SanitizeBoundingBoxes(labels_getter=getter)]))

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), target(i))


@case()
class OneDictionary(Joint):
    def __getitem__(self, i: int) -> Any:
        return self.transform({"label": i, "mask": columns(), "inputs": [self.open(i)], "name": str(i)})


@case()
class FillsByType(Joint):
    def __init__(self, root: Path):
        fill: Any = {tv_tensors.Image: 127, tv_tensors.Mask: 255, "others": 0}
        steps = [v2.ToImage(), v2.Pad(3, fill=fill), v2.RandomCrop((38, 42), fill=fill), FLOAT]
        super().__init__(root, v2.Compose([*steps, v2.CenterCrop(48)]))

    def __getitem__(self, i: int) -> Any:
        image, mask = self.transform(self.open(i), columns())
        return image, torch.unique(mask).numel(), mask.shape


@case()
class TwoImages(Joint):
    """An image and what it should become."""

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), self.open((i + 1) % len(self)))


@case(together)
class TwoImagesAtRandom(Joint):
    def __init__(self, root: Path):
        super().__init__(root, v2.Compose([*RANDOM.transforms[:-1], v2.ToDtype(torch.float32, scale=True)]))

    def __getitem__(self, i: int) -> Any:
        image, other = self.transform(self.open(i), self.open((i + 1) % len(self)))
        return image, (other[0] * 255 / 7).round().long()


@case()
class MasksAsImages(Joint):
    """torchvision resizes them as images."""

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), self.open(i).convert("L"))


@case()
class PalettesAsImages(Joint):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), self.open(i).quantize(16))


@case()
class TensorBeforeTheImage(Joint):
    """torchvision takes the first tensor for the image."""

    def __init__(self, root: Path):
        super().__init__(
            root, v2.Compose([v2.Resize(20), v2.CenterCrop(20), v2.PILToTensor(), v2.ToDtype(torch.float32)])
        )

    def __getitem__(self, i: int) -> Any:
        return self.transform(torch.tensor(i), self.open(i))


@case()
class TensorAfterTheImage(Joint):
    def __init__(self, root: Path):
        super().__init__(root, v2.Compose([v2.CenterCrop(20), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]))

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), torch.tensor([i, 300]), columns())


@case()
class ArraysThatBecomeImages(Joint):
    """``ToImage`` takes every array for one."""

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), {"weights": np.full((2, 2), i, np.float32)})


@case()
class MaskOfAnotherSize(Joint):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), tv_tensors.Mask(torch.zeros(8, 9)))


@case()
class MaskAlone(Joint):
    """The mask goes through a transform of its own."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.of_masks = v2.Compose([v2.Resize(24), v2.CenterCrop(20)])

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), self.of_masks(columns())


@case(together)
class ColoursFirst(Joint):
    """A transform of the image, and one of both."""

    def __init__(self, root: Path):
        super().__init__(root, RANDOM)
        self.colors = v2.ColorJitter(brightness=(0.99, 1.01))

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.colors(self.open(i)), columns())


@case(lambda epochs: [[images.shape[1:], masks.max() < WIDTH] for epoch in epochs for images, masks in epoch])
class DrawsByBoxes(Joint):
    def __init__(self, root: Path):
        super().__init__(root, v2.Compose([v2.RandomIoUCrop(), v2.Resize((20, 20)), v2.ToImage(), FLOAT]))

    def __getitem__(self, i: int) -> Any:
        image, mask, _ = self.transform(self.open(i), columns(), {"boxes": boxes(3)})
        return image, mask


@case(together)
class KeptMasks(Joint):
    """Masks that are kept in memory stay as they are."""

    def __init__(self, root: Path):
        super().__init__(root, RANDOM)
        self.masks = [columns() for _ in self.paths]

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), self.masks[i])


@case(together)
class OwnFunctionBetween(Joint):
    """A step of the script's own that takes both."""

    def __init__(self, root: Path):
        def mirrored(image: Any, mask: Any) -> Any:
            return v2.functional.hflip(image), v2.functional.hflip(mask)

        super().__init__(root, v2.Compose([mirrored, *RANDOM.transforms]))

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), columns())


@case(together)
class PadsIfSmaller(Joint):
    """A transform of its own, as torchvision's reference for segmentation has it."""

    class PadIfSmaller(v2.Transform):
        def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
            height, width = v2.functional.get_size(flat_inputs[0])
            return {"padding": [0, 0, max(0, 40 - width), max(0, 33 - height)]}

        def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
            return v2.functional.pad(inpt, params["padding"])

    def __init__(self, root: Path):
        super().__init__(root, v2.Compose([self.PadIfSmaller(), *RANDOM.transforms]))

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i), columns())
