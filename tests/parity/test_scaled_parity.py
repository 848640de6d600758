"""How far images that are decoded smaller are from themselves decoded in full, and what would break that promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_files import exif
from PIL import Image

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Dataset, ImageFolder, Subset
from gpupipe.engines.torch.reference import reference
from gpupipe.parity.difference import Difference, difference
from gpupipe.parity.tolerances import broken
from gpupipe.reading import smaller as smaller_decoding
from gpupipe.reading.smaller import PROMISE, Smaller
from gpupipe.testing.photos import photograph


def sharp(folder: Path, name: str, pixels: Any, subsampling: str = "4:2:0") -> None:
    (folder / "only").mkdir(exist_ok=True)
    Image.fromarray(pixels).save(folder / "only" / name, quality=92, subsampling=subsampling)


def noisy(height: int, width: int, seed: int) -> Any:
    """A generated photograph, which is smooth, with the fine detail of real ones."""
    noise = np.random.default_rng(seed).normal(0, 12, (height, width, 3))
    return (photograph(height, width, seed) + noise).round().clip(0, 255).astype(np.uint8)


def found(dataset: Dataset, epochs: int = 2) -> Difference:
    """Of the images that are decoded smaller in some epochs."""
    total = Difference()
    scaled = Smaller.of(dataset, dataset.transform)
    assert scaled is not None
    with DataLoader(dataset, 5, shuffle=True, seed=11, engine="null", device="cpu") as loader:
        plans = [plan for _ in range(epochs) for plan, *_ in loader]
    for plan in plans:
        smaller = scaled.factors(plan) > 1
        a, b = (reference(dataset, plan, dataset.transform, scaled=way) for way in (True, False))
        assert plan.ops is not None and plan.sizes is not None
        ops = [op.take(smaller) for op in plan.ops]
        total += difference(a[smaller], b[smaller], ops, plan.sizes[smaller])
    assert total.images > 10
    return total


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for i in range(8):
        sharp(folder, f"{i}.jpg", noisy(601 + i, 803 - i, i), ("4:2:0", "4:4:4", "4:2:2")[i % 3])
    return folder


def near(interpolation: str, size: int = 64) -> T.Compose:
    """Crops of many sizes, of which none is far larger than it has to be to be decoded smaller."""
    return T.Compose([T.RandomResizedCrop(size, scale=(0.1, 1), interpolation=interpolation), T.PILToTensor()])


@pytest.mark.parametrize("interpolation", PROMISE)
def test_photographs_keep_the_promise(interpolation: str, photos: Path) -> None:
    dataset = ImageFolder(photos, near(interpolation))
    assert not broken(PROMISE[interpolation], found(dataset))


@pytest.mark.parametrize("interpolation", PROMISE)
def test_noise_and_blocks_keep_the_largest_difference(interpolation: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i, subsampling in enumerate(("4:2:0", "4:4:4", "4:2:2") * 3):
        sharp(tmp_path, f"noise {i}.jpg", rng.integers(0, 256, (400, 500, 3), np.uint8), subsampling)
        side = 5 + i
        blocks = rng.integers(0, 2, (400 // side, 500 // side, 1), np.uint8).repeat(side, 0).repeat(side, 1)
        sharp(tmp_path, f"blocks {i}.jpg", (blocks * np.uint8(255)).repeat(3, 2), subsampling)
    dataset = ImageFolder(tmp_path, near(interpolation, 32))
    total = found(dataset, 3)
    assert 15 < total.max <= PROMISE[interpolation].interior.max


@pytest.mark.parametrize("interpolation", PROMISE)
def test_windows_of_whole_pixels_would_break_the_promise(
    interpolation: str, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image.Image, "resize", _resize_whole)
    dataset = ImageFolder(photos, near(interpolation))
    assert broken(PROMISE[interpolation], found(dataset))


_resized = Image.Image.resize


def _resize_whole(self: Image.Image, size: Any, filter: Any, box: Any = None) -> Image.Image:
    """With the window at the next whole pixels."""
    return _resized(self, size, filter)


@pytest.mark.parametrize("interpolation", PROMISE)
def test_less_margin_would_break_the_promise(interpolation: str, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smaller_decoding, "MARGIN", 1)
    dataset = ImageFolder(photos, near(interpolation))
    assert broken(PROMISE[interpolation], found(dataset))


REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "images"


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the photographs beside the checkout")
@pytest.mark.parametrize("interpolation", PROMISE)
def test_real_photographs_keep_the_promise(interpolation: str) -> None:
    whole = ImageFolder(REAL, near(interpolation))
    large = np.flatnonzero(whole.sizes.min(axis=1) >= 480)
    assert len(large) > 8
    dataset = Subset(whole, large)
    assert not broken(PROMISE[interpolation], found(dataset, 3))


@pytest.mark.parametrize("sides", [(401, 407), (406, 403), (400, 405)])
@pytest.mark.parametrize("pipeline", [T.RandomResizedCrop(12, scale=(0.8, 1.0)), T.Resize((12, 13))])
def test_what_is_turned_lies_where_it_did(sides: tuple[int, int], pipeline: Any, tmp_path: Path) -> None:
    """Sides that are no multiples of 8: what libjpeg adds behind the last row and column is in front if it is turned.
    On a ramp of half a level per pixel, seven pixels would be three levels."""
    (tmp_path / "only").mkdir()
    y, x = np.mgrid[: sides[0], : sides[1]]
    ramp = np.stack([x / 2, y / 2, (x + y) / 4], axis=2).round().astype(np.uint8)
    for turn in range(1, 9):
        options: dict[str, Any] = {"quality": 100, "subsampling": "4:4:4", "exif": exif(turn)}
        Image.fromarray(ramp).save(tmp_path / "only" / f"{turn}.jpg", **options)
    dataset = ImageFolder(tmp_path, T.Compose([pipeline, T.PILToTensor()]), exif=True)
    total = found(dataset, 4)
    assert total.images == 32 and total.interior.max <= 1 and total.max <= 2
