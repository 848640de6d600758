"""Folders as torchvision's dataset classes expect them after a download."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

__all__ = ["any_checksum", "write_all"]

U8 = npt.NDArray[np.uint8]
Pictures = list[U8]

_IMAGENETTE = ("n01440764", "n02102040", "n02979186", "n03000684", "n03028079", "n03394916")


@contextmanager
def any_checksum() -> Iterator[None]:
    """torchvision's datasets take files of any content: what is written here has other checksums than the download."""
    from torchvision import datasets
    from torchvision.datasets import imagenet, mnist, stl10, utils

    with pytest.MonkeyPatch.context() as patch:
        for module in (utils, datasets.cifar, datasets.celeba, imagenet, mnist, stl10):
            patch.setattr(module, "check_integrity", lambda path, md5=None: os.path.isfile(path))
        yield


def write_all(root: Path, train: Pictures, val: Pictures, copies: int) -> None:
    """Every dataset below, in ``root``; ``copies`` of every training picture."""
    _cifar(root, train, val, copies)
    _mnist(root, train, val, copies)
    _stl10(root, train, val, copies)
    _imagenet_meta(root, len(train))
    files = _Files(root, train, val, copies)
    files.food101()
    files.pets()
    files.gtsrb()
    files.aircraft()
    files.eurosat()
    files.celeba()
    files.dtd()
    files.inaturalist()
    files.imagenette()
    files.country211()
    files.voc()
    files.kitti()
    files.cityscapes()


