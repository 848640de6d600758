"""The checked request of a loader, from which readers and engines are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from PIL import ImageFile

from ..datasets.dataset import Dataset
from ..system import cores
from ..transforms.compose import Compose

if TYPE_CHECKING:
    from .kept import DecodedCache  # imports torch


@dataclass(frozen=True)
class Setup:
    """Everything an engine is built from, checked by the loader."""

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
    load_truncated: bool = field(default_factory=lambda: bool(ImageFile.LOAD_TRUNCATED_IMAGES))
    """Whether Pillow reads truncated files. Worker processes started earlier do not know."""
    collates: bool = False
    """Whether the script's collate function gets the samples, with labels and other numbers as Python numbers."""

    @property
    def cuda(self) -> bool:
        return self.device != "cpu"

    @property
    def threads(self) -> int:
        """Number of threads of this process that work. ``num_workers=0`` asks for no processes, which threads are
        not."""
        return self.num_workers or min(cores(), 8)
