"""Crops that depend on boxes, beside torchvision with the same numbers, and in loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe import DataLoader, Shard, datasets, targets, transforms as T
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.kernels.moving import Moves
from gpupipe.rng import uniforms
from gpupipe.transforms.boxes import BatchBoxes
from gpupipe.transforms.numbers import seeds
from gpupipe.transforms.transform import Images

v2 = pytest.importorskip("torchvision.transforms.v2")
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402

SIZES = np.random.default_rng(5).integers(20, 90, (40, 2))


def boxes_of(size: Any, count: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    ends = np.random.default_rng(seed).uniform(0, 1, (count, 2, 2))
    return (np.sort(ends, axis=1) * size[::-1]).reshape(-1, 4).astype(dtype)


def given(boxes: list[Any], format: Any = "XYXY") -> BatchBoxes:
    rows = np.repeat(np.arange(len(boxes)), [len(one) for one in boxes])
    return BatchBoxes(np.concatenate(boxes), rows, format)


class Fed:
    """torch's random functions as ``RandomIoUCrop`` calls them, with gpupipe's numbers for one image."""

    def __init__(self, transform: Any, u: float, size: Any):
        self._transform, self._size = transform, size
        self._numbers = self._of(int(seeds(np.array([u]))[0]))
        self._place: Any = None

    def _of(self, key: int) -> Iterator[Any]:
        for number in range(1000):
            yield uniforms(0, 0, number, np.array([key], np.uint64), 1 + 4 * self._transform.trials)[0]

    def randint(self, low: int, high: int, size: Any) -> Any:
        option, *trials = next(self._numbers)
        self._trials = iter(np.reshape(trials, (-1, 4)))
        return torch.tensor([int(option * high)])

    def rand(self, count: int) -> Any:
        if self._place is not None:
            place, self._place = self._place, None
            return torch.tensor(place, dtype=torch.float32)
        trial = next(self._trials)
        scale = torch.tensor(trial[:2], dtype=torch.float32)
        # torchvision draws a position only for windows of a possible shape.
        t = self._transform
        sides = t.min_scale + (t.max_scale - t.min_scale) * scale
        width, height = int(int(self._size[1]) * sides[0]), int(int(self._size[0]) * sides[1])
        self._place = trial[2:] if t.min_aspect_ratio <= width / height <= t.max_aspect_ratio else None
        return scale


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "format"), [(np.float32, "XYXY"), (np.int64, "CXCYWH")])
@pytest.mark.parametrize("options", [{}, {"min_scale": 0.1, "sampler_options": [0.1, 0.4, 1.5], "trials": 3}])
def test_iou_crops_are_torchvisions(monkeypatch: Any, dtype: Any, format: Any, options: Any) -> None:
    ours, theirs = T.RandomIoUCrop(**options), v2.RandomIoUCrop(**options)
    boxes = [boxes_of(size, k % 6, dtype, k) for k, size in enumerate(SIZES)]
    boxes = [F.convert_bounding_box_format(torch.from_numpy(one), "XYXY", format).numpy() for one in boxes]
    u = uniforms(3, 1, "crop", np.arange(len(SIZES)), 1)
    ops, after = ours.resolved(u, Images(SIZES, boxes=given(boxes, format)))
    cropped = 0
    for row, size in enumerate(SIZES.tolist()):
        fed = Fed(ours, u[row, 0], size)
        monkeypatch.setattr("torch.rand", fed.rand)
        monkeypatch.setattr("torch.randint", fed.randint)
        image = torch.arange(size[0] * size[1]).reshape(1, *size)
        their_image, their_boxes = theirs(
            image, tv_tensors.BoundingBoxes(torch.from_numpy(boxes[row]), format=format, canvas_size=size)
        )
        moves = Moves.of(ops, row, size)
        assert torch.equal(their_image, torch.from_numpy(moves.mask(image.numpy())))
        assert after.sizes[row].tolist() == [*moves.out_size] == [*their_boxes.canvas_size]
        moved = moves.boxes(boxes[row], format)
        assert moved.dtype == dtype
        np.testing.assert_array_equal(moved, their_boxes.numpy())
        cropped += moves.out_size != tuple(size)
    assert 10 < cropped < 39
    assert after.boxes is not None
    np.testing.assert_array_equal(
        after.boxes.values, np.concatenate([Moves.of(ops, i, SIZES[i]).boxes(b, format) for i, b in enumerate(boxes)])
    )


def test_images_without_a_fitting_window_stay_as_they_are() -> None:
    boxes = given([np.zeros((0, 4), np.float32)] * len(SIZES))
    (op,), after = T.RandomIoUCrop(sampler_options=[0.3]).resolved(
        uniforms(0, 0, "crop", np.arange(len(SIZES)), 1), Images(SIZES, boxes=boxes)
    )
    assert not op.mask.any() and (after.sizes == SIZES).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_fixed_size_crops_are_those_of_torchvisions_reference(mode: Any) -> None:
    crop, pad = 0, 0
    u = uniforms(3, 1, "crop", np.arange(len(SIZES)), 1)
    ops, after = T.FixedSizeCrop((50, 60), 7, mode).resolved(u, Images(SIZES))
    assert (after.sizes == [50, 60]).all()
    for row, (height, width) in enumerate(SIZES.tolist()):
        boxes = boxes_of((height, width), 4, seed=row) * 1.2 - 3  # some exceed the image
        image = torch.arange(height * width).reshape(1, height, width).to(torch.float32)
        theirs = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=(height, width))
        new_height, new_width = min(height, 50), min(width, 60)
        if (new_height, new_width) != (height, width):
            r = torch.tensor(u[row], dtype=torch.float32)
            window = int(max(height - 50, 0) * r), int(max(width - 60, 0) * r), new_height, new_width
            image, theirs, crop = F.crop(image, *window), F.crop(theirs, *window), crop + 1
        if (new_height, new_width) != (50, 60) and (mode == "constant" or min(new_height, new_width) > 30):
            sides = [0, 0, 60 - new_width, 50 - new_height]
            image, pad = F.pad(image, sides, fill=7, padding_mode=mode), pad + 1
            theirs = F.pad(theirs, sides) if mode == "constant" else theirs
        elif (new_height, new_width) != (50, 60):
            continue
        moves = Moves.of(ops, row, (height, width))
        mask = moves.mask(torch.arange(height * width).reshape(1, height, width).to(torch.float32).numpy(), fill=7)
        np.testing.assert_array_equal(mask, image.numpy())
        if mode == "constant":
            np.testing.assert_array_equal(moves.boxes(boxes), theirs.numpy())
    assert crop > 5 and pad > 5


IMAGES = np.random.default_rng(0).integers(0, 256, (24, 40, 56, 3), np.uint8)
BOXES = [boxes_of((40, 56), k % 4, seed=k) for k in range(24)]
SSD = T.Compose(
    [
        T.RandomZoomOut(side_range=(1, 2)),
        T.RandomIoUCrop(),
        T.Resize((20, 24), "nearest"),
        T.RandomHorizontalFlip(),
        T.SanitizeBoundingBoxes(),
    ]
)


def dataset(transform: Any = SSD, **columns: Any) -> Any:
    mask = targets.Masks(IMAGES[..., 0], nearest="center")
    columns = {"mask": mask, "boxes": targets.Boxes(BOXES), "number": np.arange(24)} | columns
    return datasets.Columns(datasets.Arrays(IMAGES, transform=transform), columns, return_dict=True)


def by_number(made: Any, batch: int = 4, engine: Any = "torch", **options: Any) -> dict[int, Any]:
    """Masks and boxes of an epoch, by number of the image."""
    found = {}
    with DataLoader(made, batch, shuffle=True, seed=1, engine=engine, device="cpu", **options) as loader:
        for one in loader:
            assert torch.equal(one["image"][:, 0], one["mask"])
            for number, mask, boxes in zip(one["number"].tolist(), one["mask"], one["boxes"], strict=True):
                found[number] = mask.tolist(), boxes.tolist()
    return found


def test_windows_depend_on_the_sample_alone() -> None:
    whole = by_number(dataset())
    assert len(whole) == 24
    assert whole == by_number(dataset(), 5, num_workers=2) == by_number(dataset(), 7, "dali", num_workers=2)
    ranks = [by_number(dataset(), 3, shard=Shard(rank, 2)) for rank in range(2)]
    assert whole == ranks[0] | ranks[1]
    chosen = np.array([7, 3, 5, 1, 22, 14])
    with DataLoader(datasets.Subset(dataset(), chosen), 6, shuffle=True, engine="null") as loader:
        plan = loader.plan_at(0, 0)
    np.testing.assert_array_equal(plan.boxes.values, np.concatenate([BOXES[i] for i in chosen[plan.indices]]))
    with DataLoader(dataset(), 4, shuffle=True, seed=1, engine="torch", device="cpu") as loader:
        batches = iter(loader)
        first = [next(batches) for _ in range(3)]
        state = loader.state_dict()
    with DataLoader(dataset(), 4, shuffle=True, seed=1, engine="torch", device="cpu") as loader:
        loader.load_state_dict(state)
        rest = {int(n): mask.tolist() for one in loader for n, mask in zip(one["number"], one["mask"], strict=True)}
    seen = {int(n) for one in first for n in one["number"]}
    assert seen | rest.keys() == whole.keys() and not seen & rest.keys()
    assert all(whole[n][0] == mask for n, mask in rest.items())


def test_a_sample_of_the_dataset_is_cropped_by_its_boxes() -> None:
    sample = dataset()[3]
    assert torch.equal(sample["image"][0], sample["mask"]) and sample["mask"].shape == (20, 24)
    assert sample["boxes"].shape[1] == 4


def test_boxes_are_moved_before_they_are_drawn_by_within_containers() -> None:
    steps = [T.RandomApply([T.CenterCrop((20, 20)), T.RandomIoUCrop(sampler_options=[0.0])], p=0.5)]
    pipeline = T.Compose([*steps, T.CenterCrop((18, 18)), T.RandomIoUCrop()])
    keys, sizes = np.arange(24, dtype=np.uint64), np.full((24, 2), (40, 56))
    found = pipeline.resolve(1, 0, keys, sizes, given(BOXES))
    assert found.images.boxes is not None
    moved = [Moves.of(found.ops, i, (40, 56)).boxes(boxes) for i, boxes in enumerate(BOXES)]
    np.testing.assert_array_equal(found.images.boxes.values, np.concatenate(moved))
    assert all(Moves.of(found.ops, i, (40, 56)).out_size == tuple(found.images.sizes[i]) for i in range(24))


def test_what_cannot_draw_by_boxes_is_refused() -> None:
    plain = datasets.Arrays(IMAGES, transform=SSD)
    with pytest.raises(ConfigError, match=r"RandomIoUCrop.* needs boxes"):
        DataLoader(plain, 4, device="cpu")
    with pytest.raises(ConfigError, match="several columns of them: 'boxes', 'more'"):
        DataLoader(dataset(more=targets.Boxes(BOXES)), 4, device="cpu")
    with pytest.raises(PipelineError, match="boxes cannot follow abs"):
        T.Compose([T.Lambda(abs), T.RandomIoUCrop()])
    with pytest.raises(ConfigError, match="0 < min_scale <= max_scale"):
        T.RandomIoUCrop(min_scale=2.0)
    with pytest.raises(ConfigError, match="trials must be an integer of at least 1"):
        T.RandomIoUCrop(trials=0)
    with pytest.raises(ConfigError, match="sampler_options must be numbers of at least 0"):
        T.RandomIoUCrop(sampler_options=[-0.5])


def test_images_that_zoom_out_leaves_alone_keep_boxes_outside_of_them() -> None:
    (op,), _ = T.RandomZoomOut(p=0.5).resolved(uniforms(0, 0, "z", np.arange(40), 4), Images(SIZES))
    box = np.array([[-5.0, -5, 200, 200]], np.float32)
    kept = [bool((Moves.of([op], i, SIZES[i]).boxes(box) == box).all()) for i in range(40)]
    assert kept == (~op.mask).tolist() and 5 < sum(kept) < 35  # type: ignore[attr-defined]


def test_windows_of_files_are_the_same_however_they_are_decoded(tmp_path: Any) -> None:
    from PIL import Image

    from gpupipe.testing.photos import photograph

    paths = []
    for k in range(6):
        paths.append(tmp_path / f"{k}.jpg")
        Image.fromarray(photograph(200, 260, k)).save(paths[-1], quality=90)
    boxes = [boxes_of((200, 260), 3, seed=k) for k in range(6)]
    steps = T.Compose([T.RandomIoUCrop(), T.Resize((24, 30)), T.SanitizeBoundingBoxes(), T.ToTensor()])
    made = datasets.Columns(datasets.ImageList(paths, transform=steps), {"boxes": targets.Boxes(boxes)})
    found = []
    for options in ({}, {"cache": "ram"}, {"scaled": True}, {"scaled": True, "engine": "dali"}):
        arguments: dict[str, Any] = {"engine": "torch", "shuffle": True, "seed": 1, "device": "cpu", **options}
        with DataLoader(made, 3, **arguments) as loader:
            found.append([(images, [one.tolist() for one in kept]) for images, kept in loader])
    whole, kept, smaller, by_dali = found
    for epoch in found:
        assert [boxes for _, boxes in epoch] == [boxes for _, boxes in whole]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(whole, kept, strict=True))
    # Of images that are decoded in full, the engines' resizes differ by a level.
    assert all((a - b).abs().max() < 1.01 / 255 for (a, _), (b, _) in zip(smaller, by_dali, strict=True))
    assert not all(torch.equal(a, b) for (a, _), (b, _) in zip(whole, smaller, strict=True))
