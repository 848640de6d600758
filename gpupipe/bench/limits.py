"""Limits of a loader: each part of its work alone, on the same samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from ..copy_stream import CopyStream
from ..datasets.images import EncodedImages
from ..datasets.subset import Subset
from ..engines.staging import Ring, Uploader
from ..errors import ConfigError
from ..loader.dataloader import DataLoader
from ..transforms.compose import Compose

LIMITS = ("read", "decode", "augment", "pageable", "pinned", "ring")
"""What can be measured alone: reading files in threads; decoding, by Pillow in threads or, for clips, by the engine
without transforms; the pipeline on decoded images that are kept in memory; and three ways to copy a batch to a GPU."""
_COPIES = ("pageable", "pinned", "ring")
_AHEAD = 2


def limit(
    name: str, samples: Subset, *, device: str, common: dict[str, Any]
) -> DataLoader | Callable[[], Iterable[Any]]:
    """Return a function that starts an epoch of a limit, or a loader to iterate over and to close.

    Args:
        name: one of :data:`LIMITS`.
        samples: good samples, with the pipeline.
        common: arguments of the loaders that are measured beside it.

    Raises:
        GpupipeError: it cannot be measured here.
    """
    if name in _COPIES:
        return _copies(name, samples, device, common)
    images = isinstance(samples.dataset, EncodedImages)
    if name == "augment":
        return DataLoader(samples, engine="dali", cache="ram", device=device, seed=0, **common)
    if name == "decode" and not images:
        plain = Subset(samples.dataset, samples.indices, transform=Compose([]))
        one_by_one = {**common, "batch_size": 1}  # clips may differ in size
        return DataLoader(plain, engine="dali", device=device, seed=0, **one_by_one)
    if not images:
        raise ConfigError("a clip is a part of a file, which is read where it is decoded")
    work = partial(_read if name == "read" else _decode, samples)
    return partial(_in_threads, work, len(samples), common["batch_size"], max(common["num_workers"], 1))


def _read(samples: Subset, index: int) -> None:
    media, _ = samples.fetch(index)
    if isinstance(media, str):
        with open(media, "rb") as file:
            file.read()


def _decode(samples: Subset, index: int) -> None:
    np.asarray(samples.open(samples.fetch(index)[0]))


def _in_threads(
    work: Callable[[int], None], count: int, batch_size: int, threads: int
) -> Iterator[list[Sequence[None]]]:
    """Work on samples in random order, some batches ahead. Yields the results of a batch in place of its images."""
    order = iter(np.random.default_rng(0).permutation(count).tolist())
    with ThreadPoolExecutor(threads, "gpupipe-limit") as pool:
        waiting: deque[list[Future[None]]] = deque()
        try:
            while True:
                batch = [pool.submit(work, index) for index in islice(order, batch_size)]
                if batch:
                    waiting.append(batch)
                if not waiting:
                    return
                if len(waiting) > _AHEAD or not batch:
                    yield [[future.result() for future in waiting.popleft()]]
        finally:
            for batch in waiting:
                for future in batch:
                    future.cancel()


def _copies(name: str, samples: Subset, device: str, common: dict[str, Any]) -> Callable[[], Iterable[Any]]:
    if device == "cpu":
        raise ConfigError("there is no GPU to copy to")
    with DataLoader(samples, engine="torch", device="cpu", seed=0, **{**common, "num_workers": 0}) as loader:
        images = next(iter(loader))[0]

    def pageable() -> Any:
        return images.to(device)

    def pinned() -> Any:
        return images.pin_memory().to(device, non_blocking=True)

    if name == "ring":
        where = torch.device(device)
        uploader = Uploader(CopyStream(where), where, Ring(2, pinned=True))
        copy = partial(uploader, images, (), lambda copied: copied)
        return lambda: ([copy()[0]] for _ in range(1 << 20))
    make = pageable if name == "pageable" else pinned
    return lambda: ([make()] for _ in range(1 << 20))
