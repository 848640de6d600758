"""The data that scripts read: a folder of tiny pictures in every arrangement that they expect.

Every picture has a label of its own wherever a dataset has labels, so that the label of a sample says which picture it
is. With ``copies=4`` every picture is there four times: enough samples for distributions, and still the same content.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from gpupipe.testing.photos import photograph

from . import layouts

__all__ = ["N_TRAIN", "N_VAL", "make_tree"]

U8 = npt.NDArray[np.uint8]

N_TRAIN = 36
N_VAL = 20
"""Pictures, before copies. Neither is a multiple of the scripts' batch of 8."""
SIZES = ((48, 64), (64, 48), (72, 96), (56, 56), (96, 72), (60, 80))
"""(height, width), in turn."""
VIDEOS, FRAMES = 8, 12


def make_tree(root: Path, copies: int = 1) -> Path:
    """Fill the folder ``root`` and return it. The same arguments write the same pixels."""
    train, val = [picture(i) for i in range(N_TRAIN)], [picture(1000 + i) for i in range(N_VAL)]
    _class_folders(root / "train", train, copies)
    _class_folders(root / "val", val, 1)
    _grouped(root)
    _flat(root, train, copies)
    _arrays(root, copies)
    _pairs(root / "pairs", train, copies)
    _frames(root, copies)
    _shards(root / "shards", train, copies)
    _blob(root, train, copies)
    layouts.write_all(root, train, val, copies)
    return root


@cache
def picture(seed: int, size: tuple[int, int] | None = None) -> U8:
    """u8[H, W, 3]: a photograph, red growing to the right and green downwards, so that a crop shows where it was.
    Read only.
    """
    height, width = size or SIZES[seed % len(SIZES)]
    ramp = np.zeros((height, width, 3))
    ramp[..., 0] = np.linspace(0, 255, width)[None, :]
    ramp[..., 1] = np.linspace(0, 255, height)[:, None]
    ramp[..., 2] = (seed * 37) % 256
    pixels = np.asarray(0.55 * photograph(height, width, seed) + 0.45 * ramp, np.uint8)
    pixels.setflags(write=False)
    return pixels


def jpeg(pixels: U8, seed: int) -> bytes:
    """Every second one halves the color resolution, every eleventh is gray."""
    image = Image.fromarray(pixels)
    if seed % 11 == 10:
        image = image.convert("L")
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90, subsampling="4:2:0" if seed % 2 else "4:4:4")
    return buffer.getvalue()


def png(pixels: U8) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _class_folders(root: Path, pictures: list[U8], copies: int) -> None:
    """ImageNet's arrangement: a folder per class, ``.JPEG`` files, and a ``.png`` here and there."""
    for i, pixels in enumerate(pictures):
        folder = root / f"n{i:08d}"
        name, content = ("img.png", png(pixels)) if i % 9 == 4 else ("img.JPEG", jpeg(pixels, i))
        first = write(folder / f"0_{name}", content)
        for copy in range(1, copies):
            os.link(first, folder / f"{copy}_{name}")


def _grouped(root: Path) -> None:
    """The same pictures in four classes of 12, 6, 6 and 12: for what counts by class."""
    for i in range(N_TRAIN):
        group = ("cat", "dog", "eel", "fox")[0 if i < 12 else 1 if i < 18 else 2 if i < 24 else 3]
        (root / "grouped" / group).mkdir(parents=True, exist_ok=True)
        for source in sorted((root / "train" / f"n{i:08d}").iterdir()):
            os.link(source, root / "grouped" / group / f"{i:03d}_{source.name}")


