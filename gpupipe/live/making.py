"""Makes the tensors of recipes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..reading.windows import window_of
from .recipe import Job, Recipe

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]


class FailedImages(Exception):
    """Images that no decoder can read, by their numbers in the recipe."""

    def __init__(self, problems: dict[int, Exception]):
        super().__init__(problems)
        self.problems = problems


class Making(ABC):
    """A recipe in progress."""

    @abstractmethod
    def result(self) -> list[Tensor]:
        """Return [B, C, H, W] of each job, on the device. Waits.

        Raises :class:`FailedImages`.
        """

    @abstractmethod
    def give_up(self) -> None:
        """Start nothing else."""

    keep: Any = None
    """Memory unknown to torch that must stay alive until the consumer's stream has finished with the result."""


class Maker(ABC):
    """Makes the tensors of recipes. Starts nothing before the first one."""

    @abstractmethod
    def start(self, recipe: Recipe) -> Making:
        """Start on a recipe, without waiting. Recipes that were started before come first."""

    def rest(self) -> None:  # noqa: B027, a maker may have nothing to free
        """Free memory that is not in use and not shared, before worker processes are forked.

        Each page of it would be copied when it is written after the fork, and a process with several threads then
        interrupts all processors, which takes longer than new memory.
        """

    @abstractmethod
    def close(self) -> None:
        """End all threads and free memory. They start again when needed."""


def media_of(recipe: Recipe) -> list[U8]:
    """Return the encoded images."""
    return [np.frombuffer(one, np.uint8) for one in recipe.encoded]


def windows_of(job: Job, sizes: I32) -> I32:
    """Return i32[B, 4], top, left, height and width of the part of each image that a job needs."""
    crop = window_of(job.ops)
    if crop is None:
        return np.concatenate([np.zeros_like(sizes), sizes], axis=1)[job.sources]
    return np.stack([crop.top, crop.left, crop.height, crop.width], axis=1).astype(np.int32)
