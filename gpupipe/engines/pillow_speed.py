"""How fast Pillow decodes what the engine does not."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PillowSpeed"]


@dataclass
class PillowSpeed:
    """Images that Pillow decoded in an engine's place, and how long that took.

    >>> speed = PillowSpeed()
    >>> speed.add(100, 0.5)
    >>> speed.remarks("thread", 4)
    ['Pillow decoded 100 images, 200 a second in each of 4 threads']
    """

    images: int = 0
    seconds: float = 0.0
    """Of all threads together."""

    def add(self, images: int, seconds: float) -> None:
        self.images += images
        self.seconds += seconds

    def remarks(self, what: str, workers: int) -> list[str]:
        """For :meth:`gpupipe.engines.base.Engine.remarks`; so many ``workers`` of what kind did it."""
        if not self.images or not self.seconds:
            return []
        plural = f"{what}es" if what.endswith("s") else f"{what}s"
        where = f"each of {workers} {plural}" if workers > 1 else f"one {what}"
        return [f"Pillow decoded {self.images:,} images, {self.images / self.seconds:,.0f} a second in {where}"]
