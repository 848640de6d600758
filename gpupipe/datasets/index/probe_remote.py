"""Probing of many remote images in this process, many at a time, neighbors together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...codecs.files import Place, Undecodable
from ...codecs.patience import Pool
from ...codecs.probe import KINDS, Probe, quiet
from ...sources.storage import Storage
from .probe_pool import PictureProber

_BYTES = 32 << 20
_ROWS = 1024
"""Maximum number of rows in one part."""
_AHEAD = 4
"""Number of parts read concurrently."""


def probe_remote(
    storage: Storage,
    count: int,
    place_of: Callable[[int], Place],
    store: Callable[[int, Probe], None],
    progress: Callable[[int], None],
    prober: PictureProber,
) -> None:
    """Probe samples that ``storage`` reads, like :func:`~gpupipe.datasets.index.probe_pool.probe_all`."""

    def probed(part: tuple[int, list[Place]]) -> tuple[int, list[Probe]]:
        start, places = part
        with quiet():
            return start, [_probed(prober, data) for data in storage.read(places)]

    done = 0
    with Pool(_AHEAD, "gpupipe-probe") as pool:
        parts = _parts(count, lambda k: place_of(k)._replace(max_bytes=prober.limits.max_bytes))
        while some := [part for _, part in zip(range(_AHEAD), parts, strict=False)]:
            for start, results in pool.map(probed, some):
                for k, result in enumerate(results, start):
                    store(k, result)
                done += len(results)
                progress(done)


def _probed(prober: PictureProber, data: bytes | Undecodable) -> Probe:
    """Return the result for one image."""
    if isinstance(data, Undecodable):
        return Probe(KINDS.index(data.kind), reason=data.reason)
    return prober.of_bytes(data)


def _parts(count: int, place_of: Callable[[int], Place]) -> Iterator[tuple[int, list[Place]]]:
    """Yield (number of the first, places) of samples to read together."""
    part: list[Place] = []
    size = 0
    for k in range(count):
        place = place_of(k)
        if part and (size + place.size > _BYTES or len(part) == _ROWS):
            yield k - len(part), part
            part, size = [], 0
        part.append(place)
        size += place.size
    if part:
        yield count - len(part), part
