"""What a loader was asked for, checked: readers and engines are built from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from PIL import ImageFile

from ..datasets.base import Dataset
from ..transforms.compose import Compose

if TYPE_CHECKING:
    from .kept import DecodedCache  # it loads torch

__all__ = ["Setup"]


@dataclass(frozen=True)
class Setup:
    """Everything an engine is built from. The values are checked by the loader."""

    dataset: Dataset
    pipeline: Compose
    device: str
    """``"cpu"`` or ``"cuda:N"``."""
    batch_size: int
    num_workers: int
    prefetch_factor: int = 2
    pin_memory: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    cache: DecodedCache | None = None
    scaled: bool = False
    """Whether images may be decoded smaller, see :mod:`gpupipe.reading.smaller`."""
    given: Any = field(default=None, compare=False)
    """The script's dataset, if worker processes run its code."""
    load_truncated: bool = field(default_factory=lambda: bool(ImageFile.LOAD_TRUNCATED_IMAGES))
    """Whether Pillow reads files that end too early. Worker processes that were started before know nothing of it."""
    one_at_a_time: bool = False
    """Whether a plan is taken only when its batch is asked for; then ``prefetch_factor`` is 1."""

    @property
    def cuda(self) -> bool:
        return self.device != "cpu"

    @property
    def threads(self) -> int:
        """Of what works in threads of this process. ``num_workers=0`` asks for no processes, and threads are none."""
        return self.num_workers or min(len(os.sched_getaffinity(0)), 8)
