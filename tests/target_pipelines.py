"""Random pipelines of all geometric ops, as gpupipe's ops and as torchvision's functions with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from gpupipe import transforms as T
from gpupipe.kernels.moving import Moves
from gpupipe.transforms.matrices import affine_warp, rotation_warp
from gpupipe.transforms.ops import Crop, Flip, Op, Perspective, Resize, Warp
from gpupipe.transforms.transform import Images

__all__ = [
    "DETECTION",
    "FORMATS",
    "PLAIN",
    "WARPS",
    "Case",
    "Difference",
    "F",
    "Step",
    "case",
    "compare",
    "targets",
    "tv_tensors",
]

FORMATS = ("XYXY", "XYWH", "CXCYWH")
PLAIN = ("crop", "pad", "pad like edge", "resize", "flip")
DETECTION = ("zoom out", "window of boxes", "fixed size")
WARPS = ("rotate", "affine", "quarter", "perspective")
_NEAREST = InterpolationMode.NEAREST


class Step(NamedTuple):
    op: Op
    function: Callable[[Any], Any]
    """torchvision's function of ``tv_tensors`` or PIL images, with the op's numbers."""


class Case(NamedTuple):
    size: tuple[int, int]
    kind: str
    steps: tuple[Step, ...]

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(step.op for step in self.steps)


def case(rng: np.random.Generator, *, names: tuple[str, ...] = PLAIN + DETECTION + WARPS, largest: int = 90) -> Case:
    """A pipeline of one to five steps. Positions are measured as for PIL images or as for tensors, by chance."""
    kind = ("pil", "tensor")[rng.integers(2)]
    size = start = int(rng.integers(20, largest)), int(rng.integers(20, largest))
    steps = []
    for _ in range(rng.integers(1, 6)):
        name = str(rng.choice(names))
        if name in DETECTION:
            more, size = _detection(rng, name, size)
            steps += more
        else:
            step, size = _step(rng, name, size, kind)
            steps.append(step)
    return Case(start, kind, tuple(steps))


def _i32(*values: int) -> Any:
    return (np.array([value], np.int32) for value in values)


def _crop(top: int, left: int, height: int, width: int, **settings: Any) -> Crop:
    return Crop(*_i32(top, left, height, width), **settings)


def _step(rng: np.random.Generator, name: str, size: tuple[int, int], kind: str) -> tuple[Step, tuple[int, int]]:
    height, width = size
    images = Images(np.array([size]), kind=kind)  # type: ignore[arg-type]
    everywhere = np.ones(1, bool)
    op: Op
    if name == "crop":  # also beyond the image
        new = max(8, int(height * rng.uniform(0.5, 1.1))), max(8, int(width * rng.uniform(0.5, 1.1)))
        top, left = (int(rng.integers(-4, max(have - want, 0) + 5)) for have, want in zip(size, new, strict=True))
        op = _crop(top, left, *new, padded=True)
        return Step(op, lambda x: F.crop(x, top, left, *new)), new
    if name.startswith("pad"):
        mode = "constant" if name == "pad" else str(rng.choice(["edge", "reflect", "symmetric"]))
        left, top, right, bottom = rng.integers(0, 9, 4).tolist()
        new = height + top + bottom, width + left + right
        op = _crop(-top, -left, *new, padded=True, mode=mode)
        return Step(op, lambda x: F.pad(x, [left, top, right, bottom], 0, mode)), new
    if name == "resize":
        new = int(rng.integers(10, 120)), int(rng.integers(10, 120))
        op = Resize(*_i32(*new))
        return Step(op, lambda x: F.resize(x, list(new), _NEAREST)), new
    if name == "flip":
        axis = ("horizontal", "vertical")[rng.integers(2)]
        op = Flip(everywhere, axis=axis)  # type: ignore[arg-type]
        return Step(op, F.hflip if axis == "horizontal" else F.vflip), size
    if name in ("rotate", "quarter"):
        angle = float(rng.uniform(-180, 180)) if name == "rotate" else 90.0 * int(rng.integers(-1, 3))
        expand = bool(rng.integers(2))
        op = rotation_warp(images, everywhere, angle=angle, expand=expand)
        new = int(op.height[0]), int(op.width[0])
        return Step(op, lambda x: F.rotate(x, angle, _NEAREST, expand)), new
    if name == "affine":
        angle, scale = float(rng.uniform(-30, 30)), float(rng.uniform(0.7, 1.4))
        translate, shear = rng.integers(-9, 10, 2).tolist(), rng.uniform(-15, 15, 2).tolist()
        op = affine_warp(images, everywhere, angle=angle, translate=tuple(translate), scale=scale, shear=tuple(shear))
        return Step(op, lambda x: F.affine(x, angle, translate, scale, shear, _NEAREST)), size
    assert name == "perspective", name
    ends = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    starts = [[x + int(rng.integers(-5, 6)), y + int(rng.integers(-5, 6))] for x, y in ends]
    from torchvision.transforms.functional import _get_perspective_coeffs

    coefficients = _get_perspective_coeffs(starts, ends)
    op = Perspective(everywhere, np.array([coefficients]), "nearest", kind=kind)  # type: ignore[arg-type]
    return Step(op, lambda x: F.perspective(x, None, None, _NEAREST, coefficients=coefficients)), size


def _detection(rng: np.random.Generator, name: str, size: tuple[int, int]) -> tuple[list[Step], tuple[int, int]]:
    """The ops of a transform for detection, and torchvision's functions with their numbers."""
    if name == "window of boxes":
        new = tuple(max(min(n, 10), int(n * rng.uniform(0.3, 1))) for n in size)
        top, left = (int(rng.integers(0, have - want + 1)) for have, want in zip(size, new, strict=True))
        window = {"top": top, "left": left, "height": new[0], "width": new[1]}
        crop = _crop(*window.values(), by_center=True)
        return [Step(crop, lambda x: _by_center(x, window))], (new[0], new[1])
    transform = T.RandomZoomOut(side_range=(1.0, 1.6), p=0.7) if name == "zoom out" else T.FixedSizeCrop(48)
    ops, images = transform.resolve(rng.random((1, transform.draws)), Images(np.array([size])))
    steps = []
    for op in ops:
        assert isinstance(op, Crop)
        top, left, height, width = (int(n[0]) for n in (op.top, op.left, op.height, op.width))
        sides = [-left, -top, width + left - size[1], height + top - size[0]]
        if op.passes(0):
            steps.append(Step(op, lambda x: x))
        elif op.padded:
            steps.append(Step(op, lambda x, sides=sides: F.pad(x, sides)))  # type: ignore[misc]
        else:
            steps.append(Step(op, lambda x, window=(top, left, height, width): F.crop(x, *window)))  # type: ignore[misc]
        size = height, width
    return steps, (int(images.height[0]), int(images.width[0]))


