"""torchvision beside a torch of another build: its transforms and datasets need none of its compiled operators."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

__all__ = ["define_missing_operators"]

_LIBRARIES: list[Any] = []
"""The definitions live as long as these objects."""


def define_missing_operators() -> None:
    """Make ``import torchvision`` work if its compiled library is for another build of torch; call it before.

    A torchvision built for CUDA beside a torch built for the CPU, say, cannot load its operators, and then fails to
    import while it describes them. An empty description is enough.
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
