"""Datasets of masks and boxes: folders, VOC and COCO, beside what torchvision reads."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.commands.inputs import open_samples
from gpupipe.errors import ConfigError, DatasetError, SampleError
from gpupipe.targets.segments import Segments

RNG = np.random.default_rng(0)
SIZES = [(40, 56), (30, 44), (52, 38), (48, 48), (33, 61), (45, 37)]


def write(folder: Path, names: list[str], *, suffix: str = ".png", palette: bool = False) -> dict[str, Any]:
    """Write a file of ids under every name."""
    made = {}
    for name, size in zip(names, SIZES, strict=True):
        path = folder / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        made[name] = RNG.integers(0, 21, size, np.uint8)
        image = Image.fromarray(made[name])
        if palette:
            image.putpalette(RNG.integers(0, 256, 768).astype(np.uint8).tobytes())
        image.save(path)
    return made


NAMES = [f"{town}/{k}" for town in ("a", "b") for k in range(3)]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Gray images whose pixels are the ids of their masks."""
    ids = write(tmp_path / "images", NAMES)
    for name, values in ids.items():
        path = tmp_path / "masks" / f"{name}_ids.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        mask = Image.fromarray(values)
        mask.putpalette(RNG.integers(0, 256, 768).astype(np.uint8).tobytes())
        mask.save(path)
    return tmp_path


STEPS = T.Compose([T.RandomCrop(30, pad_if_needed=True), T.Resize((20, 24), "nearest"), T.RandomHorizontalFlip()])


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_masks_of_folders_move_with_images(pairs: Path, engine: Any) -> None:
    made = datasets.SegmentationFolder(pairs / "images", pairs / "masks", STEPS, mask_suffix="_ids", nearest="center")
    assert len(made) == 6 and [Path(made.describe(i)).stem for i in range(3)] == ["0", "1", "2"]
    with DataLoader(made, 2, shuffle=True, seed=1, engine=engine, device="cpu") as loader:
        for _ in range(2):
            for images, masks in loader:
                assert masks.dtype == torch.uint8 and torch.equal(images[:, 0], masks)


def test_a_sample_has_its_columns(pairs: Path) -> None:
    made = datasets.SegmentationFolder(pairs / "images", pairs / "masks", STEPS, mask_suffix="_ids", nearest="center")
    image, mask = made[1]
    assert image.shape == (3, 20, 24) and torch.equal(image[0], mask)
    plain = datasets.SegmentationFolder(pairs / "images", pairs / "masks", mask_suffix="_ids", return_dict=True)
    found = datasets.Subset(plain, [2, 1])[0]
    assert list(found) == ["image", "mask"]
    assert np.array_equal(np.asarray(found["image"])[..., 0], found["mask"])
    (pairs / "masks" / "a" / "1_ids.png").write_bytes(b"not an image")
    with pytest.raises(SampleError, match=r"1_ids\.png"):
        made[1]


def test_a_sample_is_that_of_a_batch(tmp_path: Path) -> None:
    steps = T.Compose([T.Resize((20, 24)), T.RandomHorizontalFlip(1.0), T.ToTensor()])
    keys = ["image_id", "boxes", "labels"]
    made = datasets.CocoDetection(tmp_path, coco(tmp_path), steps, target_keys=keys)
    with DataLoader(made, 1, engine="torch", device="cpu") as loader:
        for i, batch in enumerate(loader):
            one = made[i]
            assert list(one) == list(batch)
            for name, value in one.items():
                value = torch.as_tensor(value)
                assert torch.equal(value, batch[name][0]) and value.dtype == batch[name][0].dtype, name


def test_a_split_names_the_samples(pairs: Path) -> None:
    (pairs / "val.txt").write_text("b/2\na/1\n")
    options: dict[str, Any] = {"mask_suffix": "_ids", "split": pairs / "val.txt", "return_dict": True}
    made = datasets.SegmentationFolder(pairs / "images", pairs / "masks", T.Resize((9, 9)), **options)
    batch = next(iter(DataLoader(made, 2, device="cpu")))
    assert sorted(batch) == ["image", "mask"] and batch["mask"].shape == (2, 9, 9)
    assert [made.sample_name(i) for i in range(2)] == ["b/2.png", "a/1.png"]
    other = datasets.SegmentationFolder(pairs / "images", pairs / "masks", **{**options, "split": None})
    assert other.fingerprint != made.fingerprint == pickle.loads(pickle.dumps(made)).fingerprint


