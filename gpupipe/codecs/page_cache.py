"""A cache of unpacked pages, for samples that are compressed together. Standard library only, as :mod:`.files`."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from .unpack import Packed, unpack_whole

CACHE_BYTES = 512 << 20
"""Most bytes of pages in one process: as many as the default :class:`~gpupipe.BlockShuffle` mixes at a time."""


class PageCache:
    """Cache of unpacked pages. New pages replace the least recently used ones.

    Pages that are being unpacked count, together with their compressed bytes. The sum exceeds ``limit`` only if one
    page alone does; that page is then the only one. Threads that ask for the same page wait for a single unpacking.
    """

    def __init__(self, limit: int = CACHE_BYTES):
        self.limit = limit
        self.clear()

    def clear(self) -> None:
        """Forget everything, including what other threads are doing: a forked child has none of them."""
        self._pages: OrderedDict[Hashable, bytes] = OrderedDict()
        self._coming: dict[Hashable, int] = {}
        self._changed = threading.Condition()
        self._kept = 0
        self.most_bytes = 0
        """Largest :attr:`nbytes` so far."""
        self.unpacked = 0
        """Number of pages unpacked so far."""

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, and of those that are being unpacked."""
        return self._kept + sum(self._coming.values())

    def part(self, key: Hashable, packed: Packed, stored: int, read: Callable[[], bytes | memoryview]) -> bytes:
        """Return the wanted part of a page.

        Args:
            key: the page: its file, the version of the file, and its place there.
            packed: how it is unpacked.
            stored: number of its compressed bytes.
            read: returns its compressed bytes; called unless the page is in the cache.

        Raises:
            ValueError: the compressed bytes are damaged.
            ImportError: the package that unpacks them is not installed.
        """
        # A wrong index may name another codec or size for the same bytes, and must not get this page.
        key = (key, packed.codec, packed.size)
        page = self._find(key, packed.size + stored)
        if page is None:
            page = self._unpack(key, packed, read)
        return packed.part_of(page)

    def forget(self, key: Hashable, packed: Packed) -> bool:
        """Drop a page. Returns whether it was there."""
        with self._changed:
            page = self._pages.pop((key, packed.codec, packed.size), b"")
            self._kept -= len(page)
            return bool(page)

    def _find(self, key: Hashable, needed: int) -> bytes | None:
        """Return a page, or reserve the ``needed`` bytes to unpack it."""
        with self._changed:
            while True:
                if (page := self._pages.get(key)) is not None:
                    self._pages.move_to_end(key)
                    return page
                coming = sum(self._coming.values())
                # A page larger than the limit waits until it would be the only one.
                if key not in self._coming and (not coming or coming + needed <= self.limit):
                    break
                self._changed.wait()
            # Make room before unpacking, so that the sum stays within the limit.
            while self._pages and self.nbytes + needed > self.limit:
                self._kept -= len(self._pages.popitem(last=False)[1])
            self._coming[key] = needed
            self.most_bytes = max(self.most_bytes, self.nbytes)
            return None

    def _unpack(self, key: Hashable, packed: Packed, read: Callable[[], bytes | memoryview]) -> bytes:
        page = None
        try:
            page = unpack_whole(read(), packed)
            return page
        finally:
            with self._changed:
                # Also after an error: threads that wait for this page then try it themselves.
                self._coming.pop(key, None)
                if page is not None:
                    self._pages[key] = page
                    self._kept += len(page)
                    self.unpacked += 1
                self._changed.notify_all()


PAGES = PageCache()
"""The pages of this process."""

os.register_at_fork(after_in_child=PAGES.clear)
