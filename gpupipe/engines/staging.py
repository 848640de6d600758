"""Copies of batches from the host to the GPU, through a ring of pinned slots.

A pinned slot may be overwritten only when the copy from it has finished. The ring waits for the event of that copy and
nothing else: it never sleeps or synchronizes the device.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from ..copy_stream import CopyStream, Event

_ALIGN = 16
"""Alignment in bytes of views within a slot, so that any type can be read."""


@dataclass(eq=False)
class Slot:
    """One buffer of a :class:`Ring`."""

    buffer: Tensor
    """u8[capacity]."""
    busy: Event | None = None
    """Fires when the last copy from the buffer has finished."""


class Ring:
    """Buffers that are used in turn. Each is allocated on first use, and reallocated only to grow.

    Args:
        slots: number of concurrent copies, at least 1.
        pinned: use page-locked memory, which the GPU reads directly. torch may round up its size.
    """

    def __init__(self, slots: int, pinned: bool):
        self._slots = [Slot(_buffer(0, False)) for _ in range(slots)]
        self.pinned = pinned
        self._next = 0
        _RINGS.add(self)

    def acquire(self, nbytes: int) -> Slot:
        """Return the next slot, with at least ``nbytes``, once the copy from it has finished."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        if slot.busy is not None:
            if not slot.busy.query():  # query first, so that the host usually does not wait at all
                slot.busy.synchronize()
            slot.busy = None
        if slot.buffer.numel() < nbytes:
            slot.buffer = _buffer(nbytes, self.pinned)
        return slot

    def release(self, slot: Slot, event: Event) -> None:
        """Return a slot, which is free again once ``event`` has fired."""
        slot.busy = event

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(slot.buffer.numel() for slot in self._slots)

    def close(self) -> None:
        """Wait for pending copies and free the memory. The ring can be used again."""
        for slot in self._slots:
            if slot.busy is not None:
                slot.busy.synchronize()
            slot.busy, slot.buffer = None, _buffer(0, False)


_RINGS: weakref.WeakSet[Ring] = weakref.WeakSet()
"""All rings, for reports. The weak references keep none of them alive."""


def live_rings() -> list[Ring]:
    """Return the rings of all loaders of this process."""
    return list(_RINGS)


def _buffer(nbytes: int, pinned: bool) -> Tensor:
    # Name the CPU, because scripts may call torch.set_default_device().
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)


class Uploader:
    """Moves a batch to the device and finishes it there, without making the host wait for either.

    Args:
        streams: streams of the device.
        device: target device.
        ring: pinned slots for the images, or ``None`` if they arrive pinned.
    """

    def __init__(self, streams: CopyStream, device: torch.device, ring: Ring | None):
        self._streams = streams
        self._device = device
        self._ring = ring

    def __call__(self, images: Any, target: Any, finish: Any) -> tuple[Any, Any]:
        """Return (``finish(images)``, target) on the device, ready on the consumer's current stream.

        Args:
            images, target: tensors, or any structure of them. Images go through the ring if they are a tensor, or a
                tuple of one tensor per view, which then share a slot.
            finish: the remaining work on the images, run on the copy stream.
        """
        # Pin before queuing the copy of the images, because page-locking may wait for the device.
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
    """Copy a tensor to byte ``start`` of a buffer u8[N], and return the copy."""
    there = buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    return there.copy_(tensor)


def map_tensors(function: Any, tree: Any) -> Any:
    """Apply ``function`` to every tensor in a structure of lists, tuples and dictionaries."""
    if isinstance(tree, Tensor):  # the usual case: walking a tree can cost as much as the function
        return function(tree)
    return _pytree.tree_map(lambda x: function(x) if isinstance(x, Tensor) else x, tree)
