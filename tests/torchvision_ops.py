"""Use of torchvision with a different build of torch: its transforms and datasets need no compiled operators.

Its decoders do, and can be replaced by Pillow's for tests.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

__all__ = ["define_image_operators", "define_missing_operators"]

_LIBRARIES: list[Any] = []
"""Keeps the definitions alive."""


def define_missing_operators() -> None:
    """Make ``import torchvision`` work if its compiled library was built for another torch; call it before the import.

    A torchvision built for CUDA cannot load its operators with a torch built for the CPU, for example, and its import
    fails when it describes them. An empty definition suffices.
    """
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations or _LIBRARIES:
        return
    for folder in spec.submodule_search_locations:
        for file in Path(folder).glob("_C*.so"):
            try:
                torch.ops.load_library(str(file))
            except OSError:
                continue
            return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)


_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's names of the values of ``ImageReadMode``; 0 leaves an image as it is."""


def define_image_operators(image: Any) -> None:
    """Make ``torchvision.io.decode_image`` and its like work, with Pillow's decoders if torchvision's did not load.

    Args:
        image: the module ``torchvision.io.image``.
    """
    import torch

    if image._has_image_ops():
        return
    library = torch.library.Library("image", "DEF")
    _LIBRARIES.append(library)
    library.define("read_file(str path) -> Tensor")
    library.impl("read_file", _read_file, "CompositeExplicitAutograd")
    for name in ("decode_image", "decode_jpeg", "decode_png"):
        library.define(f"{name}(Tensor data, int mode, bool apply_exif_orientation=False) -> Tensor")
        library.impl(name, _decode, "CPU")
    image._has_image_ops = lambda: True


def _read_file(path: str) -> Any:
    import torch

    return torch.from_numpy(np.fromfile(Path(path), np.uint8))


def _decode(data: Any, mode: int, upright: bool = False) -> Any:
    import torch

    try:
        opened: Any = Image.open(io.BytesIO(data.numpy().tobytes()))
        opened.load()  # so that gpupipe does not take it for an image that a script opens
        if upright:
            opened = ImageOps.exif_transpose(opened)
        made = opened.convert(_MODES.get(mode, "L" if opened.mode in ("1", "P") else opened.mode))
    except OSError as e:
        raise RuntimeError(str(e)) from None
    return torch.from_numpy(np.atleast_3d(np.array(made))).permute(2, 0, 1)  # channels last, as torchvision has it
