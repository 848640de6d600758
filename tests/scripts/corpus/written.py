"""Scripts that move an image and what belongs to it by their own code: torchvision's functions and Pillow's methods,
with numbers that they draw themselves."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor
from torchvision import transforms as T
from torchvision.transforms import functional as F, functional as TF
from torchvision.transforms.functional import hflip, normalize, to_tensor

from ..harness.script import Args, Engine, Epochs, script
from .common import IMAGENET_MEAN, IMAGENET_STD
from .dense import Boxes, ImagesAndMasks, detection_collate
from .targets import Files, in_lists

Resampling, Transpose = Image.Resampling, Image.Transpose
Pair = tuple[Any, Any]


def ids(mask: Any) -> Tensor:
    return torch.from_numpy(np.array(mask)).long()


# ---- classes of joint transforms


class Compose:
    def __init__(self, transforms: list[Any]):
        self.transforms = transforms

    def __call__(self, image: Any, target: Any) -> Pair:
        for t in self.transforms:
            image, target = t(image, target)
        return image, target


class RandomResize:
    def __init__(self, low: int, high: int):
        self.low, self.high = low, high

    def __call__(self, image: Any, target: Any) -> Pair:
        size = random.randint(self.low, self.high)
        return F.resize(image, size), F.resize(target, size, interpolation=T.InterpolationMode.NEAREST)


class RandomFlip:
    def __init__(self, flip: Callable[[Any], Any], p: float):
        self.flip, self.p = flip, p

    def __call__(self, image: Any, target: Any) -> Pair:
        if random.random() < self.p:
            image, target = self.flip(image), self.flip(target)
        return image, target


class RandomCrop:
    def __init__(self, size: int):
        self.size = size

    def padded(self, image: Any, fill: int) -> Any:
        right, below = max(0, self.size - image.width), max(0, self.size - image.height)
        return F.pad(image, [0, 0, right, below], fill=fill) if right or below else image

    def __call__(self, image: Any, target: Any) -> Pair:
        image, target = self.padded(image, 0), self.padded(target, 255)
        window = T.RandomCrop.get_params(image, (self.size, self.size))
        return F.crop(image, *window), F.crop(target, *window)


class ToTensor:
    def __call__(self, image: Any, target: Any) -> Pair:
        return F.to_tensor(image), torch.as_tensor(np.array(target), dtype=torch.int64)


class Normalize:
    def __call__(self, image: Any, target: Any) -> Pair:
        return F.normalize(image, mean=IMAGENET_MEAN, std=IMAGENET_STD), target


REFERENCE = Compose([RandomResize(24, 60), RandomFlip(F.hflip, 0.5), RandomCrop(40), ToTensor(), Normalize()])


class Named(ImagesAndMasks):
    def __getitem__(self, i: int) -> Any:
        return *super().__getitem__(i), i


# ---- a method of the dataset


class Synchronized(Files):
    """Pillow alone, until a transform that the dataset holds."""

    base, size = 48, 40

    def __init__(self, root: Any):
        super().__init__(root, T.Compose([T.ToTensor(), T.Normalize(IMAGENET_MEAN, IMAGENET_STD)]))

    def __getitem__(self, i: int) -> Any:
        image, mask = self.image(i), self.mask(i)
        if random.random() < 0.5:
            image, mask = image.transpose(Transpose.FLIP_LEFT_RIGHT), mask.transpose(Transpose.FLIP_LEFT_RIGHT)
        short = random.randint(self.base // 2, self.base * 2)
        scale = short / min(image.size)
        size = round(image.width * scale), round(image.height * scale)
        image, mask = image.resize(size, Resampling.BILINEAR), mask.resize(size, Resampling.NEAREST)
        if short < self.size:
            border = (0, 0, max(0, self.size - size[0]), max(0, self.size - size[1]))
            image, mask = ImageOps.expand(image, border, fill=0), ImageOps.expand(mask, border, fill=255)
        x, y = random.randint(0, image.width - self.size), random.randint(0, image.height - self.size)
        box = (x, y, x + self.size, y + self.size)
        image, mask = image.crop(box), mask.crop(box)
        if random.random() < 0.5:
            image = image.filter(ImageFilter.GaussianBlur(radius=random.random()))
        return self.transforms(np.array(image)), ids(mask), i


class Enhanced(Files):
    """A dictionary on its way through Pillow's enhancers, and a resize of everything before."""

    def __init__(self, root: Any):
        super().__init__(root, T.ToTensor())

    def __getitem__(self, i: int) -> Any:
        parts = {"im": self.image(i).resize((48, 48), Resampling.BICUBIC), "lb": self.mask(i).resize((48, 48), 0)}
        for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, ImageEnhance.Sharpness):
            parts["im"] = kind(parts["im"]).enhance(random.uniform(0.5, 1.5))
        if np.random.rand() > 0.5:
            parts = {key: ImageOps.mirror(part) for key, part in parts.items()}
        w, h = random.choice((0.8, 1.0, 1.25)), random.choice((0.9, 1.1))
        size = int(48 * w), int(48 * h)
        image, label = parts["im"].resize(size, Resampling.BILINEAR), parts["lb"].resize(size, Resampling.NEAREST)
        return self.transforms(ImageOps.fit(image, (40, 40))), ids(label.crop((0, 0, 32, 32))), i


