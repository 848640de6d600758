"""What ``loader.stats()`` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .bottleneck import Bottleneck


class Stats(dict[str, Any]):
    """Counts and times of a loader since it was made: a dictionary of JSON values, whose items are attributes too.

    >>> Stats(samples=640, samples_per_second=320.0, stall=0.25, bottleneck=None)
    Stats(640 samples, 320.0 samples/s
      waits: 25 % of the time
      bottleneck: not known yet)
    """

    epochs: int
    """Epochs that ended."""
    batches: int
    """Batches delivered."""
    samples: int
    """Samples delivered."""
    repaired: int
    """Batches that were read a second time because of a bad sample."""
    wait_seconds: float
    """Seconds that the training loop waited in ``next()``."""
    work_seconds: float
    """Seconds that the training loop worked outside of ``next()``."""
    samples_per_second: float
    """Samples per second of waiting and work, of one rank."""
    stall: float
    """Share of the waiting in both, 0 to 1."""
    stages: dict[str, float]
    """Seconds of all threads and worker processes by stage."""
    images: dict[str, Any] | None
    """What happened to images that a script's own code opened on this rank: ``"opened"``, ``"waited"`` (made by the
    engine), and ``"looks"``, how often a line looked at pixels. ``None`` for a planned loader."""

    if not TYPE_CHECKING:  # type checkers find misspelled names

        def __getattr__(self, name: str) -> Any:
            try:
                return self[name]
            except KeyError:
                raise AttributeError(name) from None

    @property
    def bottleneck(self) -> Bottleneck | None:
        """What limits the speed, and the next step; ``None`` before the second batch."""
        found = self["bottleneck"]
        return None if found is None else Bottleneck(**found)

    def __repr__(self) -> str:
        found = self.bottleneck
        limit = "not known yet" if found is None else f"{found.stage}: {found.next_step}"
        return (
            f"Stats({self.samples:,} samples, {self.samples_per_second:,.1f} samples/s\n"
            f"  waits: {100 * self.stall:.0f} % of the time\n  bottleneck: {limit})"
        )
