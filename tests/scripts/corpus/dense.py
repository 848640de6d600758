"""Segmentation, detection, landmarks, image translation: targets that belong to the image's geometry."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, RandomSampler, random_split
from torchvision import transforms, tv_tensors
from torchvision.transforms import functional as F, v2

from ..harness.script import Args, Epochs, script
from .common import IMAGENET_MEAN, IMAGENET_STD
from .kaggle import table


class ImagesAndMasks(Dataset[Any]):
    """Pairs of an image and its mask, transformed together."""

    def __init__(self, root: Any, joint: Any):
        self.names = [row["image_id"] for row in table(root / "train.csv")]
        self.root, self.joint = root, joint

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.root / "images" / f"{self.names[i]}.jpg").convert("RGB")
        mask = Image.open(self.root / "masks" / f"{self.names[i]}.png")
        return self.joint(image, mask)


@script(engine="torch")
def torchvision_segmentation(args: Args, DataLoader: Any) -> Epochs:
    """torchvision references/segmentation: joint transforms of image and mask, padded while collating."""

    def train(image: Any, mask: Any) -> tuple[Tensor, Tensor]:
        size = random.randint(20, 40)
        image = F.resize(image, size, antialias=True)
        mask = F.resize(mask, size, interpolation=F.InterpolationMode.NEAREST)
        if random.random() < 0.5:
            image, mask = F.hflip(image), F.hflip(mask)
        pad = [0, 0, max(0, 32 - image.width), max(0, 32 - image.height)]
        image, mask = F.pad(image, pad, fill=0), F.pad(mask, pad, fill=255)
        window = transforms.RandomCrop.get_params(image, (32, 32))
        return finish(F.crop(image, *window), F.crop(mask, *window))

    def finish(image: Any, mask: Any) -> tuple[Tensor, Tensor]:
        tensor = F.normalize(F.convert_image_dtype(F.pil_to_tensor(image), torch.float), IMAGENET_MEAN, IMAGENET_STD)
        return tensor, torch.as_tensor(np.array(mask), dtype=torch.int64)

    def cat_list(images: Any, fill: int) -> Tensor:
        size = tuple(max(s) for s in zip(*[img.shape for img in images], strict=True))
        batched = images[0].new(len(images), *size).fill_(fill)
        for img, pad_img in zip(images, batched, strict=True):
            pad_img[..., : img.shape[-2], : img.shape[-1]].copy_(img)
        return batched

    def collate_fn(batch: list[Any]) -> tuple[Tensor, Tensor]:
        images, targets = zip(*batch, strict=True)
        return cat_list(images, 0), cat_list(targets, 255)

    dataset = ImagesAndMasks(args.data, train)
    loader = DataLoader(
        dataset, batch_size=8, sampler=RandomSampler(dataset), num_workers=args.workers, collate_fn=collate_fn,
        drop_last=True,
    )  # fmt: skip
    yield from [loader] * args.epochs
    yield DataLoader(ImagesAndMasks(args.data, finish), batch_size=1, collate_fn=collate_fn)


@script(engine="torch")
def unet(args: Args, DataLoader: Any) -> Epochs:
    """milesial/Pytorch-UNet: a dict of image and mask, scaled by Pillow; one dict of arguments for both loaders."""

    class Carvana(Dataset[Any]):
        def __init__(self, root: Any):
            self.root, self.ids = root, sorted(path.stem for path in (root / "images").iterdir())

        def __len__(self) -> int:
            return len(self.ids)

        def __getitem__(self, idx: int) -> dict[str, Tensor]:
            name = self.ids[idx]
            image = (
                Image.open(self.root / "images" / f"{name}.jpg")
                .convert("RGB")
                .resize((32, 24), Image.Resampling.BICUBIC)
            )
            mask = Image.open(self.root / "masks" / f"{name}.png").resize((32, 24), Image.Resampling.NEAREST)
            pixels = np.asarray(image).transpose(2, 0, 1) / 255
            return {"image": torch.as_tensor(pixels.copy()).float(), "mask": torch.as_tensor(np.array(mask)).long()}

    dataset = Carvana(args.data)
    n_val = int(len(dataset) * 0.25)
    train, val = random_split(dataset, [len(dataset) - n_val, n_val], generator=torch.Generator().manual_seed(0))
    loader_args = {"batch_size": 5, "num_workers": args.workers, "pin_memory": True}
    train_loader = DataLoader(train, shuffle=True, **loader_args)
    val_loader = DataLoader(val, shuffle=False, drop_last=True, **loader_args)
    for _ in range(args.epochs):
        yield train_loader
    yield val_loader


@script(engine="dali")
def v2_segmentation(args: Args, DataLoader: Any) -> Epochs:
    """torchvision.transforms.v2 with tv_tensors: one pipeline for image and mask."""
    pipeline = v2.Compose(
        [
            v2.RandomResizedCrop((32, 32), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        ]
    )

    def joint(image: Any, mask: Any) -> Any:
        return pipeline(tv_tensors.Image(F.pil_to_tensor(image)), tv_tensors.Mask(F.pil_to_tensor(mask)))

    loader = DataLoader(ImagesAndMasks(args.data, joint), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


class Boxes(Dataset[Any]):
    def __init__(self, root: Any, train: bool):
        self.root, self.train = root, train
        self.annotations = json.loads((root / "boxes.json").read_text())
        self.names = sorted(self.annotations)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> tuple[Tensor, dict[str, Tensor]]:
        found = self.annotations[self.names[i]]
        image = F.to_tensor(Image.open(self.root / "images" / f"{self.names[i]}.jpg").convert("RGB"))
        boxes = torch.tensor(found["boxes"])
        if self.train and random.random() < 0.5:
            image = image.flip(-1)
            boxes[:, [0, 2]] = image.shape[-1] - boxes[:, [2, 0]]
        return image, {"boxes": boxes, "labels": torch.tensor(found["labels"]), "image_id": torch.tensor([i])}


def detection_collate(batch: list[Any]) -> Any:
    return tuple(zip(*batch, strict=True))


@script(engine="dali", workers=1)
def detection(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's detection tutorial: tuples of images of any size and of dicts."""
    loader = DataLoader(
        Boxes(args.data, train=True), batch_size=4, shuffle=True, num_workers=args.workers, collate_fn=detection_collate
    )
    yield from [loader] * args.epochs
    yield DataLoader(Boxes(args.data, train=False), batch_size=1, collate_fn=detection_collate)


