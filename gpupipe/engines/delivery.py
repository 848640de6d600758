"""What both engines do with a batch at the end: targets to the device, and memory that must outlive its consumer."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..reading.setup import Setup
from .staging import Event, map_tensors

__all__ = ["KeepAlive", "made_current", "to_device"]


def made_current(device: torch.device) -> AbstractContextManager[Any]:
    """Within, ``device`` is the current one: torch's default stream has the number 0, which DALI takes for that of the
    current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def to_device(value: Any, setup: Setup) -> Any:
    """Tensors of any nested structure on the loader's device, without making the host wait.

    On the CPU with ``pin_memory``, tensors are pinned if there is CUDA, as torch's DataLoader does.
    """
    if setup.cuda:
        # From pinned memory, or the copy would wait. torch's allocator keeps the buffer until the copy is over.
        return map_tensors(lambda t: t.pin_memory().to(setup.device, non_blocking=True), value)
    if setup.pin_memory and torch.cuda.is_available():
        return map_tensors(Tensor.pin_memory, value)
    return value


class KeepAlive:
    """Keeps memory that is not torch's alive until the consumer's stream has passed.

    torch knows nothing of memory that it did not allocate: when the consumer drops the last reference to a batch,
    kernels that it has queued may still have to read it. So the owner is kept until an event, recorded on the
    consumer's stream when it asks for the next batch, has come by.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._current: Any = None
        self._stream: Any = None
        """The stream that was current when the owner was taken."""
        self._waiting: deque[tuple[Any, list[Event]]] = deque()

    def take(self, owner: Any) -> None:
        """From now on, keep ``owner``."""
        self._current, self._stream = owner, torch.cuda.current_stream(self._device)

    def renew(self) -> None:
        """The consumer asks for another batch: what it did with the last one is queued on its stream by now."""
        if self._current is not None:
            # A finaliser runs in any thread, where another stream is current than the consumer's.
            streams = {self._stream, torch.cuda.current_stream(self._device)}
            self._waiting.append((self._current, [_event(stream) for stream in streams]))
            self._current = self._stream = None
        while self._waiting and all(event.query() for event in self._waiting[0][1]):
            self._waiting.popleft()

    def end(self) -> None:
        """Let go of everything, after waiting for the consumer's stream."""
        self.renew()
        while self._waiting:
            for event in self._waiting[0][1]:
                event.synchronize()  # while the owner is still held
            self._waiting.popleft()


def _event(stream: Any) -> Event:
    """At the present end of a stream."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