class _Files:
    """Datasets of one file per picture. Each is written once; the others are links."""

    def __init__(self, root: Path, train: Pictures, val: Pictures, copies: int):
        self.root, self.copies = root, copies
        self.encoded = [(i, _jpeg(pixels)) for i, pixels in enumerate(train)]
        self.val = [(i, _jpeg(pixels)) for i, pixels in enumerate(val)]
        self._written: dict[tuple[int, bool], Path] = {}

    def _put(self, i: int, path: Path, *, val: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        first = self._written.get((i, val))
        if first is None:
            path.write_bytes((self.val if val else self.encoded)[i][1])
            self._written[i, val] = path
        else:
            os.link(first, path)

    def _train(self, most: int = 1000) -> Iterator[tuple[int, int]]:
        """(picture, copy) of every training file, or of the first ``most`` pictures."""
        return ((i, copy) for i in range(min(most, len(self.encoded))) for copy in range(self.copies))

    def food101(self) -> None:
        base = self.root / "food-101"
        train: dict[str, list[str]] = {}
        test: dict[str, list[str]] = {}
        for i, copy in self._train():
            name = f"dish{i:02d}/{i}{copy:03d}"
            train.setdefault(f"dish{i:02d}", []).append(name)
            self._put(i, base / "images" / f"{name}.jpg")
        for i in range(len(self.val)):
            test.setdefault(f"dish{i:02d}", []).append(f"dish{i:02d}/9{i}")
            self._put(i, base / "images" / f"dish{i:02d}" / f"9{i}.jpg", val=True)
        _text(base / "meta" / "train.json", json.dumps(train))
        _text(base / "meta" / "test.json", json.dumps(test))

    def pets(self) -> None:
        base = self.root / "oxford-iiit-pet"
        lines = []
        for i, copy in self._train():
            name = f"Breed{i:02d}_{copy}"
            self._put(i, base / "images" / f"{name}.jpg")
            lines.append(f"{name} {i + 1} {1 + i % 2} 1")
            trimap = Image.fromarray(1 + _regions(self.encoded[i][1], i) % 3)
            _saved(trimap, base / "annotations" / "trimaps" / f"{name}.png")
        _text(base / "annotations" / "trainval.txt", "\n".join(lines))

    def voc(self) -> None:
        """Palettes of classes, and boxes; the same names for both tasks."""
        base = self.root / "VOCdevkit" / "VOC2012"
        names = []
        for i, copy in self._train(16):
            name = f"2012_{i:03d}{copy:03d}"
            names.append(name)
            self._put(i, base / "JPEGImages" / f"{name}.jpg")
            regions = _regions(self.encoded[i][1], i)
            palette = Image.fromarray(regions)
            palette.putpalette([7 * k % 256 for k in range(768)])
            _saved(palette, base / "SegmentationClass" / f"{name}.png")
            height, width = regions.shape
            objects = "".join(
                f"<object><name>{kind}</name><bndbox><xmin>{x}</xmin><ymin>{y}</ymin><xmax>{x + 9 + i % 7}</xmax>"
                f"<ymax>{y + 12}</ymax></bndbox></object>"
                for kind, x, y in (("cat", 3 + i % 5, 4), ("person", width - 30, height - 20))
            )
            size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
            _text(base / "Annotations" / f"{name}.xml", f"<annotation>{size}{objects}</annotation>")
        for task in ("Main", "Segmentation"):
            _text(base / "ImageSets" / task / "train.txt", "\n".join(names))

    def kitti(self) -> None:
        base = self.root / "Kitti" / "raw" / "training"
        for i, copy in self._train(16):
            name = f"{i:03d}{copy:03d}"
            (base / "image_2").mkdir(parents=True, exist_ok=True)
            Image.open(io.BytesIO(self.encoded[i][1])).save(base / "image_2" / f"{name}.png")
            rows = [
                f"{kind} 0.00 0 1.5 {x}.25 3.00 {x + 20}.50 31.75 1.5 1.6 3.7 1.0 1.4 8.4 1.5"
                for kind, x in (("Car", 2 + i % 6), ("Cyclist", 15))
            ]
            _text(base / "label_2" / f"{name}.txt", "\n".join(rows) + "\n")

    def cityscapes(self) -> None:
        base = self.root / "cityscapes"
        for i, copy in self._train(16):
            name = f"aachen_{i:06d}_{copy:06d}"
            image = base / "leftImg8bit" / "train" / "aachen" / f"{name}_leftImg8bit.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            Image.open(io.BytesIO(self.encoded[i][1])).save(image)
            regions, fine = _regions(self.encoded[i][1], i), base / "gtFine" / "train" / "aachen"
            _saved(Image.fromarray(regions), fine / f"{name}_gtFine_labelIds.png")
            ids = Image.fromarray(regions.astype(np.int32) * 1000 + i)
            _saved(ids.convert("I;16"), fine / f"{name}_gtFine_instanceIds.png")

    def gtsrb(self) -> None:
        base = self.root / "gtsrb"
        for i, copy in self._train():
            folder = base / "GTSRB" / "Training" / f"{i:05d}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.open(io.BytesIO(self.encoded[i][1])).save(folder / f"{copy:05d}.ppm")
        rows = ["Filename;Width;Height;ClassId"]
        images = base / "GTSRB" / "Final_Test" / "Images"
        images.mkdir(parents=True)
        for i, content in self.val:
            Image.open(io.BytesIO(content)).save(images / f"{i:05d}.ppm")
            rows.append(f"{i:05d}.ppm;0;0;{i}")
        _text(base / "GT-final_test.csv", "\n".join(rows))

    def aircraft(self) -> None:
        data = self.root / "fgvc-aircraft-2013b" / "data"
        lines = []
        for i, copy in self._train():
            self._put(i, data / "images" / f"{i:04d}{copy:03d}.jpg")
            lines.append(f"{i:04d}{copy:03d} Plane {i:03d}")
        _text(data / "variants.txt", "\n".join(f"Plane {i:03d}" for i in range(len(self.encoded))))
        _text(data / "images_variant_trainval.txt", "\n".join(lines))

    def eurosat(self) -> None:
        for i, copy in self._train():
            self._put(i, self.root / "eurosat" / "2750" / f"Crop{i:02d}" / f"Crop_{copy}.jpg")

    def celeba(self) -> None:
        base = self.root / "celeba"
        parts, who, attributes = [], [], ["", "Smiling Young Male Bald Hat"]
        box, points = ["", "x_1 y_1 width height"], ["", "lefteye_x lefteye_y nose_x nose_y"]
        rng = np.random.default_rng(2)
        for i, copy in self._train():
            name = f"{i:04d}{copy:02d}.jpg"
            self._put(i, base / "img_align_celeba" / name)
            parts.append(f"{name} 0")
            who.append(f"{name} {i}")
            attributes.append(f"{name} {' '.join(map(str, rng.choice([-1, 1], 5)))}")
            box.append(f"{name} 1 2 30 40")
            points.append(f"{name} 10 10 20 20")
        for file, lines in (
            ("list_eval_partition.txt", parts), ("identity_CelebA.txt", who), ("list_attr_celeba.txt", attributes),
            ("list_bbox_celeba.txt", box), ("list_landmarks_align_celeba.txt", points),
        ):  # fmt: skip
            _text(base / file, "\n".join(lines))

    def dtd(self) -> None:
        base = self.root / "dtd" / "dtd"
        lines = []
        for i, copy in self._train():
            self._put(i, base / "images" / f"texture{i:02d}" / f"texture{i:02d}_{copy}.jpg")
            lines.append(f"texture{i:02d}/texture{i:02d}_{copy}.jpg")
        _text(base / "labels" / "train1.txt", "\n".join(lines))

    def inaturalist(self) -> None:
        for i, copy in self._train():
            name = f"{i:05d}_Animalia_Chordata_Class{i % 3}_Order{i % 6}_Family{i % 9}_Genus{i:02d}_species{i:02d}"
            self._put(i, self.root / "inat" / "2021_train_mini" / name / f"{copy}.jpg")

    def imagenette(self) -> None:
        base = self.root / "imagenette2-160"
        for i, copy in self._train():
            self._put(i, base / "train" / _IMAGENETTE[i % 6] / f"{i}_{copy}.JPEG")
        for i in range(len(self.val)):
            self._put(i, base / "val" / _IMAGENETTE[i % 6] / f"{i}.JPEG", val=True)

    def country211(self) -> None:
        for i, copy in self._train():
            self._put(i, self.root / "country211" / "train" / f"C{i:02d}" / f"{copy}.jpg")
        for i in range(len(self.val)):
            self._put(i, self.root / "country211" / "valid" / f"C{i:02d}" / "0.jpg", val=True)


def _cifar(root: Path, train: Pictures, val: Pictures, copies: int) -> None:
    """CIFAR-100 with a label per picture; CIFAR-10 with its ten."""
    many, few = [_square(p, 32) for p in train], [_square(p, 32) for p in val]

    def batch(pixels: Pictures, labels: list[int], key: str) -> dict[str, Any]:
        return {"data": np.stack(pixels).transpose(0, 3, 1, 2).reshape(len(pixels), -1), key: labels}

    labels = [i for i in range(len(many)) for _ in range(copies)]
    repeated = [many[i] for i in labels]
    base = root / "cifar-100-python"
    _pickle(base / "train", batch(repeated, labels, "fine_labels"))
    _pickle(base / "test", batch(few, list(range(len(few))), "fine_labels"))
    _pickle(base / "meta", {"fine_label_names": [f"class{i}" for i in range(100)]})
    base = root / "cifar-10-batches-py"
    for part in range(5):
        rows = range(part, len(repeated), 5)
        tens = [labels[r] % 10 for r in rows]
        _pickle(base / f"data_batch_{part + 1}", batch([repeated[r] for r in rows], tens, "labels"))
    _pickle(base / "test_batch", batch(few, [i % 10 for i in range(len(few))], "labels"))
    _pickle(base / "batches.meta", {"label_names": [f"class{i}" for i in range(10)]})


def _mnist(root: Path, train: Pictures, val: Pictures, copies: int) -> None:
    """MNIST and FashionMNIST: gray, 28 by 28, in idx files."""
    for name in ("MNIST", "FashionMNIST"):
        for prefix, pictures, times in (("train", train, copies), ("t10k", val, 1)):
            gray = np.stack([_square(p, 28)[..., 0] for p in pictures for _ in range(times)])
            labels = np.repeat(np.arange(len(pictures), dtype=np.uint8), times)
            base = root / name / "raw"
            base.mkdir(parents=True, exist_ok=True)
            (base / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, *gray.shape) + gray.tobytes())
            (base / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, len(labels)) + labels.tobytes())