def _flat(root: Path, pictures: list[U8], copies: int) -> None:
    """A folder of files, tables that describe them, masks, boxes and landmarks."""
    rng = np.random.default_rng(5)
    rows, captions, boxes, landmarks = [], [], {}, []
    for i, pixels in enumerate(pictures):
        height, width = pixels.shape[:2]
        first = write(root / "images" / f"{i:04d}_0.jpg", jpeg(pixels, i))
        mask = np.zeros((height, width), np.uint8)
        mask[height // 4 : height // 2, width // 4 :] = 1 + i % 3
        mask[:2] = 255
        mask_file = write(root / "masks" / f"{i:04d}_0.png", png(mask))
        objects = rng.integers(1, 4)
        corners = rng.uniform(0, 0.5, (objects, 2)) * (width, height)
        sizes = rng.uniform(0.2, 0.5, (objects, 2)) * (width, height)
        box = np.round(np.concatenate([corners, corners + sizes], 1), 1).tolist()
        points = np.round(rng.uniform(0.2, 0.8, (4, 2)) * (width, height), 1)
        age, tags = float(np.round(rng.uniform(20, 60), 2)), " ".join(map(str, np.flatnonzero(rng.random(6) < 0.4)))
        for copy in range(copies):
            name = f"{i:04d}_{copy}"
            if copy:
                os.link(first, root / "images" / f"{name}.jpg")
                os.link(mask_file, root / "masks" / f"{name}.png")
            rows.append([name, i, f"class{i % 5}", age, tags, i % 4])
            captions.append([f"{name}.jpg", f"picture {i} of a {('cat', 'dog', 'eel', 'fox')[i % 4]}"])
            boxes[name] = {"boxes": box, "labels": rng.integers(1, 5, objects).tolist(), "size": [height, width]}
            landmarks.append([f"{name}.jpg", *points.reshape(-1).tolist()])
    _table(root / "train.csv", ["image_id", "label", "breed", "age", "tags", "fold"], rows)
    _table(root / "captions.csv", ["filepath", "title"], captions)
    _table(root / "landmarks.csv", ["file", *(f"{axis}{k}" for k in range(4) for axis in "xy")], landmarks)
    write(root / "boxes.json", json.dumps(boxes))
    write(root / "coco.json", json.dumps(_coco(boxes)))
    lines = [f"{row[0]}.jpg\t{row[1]}\n" for row in rows]
    write(root / "train_map.txt", "".join(lines))


def _coco(boxes: dict[str, Any]) -> dict[str, Any]:
    """The boxes as COCO has them, each with a polygon: a rhombus."""
    images, annotations = [], list[dict[str, Any]]()
    for i, (name, found) in enumerate(boxes.items()):
        height, width = found["size"]
        images.append({"id": i, "file_name": f"{name}.jpg", "height": height, "width": width})
        for (x1, y1, x2, y2), label in zip(found["boxes"], found["labels"], strict=True):
            x, y, w, h = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1
            shape = {"bbox": [x1, y1, w, h], "area": w * h / 2, "segmentation": [[x1, y, x, y1, x2, y, x, y2]]}
            number = {"id": len(annotations) + 1, "image_id": i, "category_id": label, "iscrowd": 0}
            annotations.append(number | shape)
    categories = [{"id": k, "name": f"kind {k}"} for k in range(1, 5)]
    return {"images": images, "annotations": annotations, "categories": categories}


def _table(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def _arrays(root: Path, copies: int) -> None:
    """One array of pictures of one size, and one of labels."""
    pixels = np.stack([picture(i, (32, 32)) for i in range(N_TRAIN)])
    np.save(root / "images.npy", np.repeat(pixels, copies, axis=0))
    np.save(root / "labels.npy", np.repeat(np.arange(N_TRAIN), copies))


def _pairs(root: Path, pictures: list[U8], copies: int) -> None:
    """What pix2pix reads: two pictures of one size side by side; and what CycleGAN reads: two unrelated folders."""
    for i in range(24):
        a, b = picture(i, (48, 48)), picture(i, (48, 48))[:, ::-1]
        first = write(root / "AB" / f"{i:03d}_0.png", png(np.ascontiguousarray(np.concatenate([a, 255 - b], axis=1))))
        for copy in range(1, copies):
            os.link(first, root / "AB" / f"{i:03d}_{copy}.png")
    for name, start in (("A", 0), ("B", 20)):
        for i in range(start, start + 16):
            write(root / name / f"{i:03d}.jpg", jpeg(pictures[i], 0))


def _frames(root: Path, copies: int) -> None:
    """Clips as folders of frames, and the list that names them."""
    lines = []
    for v in range(VIDEOS):
        still = picture(v, (60, 120))
        for t in range(FRAMES):
            frame = np.ascontiguousarray(still[:48, 4 * t : 4 * t + 64])
            write(root / "frames" / f"video{v}" / f"img_{t + 1:05d}.jpg", jpeg(frame, 0))
        lines += [f"video{v} {FRAMES} {v}\n"] * copies
    write(root / "frames.txt", "".join(lines))


def _shards(root: Path, pictures: list[U8], copies: int) -> None:
    """Three tar files of ``key.jpg`` and ``key.cls``, as WebDataset has them."""
    root.mkdir()
    for shard in range(3):
        with tarfile.open(root / f"{shard:06d}.tar", "w") as tar:
            for i in range(12 * shard, 12 * shard + 12):
                for copy in range(copies):
                    for suffix, content in (("jpg", jpeg(pictures[i], 0)), ("cls", str(i).encode())):
                        member = tarfile.TarInfo(f"{i:04d}{copy:02d}.{suffix}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))


def _blob(root: Path, pictures: list[U8], copies: int) -> None:
    """All encoded pictures in one file, with a list of where each lies: what LMDB and HDF5 are used for."""
    entries, offset = [], 0
    with open(root / "blob.bin", "wb") as file:
        for i, pixels in enumerate(pictures):
            content = jpeg(pixels, i)
            for _ in range(copies):
                file.write(content)
                entries.append([offset, len(content), i])
                offset += len(content)
    write(root / "blob.json", json.dumps(entries))