class Rotated(Files):
    """Rotations and quarter turns, with a fill color for the image."""

    def __getitem__(self, i: int) -> Any:
        image, mask = self.image(i), self.mask(i)
        image, mask = F.center_crop(image, [40, 40]), F.center_crop(mask, [40, 40])
        angle = random.uniform(-25, 25)
        image = F.rotate(image, angle, T.InterpolationMode.BILINEAR, fill=[124, 116, 104])
        mask = F.rotate(mask, angle, fill=255)
        if random.random() < 0.5:
            quarter = random.choice((Transpose.ROTATE_90, Transpose.ROTATE_180, Transpose.ROTATE_270))
            image, mask = image.transpose(quarter), mask.transpose(quarter)
        return F.to_tensor(image), ids(mask), i


class Binary(Files):
    """A mask of its own colors, which has a transform of its own and is compared with a threshold."""

    def __init__(self, root: Any):
        super().__init__(root, T.Compose([T.Resize((32, 32)), T.ToTensor(), T.Normalize(IMAGENET_MEAN, IMAGENET_STD)]))
        self.of_masks = T.Compose([T.Resize((32, 32)), T.ToTensor()])

    def __getitem__(self, i: int) -> Any:
        image, mask = self.image(i), self.mask(i).convert("L")
        if random.random() < 0.5:
            image, mask = TF.vflip(image), TF.vflip(mask)
        return {"image": self.transforms(image), "mask": self.of_masks(mask), "edge": ids(mask).max(), "name": i}


class Restored(Files):
    """A pair for restoration: tensors of both, then one window of both, flipped and turned."""

    def __getitem__(self, i: int) -> Any:
        clean, noisy = self.image(i), Image.open(self.root / "images" / f"{self.names[i - 1]}.jpg").convert("RGB")
        clean, noisy = clean.resize((48, 40), Resampling.BICUBIC), noisy.resize((48, 40), Resampling.BICUBIC)
        clean, noisy = TF.to_tensor(clean), TF.to_tensor(noisy)
        top, left = random.randint(0, 8), random.randint(0, 16)
        clean, noisy = clean[:, top : top + 32, left : left + 32], noisy[:, top : top + 32, left : left + 32]
        if random.random() < 0.5:
            clean, noisy = clean.flip(2), torch.flip(noisy, [2])
        turns = random.randint(-1, 3)
        clean, noisy = torch.rot90(clean, turns, dims=(1, 2)), noisy.rot90(-turns, (-1, -2))
        return clean, noisy, i


