"""torchvision's operators that decode images, made of Pillow where torchvision's own do not load.

torchvision's wheels have operators for one build of torch. Its functions, such as ``decode_image``, run as they are.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from gpupipe.testing.torchvision_ops import define_missing_operators

__all__ = ["define_image_operators"]

_LIBRARIES: list[Any] = []
"""Keeps the definitions alive."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's names of the values of ``ImageReadMode``; 0 leaves an image as it is."""


def define_image_operators() -> None:
    """Make ``torchvision.io.decode_image`` and its like work."""
    define_missing_operators()
    from torchvision.io import image

    if image._has_image_ops() or _LIBRARIES:
        return
    library = torch.library.Library("image", "DEF")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)
    library.define("read_file(str path) -> Tensor")  # type: ignore[no-untyped-call]
    library.impl("read_file", _read_file, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    for name in ("decode_image", "decode_jpeg", "decode_png"):
        library.define(f"{name}(Tensor data, int mode, bool apply_exif_orientation=False) -> Tensor")  # type: ignore[no-untyped-call]
        library.impl(name, _decode, "CPU")  # type: ignore[no-untyped-call]
    image._has_image_ops = lambda: True


def _read_file(path: str) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(Path(path), np.uint8))


def _decode(data: torch.Tensor, mode: int, upright: bool = False) -> torch.Tensor:
    try:
        opened: Any = Image.open(io.BytesIO(data.numpy().tobytes()))
        opened.load()  # so that gpupipe does not take it for an image that a script opens
        if upright:
            opened = ImageOps.exif_transpose(opened)
        made = opened.convert(_MODES.get(mode, "L" if opened.mode in ("1", "P") else opened.mode))
    except OSError as e:
        raise RuntimeError(str(e)) from None
    return torch.from_numpy(np.atleast_3d(np.array(made))).permute(2, 0, 1)  # channels last, as torchvision has it
