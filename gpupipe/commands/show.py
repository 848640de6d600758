"""``gpupipe show`` and ``gpupipe replay``"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..bench.machine import cores
from ..errors import ConfigError
from ..loader.dataloader import DataLoader
from ..parity.drawing import create_folder_of
from .answer import tell
from .console import console
from .inputs import check_file, device_type, open_pipeline, open_samples

_ALONE = "save what loader.state_dict() returns, alone"


def run(
    pipeline: str,
    folder: Path,
    *,
    state: Path | None = None,
    epoch: int | None = None,
    step: int | None = None,
    batch_size: int = 16,
    samples: int,
    frames: int,
    stride: int,
    device: str | None,
    out: Path,
    seed: int = 0,
) -> int:
    """Write the page. With ``state``, epoch, seed, order and batch size are those of the saved loader, and ``step`` is
    by default the last one before it was saved."""
    where, _ = device_type(device)
    composed = open_pipeline(pipeline)
    dataset = open_samples(folder, frames=frames, stride=stride)
    dataset.transform = composed
    create_folder_of(out)
    saved: dict[str, Any] | None = None
    options: dict[str, Any] = {"shuffle": True, "seed": seed}
    if state is None:
        size = batch_size
        epoch, step = epoch or 0, step or 0
    else:
        saved = _saved(state)
        size = saved["global_batch"]
        order = {"sequential": False, "shuffled": True}.get(saved["order"])
        if order is None:
            raise ConfigError(f"{state}: its order, {saved['order']!r}, needs the script; call loader.show() in it")
        options = {"shuffle": order, "drop_last": bool(saved["drop_last"])}
        epoch = saved["epoch"] if epoch is None else epoch
        step = max(saved["delivered"] // size - 1, 0) if step is None else step
    with DataLoader(dataset, size, device=where, num_workers=cores(), **options) as loader:
        if saved is not None:
            # One rank with the global batch shows what all ranks together had.
            loader.load_state_dict({**saved, "world_size": 1})
        path = loader.show(out, epoch=epoch, step=step, most=samples)
    tell(epoch=epoch, step=step, path=path)
    console().print(f"epoch {epoch}, step {step}: {path}", soft_wrap=True)
    return 0


def _saved(path: Path) -> dict[str, Any]:
    """Return the loader's state in a JSON file, or anywhere in a checkpoint that ``torch.save`` wrote."""
    import torch

    check_file(path, "state or checkpoint")
    try:
        if path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (ValueError, RuntimeError, EOFError, pickle.UnpicklingError):
        # torch's own message advises to load without weights_only, which runs code of the file.
        if zipfile.is_zipfile(path):
            raise ConfigError(f"{path} holds objects other than tensors and plain values; {_ALONE}") from None
        raise ConfigError(f"{path} is neither JSON nor a checkpoint of torch.save") from None
    found = list(_states(content))
    if len(found) != 1:
        raise ConfigError(f"{path} holds {len(found)} states of loaders; {_ALONE}")
    return found[0]


def _states(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, Mapping):
        if {"version", "seed", "epoch", "delivered", "global_batch", "world_size", "order"} <= content.keys():
            yield dict(content)
        else:
            for value in content.values():
                yield from _states(value)
