"""Delivery of a batch: targets to the device, and memory that must outlive its consumer."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from ..copy_stream import Event, upload
from ..reading.setup import Setup
from ..reading.targets import with_numbers
from .staging import map_tensors


def made_current(device: torch.device) -> AbstractContextManager[Any]:
    """Make ``device`` the current one within a block.

    torch's default stream has the number 0, which DALI takes for the default stream of the current device.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def to_device(value: Any, setup: Setup) -> Any:
    """Return ``value`` delivered to the loader's device, see :func:`delivered`."""
    return delivered(value, torch.device(setup.device), setup.pin_memory)


def delivered(value: Any, device: torch.device, pin_memory: bool) -> Any:
    """Return ``value`` with all its tensors on a device, without waiting for copies.

    On the CPU with ``pin_memory``, tensors are pinned if CUDA is available, as in torch's DataLoader.
    """
    if device.type == "cuda":
        if isinstance(value, Tensor):
            return upload([value], device)[0]
        leaves, form = _pytree.tree_flatten(value)
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for i, tensor in zip(at, upload([leaves[i] for i in at], device), strict=True):
            leaves[i] = tensor
        return _pytree.tree_unflatten(leaves, form)
    if pin_memory and torch.cuda.is_available():
        return map_tensors(Tensor.pin_memory, value)
    return value


def target_to_device(target: Any, setup: Setup) -> Any:
    """Move the targets of a batch as :func:`to_device` does, except the numbers that a collate function gets."""
    return to_device(with_numbers(target) if setup.collates else target, setup)


class KeepAlive:
    """Keeps the memory of batches alive until the consumer's stream has finished with them.

    When the consumer drops the last reference to a batch, kernels that it has queued may still have to read it, and
    torch does not know memory of others. The owner is therefore kept until an event has passed that is recorded on the
    consumer's stream when it asks for the next batch.

    A consumer that queues its work quickly, such as with a CUDA graph, would otherwise get hundreds of batches ahead of
    its device. torch's own memory, which has no owner, would grow as well, because its allocator also waits for events.

    Args:
        most: maximum number of batches that the device is behind.
    """

    def __init__(self, device: torch.device, most: int):
        self._device, self._most = device, most
        self._stream: Any = None
        """Current stream when the last batch was taken; ``None`` if none was taken since :meth:`renew`."""
        self._owner: Any = None
        self._waiting: deque[tuple[Any, list[Event]]] = deque()

    def take(self, owner: Any) -> None:
        """Keep ``owner`` of a batch from now on; ``None`` if torch owns its memory."""
        self._owner, self._stream = owner, torch.cuda.current_stream(self._device)

    def renew(self) -> None:
        """Record events when the consumer asks for another batch: by now its work on the last one is queued on its
        stream. Waits if the device is too far behind."""
        if self._stream is not None:
            # A finalizer runs in any thread, whose current stream may differ from the consumer's.
            streams = {self._stream, torch.cuda.current_stream(self._device)}
            self._waiting.append((self._owner, [_event(stream) for stream in streams]))
            self._owner = self._stream = None
        while self._waiting and all(event.query() for event in self._waiting[0][1]):
            self._waiting.popleft()
        self._wait_for_all_but(self._most)

    def end(self) -> None:
        """Release everything after waiting for the consumer's stream."""
        self.renew()
        self._wait_for_all_but(0)

    def _wait_for_all_but(self, count: int) -> None:
        while len(self._waiting) > count:
            for event in self._waiting[0][1]:
                event.synchronize()  # while the owner is still held
            self._waiting.popleft()


def _event(stream: Any) -> Event:
    """Return an event at the current end of a stream."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
