"""The presets for detection, beside torchvision's transforms with the numbers of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gpupipe import DataLoader, collate, datasets, targets
from gpupipe.errors import ConfigError
from gpupipe.pipelines import coco
from gpupipe.transforms.ops import Crop

v2 = pytest.importorskip("torchvision.transforms.v2")
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 60, 84, 3), np.uint8)
BOXES = [(np.sort(RNG.uniform(0, 1, (n, 2, 2)), axis=1) * [84, 60]).reshape(-1, 4).astype("f4") for n in range(6)]
PRESETS: dict[str, list[Any]] = {
    "hflip": [],
    "lsj": [v2.ScaleJitter(target_size=(1024, 1024), antialias=True), None],
    "multiscale": [
        v2.RandomShortestSize((480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800), max_size=1333, antialias=True)
    ],
    "ssd": [v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=list(coco.MEAN)), v2.RandomIoUCrop()],
    "ssdlite": [v2.RandomIoUCrop()],
}
"""What torchvision's reference does before the flip. ``None`` is the reference's own ``FixedSizeCrop``."""


@pytest.fixture
def apply(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import _torchvision

    return _torchvision.apply


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_torchvisions_settings(preset: str) -> None:
    theirs = [*PRESETS[preset], v2.RandomHorizontalFlip(0.5), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    theirs += [v2.ConvertBoundingBoxFormat("XYXY"), v2.SanitizeBoundingBoxes()]
    for ours, other in zip(coco.train(preset), theirs, strict=True):
        if other is None:
            assert repr(ours).startswith("FixedSizeCrop(size=(1024, 1024), fill=(123.0, 117.0, 104.0), padding_mode='c")
            continue
        assert type(ours).__name__ == type(other).__name__
        for name in set(vars(other)) - {"dtype", "format", "fill", "interpolation", "options"}:
            if hasattr(ours, name):
                mine, value = getattr(ours, name), getattr(other, name)
                assert (list(mine) == list(value)) if isinstance(value, (list, tuple)) else mine == value, name
        assert list(getattr(ours, "sampler_options", ())) == list(getattr(other, "options", ()))
        assert list(getattr(ours, "fill", ())) == list(getattr(other, "fill", ()))


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_do_what_torchvision_does(preset: str, apply: Any) -> None:
    numbers = [np.arange(len(boxes)) for boxes in BOXES]
    columns = {"boxes": targets.Boxes(BOXES), "labels": targets.ObjectNumbers(numbers)}
    made = datasets.Columns(datasets.Arrays(IMAGES, transform=coco.train(preset)), columns, return_dict=True)
    options: dict[str, Any] = {"collate_fn": collate.as_lists, "seed": 3, "device": "cpu"}
    with DataLoader(made, 6, engine="torch", **options) as loader:
        plan, (images, found) = loader.plan_at(0, 0), next(iter(loader))
    ops = [op for op in plan.ops if getattr(op, "content", None) is None]  # without padding that is cut off
    for row, boxes in enumerate(BOXES):
        theirs = apply(Image.fromarray(IMAGES[row]), ops, row)
        assert torch.equal(images[row], theirs)
        moved = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=(60, 84))
        for op in ops:
            before, moved = moved, apply(moved, [op], row) if op.geometric else moved
            if isinstance(op, Crop) and op.by_center and not op.passes(row):
                window = [
                    torch.tensor([int(a[row]) for a in pair])
                    for pair in zip((op.left, op.top), (op.width, op.height), strict=False)
                ]
                low, high = torch.stack(window)[:, 0], torch.stack(window).sum(1)
                center = 0.5 * (before[:, :2] + before[:, 2:])
                moved[~((low < center) & (center < high)).all(1)] = 0
        kept, valid = F.sanitize_bounding_boxes(moved)
        assert torch.equal(found[row]["boxes"], kept.as_subclass(torch.Tensor))
        assert found[row]["labels"].tolist() == numbers[row][valid.numpy()].tolist()


def test_evaluation_and_wrong_arguments() -> None:
    made = datasets.Arrays(IMAGES, transform=coco.val(dtype="uint8"))
    with DataLoader(made, 6, engine="torch", device="cpu") as loader:
        assert np.array_equal(next(iter(loader)).permute(0, 2, 3, 1), IMAGES)
    with pytest.raises(ConfigError, match="one of hflip, lsj, multiscale, ssd, ssdlite, not 'detr'"):
        coco.train("detr")
    with pytest.raises(ConfigError, match="float32 or uint8"):
        coco.val(dtype="float16")
