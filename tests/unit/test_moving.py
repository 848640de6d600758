"""Masks, boxes and keypoints follow geometric ops as in torchvision, given the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.errors import PipelineError
from gpupipe.kernels.moving import Moves
from gpupipe.transforms import boxes as B
from gpupipe.transforms.ops import Call, Crop, Flip, Invert, Mix, Op, Resize

pytest.importorskip("torchvision.transforms.v2.functional")


@pytest.fixture
def pipelines() -> Any:
    import target_pipelines

    return target_pipelines


def _i32(*values: int) -> list[Any]:
    return [np.array([value], np.int32) for value in values]


def _crop(top: int, left: int, height: int, width: int, **settings: Any) -> Crop:
    return Crop(*_i32(top, left, height, width), **settings)


def test_random_pipelines_are_equal_to_torchvision(pipelines: Any) -> None:
    compared = 0
    for seed in range(100):
        plain = pipelines.PLAIN + pipelines.DETECTION
        for names, most in ((plain, 0.0), (plain + pipelines.WARPS, 1e-3)):
            rng = np.random.default_rng(seed)
            case = pipelines.case(rng, names=names)
            found = pipelines.compare(rng, case)
            assert found.pixels == 0, case
            compared += found.boxes is not None
            assert (found.boxes or 0) <= most and (found.points or 0) <= most, case
    assert compared > 100


@pytest.mark.slow
@pytest.mark.parametrize("format", ["XYXY", "XYWH", "CXCYWH"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64])
def test_integers_truncate_as_in_torchvision(pipelines: Any, format: str, dtype: Any) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        case = pipelines.case(rng, names=("crop", "pad", "resize", "flip"))
        boxes = pipelines.targets(rng, case.size, format)[1].astype(dtype)
        theirs = pipelines.tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format=format, canvas_size=case.size)
        for step in case.steps:
            theirs = step.function(theirs)
        ours = Moves.of(case.ops, 0, case.size).boxes(boxes, format)  # type: ignore[arg-type]
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.parametrize("old", ["XYXY", "XYWH", "CXCYWH"])
@pytest.mark.parametrize("new", ["XYXY", "XYWH", "CXCYWH"])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_formats_convert_as_in_torchvision(pipelines: Any, old: Any, new: Any, dtype: Any) -> None:
    boxes = np.random.default_rng(0).uniform(-9, 99, (50, 4)).astype(dtype)
    theirs = pipelines.F.convert_bounding_box_format(torch.from_numpy(boxes), old, new)
    np.testing.assert_array_equal(B.convert_boxes(boxes, old, new), theirs.numpy())


def test_a_batch_moves_as_its_samples(pipelines: Any) -> None:
    rng = np.random.default_rng(5)
    n, sizes = 6, np.array([[40, 50]] * 6)
    ops = [
        Crop(*(rng.integers(*r, n).astype(np.int32) for r in ((-3, 9), (-3, 9), (20, 30), (20, 30))), padded=True),
        Flip(rng.random(n) < 0.5),
        Resize(*(rng.integers(10, 60, n).astype(np.int32) for _ in range(2))),
    ]
    at = np.sort(rng.integers(0, n, 25))
    boxes = pipelines.targets(rng, (40, 50), "XYXY")[1]
    boxes = np.resize(boxes, (25, 4)).astype(np.float32)
    together, size = boxes, (sizes[at, 0], sizes[at, 1])
    for op in ops:
        together = B.move_boxes(op, at, together, size)
        size = B.size_after(op, at, size)
    alone = [Moves.of(ops, row, (40, 50)).boxes(boxes[at == row]) for row in range(n)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int32, np.int64, np.float32, np.float64])
def test_masks_keep_their_type_and_values(dtype: Any) -> None:
    mask = np.arange(12).reshape(3, 4).astype(dtype)
    if dtype == np.int64:
        mask += 1 << 40  # more than a float holds
    moved = Moves.of([_crop(1, -1, 2, 4, padded=True), Flip(np.ones(1, bool))], 0, (3, 4)).mask(mask[None])
    assert moved.dtype == dtype and moved.flags.c_contiguous and moved.flags.writeable
    np.testing.assert_array_equal(moved[0, :, :3], mask[1:, 2::-1])
    assert not moved[..., 3].any()


def test_each_op_has_a_fill_of_its_own() -> None:
    ops = [_crop(-1, 0, 3, 2, padded=True), Invert(np.ones(1, bool)), _crop(0, -1, 3, 4, padded=True)]
    moved = Moves.of(ops, 0, (2, 2)).mask(np.ones((2, 2), np.uint8), fill=[5, 0, 7])
    np.testing.assert_array_equal(moved, [[7, 5, 5, 7], [7, 1, 1, 7], [7, 1, 1, 7]])


def test_a_fill_must_fit() -> None:
    moves = Moves.of([_crop(-1, 0, 3, 2, padded=True)], 0, (2, 2))
    with pytest.raises(PipelineError, match="fill=-100 does not fit masks of uint8"):
        moves.mask(np.ones((2, 2), np.uint8), fill=-100)
    assert moves.mask(np.ones((2, 2), np.int16), fill=-100)[0, 0] == -100


def test_samples_outside_of_a_mask_stay() -> None:
    moves = Moves.of([Flip(np.array([True, False]))], 1, (4, 6))
    mask = np.arange(24, dtype=np.uint8).reshape(4, 6)
    np.testing.assert_array_equal(moves.mask(mask), mask)
    assert moves.out_size == (4, 6)


def test_no_boxes_pass_everything(pipelines: Any) -> None:
    for seed in range(30):
        case = pipelines.case(np.random.default_rng(seed), names=("crop", *pipelines.WARPS))
        moves = Moves.of(case.ops, 0, case.size)
        assert moves.boxes(np.zeros((0, 4), np.float32)).shape == (0, 4)
        assert moves.keypoints(np.zeros((3, 0, 2), np.float32)).shape == (3, 0, 2)


def test_keypoints_may_be_limited_to_the_image() -> None:
    moves = Moves.of([_crop(2, 2, 4, 5)], 0, (9, 9))
    points = np.array([[0, 0], [8, 8]])
    assert moves.keypoints(points).tolist() == [[-2, -2], [6, 6]]
    assert moves.keypoints(points, "hard").tolist() == [[0, 0], [4, 3]]


@pytest.mark.parametrize("op", [
    Call(np.ones(1, bool), np.zeros(1, np.uint64), abs, name="my_warp"),
    Mix(np.ones(1, bool), np.ones((1, 1), np.float32), branches=((Flip(np.ones(1, bool)),),)),
])  # fmt: skip
def test_unknown_movement_is_refused(op: Op) -> None:
    with pytest.raises(PipelineError, match=r"cannot follow (my_warp|Mix)"):
        Moves.of([op], 0, (4, 4))


def test_bad_targets_are_refused() -> None:
    moves = Moves.of([_crop(-1, 0, 3, 2, padded=True, mode="edge")], 0, (2, 2))
    with pytest.raises(PipelineError, match=r"shape \[3, 2\] does not fit its image of 2x2"):
        moves.mask(np.ones((3, 2)))
    with pytest.raises(PipelineError, match=r"must have shape \[N, 4\]"):
        moves.boxes(np.ones((3, 5)))
    with pytest.raises(PipelineError, match="signed integers, not uint8"):
        moves.boxes(np.ones((3, 4), np.uint8))
    with pytest.raises(PipelineError, match="padding_mode='edge' repeats parts of the image"):
        moves.boxes(np.ones((3, 4)))
    with pytest.raises(PipelineError, match="'floor' or 'center'"):
        moves.mask(np.ones((2, 2)), "nearest")  # type: ignore[arg-type]
