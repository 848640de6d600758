"""Options for reading remote containers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import ConfigError

Fetch = Literal["auto", "blocks", "samples"]


@dataclass(frozen=True)
class Remote:
    """Options for reading ``s3://``, ``gs://``, ``az://`` and ``http(s)://``.

    Ranges of bytes are read, many at a time. Credentials are not arguments: the clients find them in
    ``AWS_ACCESS_KEY_ID``, the instance's role, and so on.

    >>> Remote(fetch="blocks", cache_bytes=10**9)  # doctest: +ELLIPSIS
    Remote(fetch='blocks', ...)

    Args:
        fetch: what to request. ``"samples"``: the bytes of samples, adjacent ones together; nothing is kept.
            ``"blocks"``: blocks of containers, which are kept on disk, so that later epochs read them there.
            ``"auto"``: blocks if all containers together fit into the cache.
        block_bytes: size of one block.
        cache_bytes: maximum size of all blocks on this machine's disk; the oldest are removed. Never more than half of
            the free space.
        cache_folder: folder of the blocks; ``None`` for ``remote`` in gpupipe's cache folder.
        connections: concurrent requests per process. A store that answers after 0.1 s delivers at most ten times as
            many samples per second.
        timeout: seconds for one request, which is then retried.
    """

    fetch: Fetch = "auto"
    block_bytes: int = 1 << 20
    cache_bytes: int = 20_000_000_000
    cache_folder: str | os.PathLike[str] | None = None
    connections: int = 64
    timeout: float = 30.0

    def __post_init__(self) -> None:
        if self.fetch not in get_args(Fetch):
            raise ConfigError(f"Remote: fetch must be one of {', '.join(get_args(Fetch))}, not {self.fetch!r}")
        for name, least in (("block_bytes", 4096), ("cache_bytes", 0), ("connections", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"Remote: {name} must be an integer of at least {least}, not {value!r}")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)) or not self.timeout > 0:
            raise ConfigError(f"Remote: timeout must be a number of seconds, not {self.timeout!r}")
        if self.fetch == "blocks" and self.cache_bytes < 64 * self.block_bytes:
            raise ConfigError(
                f"Remote: cache_bytes={self.cache_bytes} is less than 64 blocks of {self.block_bytes} bytes, so "
                "blocks would be evicted before they are used again; make it larger"
            )
