"""Ready-made pipelines, installed as ``gpupipe.pipelines``. Each function returns a
:class:`gpupipe.transforms.Compose`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import cifar, coco, dino, imagenet, kinetics, simclr, voc

__all__ = ["cifar", "coco", "dino", "imagenet", "kinetics", "simclr", "voc"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
