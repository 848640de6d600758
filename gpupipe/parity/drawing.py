"""Pictures of differences, drawn with Pillow alone."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from ..errors import ConfigError
from .compare import Worst
from .targets import Targets

Pixels = npt.NDArray[np.uint8]

_INK, _PAPER, _GRAY = (24, 28, 36), (255, 255, 255), (110, 116, 128)
_CELL, _GAP, _HEAD, _CAPTION = 224, 10, 34, 40


def create_folder_of(path: Path) -> None:
    """Create the folder of a file that will be written, before the work for it begins. Raises :class:`ConfigError` if
    the file cannot be written."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"{path}: its folder cannot be created: {e.strerror}; name another file") from e
    is_new = not path.exists()
    try:
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as e:
        raise ConfigError(f"{e.strerror}: {str(path)!r}; name another file") from e


def amplification(largest: float) -> int:
    """Return the factor that makes a difference visible. One level must show, so a few large differences at a border
    clip."""
    return 128 if largest <= 2 else 64 if largest <= 32 else max(1, 2 ** math.floor(math.log2(255 / largest)))


def amplified(a: Pixels, b: Pixels, factor: int) -> Pixels:
    """Return ``|a - b| * factor``, clipped, u8[H, W, 3]."""
    scaled: Pixels = np.minimum(np.abs(a.astype(np.int32) - b) * factor, 255).astype(np.uint8)
    return scaled


def cell(pixels: Pixels, size: int = _CELL) -> Image.Image:
    """Return the picture in a square of ``size`` pixels. Small ones are enlarged by an integer factor, so that pixels
    show."""
    image = Image.fromarray(pixels)
    longest = max(image.size)
    if longest > size:
        image = image.resize(
            (max(image.width * size // longest, 1), max(image.height * size // longest, 1)), Image.Resampling.BOX
        )
    elif size // longest > 1:
        image = image.resize((image.width * (size // longest), image.height * (size // longest)), 0)
    square = Image.new("RGB", (size, size), (238, 240, 244))
    square.paste(image, ((size - image.width) // 2, (size - image.height) // 2))
    return square


def with_targets(pixels: Pixels, targets: Targets) -> Pixels:
    """Return the picture u8[H, W, 3] with its masks in color, and its boxes as frames."""
    painted = pixels.astype(np.float32)
    for number, mask in enumerate(targets.masks):
        for k in np.unique(mask[mask != 0]).tolist():
            painted[mask == k] = 0.5 * painted[mask == k] + 0.5 * np.array(_color(k + number), np.float32)
    image = Image.fromarray(painted.astype(np.uint8))
    draw, line = ImageDraw.Draw(image), max(1, round(max(image.size) / _CELL * 2))
    for number, (x0, y0, x1, y1) in enumerate(targets.boxes.tolist()):
        if x0 <= x1 and y0 <= y1:
            # Pillow draws the last row and column too, and boxes end before them.
            draw.rectangle((x0, y0, x1 - 1 if x1 > x0 else x1, y1 - 1 if y1 > y0 else y1), None, _color(number), line)
    return np.asarray(image)


def _color(number: int) -> tuple[int, int, int]:
    """Return a color that differs from those of neighboring numbers."""
    # Multiples of the golden ratio spread evenly over the circle of hues.
    red, green, blue = colorsys.hsv_to_rgb(number * 0.618 % 1, 0.85, 1)
    return round(255 * red), round(255 * green), round(255 * blue)


def place_of(path: str) -> str:
    """Return the name of a file with its folder, as folders of classes have files of the same names."""
    return "/".join(Path(path).parts[-2:])


def sheet(worst: Sequence[Worst], title: str) -> Image.Image:
    """Draw DALI, the reference and their amplified difference side by side, one row per image."""
    factor = amplification(max((w.max for w in worst), default=0))
    width = 3 * _CELL + 4 * _GAP
    height = _HEAD + 28 + len(worst) * (_CELL + _CAPTION) + _GAP
    image = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(image)
    large, small = ImageFont.load_default(16), ImageFont.load_default(12)
    draw.text((_GAP, 9), _short(draw, title, large, width - 2 * _GAP), _INK, large)
    for column, heading in enumerate(("DALI", "reference", f"difference x {factor}")):
        draw.text((_GAP + column * (_CELL + _GAP), _HEAD + 6), heading, _GRAY, small)
    for row, w in enumerate(worst):
        y = _HEAD + 28 + row * (_CELL + _CAPTION)
        pictures = with_targets(w.dali, w.dali_targets), with_targets(w.reference, w.reference_targets)
        for column, pixels in enumerate((*pictures, amplified(w.dali, w.reference, factor))):
            image.paste(cell(pixels), (_GAP + column * (_CELL + _GAP), y))
        caption = f"largest {w.max:.3g}, mean {w.mean:.3g} gray levels · {place_of(w.path)}"
        draw.text((_GAP, y + _CELL + 5), _short(draw, caption, small, width - 2 * _GAP), _INK, small)
    return image


def _short(draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    if draw.textlength(text, font) <= width:
        return text
    while text and draw.textlength(text + "…", font) > width:
        text = text[:-1]
    return text + "…"
