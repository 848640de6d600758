"""What packing is made of: samples, forms and writers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

__all__ = ["Form", "Kept", "Sample", "Writer", "Written"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One file of the source."""

    name: str
    """Its path below the source; of bytes that are no UTF-8 as ``os.fsdecode`` gives it."""
    size: int
    """Bytes."""
    mtime_ns: int


class Kept(NamedTuple):
    """Why a sample is written as it is."""

    kind: str
    """A short word."""
    reason: str
    """A sentence."""


Form = Callable[[Sequence[bytes]], list["bytes | Kept"]]
"""What becomes of the bytes of some samples; picklable. It must have proven that nothing is lost."""


class Writer(Protocol):
    """Where samples go. Picklable: every process has one."""

    def write(self, sample: Sample, data: bytes) -> None:
        """Write one sample as a whole or not at all, in the place of what an earlier run has left of it."""
        ...

    def has(self, sample: Sample, size: int) -> bool:
        """Whether the sample is there, with so many bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """A sample that is done: a line of the journal."""

    name: str
    size: int
    mtime_ns: int
    written: int
    """Bytes."""
    kind: str = ""
    """Empty if it has the new form, else that of :class:`Kept`."""
    reason: str = ""

    def line(self) -> dict[str, Any]:
        """Without what is empty."""
        return {name: value for name, value in asdict(self).items() if value != ""}