@script(engine="torch", workers=1)
def yolo(args: Args, DataLoader: Any) -> Epochs:
    """ultralytics/yolov5: letterboxed arrays, a loader subclass that keeps its workers, targets with a batch index."""

    class Letterboxed(Boxes):
        def __getitem__(self, i: int) -> Any:
            found = self.annotations[self.names[i]]
            img = np.array(Image.open(self.root / "images" / f"{self.names[i]}.jpg").convert("RGB"))
            canvas = np.full((96, 96, 3), 114, np.uint8)
            canvas[: img.shape[0], : img.shape[1]] = img
            boxes = np.asarray(found["boxes"], np.float32)
            if self.train and random.random() < 0.5:
                canvas = np.fliplr(canvas)
                boxes[:, [0, 2]] = 96 - boxes[:, [2, 0]]
            labels = torch.zeros((len(boxes), 6))
            labels[:, 1] = torch.tensor(found["labels"])
            labels[:, 2:] = torch.from_numpy(boxes)
            return torch.from_numpy(np.ascontiguousarray(canvas.transpose(2, 0, 1))), labels, self.names[i]

        @staticmethod
        def collate_fn(batch: list[Any]) -> Any:
            im, label, path = zip(*batch, strict=True)
            for i, lb in enumerate(label):
                lb[:, 0] = i
            return torch.stack(im, 0), torch.cat(label, 0), path

    class RepeatedBatches(DataLoader):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any):
            super().__init__(*arguments, **named)
            object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Any:
            for _ in range(len(self)):
                yield next(self.iterator)

    class Forever:
        def __init__(self, sampler: Any):
            self.sampler = sampler

        def __iter__(self) -> Any:
            while True:
                yield from iter(self.sampler)

    dataset = Letterboxed(args.data, train=True)
    loader = RepeatedBatches(
        dataset, batch_size=4, shuffle=True, num_workers=args.workers, collate_fn=Letterboxed.collate_fn
    )
    for _ in range(args.epochs):
        yield [(images, paths) for images, _, paths in loader]


@script(engine="torch")
def landmarks(args: Args, DataLoader: Any) -> Epochs:
    """PyTorch's data loading tutorial: faces and their landmarks in a dict, rescaled and cropped by own classes."""

    class Landmarks(Dataset[Any]):
        def __init__(self, root: Any, transform: Any):
            self.rows, self.root, self.transform = table(root / "landmarks.csv"), root, transform

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, idx: int) -> Any:
            row = self.rows[idx]
            image = np.array(Image.open(self.root / "images" / row["file"]).convert("RGB"))
            points = np.array([float(v) for k, v in row.items() if k != "file"], dtype=float).reshape(-1, 2)
            return self.transform({"image": image, "landmarks": points})

    class RandomCrop:
        def __init__(self, size: int):
            self.size = size

        def __call__(self, sample: Any) -> Any:
            image, points = sample["image"], sample["landmarks"]
            top = np.random.randint(0, image.shape[0] - self.size + 1)
            left = np.random.randint(0, image.shape[1] - self.size + 1)
            image = image[top : top + self.size, left : left + self.size]
            return {"image": image, "landmarks": points - [left, top]}

    class ToTensor:
        def __call__(self, sample: Any) -> Any:
            image = sample["image"].transpose((2, 0, 1))
            return {"image": torch.from_numpy(image.copy()), "landmarks": torch.from_numpy(sample["landmarks"])}

    dataset = Landmarks(args.data, transforms.Compose([RandomCrop(40), ToTensor()]))
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="torch")
def pix2pix(args: Args, DataLoader: Any) -> Epochs:
    """junyanz/pytorch-CycleGAN-and-pix2pix: both halves of one file cropped and flipped alike, in a dict with paths."""

    class Aligned(Dataset[Any]):
        def __init__(self, root: Any):
            self.paths = sorted((root / "pairs" / "AB").iterdir())

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> dict[str, Any]:
            ab = Image.open(self.paths[index]).convert("RGB")
            x, y, flip = random.randint(0, 4), random.randint(0, 4), random.random() > 0.5
            steps: list[Any] = [transforms.Resize([36, 36], transforms.InterpolationMode.BICUBIC)]
            steps.append(transforms.Lambda(lambda img: img.crop((x, y, x + 32, y + 32))))
            if flip:
                steps.append(transforms.Lambda(lambda img: img.transpose(Image.Transpose.FLIP_LEFT_RIGHT)))
            steps += [transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
            transform = transforms.Compose(steps)
            w, h = ab.size
            a, b = ab.crop((0, 0, w // 2, h)), ab.crop((w // 2, 0, w, h))
            path = str(self.paths[index])
            return {"A": transform(a), "B": transform(b), "A_paths": path, "B_paths": path}

    loader = DataLoader(Aligned(args.data), batch_size=4, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
