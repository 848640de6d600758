"""Speed of decoding by Pillow in place of an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PillowSpeed:
    """Number of images that Pillow decoded in place of an engine, and the time it took.

    >>> speed = PillowSpeed()
    >>> speed.add(100, 0.5)
    >>> speed.remarks(4)
    ['Pillow decoded 100 images, 200 a second in each of 4 threads']
    """

    images: int = 0
    seconds: float = 0.0
    """Sum over all threads."""

    def add(self, images: int, seconds: float) -> None:
        self.images += images
        self.seconds += seconds

    def remarks(self, threads: int) -> list[str]:
        """Return sentences for :meth:`gpupipe.engines.base.Engine.remarks`."""
        if not self.images or not self.seconds:
            return []
        where = f"each of {threads} threads" if threads > 1 else "one thread"
        return [f"Pillow decoded {self.images:,} images, {self.images / self.seconds:,.0f} a second in {where}"]
