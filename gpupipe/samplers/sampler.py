"""The base class of samplers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ..planning.schedules import SamplerPlan

if TYPE_CHECKING:
    from ..datasets.dataset import Dataset


class Sampler(ABC):
    """Base class of the samplers of this module.

    ``loader.sampler`` is another object, which yields the indices of this rank.
    """

    @abstractmethod
    def plan(self, dataset: Dataset) -> SamplerPlan:
        """Return the orders of all epochs. Raises :class:`ConfigError` if the dataset does not fit."""

    def check(self, batch_size: int) -> None:  # noqa: B027, most samplers fit every batch size
        """Raise :class:`ConfigError` if the samples in a batch of one rank do not fit."""
