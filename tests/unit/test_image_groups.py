"""Several small images that go through an op in one call come out as one by one, in every bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity_cases import CASES

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Arrays, Subset
from gpupipe.engines.host.image_batch import ImageBatch
from gpupipe.engines.torch.reference import reference
from gpupipe.kernels import registry
from gpupipe.kernels.apply import apply_sample, apply_together
from gpupipe.kernels.geometry import crop_batch, window
from gpupipe.transforms import ops as O

pytest.importorskip("nvidia.dali")

N = 20
FLOAT = [T.ToTensor(), T.Normalize((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))]
RNG = np.random.default_rng(0)
COARSE = RNG.integers(0, 256, (N, 8, 9, 3), np.uint8).repeat(4, 1).repeat(4, 2)


def runs_here(ops: Any) -> bool:
    """numpy has no bfloat16, and functions of a script are called image by image."""
    if any(isinstance(op, O.Call) or getattr(op, "dtype", "") == "bfloat16" for op in ops):
        return False
    return all(runs_here(branch) for op in ops for branch in op.branches)


@pytest.mark.parametrize("case", CASES)
def test_every_case_is_the_same_together_as_one_by_one(case: str) -> None:
    images = RNG.integers(0, 256, (N, 96, 98, 3), np.uint8) if "crop" in case or case == "views" else COARSE
    keys, sizes = np.arange(N, dtype=np.uint64), np.tile(np.array(images.shape[1:3], np.int32), (N, 1))
    ops = CASES[case]().resolve(0, 0, keys, sizes)[0]
    if not runs_here(ops):
        pytest.skip("not done together")
    want: Any = [apply_sample(image, ops, i) for i, image in enumerate(images)]
    got = apply_together(torch.from_numpy(images.copy()).permute(0, 3, 1, 2), ops)
    views = zip(*want, strict=True) if isinstance(want[0], tuple) else [want]
    for one, view in zip(got if isinstance(got, tuple) else (got,), views, strict=True):
        wanted = torch.from_numpy(np.stack(list(view))).permute(0, 3, 1, 2)
        assert one.dtype == wanted.dtype and torch.equal(one, wanted)


WARPS: dict[str, Any] = {
    "rotation": T.RandomRotation(15),
    "any angle": T.RandomRotation(180, fill=7),
    "quarter turns": T.RandomRotation((90, 90)),
    "none": T.RandomRotation((0, 0)),
    "affine": T.RandomAffine(10, translate=(0.2, 0.1), scale=(0.7, 1.4), shear=(-9, 9, -5, 5)),
    "scale": T.RandomAffine(0, scale=(0.3, 3)),
    "shifts": T.RandomAffine(0, translate=(0.5, 0.5), fill=9),
    "some": T.RandomApply([T.RandomRotation(15)], p=0.9),
    "bilinear": T.RandomRotation(15, interpolation="bilinear"),
    "larger": T.RandomRotation((45, 45), expand=True),
}


@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("size", [(32, 32, 3), (28, 28, 1), (17, 40, 3), (5, 3, 3), (60, 60, 3)])
@pytest.mark.parametrize("count", [3, 40])
def test_warps_of_several_images_are_those_of_each(warp: str, size: tuple[int, int, int], count: int) -> None:
    images = RNG.integers(0, 256, (count, *size), np.uint8)
    keys, sizes = np.arange(count, dtype=np.uint64), np.tile(np.array(size[:2], np.int32), (count, 1))
    ops = T.Compose([WARPS[warp]]).resolve(0, 0, keys, sizes)[0]
    want = [np.asarray(apply_sample(image, ops, i)) for i, image in enumerate(images)]
    got = apply_together(torch.from_numpy(images.copy()).permute(0, 3, 1, 2), ops)
    assert np.array_equal(got.permute(0, 2, 3, 1), np.stack(want).reshape(count, *want[0].shape[:2], -1))  # type: ignore[union-attr]


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("reach", [0, 5, 100])
def test_windows_of_a_batch_are_those_of_each_image(planes: bool, mode: Any, reach: int) -> None:
    for height, width, fill in ((8, 30, (7.0,)), (40, 5, (1.0, 2.9, 200.0)), (32, 36, (0.0,))):
        if not reach and (height > 32 or width > 36):
            continue
        sides = ((32, height), (36, width))
        top, left = (RNG.integers(-reach, max(have - size, 0) + reach + 1, N, np.int32) for have, size in sides)
        whole = np.full(N, height, np.int32), np.full(N, width, np.int32)
        op = O.Crop(top, left, *whole, padded=bool(reach), fill=fill, mode=mode)
        x = torch.from_numpy(COARSE).permute(0, 3, 1, 2)
        got = crop_batch(x.contiguous() if planes else x, op)
        where = zip(top.tolist(), left.tolist(), strict=True)
        want = [window(image, t, s, height, width, fill, mode) for image, (t, s) in zip(COARSE, where, strict=True)]
        assert np.array_equal(got.permute(0, 2, 3, 1), want)
        if mode == "constant":
            assert (got.stride(1) == 1) != planes


# ---- images in memory


PIPELINES: dict[str, list[Any]] = {
    "nothing": [],
    "floats": FLOAT,
    "crop and flip": [T.RandomCrop(32, padding=4, pad_if_needed=True), T.RandomHorizontalFlip(), *FLOAT],
    "colors": [T.RandomHorizontalFlip(), T.ColorJitter(0.2, 0.2, 0.2, 0.1), *FLOAT, T.RandomErasing()],
    "policy": [T.AutoAugment("cifar10"), *FLOAT],
    "rotated": [T.RandomRotation(15), *FLOAT],
    "views": [T.MultiView([T.Compose([T.RandomHorizontalFlip(), *FLOAT]), T.Compose([T.RandomCrop(16), *FLOAT])])],
}
GRAY = RNG.integers(0, 256, (N, 28, 28), np.uint8)


def batches(dataset: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "device": "cpu", "engine": "dali", **options}
    with DataLoader(dataset, **given) as loader:
        return [(batch, loader._session.running.engine) for batch in loader]  # type: ignore[attr-defined]


def same_as_reference(dataset: Any, **options: Any) -> None:
    with DataLoader(dataset, batch_size=8, shuffle=True, seed=3, device="cpu", engine="null") as null:
        plans = [plan for plan, *_ in null]
    made = batches(dataset, **options)
    assert len(made) == len(plans) > 1
    for (batch, _), plan in zip(made, plans, strict=True):
        images, want = batch[0], reference(dataset, plan, dataset.transform)
        for one, other in zip(*([x] if torch.is_tensor(x) else x for x in (images, want)), strict=True):
            assert one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
        assert batch[1].tolist() == dataset.labels[plan.indices].tolist()


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("workers", [0, 3])
def test_images_in_memory_are_the_references_to_the_last_bit(pipeline: str, workers: int) -> None:
    same_as_reference(Arrays(COARSE, np.arange(N), transform=T.Compose(PIPELINES[pipeline])), num_workers=workers)


def test_so_are_they_in_groups_that_do_not_divide_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_AT_ONCE", 3 * COARSE[0].size)
    groups: list[int] = []
    put_group = ImageBatch.put_group

    def noted(self: ImageBatch, images: Any, row: int) -> None:
        groups.append(len(images))
        put_group(self, images, row)

    monkeypatch.setattr(ImageBatch, "put_group", noted)
    same_as_reference(Arrays(COARSE, np.arange(N), transform=T.Compose(PIPELINES["colors"])))
    assert sorted(groups) == [2, 2, 2, 3, 3, 3, 3, 2] or sorted(groups) == [2, 2, 2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("first", [[], [T.Grayscale(1)], [T.Grayscale(3)], [T.ColorJitter(0.3)]])
def test_gray_images_become_colors_unless_the_transforms_take_one_channel(first: list[Any]) -> None:
    same_as_reference(Arrays(GRAY, np.arange(N), transform=T.Compose([*first, T.ToTensor()])))


def test_parts_planes_and_mapped_files_are_the_same_images(tmp_path: Path) -> None:
    transform = T.Compose(PIPELINES["crop and flip"])
    rows = RNG.permutation(N)[:17]
    planes = np.moveaxis(np.ascontiguousarray(np.moveaxis(COARSE, -1, 1)), 1, -1)  # as torchvision's SVHN
    file = tmp_path / "images"
    mapped = np.memmap(file, np.uint8, "w+", shape=COARSE.shape)
    mapped[:] = COARSE
    for images in (COARSE, planes, mapped):
        whole = Arrays(images, np.arange(N), transform=transform)
        same_as_reference(Subset(Subset(whole, np.arange(N)[::-1]), rows))


def test_channels_may_come_last() -> None:
    transform = T.Compose(PIPELINES["crop and flip"], memory_format="channels_last")
    same_as_reference(Arrays(COARSE, np.arange(N), transform=transform))
