"""Probing of many remote images in this process, many at a time, neighbors together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...codecs.files import Place, Undecodable
from ...codecs.limits import MAX_BYTES
from ...codecs.patience import Pool
from ...codecs.probe import KINDS, Probe, quiet
from ...codecs.unpack import Packed
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
            # Stored bytes, which probing unpacks. The dataset's limit is for the unpacked image, and is checked there.
            stored = storage.read(
                [p if _packed(p) is None else p._replace(packed=None, max_bytes=MAX_BYTES) for p in places]
            )
            return start, [_probed(prober, place, data) for place, data in zip(places, stored, strict=True)]

    done = 0
    with Pool(_AHEAD, "gpupipe-probe") as pool:
        parts = _parts(count, lambda k: place_of(k)._replace(max_bytes=prober.limits.max_bytes))
        while some := [part for _, part in zip(range(_AHEAD), parts, strict=False)]:
            for start, results in pool.map(probed, some):
                for k, result in enumerate(results, start):
                    store(k, result)
                done += len(results)
                progress(done)


def _probed(prober: PictureProber, place: Place, data: bytes | Undecodable) -> Probe:
    """Return the result for one image whose stored bytes are ``data``."""
    if isinstance(data, Undecodable):
        return Probe(KINDS.index(data.kind), reason=data.reason)
    return prober.of_bytes(data, _packed(place))


def _packed(place: Place) -> Packed | None:
    """Return how the bytes that are read become the image; ``None`` if the storage unpacks them, as it does for pages
    of several images."""
    return None if place.packed is None or place.packed.shared else place.packed


def _parts(count: int, place_of: Callable[[int], Place]) -> Iterator[tuple[int, list[Place]]]:
    """Yield (number of the first, places) of samples to read together."""
    part: list[Place] = []
    size = 0
    for k in range(count):
        place = place_of(k)
        new = place.length if not part or part[-1][:3] != place[:3] else 0  # images of one page are read together
        if part and (size + new > _BYTES or len(part) == _ROWS):
            yield k - len(part), part
            part, size, new = [], 0, place.length
        part.append(place)
        size += new
    if part:
        yield count - len(part), part
