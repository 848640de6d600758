"""DALI on the GPU against DALI on the CPU and against the reference: measured, and judged where something is promised.

Bounds that are written here are those of sanity: a wrong channel, a shifted window or another filter breaks them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import parity_measure as parity
import pytest
import torch
from support import SEED, Case, identical, images_of, plans_of, seen

from gpupipe import DataLoader, SampleError, collate, transforms as T
from gpupipe.datasets import Dataset, ImageFolder, ImageList
from gpupipe.engines import Dali
from gpupipe.engines.torch.reference import reference
from gpupipe.errors import ConfigError
from gpupipe.parity.difference import Difference, difference
from gpupipe.parity.tolerances import check
from gpupipe.pipelines import imagenet

COARSE = {"nearest": 8.0, "perspective": 3.0, "affine": 3.0, "rotate": 3.0, "jpeg": 4.0}
"""The largest mean difference that may pass as the same operation, in gray levels; 1.5 for all others. JPEG compression
is another algorithm on the GPU: no libjpeg-turbo is there."""
JPEG_OF_NOISE = 25.0
"""Of noise and blocks, most of what JPEG keeps is what it makes of chroma."""


def sane(name: str, kind: parity.Kind) -> float:
    if "jpeg" in name and kind != "photographs":
        return JPEG_OF_NOISE
    return next((bound for word, bound in COARSE.items() if word in name), 1.5)


def note(measured: Callable[..., None], name: str, found: Difference) -> None:
    measured(
        name, max=found.max, mean=found.mean, over_1=found.over_1, equal=found.equal,
        interior_max=found.interior.max, border_max=found.border.max,
    )  # fmt: skip


def judge(dataset: Dataset, found: Difference, where: str) -> None:
    """What is promised must be kept; what was never measured is not promised, and reported only."""
    if len(dataset.transform.outputs) > 1:
        return  # promises are made for one view
    try:
        broken = check("dali/torch", dataset.transform, found, "cpu" if where == "cpu" else "cuda")
    except ConfigError:  # no row at all
        return
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("decoder", parity.DECODERS)
def test_every_decoder(decoder: str, where: str, tmp_path: Path, measured: Callable[..., None]) -> None:
    """Hardware and hybrid, fancy and plain upsampling. Fails where a window is not the part of the image that it should
    be."""
    files = parity.jpegs(tmp_path)
    for name in ("random crop", "imagenet.train"):
        dataset = parity.folder(files, {**parity.CASES, **parity.RECIPES}[name])
        found = parity.measure(dataset, where, **parity.DECODERS[decoder])
        note(measured, f"gpu/reference, {decoder}: {name}", found["reference"])
        assert found["reference"].mean < 4


def compose(*transforms: Any) -> T.Compose:
    return T.Compose(list(transforms))


DECODE = compose(T.CenterCrop(160), T.PILToTensor())


def batches(dataset: Dataset, engine: Any, device: str) -> list[torch.Tensor]:
    with DataLoader(
        dataset, batch_size=16, shuffle=True, num_workers=4, seed=SEED, engine=engine, device=device
    ) as loader:
        return [images_of(b).cpu() for b in loader]


def apart(a: list[torch.Tensor], b: list[torch.Tensor], dataset: Dataset) -> Difference:
    found = Difference()
    for one, two, plan in zip(a, b, plans_of(dataset, batch_size=16), strict=True):
        assert plan.ops is not None and dataset.sizes is not None
        found += difference(one, two, plan.ops, dataset.sizes[plan.indices])
    return found


def references(dataset: Dataset) -> list[torch.Tensor]:
    return [reference(dataset, plan, dataset.transform) for plan in plans_of(dataset, batch_size=16)]


@pytest.mark.thorough
def test_fancy_upsampling_is_nearer_to_pillow(large: Path, measured: Callable[..., None], where: str) -> None:
    dataset = ImageFolder(large, DECODE)
    want = references(dataset)
    means = [apart(batches(dataset, Dali(jpeg_fancy_upsampling=f), where), want, dataset).mean for f in (True, False)]
    measured("chroma upsampling", fancy_mean=means[0], plain_mean=means[1])
    assert means[0] <= means[1]


def test_formats_that_the_gpu_does_not_decode(mixed_images: Path, measured: Callable[..., None], where: str) -> None:
    """PNG, WebP, BMP, CMYK, progressive and one-pixel files come all the same, by way of the CPU where need be."""
    files = sorted(str(p) for p in mixed_images.rglob("*.*"))
    for file in files:
        dataset = ImageList([file], [0], transform=compose(T.CenterCrop(150), T.PILToTensor()))
        try:
            found = apart(batches(dataset, "dali", where), references(dataset), dataset)
        except SampleError as e:
            measured(f"format {Path(file).name}", error=str(e))
            raise
        note(measured, f"format {Path(file).name}", found)
        assert found.mean < 3, file


@pytest.mark.parametrize("exif", [False, True])
def test_orientation(mixed_images: Path, exif: bool, where: str) -> None:
    file = str(mixed_images / "jpeg" / "exif6.jpg")
    dataset = ImageList([file], [0], transform=compose(T.CenterCrop(150), T.PILToTensor()), exif=exif)
    assert apart(batches(dataset, "dali", where), references(dataset), dataset).mean < 3


@pytest.mark.thorough
def test_the_same_plans_give_the_same_bits_again(large: Path, measured: Callable[..., None], where: str) -> None:
    dataset = ImageFolder(large, imagenet.train(112))
    one, two = (batches(dataset, "dali", where) for _ in range(2))
    found = apart(one, two, dataset)
    note(measured, "gpu/gpu, the same batches", found)
    assert found.max <= 3


def test_neighbors_in_the_batch(large: Path, measured: Callable[..., None], where: str) -> None:
    """The hardware decoder takes a share of each batch, so who decodes an image depends on the others."""
    dataset = ImageFolder(large, DECODE)
    small = torch.cat(batches(dataset, "dali", where))
    with DataLoader(
        dataset, batch_size=5, shuffle=True, num_workers=4, seed=SEED, engine="dali", device=where
    ) as loader:
        other = torch.cat([images_of(b).cpu() for b in loader])
    difference_ = (small.int() - other.int()).abs()
    measured("gpu/gpu, other batches", max=int(difference_.max()), mean=float(difference_.float().mean()))
    assert difference_.float().mean() < 1.5


def test_images_of_different_sizes_arrive_on_the_device_without_padding(large: Path, where: str) -> None:
    made = ImageFolder(large, T.Compose([T.RandomShortestSize([60, 90, 120]), T.RandomHorizontalFlip(), T.ToTensor()]))
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": 2, "seed": SEED, "device": where}
    found = []
    for engine in ("dali", "torch"):
        with DataLoader(made, engine=engine, collate_fn=collate.as_lists, **options) as loader:
            found.append([image for images, _ in loader for image in images])
    assert len({image.shape for image in found[0]}) >= 3
    for ours, theirs in zip(*found, strict=True):
        assert ours.device.type == where and ours.shape == theirs.shape and ours.is_contiguous()
        assert (ours - theirs).abs().mean() < 4 / 255


def test_resume_gives_the_same_bits(numbered: Path, measured: Callable[..., None], where: str) -> None:
    case = Case("dali", "folder", where, numbered)
    loader = case.loader()
    iterator = iter(loader)
    next(iterator), next(iterator)
    state, rest = loader.state_dict(), list(iterator)
    other = case.loader()
    other.load_state_dict(state)
    again = list(other)
    case.close()
    assert [seen(b) for b in again] == [seen(b) for b in rest]
    same = [identical(a, b) for a, b in zip(again, rest, strict=True)]
    measured("resume on the GPU", bit_identical=f"{sum(same)} of {len(same)}")
    assert np.mean([float((images_of(a) - images_of(b)).abs().mean()) for a, b in zip(again, rest, strict=True)]) < 0.02


@pytest.mark.parametrize("name", ["affine bilinear, floats", "perspective bilinear, floats", "sharpness, pil"])
def test_a_script_that_allows_tf32_gets_the_same_pixels(name: str, where: str) -> None:
    """On the torch engine's batches too. Fails where a convolution or a product of matrices makes the places."""
    dataset = parity.arrays("photographs", parity.CASES[name], 8)
    before = torch.get_float32_matmul_precision()
    want = [parity.batches(dataset, engine, where) for engine in ("dali", "torch")]
    try:
        torch.set_float32_matmul_precision("high")
        got = [parity.batches(dataset, engine, where) for engine in ("dali", "torch")]
    finally:
        torch.set_float32_matmul_precision(before)
    for a, b in zip(got, want, strict=True):
        assert parity.apart(dataset, a, b).equal == 1


# ---- last, because there are hundreds of them, and benchmarks/gpu_parity.py measures the same


@pytest.mark.part("kind", "name", of=24)
@pytest.mark.parametrize("kind", parity.INPUTS)
@pytest.mark.parametrize("name", [*parity.CASES, *parity.RECIPES])
def test_every_transform_and_recipe_on_pixels(
    name: str, kind: parity.Kind, where: str, measured: Callable[..., None]
) -> None:
    """Nothing is decoded: what is left is the arithmetic of the operators. Fails where a promise is broken, and where
    the mean says that it is not the same operation: a wrong channel, a shifted window, another filter, other numbers.
    """
    make = {**parity.CASES, **parity.RECIPES}[name]
    dataset = parity.arrays(kind, make, 8)
    found = parity.measure(dataset, where)
    note(measured, f"gpu/reference, {kind}: {name}", found["reference"])
    note(measured, f"gpu/cpu, {kind}: {name}", found["cpu"])
    if kind == "photographs":
        judge(dataset, found["reference"], where)
    rows = set(parity.rows_of(make))
    if rows <= {"crop", "flip", "erase"}:
        assert found["cpu"].max <= (0 if rows <= {"crop", "flip"} else 1)
    assert found["reference"].mean < sane(name, kind)
