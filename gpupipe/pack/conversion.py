"""Conversions of the bytes of samples when packing."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ..codecs.files import Undecodable


class Kept(NamedTuple):
    """The reason why a sample is copied unchanged."""

    kind: str
    """A short word."""
    reason: str
    """A sentence."""


class Conversion(Protocol):
    """A function from the bytes of a sample to new ones. Picklable; the journal keeps its ``str()``."""

    @property
    def made(self) -> str:
        """The format of the new bytes, in Pillow's words; empty if it does not change."""
        ...

    def __call__(self, data: bytes) -> bytes | Kept | Undecodable:
        """Convert one sample: return its new bytes, why it is copied unchanged, or why it is left out."""
        ...


class AsIs:
    """Copies samples byte for byte."""

    made = ""

    def __str__(self) -> str:
        return "as they are"

    def __call__(self, data: bytes) -> bytes:
        return data
