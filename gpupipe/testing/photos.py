"""Synthetic pictures with the statistics of photographs, for the demo, the benchmarks and the tests.

A picture consists of a shaded background, a few soft-edged textured objects, 1/f detail (the spectrum of natural
images), a vignette and sensor noise. Its JPEG compresses like that of a photograph, unlike flat colors or white noise.
In :func:`make_photos` the class determines color, shape and stripes of the objects, so a small network can learn it,
even from crops, mirrored pictures and the few grayscale ones.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..errors import ConfigError
from ..rng import stream

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

SIZES: tuple[tuple[int, int], ...] = ((375, 500), (500, 375), (333, 500), (360, 480), (500, 500), (281, 375))
"""(height, width) of pictures: shapes common in ImageNet, and a smaller one."""

_GOLDEN = 0.6180339887498949
_SHAPES = 3


def photograph(height: int, width: int, seed: int, *, kind: int | None = None) -> U8:
    """Return one picture u8[height, width, 3], a function of its arguments.

    Args:
        height, width: in pixels, at least 1.
        seed: any integer.
        kind: class that determines hue, shape and stripes of the objects; ``None`` draws them too.

    Raises:
        ConfigError: a side is less than one pixel.
    """
    if height < 1 or width < 1:
        raise ConfigError(f"photograph: height and width must be at least 1, not {height} and {width}")
    if height * width > _SMALL:
        return _made(height, width, seed, kind)
    return _kept(height, width, seed, kind).copy()


def _made(height: int, width: int, seed: int, kind: int | None) -> U8:
    rng = np.random.default_rng(stream(seed, "photograph"))
    look = int(rng.integers(1 << 30)) if kind is None else kind
    scale = float(max(height, width))
    y = (np.arange(height, dtype=np.float32)[:, None] - height / 2) / scale
    x = (np.arange(width, dtype=np.float32)[None, :] - width / 2) / scale
    detail, coarse = _pink(height, width, rng)

    angle = rng.uniform(0, 2 * np.pi)
    blend = np.clip(0.5 + np.cos(angle) * x + np.sin(angle) * y + 0.08 * coarse, 0, 1)[..., None]
    picture = _color(rng.random(), 0.25, rng.uniform(0.4, 0.9)) * (1 - blend)
    picture += _color(rng.random(), 0.25, rng.uniform(0.2, 0.7)) * blend
    for _ in range(int(rng.integers(3, 6))):
        _paint(picture, x, y, coarse, look, rng)
    light = 1.0 + 0.16 * detail - 0.5 * (x * x + y * y)
    picture *= light[..., None]
    picture += rng.standard_normal((height, width, 1), np.float32) * np.float32(0.012)
    return np.asarray(np.clip(picture * 255 + 0.5, 0, 255), np.uint8)


_SMALL = 1 << 14
"""Pixels of the largest pictures to cache: tests ask for the same small pictures thousands of times, and 1024 of this
size take 50 MB."""
_kept = lru_cache(1024)(_made)


def _color(hue: float, saturation: float, value: float) -> F32:
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, value), np.float32)


def _pink(height: int, width: int, rng: np.random.Generator) -> tuple[F32, F32]:
    """Return two independent fields f32[H, W] with mean 0, deviation 1 and amplitudes 1/f**1.25 and 1/f**2."""
    # Compute the periodic field on the next multiple of 32, because FFTs of prime lengths are slow.
    h, w = -(-height // 32) * 32, -(-width // 32) * 32
    noise = np.fft.rfft2(rng.standard_normal((h, w), np.float32))
    f = np.hypot(np.fft.fftfreq(h).astype(np.float32)[:, None], np.fft.rfftfreq(w).astype(np.float32)[None, :])
    f[0, 0] = np.inf
    fields = []
    for power, turn in ((1.25, 1.0), (2, 1j)):
        # Turning every phase by a quarter decorrelates the second field from the first at half the cost.
        field = np.fft.irfft2(noise / f**power * turn, s=(h, w)).astype(np.float32)
        field -= field.mean()
        fields.append((field / max(float(field.std()), 1e-6))[:height, :width])
    return fields[0], fields[1]


def _paint(picture: F32, x: F32, y: F32, coarse: F32, look: int, rng: np.random.Generator) -> None:
    """Paint one object into ``picture`` f32[H, W, 3], in place."""
    cx, cy = rng.uniform(-0.38, 0.38), rng.uniform(-0.3, 0.3)
    radius = rng.uniform(0.1, 0.24)
    tilt = rng.uniform(-0.35, 0.35)
    u = (x - cx) * np.cos(tilt) + (y - cy) * np.sin(tilt)
    v = (y - cy) * np.cos(tilt) - (x - cx) * np.sin(tilt)
    if look % _SHAPES == 0:
        distance = np.hypot(u, v * rng.uniform(0.8, 1.25))
    elif look % _SHAPES == 1:
        distance = np.maximum(np.abs(u), np.abs(v) * rng.uniform(0.8, 1.25))
    else:
        distance = np.maximum(np.abs(u) * 1.6 + v * 0.8, -v * 1.4)
    edge = rng.uniform(60, 200)  # depth of field: sharpness of the rim
    cover = np.clip((radius + 0.012 * coarse - distance) * edge, 0, 1)[..., None]
    hue = look * _GOLDEN + rng.normal(0, 0.025)
    body = _color(hue, rng.uniform(0.55, 0.9), rng.uniform(0.55, 0.95))
    direction = (look // _SHAPES + look) % 4 * (np.pi / 4) + tilt
    waves = np.sin((u * np.cos(direction) + v * np.sin(direction)) * (2 * np.pi * (14 + 9 * (look % 4))))
    shade = 1.0 + 0.22 * waves + 0.6 * (-u - v)
    picture += cover * (body * shade[..., None] - picture)


def make_photos(
    root: str | Path,
    classes: int = 4,
    per_class: int = 16,
    seed: int = 0,
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> Path:
    """Write JPEG files ``root/class00/photo0000.jpg`` in one folder per class. Return ``root`` as a path.

    Every third file keeps full color resolution (4:4:4); the others halve it (4:2:0) as cameras do. Every eleventh is
    grayscale. Sizes and qualities vary. Equal arguments write equal bytes.

    Args:
        root: created if missing; files with the same names are overwritten.
        classes, per_class: numbers of classes and pictures, at least 1.
        seed: any integer; another seed gives other pictures of the same classes.
        sizes: (height, width) pairs, used in mixed order.

    Raises:
        ConfigError: a number is too small, or there are no sizes.
    """
    if classes < 1 or per_class < 1 or not sizes:
        raise ConfigError(
            f"make_photos: classes={classes} and per_class={per_class} must be at least 1, sizes not empty: {sizes!r}"
        )
    root = Path(root)
    for c in range(classes):
        folder = root / f"class{c:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            key = stream(seed, c, i)
            height, width = sizes[key % len(sizes)]
            image = Image.fromarray(photograph(height, width, key, kind=c))
            if i % 11 == 10:
                image = image.convert("L")
            image.save(
                folder / f"photo{i:04d}.jpg",
                quality=80 + (key >> 32) % 16,
                subsampling="4:4:4" if i % 3 == 1 else "4:2:0",
            )
    return root
