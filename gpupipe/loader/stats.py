"""What ``loader.stats()`` returns."""

from __future__ import annotations

from typing import Any

from .bottleneck import Bottleneck


class Stats(dict[str, Any]):
    """Counts and times of a loader since it was made: a dictionary of JSON values, whose items are attributes too.

    >>> Stats(samples=640, samples_per_second=320.0, stall=0.25, bottleneck=None)
    Stats(640 samples, 320.0 samples/s
      waits: 25 % of the time
      bottleneck: not known yet)
    """

    @property
    def epochs(self) -> int:
        """Epochs that ended."""
        return int(self["epochs"])

    @property
    def batches(self) -> int:
        """Batches delivered."""
        return int(self["batches"])

    @property
    def samples(self) -> int:
        """Samples delivered."""
        return int(self["samples"])

    @property
    def repaired(self) -> int:
        """Batches that were read a second time because of a bad sample."""
        return int(self["repaired"])

    @property
    def images(self) -> dict[str, Any] | None:
        """What happened to images that a script's own code opened on this rank: ``"opened"``, ``"waited"`` (made by the
        engine), and ``"looks"``, how often a line looked at pixels. ``None`` for a planned loader."""
        images: dict[str, Any] | None = self["images"]
        return images

    @property
    def wait_seconds(self) -> float:
        """Seconds that the training loop waited in ``next()``."""
        return float(self["wait_seconds"])

    @property
    def work_seconds(self) -> float:
        """Seconds that the training loop worked outside of ``next()``."""
        return float(self["work_seconds"])

    @property
    def samples_per_second(self) -> float:
        """Samples per second of waiting and work, of one rank."""
        return float(self["samples_per_second"])

    @property
    def stall(self) -> float:
        """Share of the waiting in both, 0 to 1."""
        return float(self["stall"])

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of all threads and worker processes by stage."""
        stages: dict[str, float] = self["stages"]
        return stages

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