def _by_center(x: Any, window: dict[str, int]) -> Any:
    """Crop like ``RandomIoUCrop``."""
    params: dict[str, Any] = dict(window)
    if isinstance(x, tv_tensors.BoundingBoxes):
        boxes = F.convert_bounding_box_format(x.as_subclass(torch.Tensor), x.format, "XYXY")
        low = torch.tensor([window["left"], window["top"]])
        center = 0.5 * (boxes[:, :2] + boxes[:, 2:])
        high = low + torch.tensor([window["width"], window["height"]])
        params["is_within_crop_area"] = ((low < center) & (center < high)).all(dim=1)
    return v2.RandomIoUCrop().transform(x, params)


class Difference(NamedTuple):
    pixels: int
    """Mask pixels that differ from torchvision's."""
    boxes: float | None
    """Largest difference of a box from torchvision's, or ``None`` where torchvision does not move boxes alike."""
    points: float | None


def targets(rng: np.random.Generator, size: tuple[int, int], format: str) -> tuple[Any, Any, Any]:
    """A mask, boxes f32[N, 4] in ``format`` and keypoints f32[N, 2] of an image of this size."""
    height, width = size
    mask = rng.integers(0, 250, size, np.uint8)
    corners = np.sort(rng.uniform(0, 1, (int(rng.integers(0, 12)), 2, 2)), axis=1) * [width, height]
    boxes = torch.from_numpy(corners.reshape(-1, 4).astype(np.float32))
    boxes = F.convert_bounding_box_format(boxes, old_format="XYXY", new_format=format)
    points = (rng.uniform(0, 1, (7, 2)) * [width - 1, height - 1]).astype(np.float32)
    return mask, boxes.numpy(), points


def compare(rng: np.random.Generator, pipeline: Case) -> Difference:
    """Move a mask, boxes and keypoints with gpupipe and with torchvision."""
    steps = [step.function for step in pipeline.steps]
    format = FORMATS[rng.integers(3)]
    clamping = ("soft", "hard", None)[rng.integers(3)]
    mask, boxes, points = targets(rng, pipeline.size, format)
    moves = Moves.of(pipeline.ops, 0, pipeline.size)
    # Functions of PIL images compute other matrices than those of tensors; compare with those of the op's kind.
    warped = any(isinstance(op, Warp) for op in pipeline.ops)
    pixels = 0
    if pipeline.kind == "tensor" or not warped:
        pixels += _differing(moves.mask(mask), _through(steps, tv_tensors.Mask(mask)).numpy())
    if pipeline.kind == "pil" or not warped:
        pixels += _differing(moves.mask(mask, "center"), np.asarray(_through(steps, Image.fromarray(mask))))
    if any(isinstance(op, Crop) and op.mode != "constant" for op in pipeline.ops):
        return Difference(pixels, None, None)  # torchvision does not move boxes and points here either
    ours = moves.boxes(boxes, format, clamping)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"format": format, "canvas_size": pipeline.size, "clamping_mode": clamping}
    theirs = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), **settings)
    points_of = tv_tensors.KeyPoints(torch.from_numpy(points), canvas_size=pipeline.size)
    for n, step in enumerate(steps):
        theirs, points_of = step(theirs), step(points_of)
        if theirs.canvas_size != Moves.of(pipeline.ops[: n + 1], 0, pipeline.size).out_size:
            return Difference(pixels, None, None)  # rotating with expand, torchvision gives boxes another size
    return Difference(pixels, _distance(ours, theirs.numpy()), _distance(moves.keypoints(points), points_of.numpy()))


def _through(steps: list[Callable[[Any], Any]], target: Any) -> Any:
    for step in steps:
        target = step(target)
    return target


def _differing(ours: Any, theirs: Any) -> int:
    return int((ours != theirs).sum()) if ours.shape == theirs.shape else max(ours.size, theirs.size)


def _distance(ours: Any, theirs: Any) -> float:
    return float(np.abs(ours.astype(np.float64) - theirs).max(initial=0.0))
