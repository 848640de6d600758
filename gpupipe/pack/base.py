"""What packing is made of: forms, and how they can refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..codecs.files import Undecodable

__all__ = ["AsIs", "Form", "Kept"]


class Kept(NamedTuple):
    """Why a sample is written as it is."""

    kind: str
    """A short word."""
    reason: str
    """A sentence."""


class Form(Protocol):
    """What becomes of the bytes of samples. Picklable; ``str()`` of it is the name that the journal keeps."""

    @property
    def made(self) -> str:
        """The format of new bytes, in Pillow's words; empty if it stays what it was."""
        ...

    def __call__(self, files: Sequence[bytes]) -> list[bytes | Kept | Undecodable]:
        """The new bytes of some samples, or why one stays as it is, or why there are none."""
        ...


class AsIs:
    """Samples stay what they are, byte for byte."""

    made = ""

    def __str__(self) -> str:
        return "as they are"

    def __call__(self, files: Sequence[bytes]) -> list[bytes | Kept | Undecodable]:
        return list(files)
