"""What the graph computes by arithmetic on a GPU, so that nothing has to come back to the CPU: here on DALI's CPU
backend, beside the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvidia.dali")

from nvidia.dali import Pipeline, fn, types
from PIL import Image, ImageEnhance, ImageOps

from gpupipe.engines.dali.lowering.color import contrasted
from gpupipe.engines.dali.lowering.enhance import stretched
from gpupipe.testing.photos import photograph

RNG = np.random.default_rng(0)
PICTURES = [
    *(photograph(60, 80, i) // (1 + i % 3) + 20 * (i % 2) for i in range(6)),
    RNG.integers(0, 256, (60, 80, 3), np.uint8),
    np.full((60, 80, 3), (7, 200, 0), np.uint8),  # a channel of one value has no spread
]
FACTORS = np.array([0.0, 0.3, 0.9, 1.0, 1.1, 1.7, 2.0, 1.5], np.float32)


def run(make: Callable[[Any, Any], Any], numbers: Any) -> list[Any]:
    pipe = Pipeline(batch_size=len(PICTURES), num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipe:
        images = fn.external_source(name="images", layout="HWC", dtype=types.UINT8, ndim=3)
        pipe.set_outputs(make(images, fn.external_source(name="numbers", dtype=types.FLOAT, ndim=0)))
    pipe.build()
    (out,) = pipe.run(images=PICTURES, numbers=numbers)
    return [np.asarray(x) for x in out]


def test_contrast() -> None:
    def make(images: Any, factor: Any) -> Any:
        mean = fn.reductions.mean(fn.color_space_conversion(images, image_type=types.RGB, output_type=types.GRAY))
        return contrasted(images, factor, fn.cast(fn.cast(mean, dtype=types.INT32), dtype=types.FLOAT), 3)

    for picture, factor, got in zip(PICTURES, FACTORS, run(make, FACTORS), strict=True):
        want = np.asarray(ImageEnhance.Contrast(Image.fromarray(picture)).enhance(float(factor)))
        apart = np.abs(got.astype(int) - want)
        assert got.dtype == np.uint8 and apart.max() <= 1 and apart.mean() < 0.01


def test_autocontrast() -> None:
    def make(images: Any, one: Any) -> Any:
        images = fn.cast(images * one, dtype=types.UINT8)
        low, high = (
            fn.cast(f(images, axes=[0, 1], keep_dims=True), dtype=types.FLOAT)
            for f in (fn.reductions.min, fn.reductions.max)
        )
        flat = low == high
        return stretched(images, low * (1.0 - flat), high - low + flat * 255.0, 3)

    for picture, got in zip(PICTURES, run(make, np.ones(len(PICTURES), np.float32)), strict=True):
        want = np.asarray(ImageOps.autocontrast(Image.fromarray(picture)))
        assert np.abs(got.astype(int) - want).max() <= 1
    assert any((np.asarray(ImageOps.autocontrast(Image.fromarray(p))) != p).any() for p in PICTURES)
