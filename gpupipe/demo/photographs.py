"""Images of the demo: windows of photographs that installed packages contain, or else synthetic ones."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ..cache_folder import cache_folder, make_folder
from ..rng import stream
from ..testing.photos import make_photos

TRAIN, HELD_OUT = 384, 96
"""Number of images of all classes together, at most."""
_SYNTHETIC = 4
"""Classes of synthetic photographs."""
_FULL = 16
"""Synthetic photographs of each class to measure speed with."""
_SIZES = ((150, 200), (200, 150), (160, 160), (133, 200), (144, 192))
_LONGEST = 720
"""Longer side that large photographs are reduced to."""
_PLACES = {
    "scikit-image": ("skimage", "data", (
        "astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "motorcycle_left.png", "retina.jpg",
        "rocket.jpg",
    )),
    "scikit-learn": ("sklearn", "datasets/images", ("china.jpg", "flower.jpg")),
    "matplotlib": ("matplotlib", "mpl-data/sample_data", ("grace_hopper.jpg",)),
}  # fmt: skip
"""(module, folder in it, color photographs that its wheel contains), by the name of the distribution."""


@dataclass(frozen=True)
class Images:
    """Images to train on."""

    train: Path
    """Folder with one folder per class."""
    held_out: Path
    source: str
    """Description of the images."""


def images(progress: Callable[[str], None] = lambda text: None) -> Images:
    """Return images in the cache folder, creating them if missing.

    A class is a photograph, and its images are windows of it. With fewer than two photographs, the classes are those of
    :func:`~gpupipe.testing.photos.make_photos`.
    """
    photographs, packages = installed_photographs()
    if len(photographs) < 2:
        return _synthetic(progress)

    def cut(folder: Path) -> None:
        progress(f"cutting windows out of {len(photographs)} photographs")
        for k, photograph in enumerate(photographs):
            windows(photograph, folder / "train" / photograph.stem, TRAIN // len(photographs), seed=2 * k)
            windows(photograph, folder / "val" / photograph.stem, HELD_OUT // len(photographs), seed=2 * k + 1)

    key = [(photograph.name, photograph.stat().st_size, TRAIN, HELD_OUT) for photograph in photographs]
    folder = _once(f"photographs-{hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()}", cut)
    source = f"windows of {len(photographs)} photographs of {' and '.join(packages)}"
    return Images(folder / "train", folder / "val", source)


def _synthetic(progress: Callable[[str], None]) -> Images:
    train, held_out = TRAIN // _SYNTHETIC, HELD_OUT // _SYNTHETIC

    def make(folder: Path) -> None:
        progress(f"creating {_SYNTHETIC * (train + held_out)} synthetic photographs")
        make_photos(folder / "train", _SYNTHETIC, train, seed=0, sizes=_SIZES)
        make_photos(folder / "val", _SYNTHETIC, held_out, seed=1, sizes=_SIZES)

    folder = _once(f"synthetic-{_SYNTHETIC}x{train}+{held_out}", make)
    return Images(folder / "train", folder / "val", "synthetic photographs")


def full_size(progress: Callable[[str], None] = lambda text: None) -> Path:
    """Return a folder of synthetic photographs with about 500 x 375 pixels, creating it if missing."""

    def make(folder: Path) -> None:
        progress(f"creating {_SYNTHETIC * _FULL} photographs to measure speed with")
        make_photos(folder, _SYNTHETIC, _FULL, seed=2)

    return _once(f"full-{_SYNTHETIC}x{_FULL}", make)


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, which ``make`` fills if it is not complete."""
    base = Path(cache_folder("demo"))
    folder = base / name
    if not (folder / "complete").exists():
        make_folder(str(base))
        make(folder)
        (folder / "complete").touch()
    return folder


def installed_photographs() -> tuple[list[Path], list[str]]:
    """Return photographs that lie in installed packages, and the distributions that have some. Imports nothing."""
    found: list[Path] = []
    packages: list[str] = []
    for package, (module, folder, names) in _PLACES.items():
        spec = importlib.util.find_spec(module)
        for place in () if spec is None else spec.submodule_search_locations or ():
            here = [path for name in names if (path := Path(place) / folder / name).is_file()]
            found += here
            packages += [package] if here else []
    return found, packages


def windows(photograph: Path, folder: Path, count: int, seed: int) -> None:
    """Write windows of a photograph as JPEG files, a function of its arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    with Image.open(photograph) as opened:
        whole = opened.convert("RGB")
    whole.thumbnail((_LONGEST, _LONGEST))
    rng = np.random.default_rng(stream(seed, "windows"))
    for k in range(count):
        width, height = (int(side * rng.uniform(0.45, 0.8)) for side in whole.size)
        left, top = (int(rng.integers(a - b + 1)) for a, b in zip(whole.size, (width, height), strict=True))
        window = whole.crop((left, top, left + width, top + height))
        window.save(folder / f"window{k:03d}.jpg", quality=int(rng.integers(85, 96)))
