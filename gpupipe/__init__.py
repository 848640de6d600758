"""gpupipe: a DataLoader for PyTorch image and video training that decodes and augments with NVIDIA DALI."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import provided
from .imports import uncollected

if TYPE_CHECKING:
    from . import collate, datasets, engines, errors, integrations, memory, pipelines, samplers, transforms
    from .errors import BadSample, GpupipeError, SampleError
    from .loader.dataloader import DataLoader
    from .loader.from_torch import from_torch
    from .planning.blocks import BlockShuffle
    from .reasons import FallbackWarning, GpupipeWarning
    from .types import Batch, Plan, Shard
    from .world import World

__version__ = "0.1.0"

__all__ = [
    "BadSample",
    "Batch",
    "BlockShuffle",
    "DataLoader",
    "FallbackWarning",
    "GpupipeError",
    "GpupipeWarning",
    "Plan",
    "SampleError",
    "Shard",
    "World",
    "collate",
    "datasets",
    "engines",
    "errors",
    "from_torch",
    "integrations",
    "memory",
    "pipelines",
    "samplers",
    "transforms",
]

_HOME = {
    "BadSample": "errors",
    "Batch": "types",
    "BlockShuffle": "planning.blocks",
    "DataLoader": "loader.dataloader",
    "FallbackWarning": "reasons",
    "GpupipeError": "errors",
    "GpupipeWarning": "reasons",
    "Plan": "types",
    "SampleError": "errors",
    "Shard": "types",
    "World": "world",
    "from_torch": "loader.from_torch",
}


def _one_sample(dataset: Any, index: int) -> Any:
    from .engines.torch.reference import one_sample  # loads torch

    return one_sample(dataset, index)


def _one_image(pipeline: Any, image: Any) -> Any:
    from .live.pipelines import one_image  # loads torch

    return one_image(pipeline, image)


def _pipeline_of(transform: Any) -> Any:
    from .translate.transforms import pipeline_of  # loads torch

    return pipeline_of(transform)


def _show(loader: Any, step: Any, path: Any, most: int) -> Any:
    from .show.page import show

    return show(loader, step, path, most)


provided.one_sample, provided.one_image, provided.pipeline_of, provided.show = (
    _one_sample,
    _one_image,
    _pipeline_of,
    _show,
)


def __getattr__(name: str) -> Any:
    # Lazy, so that the numpy core and the command line do not wait for torch.
    if name in _HOME:
        with uncollected():
            return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    if name in __all__:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
