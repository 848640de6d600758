"""Other libraries' loaders on the shards that they and gpupipe read, each as its documentation shows it: decoded as is
usual there, with torchvision's transforms, in torch's worker processes."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from _common import import_torchvision
from _recipes import torchvisions
from torch import Tensor

__all__ = ["PEERS", "missing", "peer_batches"]

Samples = Iterator[tuple[Any, Tensor]]


def missing(peer: str) -> str | None:
    """Why a library cannot take part."""
    module = PEERS[peer][1]
    try:
        import_torchvision()
        importlib.import_module(module)
    except ImportError as e:
        return str(e)
    return None


def peer_batches(peer: str, packed: str, *, batch_size: int, workers: int, size: int, epoch: int) -> Samples:
    """Batches without end of what is in ``packed``, on the CPU.

    Args:
        epoch: samples of an epoch, if the library can be told.
    """
    transform, _ = torchvisions("train", size)
    return PEERS[peer][2](packed, transform, batch_size, workers, epoch)


def _webdataset(packed: str, transform: Any, batch_size: int, workers: int, epoch: int) -> Samples:
    import webdataset as wds

    stream = (
        wds.WebDataset(packed, resampled=True, shardshuffle=False)
        .shuffle(1000)
        .decode("pilrgb")
        .to_tuple("jpg", "cls")
        .map_tuple(transform, int)
        .batched(batch_size, partial=False)
    )
    yield from wds.WebLoader(stream, batch_size=None, num_workers=workers, persistent_workers=True)


def _datasets(packed: str, transform: Any, batch_size: int, workers: int, epoch: int) -> Samples:
    import datasets

    found = datasets.load_from_disk(packed)

    def apply(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"x": [transform(image.convert("RGB")) for image in rows["image"]], "y": rows["label"]}

    rows = found.select(list(itertools.islice(itertools.cycle(range(len(found))), epoch))).with_transform(apply)
    loader = torch.utils.data.DataLoader(rows, shuffle=True, **_options(batch_size, workers))
    for batch in _for_ever(loader):
        yield batch["x"], batch["y"]


def _options(batch_size: int, workers: int) -> dict[str, Any]:
    return {"batch_size": batch_size, "num_workers": workers, "drop_last": True, "persistent_workers": True}


def _for_ever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


PEERS: dict[str, tuple[str, str, Callable[[str, Any, int, int, int], Samples]]] = {
    "webdataset": ("tar", "webdataset", _webdataset),
    "datasets": ("huggingface", "datasets", _datasets),
}
"""(the format that it reads, its module, its loader)"""
