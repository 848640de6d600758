"""Masks, boxes, keypoints and filters of objects in loaders: they move with their image on every engine."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gpupipe import DataLoader, datasets, targets, transforms as T
from gpupipe.engines.null import Null
from gpupipe.errors import ConfigError, DatasetError, PipelineError, SampleError
from gpupipe.kernels.moving import Moves
from gpupipe.types import Plan

F = pytest.importorskip("torchvision.transforms.v2.functional")

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 40, 56, 3), np.uint8)
GEOMETRY = T.Compose([T.RandomCrop(30), T.Resize((20, 24), "nearest"), T.RandomHorizontalFlip()])
BOXES = [RNG.uniform(0, 40, (n, 4)).astype(np.float32) for n in (3, 0, 1, 2, 5, 1, 0, 2, 4, 1, 1, 2)]
for _boxes in BOXES:
    _boxes[:, 2:] = _boxes[:, :2] + 5


def photos(transform: Any = GEOMETRY, **columns: Any) -> datasets.Columns:
    return datasets.Columns(datasets.Arrays(IMAGES, transform=transform), columns, return_dict=True)


def batches(dataset: Any, engine: Any = "torch", **options: Any) -> list[Any]:
    with DataLoader(dataset, 4, shuffle=True, seed=1, engine=engine, device="cpu", **options) as loader:
        return list(loader)


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize("workers", [0, 2])
def test_masks_show_what_images_show(engine: str, workers: int) -> None:
    dataset = photos(mask=targets.Masks(IMAGES[..., 0], nearest="center"))
    for batch in batches(dataset, engine, num_workers=workers):
        assert torch.equal(batch["image"][:, 0], batch["mask"])


def test_boxes_and_keypoints_follow_the_plan() -> None:
    points = [boxes.reshape(-1, 2, 2) for boxes in BOXES]
    seen = [np.concatenate([p, np.full((*p.shape[:2], 1), 2, np.float32)], axis=2) for p in points]
    dataset = photos(boxes=targets.Boxes(BOXES), points=targets.Keypoints(seen))
    for batch in batches(dataset, Null()):
        plan: Plan = batch["image"]
        assert plan.ops is not None and isinstance(batch["boxes"], list)
        for row, index in enumerate(plan.indices):
            moves = Moves.of(plan.ops, row, (40, 56))
            np.testing.assert_array_equal(batch["boxes"][row], moves.boxes(BOXES[index]))
            np.testing.assert_array_equal(batch["points"][row][..., :2], moves.keypoints(points[index]))
            assert (batch["points"][row][..., 2] == 2).all()


def test_a_filter_removes_rows_of_all_columns_of_objects() -> None:
    number = [np.arange(len(boxes)) + 100 * k for k, boxes in enumerate(BOXES)]
    steps = T.Compose([*GEOMETRY, T.SanitizeBoundingBoxes(min_size=2), T.ConvertBoundingBoxFormat("CXCYWH")])
    dataset = photos(steps, boxes=targets.Boxes(BOXES), number=targets.ObjectNumbers(number), weight=np.arange(12.0))
    removed = 0
    for batch in batches(dataset, Null()):
        plan: Plan = batch["image"]
        assert batch["weight"].tolist() == plan.indices.tolist()
        for row, index in enumerate(plan.indices):
            moved = Moves.of(plan.ops or (), row, (40, 56)).boxes(BOXES[index])
            kept, valid = F.sanitize_bounding_boxes(torch.from_numpy(moved), "XYXY", (20, 24), 2.0)
            theirs = F.convert_bounding_box_format(kept, "XYXY", "CXCYWH")
            assert torch.equal(batch["boxes"][row], theirs)
            assert batch["number"][row].tolist() == number[index][valid.numpy()].tolist()
            removed += int((~valid).sum())
    assert removed


def test_targets_are_made_ahead_in_threads() -> None:
    names = set()

    class Named(targets.Masks):
        def follow(self, values: Any, moves: Any) -> Any:
            names.add(threading.current_thread().name)
            return super().follow(values, moves)

    batches(photos(mask=Named(IMAGES[..., 0])))
    assert names and all(name.startswith("gpupipe-targets") for name in names)


def test_subsets_and_collate_functions_get_targets() -> None:
    dataset = photos(mask=targets.Masks(IMAGES[..., 0], nearest="center"), boxes=targets.Boxes(BOXES))
    subset = datasets.Subset(dataset, [7, 3, 5, 1])

    def together(samples: list[Any]) -> Any:
        return [(sample["image"], sample["mask"], sample["boxes"]) for sample in samples]

    for batch in batches(subset, collate_fn=together):
        for image, mask, boxes in batch:
            assert torch.equal(image[0], mask) and boxes.shape[1] == 4


def test_a_mask_that_cannot_be_read_is_a_bad_sample(tmp_path: Path) -> None:
    paths = []
    for k, image in enumerate(IMAGES):
        paths.append(str(tmp_path / f"{k}.png"))
        Image.fromarray(image[..., 0] if k != 3 else image[:9, :9, 0]).save(paths[-1])
    Path(paths[5]).write_bytes(b"no image")
    dataset = photos(mask=targets.Masks(paths, nearest="center"))
    with DataLoader(dataset, 4, engine="torch", device="cpu", on_error="skip") as loader:
        seen = 0
        for batch in loader:
            assert torch.equal(batch["image"][:, 0], batch["mask"])
            seen += len(batch["mask"])
        found = {sample.index: (sample.kind, sample.reason) for sample in loader.report().samples}
    assert seen == 10
    assert found[3] == ("mask", f"mask {paths[3]} has 9x9 pixels, and the image 40x56")
    assert found[5][0] == "undecodable" and paths[5] in found[5][1]
    with pytest.raises(SampleError, match="9x9 pixels"):
        batches(dataset)


@pytest.mark.parametrize("mode", ["P", "L", "1", "I;16", "I", "RGB"])
def test_modes_of_mask_files(tmp_path: Path, mode: str) -> None:
    dtype = torch.int32 if mode in ("I;16", "I", "RGB") else torch.uint8
    ids = RNG.integers(0, 2 if mode == "1" else 200 if dtype == torch.uint8 else 40_000, (12, 40, 56))
    paths = []
    for k, values in enumerate(ids):
        paths.append(tmp_path / f"{k}.tif")
        if mode == "RGB":
            parts = [values % 256, values // 256, values * 0]
            image = Image.fromarray(np.stack(parts, axis=-1).astype(np.uint8))
        elif mode in ("I;16", "I"):
            image = Image.fromarray(values.astype(np.uint16 if mode == "I;16" else np.int32))
        else:
            image = Image.fromarray(values.astype(np.uint8) * (255 if mode == "1" else 1)).convert("L")
            if mode == "P":
                image = Image.fromarray(values.astype(np.uint8), "L")
                image.putpalette(RNG.integers(0, 256, 768).astype(np.uint8).tobytes())
            elif mode == "1":
                image = image.convert("1")
        image.save(paths[-1])
    masks = targets.Masks(paths, rgb_ids=mode == "RGB")
    moved = masks.collate(masks.follow(masks.of(np.arange(12)), [Moves([], 0, (40, 56), 0)] * 12))
    assert torch.from_numpy(moved).dtype == dtype  # type: ignore[arg-type]
    np.testing.assert_array_equal(moved, ids)


def test_colors_are_no_ids_unless_asked_for(tmp_path: Path) -> None:
    Image.fromarray(IMAGES[0]).save(tmp_path / "a.png")
    for rgb_ids, mode in ((False, "RGB"), (True, "L")):
        Image.open(tmp_path / "a.png").convert(mode).save(tmp_path / "b.png")
        masks = targets.Masks([tmp_path / "b.png"], rgb_ids=rgb_ids)
        (made,) = masks.follow(masks.of(np.array([0])), [Moves([], 0, (40, 56), 0)])
        assert made.kind == "mask" and mode in made.reason


def test_ids_outside_the_image_and_data_types() -> None:
    dataset = photos(T.Compose([T.Pad(2)]), mask=targets.Masks(IMAGES[..., 0], fill=-100, dtype="int64"))
    for batch in batches(dataset):
        assert batch["mask"].dtype == torch.int64 and (batch["mask"][:, 0] == -100).all()


@pytest.mark.parametrize(("steps", "columns", "error", "message"), [
    ([lambda image: image], {"mask": targets.Masks(IMAGES[..., 0])}, PipelineError, "the columns 'mask' cannot follow"),
    ([T.MultiView(T.CenterCrop(9), 2)], {"mask": targets.Masks(IMAGES[..., 0])}, PipelineError, "several views"),
    ([T.SanitizeBoundingBoxes()], {"mask": targets.Masks(IMAGES[..., 0])}, ConfigError, "needs boxes"),
])  # fmt: skip
def test_what_targets_cannot_follow_is_refused(steps: Any, columns: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        DataLoader(photos(steps, **columns), 2, device="cpu")


def test_pixels_must_not_move_after_a_filter() -> None:
    with pytest.raises(PipelineError, match="moves pixels, but SanitizeBoundingBoxes"):
        T.Compose([T.SanitizeBoundingBoxes(), T.RandomHorizontalFlip()])


def test_columns_of_objects_need_a_row_for_each_box() -> None:
    number = [np.arange(3)] * 12
    dataset = photos(T.SanitizeBoundingBoxes(), boxes=targets.Boxes(BOXES), number=targets.ObjectNumbers(number))
    with pytest.raises(PipelineError, match="has 3 rows for an image with"):
        batches(dataset)


def test_bad_targets_are_refused() -> None:
    with pytest.raises(DatasetError, match="has 2 values for 12 samples"):
        photos(mask=targets.Masks(IMAGES[:2, ..., 0]))
    with pytest.raises(DatasetError, match=r"not uint8\[12, 40, 56, 3\]"):
        targets.Masks(IMAGES)
    with pytest.raises(DatasetError, match="offsets must rise"):
        targets.ObjectNumbers(np.arange(3), [0, 2])
    with pytest.raises(DatasetError, match="one shape"):
        targets.ObjectNumbers([np.zeros((1, 2)), np.zeros((1, 3))])
    with pytest.raises(PipelineError, match=r"shape \[N, 4\]"):
        targets.Boxes([np.zeros((2, 5))])


def test_targets_travel_and_have_a_fingerprint() -> None:
    one, other = (photos(boxes=targets.Boxes([b + k for b in BOXES])) for k in (0, 1))
    assert one.fingerprint == photos(boxes=targets.Boxes(BOXES)).fingerprint != other.fingerprint
    assert pickle.loads(pickle.dumps(one)).fingerprint == one.fingerprint
