"""torchvision v2 transforms called with an image and its targets: the targets are torchvision's."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("torchvision.transforms.v2")

from torchvision import tv_tensors
from torchvision.transforms import v2

from gpupipe.errors import TranslationError
from gpupipe.interop.chains import Chains
from gpupipe.interop.pending import PendingImage, PendingTensor
from gpupipe.interop.standing import Standing
from gpupipe.interop.steps import SampleCall, running
from gpupipe.kernels.moving import Moves

if not hasattr(v2, "SanitizeKeyPoints"):
    pytest.skip("torchvision has no key points yet", allow_module_level=True)

HEIGHT, WIDTH = 37, 52


def image(seed: int = 0) -> Any:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))


def target() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    boxes = torch.tensor([[3.0, 4, 30, 20], [0, 0, 52, 37], [40, 30, 51.5, 36.25]])
    size = {"canvas_size": (HEIGHT, WIDTH)}
    return {
        "mask": tv_tensors.Mask(rng.integers(0, 5, (HEIGHT, WIDTH), np.uint8)),
        "instances": tv_tensors.Mask(rng.integers(0, 2, (3, HEIGHT, WIDTH)).astype(bool)),
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", **size),
        "whole": tv_tensors.BoundingBoxes([[5, 6, 11, 12]], format="CXCYWH", **size),
        "points": tv_tensors.KeyPoints([[[0.0, 0], [51, 36]], [[10, 20.5], [30, 3]]], **size),
        "labels": torch.tensor([1, 2, 3]),
        "name": "a",
    }


def ours(transform: Any, *given: Any, trial: bool = True) -> Any:
    """What a Dataset gets from a transform in an epoch, or in a trial; raises what it falls back for."""
    run = SampleCall(Chains([transform]), 3, 1, 7, notice=list if trial else None)
    with running(run), suppress(TypeError, ValueError, IndexError):  # torchvision's own errors for what is refused
        made = Standing(transform, 0)(*given)
    if run.failure is not None:
        raise run.failure
    return made


def assert_same(got: Any, want: Any, within: float = 0) -> None:
    if isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same(got[key], want[key], within)
    elif isinstance(want, torch.Tensor):
        assert type(got) is type(want) and got.dtype == want.dtype and got.shape == want.shape
        assert torch.allclose(torch.as_tensor(got), torch.as_tensor(want), rtol=0, atol=within)
        assert {**vars(got)} == {**vars(want)}, "format, size of the canvas and clamping"
    else:
        assert got == want


NAMED = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
FIXED = [
    v2.Resize(20), v2.Resize((50, 21)), v2.Resize(None, max_size=41), v2.CenterCrop(30), v2.CenterCrop((60, 40)),
    v2.Pad(3), v2.Pad((1, 2, 3, 4), fill={tv_tensors.Mask: 1, "others": 0}),
    v2.RandomHorizontalFlip(1), v2.RandomVerticalFlip(1), v2.RandomHorizontalFlip(0),
    v2.RandomRotation((25, 25)), v2.RandomRotation((90, 90), expand=True, fill=1),
    v2.RandomAffine((10, 10), scale=(1.25, 1.25), shear=(5, 5, 2, 2)),
    v2.RandomAffine((10, 10), interpolation=v2.InterpolationMode.BILINEAR, fill={tv_tensors.Mask: 1, "others": 5}),
    v2.RandomCrop((HEIGHT, WIDTH)), v2.RandomResizedCrop(24, scale=(1, 1), ratio=(WIDTH / HEIGHT, WIDTH / HEIGHT)),
    v2.RandomShortestSize(30), v2.RandomShortestSize([80], max_size=60), v2.ScaleJitter((40, 40), (0.5, 0.5)),
    v2.RandomResize(33, 34), v2.RandomZoomOut(p=0),
    v2.RandomApply([v2.Resize(20), v2.RandomHorizontalFlip(1)], p=1), v2.RandomChoice([v2.Pad(2, fill=1)]),
    v2.ColorJitter(0.3, 0.3, 0.3, 0.1), v2.GaussianBlur(3), v2.RandomGrayscale(1), v2.RandomInvert(1), v2.Identity(),
    v2.RandomPosterize(4, 1), v2.RandomSolarize(100, 1), v2.RandomEqualize(1), v2.RandomAutocontrast(1),
    v2.RandomAdjustSharpness(2, 1), v2.Grayscale(3), v2.RGB(),
    v2.Compose([v2.ToImage(), v2.RandomErasing(1)]), v2.Compose([v2.ToImage(), v2.ToDtype(NAMED, scale=True)]),
    v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5]), v2.ToPureTensor()]),
    v2.Compose([v2.PILToTensor(), v2.ToDtype({torch.Tensor: torch.float32, "others": None})]),
    v2.Compose([v2.ToImage(), v2.ConvertImageDtype(torch.float32)]),
    v2.Compose([v2.Resize(18), v2.ClampBoundingBoxes(), v2.ConvertBoundingBoxFormat("XYWH"), v2.ClampKeyPoints()]),
    v2.Compose([v2.CenterCrop(16), v2.SanitizeBoundingBoxes()]), v2.SetClampingMode(None),
    v2.Compose([v2.SetClampingMode(None), v2.CenterCrop(16), v2.ToImage(), v2.CenterCrop(9), v2.RandomVerticalFlip(1)]),
    torch.nn.Sequential(v2.Resize(20), v2.ToImage()),
]  # fmt: skip


@pytest.mark.parametrize("transform", FIXED, ids=lambda t: " ".join(repr(t).split())[:60])
def test_targets_are_torchvisions(transform: Any) -> None:
    sample = {"image": image(), **target()}
    with pytest.warns() if "RandomErasing" in repr(transform) else nullcontext():
        want = transform(sample)
    for trial in (True, False):
        got = ours(transform, {"image": image(), **target()}, trial=trial)
        pending = got.pop("image")
        assert isinstance(pending, (PendingImage, PendingTensor))
        assert isinstance(want["image"], Image.Image) == isinstance(pending, PendingImage)
        warps = isinstance(transform, (v2.RandomRotation, v2.RandomAffine))
        assert_same(got, {key: value for key, value in want.items() if key != "image"}, 1e-3 * warps)
    if not isinstance(transform, torch.nn.Sequential):
        assert_same(ours(transform, image(), target())[1], got)


DRAWN = [
    v2.RandomCrop(20), v2.RandomCrop(60, pad_if_needed=True), v2.RandomResizedCrop(24), v2.RandomZoomOut(p=1),
    v2.RandomCrop(30, padding=4, padding_mode="edge"), v2.RandomPerspective(p=1), v2.ElasticTransform(20.0),
    v2.RandomRotation(40), v2.RandomApply([v2.RandomCrop(20), v2.RandomHorizontalFlip()], p=0.6),
    v2.RandomResize(20, 60),
    v2.RandomChoice([v2.RandomHorizontalFlip(1), v2.RandomVerticalFlip(1)]),
    v2.RandomAffine(30, (0.2, 0.2), (0.7, 1.4), 20),
]  # fmt: skip


@pytest.mark.parametrize("transform", DRAWN, ids=lambda t: type(t).__name__)
def test_a_mask_stays_with_its_image(transform: Any) -> None:
    """An image that says where its pixels were, resized without a filter, is equal to a mask that does."""
    for setting in ("interpolation", "antialias"):
        if hasattr(transform, setting):
            setattr(transform, setting, v2.InterpolationMode.NEAREST if setting == "interpolation" else False)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH].astype(np.uint8)
    places = Image.fromarray(np.stack([rows + 1, columns + 1, rows], 2))
    steps = v2.Compose([v2.ToImage(), transform])
    different = set()
    for key in range(8):
        run = SampleCall(Chains([steps]), 3, 1, key)
        with running(run):
            moved, mask = Standing(steps, 0)(places, tv_tensors.Mask(columns + 1))
        assert run.failure is None
        pixels = torch.as_tensor(moved.pending.value("its pixels"))[1]
        assert torch.equal(pixels, torch.as_tensor(mask)), f"{(pixels != mask).sum()} of {pixels.numel()} differ"
        different.add(mask.numpy().tobytes())
    assert len(different) > 1


def test_second_images_get_the_same_draws() -> None:
    transform = v2.Compose([v2.RandomCrop(20), v2.ColorJitter(0.5), v2.ToImage()])
    first, second, gray = ours(transform, image(), image(), image(5).convert("L"))
    assert torch.equal(torch.as_tensor(first.pending.value("its pixels")), torch.as_tensor(second))
    assert type(second) is tv_tensors.Image and gray.shape == (1, 20, 20)


@pytest.mark.parametrize(
    ("transform", "beside", "why"),
    [
        (v2.RandAugment(), target(), "several images"),
        (v2.Pad(4, padding_mode="reflect"), target(), "by the image's own pixels"),
        (v2.Pad(3, fill=9), target(), "fill=9 does not fit masks of bool"),
        (v2.CenterCrop(20), tv_tensors.Mask(torch.zeros(3, 4)), "a Mask of size 3x4 cannot follow an image of 37x52"),
        (v2.CenterCrop(20), image().quantize(8), "its second image is of mode P"),
        (v2.CenterCrop(20), image().resize((8, 8)), "its images have different sizes"),
        (v2.Compose([v2.PILToTensor(), v2.CenterCrop(20)]), image(), "only the first of several images"),
        (v2.RandomIoUCrop(), target(), "RandomIoUCrop"),
        (v2.Pad(3, fill=[1, 2, 3]), target(), "fill=[1.0, 2.0, 3.0]; give one number"),
        (v2.FiveCrop(20), torch.ones(2), "several views"),
    ],
)  # fmt: skip
def test_what_cannot_follow_is_named(transform: Any, beside: Any, why: str) -> None:
    with pytest.raises(TranslationError) as e:
        ours(transform, image(), beside)
    assert why in str(e.value)


def test_the_first_tensor_is_the_image() -> None:
    transform = v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    with pytest.raises(TranslationError, match="another tensor than the image"):
        ours(transform, torch.ones(2), image())
    _, after = ours(transform, image(), torch.full((2,), 300))
    assert after.tolist() == [300, 300]


class PadIfSmaller(v2.Transform):
    def __init__(self, size: int, fill: Any = 0):
        super().__init__()
        self.size, self.fill = size, fill

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = v2.functional.get_size(flat_inputs[0])
        return {"padding": [0, 0, max(self.size - width, 0), max(self.size - height, 0)]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        fill = self.fill.get(type(inpt), 0) if isinstance(self.fill, dict) else self.fill
        return v2.functional.pad(inpt, params["padding"], fill) if any(params["padding"]) else inpt


class HalfOfIt(PadIfSmaller):
    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        height, width = v2.functional.get_size(inpt)
        return v2.functional.crop(inpt, height // 4, width // 4, max(height // 2, 1), max(width // 2, 1))


class PadAtRandom(PadIfSmaller):
    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        return {"padding": [int(torch.randint(3, ())), 0, 0, 0]}


class PadAndFlip(PadIfSmaller):
    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return v2.functional.hflip(super().transform(inpt, params))


class PadByTime(PadIfSmaller):
    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        return {"padding": [0, 0, int(time.time()) % 1, 0]}


@pytest.mark.parametrize(
    "own", [PadIfSmaller(45), PadIfSmaller(20, 7), PadIfSmaller(60, {tv_tensors.Mask: 1}), HalfOfIt(1)]
)
def test_own_transforms_of_windows_are_followed(own: Any) -> None:
    for steps in ([own, v2.ToImage()], [v2.RandomHorizontalFlip(1), v2.ToImage(), own, v2.RandomVerticalFlip(1)]):
        transform = v2.Compose(steps)
        beside = {key: value for key, value in target().items() if key != "points"}
        want, others = transform(image(), beside)
        made, got = ours(transform, image(), beside)
        assert_same(got, others)
        assert torch.equal(torch.as_tensor(made.pending.value("its pixels")), torch.as_tensor(want))


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (PadAtRandom(3), "it uses torch.randint"),
        (PadAndFlip(60), "does not know how it moves targets"),
        (PadByTime(3), "does not know how it moves targets"),
        (PadIfSmaller(60, {Image.Image: 9}), "does not know how it moves targets"),
        (v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32), PadIfSmaller(60)]), "does not know how it moves targets"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_own_transforms_of_anything_else_are_not(transform: Any, why: str) -> None:
    with pytest.raises(TranslationError, match=why):
        ours(transform, image(), target()["mask"])


def test_a_release_that_moves_targets_in_another_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moves, "mask", lambda self, mask, *_: mask)
    with pytest.raises(TranslationError, match="this release of torchvision moves a Mask in another way"):
        ours(v2.RandomHorizontalFlip(1), image(), target()["mask"])
