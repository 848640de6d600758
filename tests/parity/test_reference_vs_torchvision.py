"""The reference is bit-exact with torchvision on PIL images, given the same windows and flips.

The numbers come from our plan; torchvision's own functions and transforms apply them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gpupipe import transforms as T
from gpupipe.engines.torch.reference import reference
from gpupipe.kernels.apply import apply_sample, apply_tail, head_and_tail
from gpupipe.kernels.picture import size_of
from gpupipe.pipelines import imagenet
from gpupipe.testing.photos import photograph
from gpupipe.transforms.ops import Crop, Flip, Gray, Op, Resize

v2 = pytest.importorskip("torchvision.transforms.v2")
F = pytest.importorskip("torchvision.transforms.v2.functional")

MODE = {mode.value: mode for mode in pytest.importorskip("torchvision.transforms").InterpolationMode}
PIL_MODES = ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]
TENSOR_MODES = ["nearest", "nearest-exact", "bilinear", "bicubic", "lanczos"]


def pictures() -> list[Image.Image]:
    sizes = ((120, 160), (97, 61), (64, 64), (33, 150), (40, 41))
    return [Image.fromarray(photograph(h, w, seed)) for seed, (h, w) in enumerate(sizes)]


def ours(pipeline: T.Compose, images: list[Image.Image], seed: int = 3) -> tuple[list[torch.Tensor], tuple[Op, ...]]:
    """[C, H, W] of every image, and the ops with their numbers."""
    sizes = np.array([size_of(image) for image in images])
    ops, *_ = pipeline.resolve(seed, 0, np.arange(len(images), dtype=np.uint64), sizes)
    head, tail = head_and_tail(ops)
    out = []
    for i, image in enumerate(images):
        one = np.array(apply_sample(image, head, i))  # a copy: torch wants to be able to write
        out.append(apply_tail(torch.from_numpy(one)[None], tail, pipeline.memory_format)[0])
    return out, ops


def same(got: torch.Tensor, want: Any, what: object = "") -> None:
    want = want if isinstance(want, torch.Tensor) else F.pil_to_tensor(want)
    assert got.shape == want.shape and got.dtype == want.dtype, what
    assert torch.equal(got, want.as_subclass(torch.Tensor)), f"{what}: {(got.float() - want.float()).abs().max()}"


def of(kind: type[Any], ops: tuple[Op, ...]) -> Any:
    return next(op for op in ops if isinstance(op, kind))


@pytest.mark.parametrize("interpolation", PIL_MODES)
def test_training_pipeline(interpolation: str) -> None:
    from torchvision.transforms import functional as v1

    got, ops = ours(imagenet.train(56, interpolation=interpolation), pictures() * 3)
    crop, flip = of(Crop, ops), of(Flip, ops)
    assert flip.mask.any() and not flip.mask.all()
    for i, image in enumerate(pictures() * 3):
        window = (int(a[i]) for a in (crop.top, crop.left, crop.height, crop.width))
        want = F.resized_crop(image, *window, [56, 56], interpolation=MODE[interpolation])
        want = F.horizontal_flip(want) if flip.mask[i] else want
        # ToTensor itself, of both of torchvision's generations
        want = v1.normalize(v1.to_tensor(want), imagenet.MEAN, imagenet.STD)
        same(got[i], want, i)


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
def test_evaluation_pipeline_on_files(photos: Path, memory_format: str) -> None:
    check_evaluation(sorted(photos.rglob("*.jpg"))[:6], memory_format)


def test_evaluation_pipeline_on_real_photographs(shared_data: Path) -> None:
    check_evaluation(sorted((shared_data / "images").rglob("*.[jJ]*"))[::12])


def check_evaluation(paths: list[Path], memory_format: str = "contiguous_format") -> None:
    from torchvision import transforms as v1

    want = v1.Compose([v1.Resize(72), v1.CenterCrop(64), v1.ToTensor(), v1.Normalize(imagenet.MEAN, imagenet.STD)])
    pipeline = imagenet.val(64, 72, memory_format=memory_format)
    got = reference(*plan_of([str(p) for p in paths], pipeline), pipeline)
    assert got.is_contiguous(memory_format=getattr(torch, memory_format))
    assert len(paths) > 5
    for row, path in zip(got, paths, strict=True):
        same(row, want(Image.open(path).convert("RGB")), path)


def plan_of(paths: list[str], pipeline: T.Compose) -> Any:
    from gpupipe.datasets import ImageList
    from gpupipe.types import Plan

    n = len(paths)
    return ImageList(paths, transform=pipeline), Plan(0, 0, 0, np.arange(n), np.arange(n, dtype=np.uint64), n, n)


@pytest.mark.parametrize("kind", ["pil", "tensor"])
@pytest.mark.parametrize("size", [(50, 70), (200, 300), 64, (61, 61)])
def test_every_interpolation(kind: str, size: Any) -> None:
    for mode in PIL_MODES if kind == "pil" else TENSOR_MODES:
        for antialias in (True, False) if kind == "tensor" and mode != "lanczos" else (True,):
            resize = T.Resize(size, interpolation=mode, antialias=antialias)
            got, _ = ours(T.Compose([T.ToImage(), resize] if kind == "tensor" else [resize, T.ToImage()]), pictures())
            theirs = v2.Resize(size, interpolation=MODE[mode], antialias=antialias)
            for row, image in zip(got, pictures(), strict=True):
                same(row, theirs(F.to_image(image) if kind == "tensor" else image), (mode, antialias, image.size))


@pytest.mark.parametrize("mode", TENSOR_MODES)
@pytest.mark.parametrize("to_float", ["ToTensor", "ToDtype"])
def test_resize_of_floats(mode: str, to_float: str) -> None:
    from torchvision.transforms import functional as v1

    first = [T.ToTensor()] if to_float == "ToTensor" else [T.ToImage(), T.ToDtype(torch.float32, scale=True)]
    chain = [*first, T.RandomHorizontalFlip(1.0), T.Resize((50, 70), interpolation=mode)]
    got, _ = ours(T.Compose(chain), pictures())
    for row, image in zip(got, pictures(), strict=True):
        x = v1.to_tensor(image) if to_float == "ToTensor" else F.to_dtype(F.to_image(image), torch.float32, scale=True)
        x = F.horizontal_flip(x)
        same(row, F.resize(x, [50, 70], interpolation=MODE[mode]), image.size)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("scale", [True, False])
def test_dtypes(dtype: str, scale: bool) -> None:
    torch_dtype = getattr(torch, dtype)
    image = pictures()[0]
    mean, std = (120.0, 110.0, 100.0), (55.0, 56.0, 57.0)
    chain = [T.ToImage(), T.ToDtype(torch_dtype, scale=scale), T.Normalize(mean, std)]
    (got,), _ = ours(T.Compose(chain), [image])
    same(got, F.normalize(F.to_dtype(F.to_image(image), torch_dtype, scale=scale), mean, std))


@pytest.mark.parametrize("kind", ["pil", "tensor"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padding(kind: str, mode: Any) -> None:
    fills: list[Any] = [0, 37, (10, 200, 30)] if mode == "constant" else [0]
    for padding in (5, (3, 30), (1, 2, 31, 4)):
        for fill in fills:
            pad = T.Pad(padding, fill=fill, padding_mode=mode)
            got, _ = ours(T.Compose([T.ToImage(), pad] if kind == "tensor" else [pad, T.ToImage()]), pictures())
            for row, image in zip(got, pictures(), strict=True):
                x = F.to_image(image) if kind == "tensor" else image
                fill_arg = list(fill) if isinstance(fill, tuple) else fill
                same(row, F.pad(x, [padding] if isinstance(padding, int) else list(padding), fill_arg, mode), padding)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_padding_beyond_the_image_repeats_as_numpy_does(mode: Any) -> None:
    pad = T.Pad((100, 90), padding_mode=mode)
    images = [Image.fromarray(photograph(h, w, 1)) for h, w in ((40, 41), (2, 3), (1, 1))]
    got, _ = ours(T.Compose([pad, T.ToImage()]), images)
    for row, image in zip(got, images, strict=True):
        same(row, F.pad(image, [100, 90], padding_mode=mode), image.size)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_random_crop_with_padding(mode: Any) -> None:
    got, ops = ours(T.Compose([T.RandomCrop(32, padding=4, padding_mode=mode), T.ToImage()]), pictures(), seed=8)
    crop = of(Crop, ops)
    for i, image in enumerate(pictures()):
        padded = F.pad(image, [4], padding_mode=mode)
        same(got[i], F.crop(padded, int(crop.top[i]) + 4, int(crop.left[i]) + 4, 32, 32), i)


@pytest.mark.parametrize("kind", ["pil", "tensor"])
@pytest.mark.parametrize("channels", [1, 3])
def test_grayscale(kind: str, channels: Any) -> None:
    gray = T.Grayscale(channels)
    # twice: the second one meets an image of one channel
    for chain, times in (([gray], 1), ([T.Grayscale(1), gray], 2)):
        got, _ = ours(T.Compose([T.ToImage(), *chain] if kind == "tensor" else [*chain, T.ToImage()]), pictures())
        for row, image in zip(got, pictures(), strict=True):
            x = F.to_image(image) if kind == "tensor" else image
            x = F.rgb_to_grayscale(x, 1) if times == 2 else x
            same(row, F.rgb_to_grayscale(x, channels), (image.size, times))


def test_grayscale_resized_stays_one_channel() -> None:
    got, _ = ours(T.Compose([T.Grayscale(1), T.Resize((30, 20)), T.CenterCrop(28), T.ToTensor()]), pictures())
    for row, image in zip(got, pictures(), strict=True):
        want = F.center_crop(F.resize(F.rgb_to_grayscale(image, 1), [30, 20]), [28, 28])
        same(row, F.pil_to_tensor(want).to(torch.float32).div(255))


@pytest.mark.parametrize("kind", ["pil", "tensor"])
def test_random_grayscale_and_flips(kind: str) -> None:
    chain: list[Any] = [T.RandomGrayscale(0.5), T.RandomVerticalFlip(), T.RandomHorizontalFlip(), T.Resize((40, 30))]
    got, ops = ours(T.Compose([T.ToImage(), *chain] if kind == "tensor" else [*chain, T.ToImage()]), pictures() * 3)
    gray, (vertical, horizontal) = of(Gray, ops), [op for op in ops if isinstance(op, Flip)]
    assert vertical.axis == "vertical" and gray.mask.any() and not gray.mask.all() and of(Resize, ops)
    for i, image in enumerate(pictures() * 3):
        x = F.to_image(image) if kind == "tensor" else image
        x = F.rgb_to_grayscale(x, 3) if gray.mask[i] else x
        x = F.vertical_flip(x) if vertical.mask[i] else x
        x = F.horizontal_flip(x) if horizontal.mask[i] else x
        same(got[i], F.resize(x, [40, 30]), i)


def test_arrays_and_pil_images_give_the_same() -> None:
    pipeline = imagenet.train(48)
    images = pictures()
    ops, *_ = pipeline.resolve(1, 2, np.arange(5, dtype=np.uint64), np.array([size_of(image) for image in images]))
    head, _ = head_and_tail(ops)
    for i, image in enumerate(images):
        assert np.array_equal(apply_sample(image, head, i), apply_sample(np.asarray(image), head, i))
