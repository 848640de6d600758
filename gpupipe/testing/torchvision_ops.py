"""Use of torchvision with a different build of torch: its transforms and datasets need no compiled operators."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

__all__ = ["define_missing_operators"]

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
                torch.ops.load_library(str(file))  # type: ignore[no-untyped-call]
            except OSError:
                continue
            return
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)