class Halves(Files):
    """pix2pix: two halves of one picture, resized and cropped by numbers that were drawn once."""

    def half(self, image: Any, x: int, y: int, flip: bool) -> Tensor:
        image = image.resize((36, 36), Resampling.BICUBIC).crop((x, y, x + 32, y + 32))
        return F.normalize(F.to_tensor(ImageOps.mirror(image) if flip else image), [0.5] * 3, [0.5] * 3)

    def __getitem__(self, i: int) -> Any:
        both = self.image(i)
        x, y, flip = random.randint(0, 4), random.randint(0, 4), random.random() > 0.5
        halves = both.crop((0, 0, both.width // 2, both.height)), both.crop((both.width // 2, 0, *both.size))
        return {"A": self.half(halves[0], x, y, flip), "B": self.half(halves[1], x, y, flip), "path": str(i)}


class Detected(Boxes):
    """DETR's transforms: flips, one of two ways to a size, and boxes in arithmetic."""

    def __getitem__(self, i: int) -> Any:
        found = self.annotations[self.names[i]]
        image = Image.open(self.root / "images" / f"{self.names[i]}.jpg").convert("RGB")
        boxes = torch.tensor(found["boxes"], dtype=torch.float32)
        if self.train and random.random() < 0.5:
            mirror, start = torch.tensor([-1, 1, -1, 1]), torch.tensor([image.width, 0, image.width, 0])
            image, boxes = F.hflip(image), boxes[:, [2, 1, 0, 3]] * mirror + start
        if self.train and random.random() < 0.5:
            image, boxes = self.resized(image, boxes, random.choice((40, 50)))
            top, left, h, w = T.RandomCrop.get_params(image, (random.randint(24, 32), random.randint(24, 32)))
            boxes = (boxes - torch.tensor([left, top, left, top])).reshape(-1, 2, 2)
            boxes = torch.min(boxes, torch.tensor([w, h], dtype=torch.float32)).clamp(min=0).reshape(-1, 4)
            image = F.crop(image, top, left, h, w)
        image, boxes = self.resized(image, boxes, random.choice((32, 40, 48)) if self.train else 40)
        image = F.normalize(F.to_tensor(image), IMAGENET_MEAN, IMAGENET_STD)
        return image, {"boxes": boxes / image.shape[-1], "image_id": i, "size": torch.tensor(image.shape[-2:])}

    def resized(self, image: Any, boxes: Tensor, size: int) -> tuple[Any, Tensor]:
        made = F.resize(image, size)
        ratio = torch.tensor([a / b for a, b in zip(made.size, image.size, strict=True)])
        return made, boxes * ratio.repeat(2)


class BuiltEachTime(Files):
    """Transforms that `__getitem__` makes for one sample, with sizes that it has drawn."""

    def __getitem__(self, i: int) -> Any:
        image, mask = self.image(i), self.mask(i)
        size = random.randint(40, 48)
        angle = random.choice((0, 90, 180, 270))
        both = T.Compose([T.Resize((size, size)), T.RandomRotation((angle, angle)), T.CenterCrop((32, 32))])
        finish = T.Compose([T.ToTensor(), T.Normalize(IMAGENET_MEAN, IMAGENET_STD)])
        return finish(both(image)), ids(both(mask)), i


class Slices(Files):
    """Gray images with gray masks, tensors of both."""

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.root / "images" / f"{self.names[i]}.jpg").convert("L")
        mask = self.mask(i).convert("L")
        image, mask = image.resize((40, 40)), mask.resize((40, 40), Resampling.NEAREST)
        if random.random() < 0.5:
            image, mask = ImageOps.flip(image), ImageOps.flip(mask)
        return F.to_tensor(image), (F.to_tensor(mask) > 0.5).float(), i


class Strong(Files):
    """Transforms that the dataset holds, each by a draw of its own."""

    def __init__(self, root: Any):
        super().__init__(root, T.Compose([T.ToTensor(), T.Normalize(IMAGENET_MEAN, IMAGENET_STD)]))
        self.jitter, self.gray = T.ColorJitter(0.4, 0.4, 0.4), T.RandomGrayscale(1.0)
        self.blur = T.GaussianBlur(3)

    def __getitem__(self, i: int) -> Any:
        image, mask = self.image(i).resize((40, 40)), self.mask(i).resize((40, 40), Resampling.NEAREST)
        for transform in (self.jitter, self.gray, self.blur):
            if random.random() < 0.5:
                image = transform(image)
        if random.random() < 0.5:
            image, mask = F.hflip(image), F.hflip(mask)
        return self.transforms(image), ids(mask), i


class Cut(Files):
    """An image and its mask, resized, flipped and cut by Pillow. Subclasses say what becomes of the image."""

    def __init__(self, root: Any):
        super().__init__(root, None)

    def finish(self, image: Any) -> Any:
        raise NotImplementedError

    def __getitem__(self, i: int) -> Any:
        image, mask = self.image(i).resize((40, 40), Resampling.BILINEAR), self.mask(i).resize((40, 40), 0)
        if random.random() < 0.5:
            image, mask = image.transpose(Transpose.FLIP_LEFT_RIGHT), mask.transpose(Transpose.FLIP_LEFT_RIGHT)
        x, y = random.randint(0, 8), random.randint(0, 8)
        image, mask = image.crop((x, y, x + 32, y + 32)), mask.crop((x, y, x + 32, y + 32))
        return self.finish(image), torch.from_numpy((np.array(mask) > 0).astype(np.int64)), i


class Subtracted(Cut):
    """DeepLab in many repositories: means and deviations of numpy, in place, then torch."""

    def finish(self, image: Any) -> Any:
        image = np.array(image).astype(np.float32)
        image /= 255.0
        image -= IMAGENET_MEAN
        image /= IMAGENET_STD
        return torch.from_numpy(np.array(image).transpose((2, 0, 1))).float()


class Divided(Cut):
    """Floats of 64 bits in between, and an array that is made contiguous."""

    def finish(self, image: Any) -> Any:
        image = (np.asarray(image) / 255.0 - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
        return torch.from_numpy(np.ascontiguousarray(np.transpose(image, (2, 0, 1)))).to(torch.float32)


class BlueFirst(Cut):
    """Channels as Caffe has them."""

    def finish(self, image: Any) -> Any:
        image = np.array(image, dtype=np.uint8)[:, :, ::-1].astype(np.float64)
        image -= np.array([104.00698793, 116.66876762, 122.67891434])
        image /= 255.0
        return torch.from_numpy(image.transpose(2, 0, 1)).float()


class Whole(BlueFirst):
    """Images of any size, which it only decodes."""

    def __getitem__(self, i: int) -> Any:
        return self.finish(self.image(i)), torch.from_numpy(np.array(self.mask(i), dtype=np.int32)).long(), i


class ByName(Cut):
    """Functions of torchvision that the module imported by name."""

    def finish(self, image: Any) -> Any:
        return normalize(to_tensor(hflip(image)), IMAGENET_MEAN, IMAGENET_STD)


ONE_LOADER: list[tuple[str, Engine, Callable[[Any], Any], str]] = [
    ("synchronized", "torch", Synchronized,
     "Tramac's and the GluonCV style: `_sync_transform` in Pillow, an array, then ToTensor and Normalize."),
    ("enhanced", "torch", Enhanced,
     "zllrunning/face-parsing: a dictionary of image and label, Pillow's enhancers, random scales."),
    ("rotated", "dali", partial(Rotated, transforms=None),
     "Aerial images: rotations of image and mask by the same angle."),
    ("binary", "dali", Binary, "PraNet: the mask has a pipeline of its own; flips for both by hand."),
    ("restored", "dali", partial(Restored, transforms=None),
     "MPRNet and Restormer: a window of two tensors, and flips."),
    ("halves", "dali", partial(Halves, transforms=None),
     "pix2pix's aligned dataset: parameters drawn once, both halves by the same."),
    ("built_each_time", "dali", partial(BuiltEachTime, transforms=None),
     "LeeJunHyun/Image_Segmentation: transforms made within `__getitem__`."),
    ("means_in_numpy", "torch", Subtracted,
     "pytorch-deeplab-xception and its many copies: classes Normalize and ToTensor that calculate with numpy."),
    ("doubles_in_numpy", "torch", Divided, "Arithmetic of numpy in one line, whose 64 bits end as 32."),
    ("functions_by_name", "dali", ByName,
     "``from torchvision.transforms.functional import hflip, normalize, to_tensor``."),
    ("slices", "dali", partial(Slices, transforms=None), "Medical slices: gray images, and masks with a threshold."),
    ("strong", "dali", Strong,
     "UniMatch and other semi-supervised segmentation: strong augmentations by chance, flips for both."),
]  # fmt: skip
"""Scripts with one loader over a dataset that draws by itself: name, engine, dataset and habits."""


def epochs(dataset: Callable[[Any], Any], args: Args, DataLoader: Any, **options: Any) -> Epochs:
    loader = DataLoader(
        dataset(args.data), **{"batch_size": 8, "shuffle": True, "num_workers": args.workers, **options}
    )
    yield from [loader] * args.epochs


for name, engine, dataset, habits in ONE_LOADER:
    run = partial(epochs, dataset)
    vars(run).update(__name__=name, __doc__=habits, __module__=__name__)
    script(engine=engine)(run)


@script(engine="dali", workers=1)
def reference_v1(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's segmentation reference before v2: classes of joint transforms."""
    yield from epochs(lambda root: Named(root, REFERENCE), args, DataLoader)


@script(engine="dali")
def detr(args: Args, DataLoader: Any) -> Epochs:
    """DETR: images of many sizes in lists, boxes relative to them."""
    yield from epochs(lambda root: Detected(root, train=True), args, DataLoader, collate_fn=in_lists)
    yield DataLoader(Detected(args.data, train=False), batch_size=2, collate_fn=detection_collate)


@script(engine="torch")
def means_of_caffe(args: Args, DataLoader: Any) -> Epochs:
    """pytorch-fcn: single images of any size, blue first, minus the means of Caffe."""
    yield from epochs(Whole, args, DataLoader, batch_size=1)
