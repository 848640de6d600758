"""Media of a sample, and their memory layout in a batch: :class:`Image` and :class:`Clip`.

A sample has one or more pictures: an image has one, and a clip has T frames. All pictures of a sample get the same
numbers of a plan. Engines work on a flat batch of pictures [B * T, C, H, W]; only this module converts it to a batch of
samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from .errors import ConfigError

Layout = Literal["CTHW", "TCHW"]


class Medium(ABC):
    """Kind of a sample's content."""

    noun: ClassVar[str]
    """Word for a sample."""
    picture: ClassVar[str]
    """Word for one of its pictures."""
    moves: ClassVar[bool] = False
    """Whether pictures are consecutive in time, so that transforms may select among them."""

    @abstractmethod
    def arrange(self, pictures: Any, count: int, memory_format: str) -> Any:
        """Build a batch of samples from a tensor [B * T, C, H, W].

        Args:
            pictures: in the order of the samples.
            count: T, pictures of each sample.
            memory_format: ``"contiguous_format"`` or ``"channels_last"``.
        """

    @abstractmethod
    def flatten(self, batch: Any) -> Any:
        """Return the pictures [B * T, C, H, W] of a batch that :meth:`arrange` made."""

    def turn(self, tall: Any, count: int) -> Any | None:
        """Build a batch from a tensor [B, C, T * H, W] whose images contain all pictures of a sample, one below the
        other.

        Returns ``None`` if the batch cannot be built from that order.
        """
        return None


@dataclass(frozen=True)
class Image(Medium):
    """One image. A batch is [B, C, H, W]."""

    noun: ClassVar[str] = "image"
    picture: ClassVar[str] = "image"

    def arrange(self, pictures: Any, count: int, memory_format: str) -> Any:
        return pictures

    def flatten(self, batch: Any) -> Any:
        return batch


IMAGE = Image()


@dataclass(frozen=True)
class Clip(Medium):
    """T frames of a video.

    A batch is [B, C, T, H, W] if ``layout`` is ``"CTHW"``, in torch's ``channels_last_3d`` if the memory format is
    ``"channels_last"``; it is [B, T, C, H, W], each frame in the memory format, if ``layout`` is ``"TCHW"``.

    Raises :class:`ConfigError` for another layout.
    """

    layout: Layout = "CTHW"

    noun: ClassVar[str] = "clip"
    picture: ClassVar[str] = "frame"
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise ConfigError(
                'layout must be "CTHW", for batches [B, C, T, H, W], or "TCHW", for [B, T, C, H, W], not '
                f"{self.layout!r}"
            )

    def arrange(self, pictures: Any, count: int, memory_format: str) -> Any:
        """Build a batch of clips. Copies only for contiguous ``CTHW``."""
        clips = pictures.view(len(pictures) // count, count, *pictures.shape[1:])
        if self.layout == "TCHW":
            return clips
        clips = clips.transpose(1, 2)
        # Transposed frames in channels_last are a clip in channels_last_3d, without a copy.
        return clips if memory_format == "channels_last" else clips.contiguous()

    def flatten(self, batch: Any) -> Any:
        return (batch.transpose(1, 2) if self.layout == "CTHW" else batch).flatten(0, 1)

    def turn(self, tall: Any, count: int) -> Any | None:
        # Pictures that lie one below the other within each channel are in the order of CTHW.
        return tall.unflatten(2, (count, -1)) if self.layout == "CTHW" else None
