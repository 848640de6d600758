"""What memory is held, and by whom; taking it in advance and giving it back; what a loader will need.

    print(gpupipe.memory.estimate(loader))          # before: an arithmetic
    gpupipe.memory.preallocate(device_bytes=4 << 30)  # several processes on one GPU: take your part first
    print(gpupipe.memory.report())                  # at any time
    gpupipe.memory.release()                        # between phases: give back what is free

How large the pinned staging of the torch engine is, :class:`gpupipe.engines.Torch` says (``staging``, ``slots``).

What stays. Pools grow until the largest images were seen, and then no further; freed memory is kept for what comes
next. Of host memory it is glibc's malloc that keeps most: about half of what a process with DALI's CPU backend has is
free, in holes between images of changing sizes. :func:`release` and ``loader.close()`` return that. Fewer holes at all
cost speed, so gpupipe does not ask malloc for them: if memory is short, ``MALLOC_MMAP_THRESHOLD_=4194304`` in the
environment saves a third of it for an eighth of the images per second. ``MALLOC_ARENA_MAX=1`` costs a third of them.
"""

from __future__ import annotations

from ..loader.memory_limits import Estimate
from .held import DeviceMemory, MemoryReport, estimate, preallocate, release, report

__all__ = ["DeviceMemory", "Estimate", "MemoryReport", "estimate", "preallocate", "release", "report"]
