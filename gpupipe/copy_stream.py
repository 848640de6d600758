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
        """Return the tensor in pinned memory; what :func:`is_plain` excludes, as it is."""
        # torch's host allocator tracks copies from its blocks, and does not reuse a block before they finish.
        return tensor.pin_memory() if is_plain(tensor) and not tensor.is_pinned() else tensor


def is_plain(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is an array on the host: not of a subclass, whose type pinning loses, nor sparse or
    nested, which torch may not pin."""
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_nested
    )


def copy_stream(device: torch.device) -> CopyStream:
    """Return the one stream of a CUDA device for copies outside an engine's own."""
    return _stream(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _stream(index: int) -> CopyStream:
    return CopyStream(torch.device("cuda", index))


def upload(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors of the host to a CUDA device. They are ready on its current stream.

    Args:
        tensors: of any kind. torch copies what :func:`is_plain` excludes, and the host may wait.
        device: a CUDA device.
    """
    found = list(tensors)
    at = [i for i, tensor in enumerate(found) if is_plain(tensor)]
    if at:
        stream = copy_stream(device)
        # Pin all before the first copy, because page-locking may wait for it.
        pinned = [stream.pin(found[i]) for i in at]
        with stream.copying():
            for i, tensor in zip(at, pinned, strict=True):
                found[i] = tensor.to(device, non_blocking=True)
        stream.hand_over([found[i] for i in at])
    return [tensor.to(device, non_blocking=True) for tensor in found]
