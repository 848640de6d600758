"""From the host to the GPU: a ring of pinned slots, and the stream that copies out of them.

A pinned slot may be written again only when the copy out of it has finished. The ring waits for the copy's event, and
for nothing else: no sleeps, no synchronisation of the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree

__all__ = ["CopyStream", "Event", "Ring", "Slot", "Streams", "Uploader", "live_rings", "map_tensors"]

_ALIGN = 16
"""Bytes: where a view begins within a slot, so that any type can be read there."""


class Event(Protocol):
    """What the ring needs of ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Whether everything before the event has finished. Does not wait."""

    def synchronize(self) -> None:
        """Wait until everything before the event has finished."""


@dataclass(eq=False)
class Slot:
    """One buffer of a :class:`Ring`."""

    buffer: Tensor
    """u8[capacity]."""
    busy: Event | None = None
    """Fires when the last copy out of the buffer has finished."""


class Ring:
    """``slots`` buffers that are used in turn. Each is allocated at its first use, and again only if it must grow.

    Args:
        slots: how many copies can be under way, at least 1.
        pinned: page-locked memory, which the GPU reads by itself. torch may round its size up.
    """

    def __init__(self, slots: int, pinned: bool):
        self._slots = [Slot(_buffer(0, False)) for _ in range(slots)]
        self.pinned = pinned
        self._next = 0
        _RINGS.add(self)

    def acquire(self, nbytes: int) -> Slot:
        """The next slot, with at least ``nbytes``, once the copy out of it has finished."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        if slot.busy is not None:
            if not slot.busy.query():  # asked first: in the usual case the host then waits for nothing at all
                slot.busy.synchronize()
            slot.busy = None
        if slot.buffer.numel() < nbytes:
            slot.buffer = _buffer(nbytes, self.pinned)
        return slot

    def release(self, slot: Slot, event: Event) -> None:
        """Give a slot back: it is free again once ``event`` has fired."""
        slot.busy = event

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(slot.buffer.numel() for slot in self._slots)

    def close(self) -> None:
        """Wait for the copies under way and free the memory. The ring can be used again."""
        for slot in self._slots:
            if slot.busy is not None:
                slot.busy.synchronize()
            slot.busy, slot.buffer = None, _buffer(0, False)


_RINGS: weakref.WeakSet[Ring] = weakref.WeakSet()
"""For reports only; no ring lives longer for being here."""


def live_rings() -> list[Ring]:
    """The rings of this process, of all loaders."""
    return list(_RINGS)


def _buffer(nbytes: int, pinned: bool) -> Tensor:
    # On the CPU by name: somebody may have called torch.set_default_device().
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)


class Streams(Protocol):
    """The few things that an :class:`Uploader` asks of CUDA; tests put a journal in its place."""

    def copying(self) -> AbstractContextManager[None]:
        """Within: work goes to the copy stream."""

    def record(self) -> Event:
        """An event at the present end of the copy stream."""

    def hand_over(self, tensors: list[Tensor]) -> None:
        """The consumer's current stream waits for the copy stream, and owns the tensors from then on."""

    def pin(self, tensor: Tensor) -> Tensor:
        """The tensor in pinned memory."""


class CopyStream:
    """:class:`Streams` of a CUDA device."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]

    @contextmanager
    def copying(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream):
            yield

    def record(self) -> Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def hand_over(self, tensors: list[Tensor]) -> None:
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_stream(self._stream)
        for tensor in tensors:
            # The memory belongs to the copy stream's pool: without this it would be given out again there while the
            # consumer's kernels, which are merely queued when the last reference goes, still read it.
            tensor.record_stream(consumer)

    def pin(self, tensor: Tensor) -> Tensor:
        # torch's host allocator sees the copies out of its blocks, and gives none out again before they have finished.
        return tensor if tensor.is_pinned() else tensor.pin_memory()


class Uploader:
    """Moves a batch to the device and finishes it there, without making the host wait for either.

    Args:
        streams: of the device.
        device: where to.
        ring: pinned slots for the images; ``None`` if they arrive pinned.
    """

    def __init__(self, streams: Streams, device: torch.device, ring: Ring | None):
        self._streams = streams
        self._device = device
        self._ring = ring

    def __call__(self, images: Any, target: Any, finish: Any) -> tuple[Any, Any]:
        """(``finish(images)``, target) on the device, ready on the consumer's current stream.

        Args:
            images, target: tensors, or any structure of them. The images go through the ring if they are a tensor,
                or a tuple of such with one for each view, which then share a slot.
            finish: the rest of the work on the images; runs on the copy stream.
        """
        # Pinned before the images' copy is queued: page-locking may wait for the device.
        target = map_tensors(self._streams.pin, target)
        views = images if isinstance(images, tuple) else (images,)
        source: Any
        if self._ring is not None and all(isinstance(view, Tensor) for view in views):
            ends = list(accumulate(-(-view.nbytes // _ALIGN) * _ALIGN for view in views))
            slot = self._ring.acquire(ends[-1])
            source = tuple(_place(slot.buffer, start, view) for start, view in zip([0, *ends], views, strict=False))
            source = source if isinstance(images, tuple) else source[0]
        else:
            slot = None
            source = map_tensors(self._streams.pin, images)
        with self._streams.copying():
            moved = map_tensors(self._upload, source)
            if slot is not None:
                assert self._ring is not None
                self._ring.release(slot, self._streams.record())
            target = map_tensors(self._upload, target)
            result = finish(moved)
        self._streams.hand_over([x for x in _pytree.tree_leaves((result, target)) if isinstance(x, Tensor)])
        return result, target

    def _upload(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the ring."""
        return 0 if self._ring is None else self._ring.nbytes

    def close(self) -> None:
        """Free the ring."""
        if self._ring is not None:
            self._ring.close()


def _place(buffer: Tensor, start: int, tensor: Tensor) -> Tensor:
    """The tensor, copied to byte ``start`` of a buffer u8[N]."""
    there = buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return there.copy_(tensor)


def map_tensors(function: Any, tree: Any) -> Any:
    """``function`` of every tensor in a structure of lists, tuples and dictionaries; the rest stays as it is."""
    if isinstance(tree, Tensor):  # most are, and walking a tree costs as much as many a function
        return function(tree)
    return _pytree.tree_map(lambda x: function(x) if isinstance(x, Tensor) else x, tree)
