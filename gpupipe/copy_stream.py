"""Copies to a CUDA device on a stream of their own, for which neither the host nor the device waits.

A copy on the consumer's stream runs after the kernels that are queued there. Until then its pinned memory is in use, so
the next batch needs more of it, and the host waits: page-locking waits for the whole device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """The part of ``torch.cuda.Event`` that gpupipe needs."""

    def query(self) -> bool:
        """Return whether everything before the event has finished, without waiting."""

    def synchronize(self) -> None:
        """Wait until everything before the event has finished."""


class CopyStream:
    """A stream of a CUDA device for copies to it. Tests replace it by a journal."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Direct work to the copy stream within a block."""
        with torch.cuda.stream(self._stream):
            yield

    def record(self) -> Event:
        """Return an event at the current end of the copy stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def hand_over(self, tensors: Sequence[Tensor]) -> None:
        """Make the consumer's current stream wait for the copy stream, and own the tensors from then on."""
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_stream(self._stream)
        for tensor in tensors:
            # The memory belongs to the copy stream's pool, which would otherwise reuse it while kernels of the
            # consumer, which are only queued when the last reference is dropped, still read it.
            tensor.record_stream(consumer)

    def pin(self, tensor: Tensor) -> Tensor:
        """Return the tensor in pinned memory."""
        # torch's host allocator tracks copies from its blocks, and does not reuse a block before they finish.
        return tensor if tensor.is_pinned() else tensor.pin_memory()


def copy_stream(device: torch.device) -> CopyStream:
    """Return the one stream of a CUDA device for copies outside an engine's own."""
    return _stream(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _stream(index: int) -> CopyStream:
    return CopyStream(torch.device("cuda", index))


def upload(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors of the host to a CUDA device. They are ready on its current stream.

    Args:
        tensors: tensors of the host; others are returned as they are.
        device: a CUDA device.
    """
    stream = copy_stream(device)
    # Pin all before the first copy, because page-locking may wait for it.
    pinned = [tensor if tensor.is_cuda else stream.pin(tensor) for tensor in tensors]
    with stream.copying():
        found = [tensor if tensor.is_cuda else tensor.to(device, non_blocking=True) for tensor in pinned]
    stream.hand_over([made for made, tensor in zip(found, tensors, strict=True) if made is not tensor])
    return found
