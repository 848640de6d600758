"""Images of the demo: synthetic photographs in the cache folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..cache_folder import cache_folder, make_folder
from ..testing.photos import SIZES, make_photos

CLASSES = 4
SMALL = ((150, 200), (200, 150), (160, 160), (133, 200), (144, 192))
"""(height, width) of images to train on."""


def photographs(
    per_class: int, seed: int, progress: Callable[[str], None], sizes: Sequence[tuple[int, int]] = SIZES
) -> Path:
    """Return a folder with one folder of images per class, creating it if missing."""
    base = Path(cache_folder("demo"))
    folder = base / f"{CLASSES}x{per_class}-{seed}"
    if not (folder / "complete").exists():
        progress(f"creating {CLASSES * per_class} synthetic photographs")
        make_folder(str(base))
        make_photos(folder, CLASSES, per_class, seed, sizes)
        (folder / "complete").touch()
    return folder
