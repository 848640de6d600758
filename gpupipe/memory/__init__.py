"""Memory reports, preallocation and release.

    gpupipe.memory.preallocate(device_bytes=4 << 30)  # when several processes share a GPU
    print(gpupipe.memory.report())                    # at any time
    gpupipe.memory.release()                          # between phases: return free memory

:class:`gpupipe.engines.Torch` sets the size of the torch engine's pinned staging (``staging``, ``slots``).

Pools grow until the largest images were seen, and then stop. Freed memory is kept for reuse. On the host, glibc's
malloc keeps most: about half the memory of a process with DALI's CPU backend consists of holes between images of
changing sizes. :func:`release` and ``loader.close()`` return it. Fewer holes cost speed, so gpupipe does not configure
malloc. If memory is short, ``MALLOC_MMAP_THRESHOLD_=4194304`` in the environment saves a third of it and costs an
eighth of the images per second; ``MALLOC_ARENA_MAX=1`` costs a third of them.
"""

from __future__ import annotations

from .held import DeviceMemory, MemoryReport, preallocate, release, report

__all__ = ["DeviceMemory", "MemoryReport", "preallocate", "release", "report"]