def _stl10(root: Path, train: Pictures, val: Pictures, copies: int) -> None:
    base = root / "stl10_binary"
    base.mkdir()
    for part, pictures, times in (("train", train, 1), ("unlabeled", train, copies), ("test", val, 1)):
        pixels = np.stack([_square(p, 96) for p in pictures for _ in range(times)])
        (base / f"{part}_X.bin").write_bytes(pixels.transpose(0, 3, 2, 1).tobytes())  # columns first
        (base / f"{part}_y.bin").write_bytes(
            np.repeat(np.arange(1, len(pictures) + 1, dtype=np.uint8), times).tobytes()
        )
    _text(base / "class_names.txt", "\n".join(f"class{i}" for i in range(len(train))))
    _text(base / "fold_indices.txt", "\n".join(" ".join(map(str, range(k, len(train), 10))) for k in range(10)))


def _imagenet_meta(root: Path, classes: int) -> None:
    """What torchvision's ImageNet makes of the development kit, beside ``train/`` and ``val/``."""
    names = {f"n{i:08d}": (f"class {i}",) for i in range(classes)}
    torch.save((names, list(names)), root / "meta.bin")


def _square(pixels: U8, size: int) -> U8:
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR))


def _jpeg(pixels: U8) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def _regions(encoded: bytes, seed: int) -> U8:
    """Classes 0 to 3 in rectangles, as large as the picture."""
    width, height = Image.open(io.BytesIO(encoded)).size
    regions = np.zeros((height, width), np.uint8)
    regions[height // 4 : height // 2, width // 4 :] = 1 + seed % 3
    regions[2 * height // 3 :, seed % 7 : width // 2] = 3
    return regions


def _saved(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _pickle(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value))