def test_missing_and_doubled_files_are_named(pairs: Path) -> None:
    def folder(**options: Any) -> Any:
        return datasets.SegmentationFolder(pairs / "images", pairs / "masks", mask_suffix="_ids", **options)

    (pairs / "masks/a/0_ids.png").unlink()
    with pytest.raises(DatasetError, match=r"1 of 6 samples have no mask in .*, such as 'a/0'.* mask_suffix="):
        folder()
    Image.new("L", (9, 9)).save(pairs / "masks/b/0_ids.bmp")
    with pytest.raises(DatasetError, match="have one name"):
        folder()
    with pytest.raises(DatasetError, match=r"split=.* cannot be read"):
        datasets.SegmentationFolder(pairs / "images", pairs / "images", split=pairs / "no.txt")
    with pytest.raises(DatasetError, match="is not a folder"):
        datasets.SegmentationFolder(pairs / "no", pairs / "masks")
    (pairs / "masks/b/0_ids.bmp").unlink()
    with pytest.raises(DatasetError, match="has no images"):
        datasets.SegmentationFolder(pairs / "masks", pairs / "masks", image_suffix="none")


def test_voc_is_read_like_torchvision(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision.datasets")
    folder, names = tmp_path / "VOCdevkit/VOC2012", [str(k) for k in range(6)]
    write(folder / "JPEGImages", names, suffix=".jpg")
    write(folder / "SegmentationClass", names, palette=True)
    lists = folder / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("4\n1\n2\n")
    theirs = torchvision.VOCSegmentation(tmp_path, "2012", "train")
    ours = datasets.SegmentationFolder(
        folder / "JPEGImages", folder / "SegmentationClass", T.Pad(1), split=lists / "train.txt", fill=255
    )
    for (image, mask), (their_image, their_mask) in zip(
        DataLoader(ours, 1, engine="torch", device="cpu"), theirs, strict=True
    ):
        np.testing.assert_array_equal(mask[0, 1:-1, 1:-1], np.asarray(their_mask))
        assert (mask[0, 0] == 255).all()
        assert image.shape[2:] == (their_image.height + 2, their_image.width + 2)
    assert open_samples(tmp_path, frames=1, stride=1).fingerprint == ours.fingerprint


POLYGONS = [
    [[2.25, 3.5, 20.75, 4.0, 18.5, 22.25, 3.0, 19.0]],
    [[1.0, 1.0, 9.0, 1.0, 5.0, 12.0], [10, 10, 20, 10, 20, 15]],
]


def coco(folder: Path, *, runs: bool = True) -> Path:
    """Images of SIZES with up to two objects each, and one crowd; the fifth has none."""
    images, annotations = [], []
    for k, (height, width) in enumerate(SIZES):
        Image.fromarray(RNG.integers(0, 256, (height, width, 3), np.uint8)).save(folder / f"{k}.png")
        images.append({"id": 90 - k, "file_name": f"{k}.png", "height": height, "width": width})
        for j in range(0 if k == 4 else 2):
            ids = np.zeros((height, width), np.uint8)
            ids[3:9, 4:20] = 1
            flat = ids.T.reshape(-1)
            counts = np.diff(np.flatnonzero(np.diff(flat, prepend=2, append=2))).tolist()
            crowd = runs and j == 1
            annotations.append({
                "id": len(annotations), "image_id": 90 - k, "category_id": 3 + j + k, "iscrowd": int(crowd),
                "area": 12.5 * (j + 1), "bbox": [2.3 + j, 3.1, 18.7, 19.4],
                "segmentation": {"size": [height, width], "counts": [0, *counts] if flat[0] else counts}
                if crowd else POLYGONS[j],
            })  # fmt: skip
    file = folder / "instances.json"
    categories = [{"id": k, "name": f"kind {k}"} for k in range(12)]
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return file


KEYS = ("image_id", "boxes", "labels", "area", "iscrowd")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools
def test_coco_is_read_like_torchvision(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    torchvision = pytest.importorskip("torchvision.datasets")
    file = coco(tmp_path)
    theirs = torchvision.wrap_dataset_for_transforms_v2(
        torchvision.CocoDetection(tmp_path, file), target_keys=(*KEYS, "masks")
    )
    ours = datasets.CocoDetection(tmp_path, file, target_keys=(*KEYS, "masks"))
    assert len(ours) == len(theirs)
    for batch, (_, target) in zip(DataLoader(ours, 1, engine="torch", device="cpu"), theirs, strict=True):
        assert batch["image_id"].tolist() == [target["image_id"]]
        if "boxes" not in target:
            assert batch["boxes"][0].shape == (0, 4) and batch["masks"][0].shape[0] == 0
            continue
        assert torch.equal(batch["boxes"][0], target["boxes"].as_subclass(torch.Tensor))
        assert torch.equal(batch["masks"][0], target["masks"].as_subclass(torch.Tensor))
        assert torch.equal(batch["labels"][0], target["labels"])
        assert batch["iscrowd"][0].tolist() == target["iscrowd"] and batch["area"][0].tolist() == target["area"]


def test_coco_moves_everything_together(tmp_path: Path) -> None:
    steps = T.Compose([T.RandomHorizontalFlip(), T.RandomCrop(25), T.SanitizeBoundingBoxes(2)])
    made = datasets.CocoDetection(tmp_path, coco(tmp_path), steps, target_keys=KEYS)
    assert made.categories[3] == "kind 3" and made.ids == [85, 86, 87, 88, 89, 90]
    with DataLoader(made, 3, shuffle=True, seed=1, engine="torch", device="cpu") as loader:
        for batch in loader:
            assert sorted(batch) == sorted(["image", *KEYS])
            for boxes, labels, area in zip(batch["boxes"], batch["labels"], batch["area"], strict=True):
                assert boxes.shape == (len(labels), 4) and len(area) == len(labels)
                assert boxes.dtype == torch.float32 and labels.dtype == torch.int64
                assert ((boxes >= 0) & (boxes <= 25)).all()
    assert pickle.loads(pickle.dumps(made)).fingerprint == made.fingerprint


def test_run_lengths_need_no_library() -> None:
    segments = Segments.of([{"size": [2, 3], "counts": [1, 2, 3]}])
    np.testing.assert_array_equal(segments.mask(0, (2, 3)), [[0, 1, 0], [1, 0, 0]])


def test_segmentations_come_back_as_they_were() -> None:
    runs = {"size": [4, 3], "counts": "04L0"}
    odd = [[0.1, 1 / 3, 2, 3, 4, 5.123456]]
    for given in ([*POLYGONS, runs], [*POLYGONS, odd, []]):
        segments = Segments.of(given)
        assert [segments[i] for i in range(len(given))] == given
    assert Segments.of(POLYGONS)._numbers.dtype == np.int32 and Segments.of([odd])._numbers.dtype == np.float64


def test_what_is_not_coco_is_refused(tmp_path: Path) -> None:
    file = coco(tmp_path)
    with pytest.raises(ConfigError, match="target_keys must be some of image_id, boxes"):
        datasets.CocoDetection(tmp_path, file, target_keys=["bbox"])
    for text in (
        "{",
        "[]",
        '{"images": [{"id": 1}]}',
        '{"images": [{"id": 1, "file_name": "0.png"}], "annotations": [1]}',
    ):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(DatasetError, match=r"other.json' is not in COCO's format"):
            datasets.CocoDetection(tmp_path, tmp_path / "other.json")
    with pytest.raises(DatasetError, match=r"No such file or directory: .*no.json"):
        datasets.CocoDetection(tmp_path, tmp_path / "no.json")
