"""JPEG windows decoded by nvImageCodec: Pillow's pixels, or none."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpupipe.codecs import nvimgcodec
from gpupipe.codecs.nvimgcodec import decode_window
from gpupipe.testing.photos import photograph

PHOTO = Image.fromarray(photograph(203, 150, 3))


def encoded(image: Image.Image = PHOTO, format: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


FILES = {
    "4:2:0": encoded(),
    "4:4:4": encoded(subsampling=0),
    "4:2:2": encoded(subsampling=1),
    "progressive": encoded(progressive=True),
    "restarts": encoded(restart_marker_blocks=3),
    "gray": encoded(PHOTO.convert("L")),
    "mpo": encoded(format="MPO", save_all=True, append_images=[PHOTO.rotate(90)]),
    "turned": encoded(exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"),
}
WINDOWS = [None, (0, 0, 203, 150), (0, 0, 1, 1), (202, 149, 1, 1), (17, 33, 100, 51), (101, 7, 102, 143)]


@pytest.mark.parametrize("name", FILES)
def test_windows_have_pillows_pixels(name: str) -> None:
    whole = np.asarray(Image.open(io.BytesIO(FILES[name])).convert("RGB"))
    for window in WINDOWS:
        top, left, height, width = window or (0, 0, 203, 150)
        found = decode_window(FILES[name], (203, 150), window)
        assert found is not None and found.dtype == np.uint8
        np.testing.assert_array_equal(found, whole[top : top + height, left : left + width])


def test_nothing_without_the_right_file(monkeypatch: Any, capfd: Any) -> None:
    good = FILES["4:2:0"]
    assert decode_window(good, (150, 203)) is None, "another size"
    for damaged in (b"", b"no image at all", good[:300], good[: len(good) // 2]):
        assert decode_window(damaged, (203, 150)) is None
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(nvimgcodec, "_library", lambda: None)
    assert decode_window(good, (203, 150)) is None, "not installed"
