"""Reusable host memory, pinned if a GPU reads it: fresh memory costs the time of its pages."""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from rich.filesize import decimal
from torch import Tensor

U8 = npt.NDArray[np.uint8]


def host_buffer(nbytes: int, *, pinned: bool = False) -> Tensor:
    """Return u8[nbytes], uninitialized."""
    # Name the CPU, because scripts may call torch.set_default_device().
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)


def _shared_buffer(nbytes: int) -> Tensor:
    """Return u8[nbytes] that forked processes share."""
    return torch.frombuffer(mmap.mmap(-1, max(nbytes, 1)), dtype=torch.uint8)


def views_of(buffer: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[U8]:
    """Return consecutive arrays u8[...] in a buffer u8[N]."""
    flat, views, at = buffer.numpy(), [], 0
    for shape in shapes:
        size = math.prod(shape)
        views.append(flat[at : at + size].reshape(shape))
        at += size
    return views


class _Back(weakref.ref["Borrowed | _Lent"]):
    """A buffer that is queued for reuse when its owner is garbage-collected.

    No Python code runs then, because an exception of a signal handler in it, such as KeyboardInterrupt, would be lost.
    """

    __slots__ = ("buffer",)
    buffer: Tensor
    """u8[N]"""


def _back(owner: Borrowed | _Lent, queue: deque[_Back], buffer: Tensor) -> _Back:
    back = _Back(owner, queue.append)
    back.buffer = buffer
    return back


class Borrowed:
    """A buffer from a :class:`BufferPool`, which returns when this object is garbage-collected."""

    def __init__(self, buffer: Tensor):
        self.buffer = buffer
        """u8[N]"""

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor points into the buffer."""
        start = self.buffer.data_ptr()
        return start <= tensor.data_ptr() < start + self.buffer.numel()


class BufferPool:
    """Pool of as many buffers as are in use at the same time.

    >>> pool = BufferPool(pinned=False)
    >>> lent = pool.take(100)
    >>> pool.nbytes
    100
    """

    def __init__(self, *, pinned: bool):
        self.pinned = pinned
        self.nbytes = 0
        """Size of all buffers in bytes."""
        self._free: deque[_Back] = deque()
        self._lent: set[_Back] = set()
        """Kept alive here, because Python does not call the callback of a weak reference that dies in the same
        reference cycle as its referent."""

    def take(self, nbytes: int) -> Borrowed:
        """Return a buffer of at least ``nbytes``, uninitialized."""
        buffer = self._returned()
        if buffer is None or buffer.numel() < nbytes:
            self.nbytes += nbytes - (0 if buffer is None else buffer.numel())
            # Free the smaller one before a larger one is allocated.
            del buffer
            buffer = host_buffer(nbytes, pinned=self.pinned)
        lent = Borrowed(buffer)
        self._lent.add(_back(lent, self._free, buffer))
        return lent

    def _returned(self) -> Tensor | None:
        """Return a buffer that came back."""
        if not self._free:
            return None
        back = self._free.popleft()
        self._lent.discard(back)
        return back.buffer

    def facts(self) -> dict[str, str]:
        """Return the size for users; nothing if there are no buffers."""
        name = "pinned staging" if self.pinned else "staging"
        return {name: decimal(self.nbytes)} if self.nbytes else {}

    def close(self) -> None:
        """Free buffers that are not in use. The others are freed with their last reference."""
        # Buffers in use return to the old deque, and are freed with it.
        self._free, self._lent = deque(), set()
        self.nbytes = 0


class BatchPool:
    """Pool of memory for tensors that are delivered. It is reused once nothing refers to a tensor or a view of it.

    Args:
        keep: number of idle pieces of memory to keep; more are freed. A consumer may hold any number of batches.
        shared: whether forked processes share the memory, as that of batches from torch's workers. Otherwise each
            page is copied when it is written after a fork.

    >>> pool = BatchPool(keep=1)
    >>> batch = pool.empty((2, 3), torch.float32)
    >>> place = batch.data_ptr()
    >>> del batch
    >>> pool.empty((2, 3), torch.float32).data_ptr() == place
    True
    """

    def __init__(self, *, keep: int, shared: bool = False):
        self._keep, self._shared = keep, shared
        self._idle: deque[_Back] = deque(maxlen=keep)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a contiguous, uninitialized tensor on the CPU."""
        nbytes = math.prod(shape) * dtype.itemsize
        # pop() is atomic, and a check before it would not be.
        try:
            buffer = self._idle.pop().buffer
        except IndexError:
            buffer = None
        if buffer is None or buffer.numel() < nbytes:
            buffer = _shared_buffer(nbytes) if self._shared else host_buffer(nbytes)
        return torch.from_numpy(np.asarray(_Lent(self._idle, buffer)))[:nbytes].view(dtype).view(shape)

    def close(self) -> None:
        """Free idle memory. Memory that returns later is freed too."""
        self._idle = deque(maxlen=self._keep)


class _Lent:
    """Owner of the memory for numpy, and through it for torch."""

    def __init__(self, idle: deque[_Back], buffer: Tensor):
        self._back = _back(self, idle, buffer)
        self.__array_interface__ = buffer.numpy().__array_interface__
