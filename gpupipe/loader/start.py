"""Chooses a loader's session: planned for datasets that gpupipe knows, live for everything else."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data.dataloader import DataLoader as TorchLoader

from ..datasets.dataset import Dataset
from ..errors import ConfigError, DatasetError
from ..formats.registry import format_of, others_files
from ..samplers import Sampler
from ..translate.classes import exact_name, shown
from ..translate.datasets import translated
from ..translate.replaced import is_foreign
from .arguments import TIMEOUT, Arguments
from .live_session import LiveSession
from .planned import PlannedSession
from .resolve import NotPlanned
from .session import Session


def session_of(a: Arguments) -> Session:
    """Return the session for these arguments."""
    if isinstance(a.dataset, Dataset):
        if a.live:
            raise ConfigError(f"live=True runs a dataset's own code in torch's DataLoader, and {a.dataset!r} has none")
        return PlannedSession(a, a.dataset)
    _check(a.dataset)
    if not a.live and _as_torch_has_it(a) and (dataset := translated(a.dataset)) is not None:
        try:
            return PlannedSession(a, dataset)
        except NotPlanned:
            pass
    return LiveSession(a)


def with_arguments(session: Session, **changed: Any) -> Session:
    """Replace a session by one with other arguments at the same position."""
    return _replaced(session, session.arguments.changed(**changed))


def with_batches(session: Session, batches: Any) -> Session:
    """Return a live session for the batches that the script has put into ``loader.batch_sampler``, as timm and YOLO
    do, or has set attributes of."""
    a = session.arguments
    if isinstance(a.dataset, Dataset) or a.seed is not None or session.shard.world_size > 1:
        raise ConfigError(
            "loader.batch_sampler was changed, and an order that gpupipe plans cannot follow it: give batch_size=, "
            "drop_last=, sampler= or batch_sampler= to the DataLoader"
        )
    order: dict[str, Any] = {"batch_size": 1, "shuffle": None, "sampler": None, "drop_last": False}
    return _replaced(session, a.changed(batch_sampler=batches, **order), LiveSession)


def refreshed(session: Session) -> Session:
    """Return the session for an epoch that begins now, after any changes in dataset and sampler."""
    try:
        return session.refreshed()
    except NotPlanned:
        return _replaced(session, session.arguments, LiveSession)


def _replaced(session: Session, a: Arguments, make: Callable[[Arguments], Session] = session_of) -> Session:
    state = session.state() if session.has_begun and make is session_of else None
    session.close()
    other = make(a)
    if type(other) is type(session) and state is not None:
        other.load(state)
    elif isinstance(session, PlannedSession):  # only the number of the epoch carries over
        other.set_epoch(session.position.next_epoch)
    other.report, other.stats = session.report, session.stats
    return other


def _check(dataset: Any) -> None:
    """Raise :class:`DatasetError` for a path, since torch's loader would make batches of its letters, for a loader, and
    for an object without samples."""
    if isinstance(dataset, (str, os.PathLike)):
        raise DatasetError(f"DataLoader: the dataset is {dataset!r}; {_named_class(os.fspath(dataset))}")
    if isinstance(dataset, TorchLoader):
        raise DatasetError(f"DataLoader: the dataset is a {type(dataset).__name__}; give its dataset")
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise DatasetError(
            f"DataLoader: the dataset is {shown(dataset)}; give one with __len__ and __getitem__, or one of "
            "gpupipe.datasets"
        )


def _named_class(path: str) -> str:
    found = format_of(path)
    if found is None and (why := others_files(path)):
        return why
    is_list = path.lower().endswith((".csv", ".tsv", ".txt"))
    name = found.__name__ if found is not None else "ImageList" if is_list else "ImageFolder"
    return f"a path names no transforms; write gpupipe.datasets.{name}({path!r}, transform)"


def _as_torch_has_it(a: Arguments) -> bool:
    """Return whether everything around the dataset is torch's own or gpupipe's, so that no code of the script runs."""
    batches = a.batch_sampler
    if batches is not None and exact_name(batches, "torch.utils.data") != "BatchSampler":
        return False
    sampler = a.sampler if batches is None else batches.sampler
    known = sampler is None or isinstance(sampler, Sampler) or exact_name(sampler, "torch.utils.data", "gpupipe.loader")
    for_workers = (a.worker_init_fn, a.multiprocessing_context)
    return bool(
        known
        and not a.collates
        and not _replaced_collate()
        and for_workers == (None, None)
        and a.timeout in (0, TIMEOUT)
        and (a.batch_size is not None or batches is not None)
        and a.in_order
        and not a.pin_memory_device
    )


def _replaced_collate() -> bool:
    """Return whether the script has replaced a part of ``default_collate``."""
    functions = [torch_collate.default_collate]
    for kind, function in torch_collate.default_collate_fn_map.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        functions += [function] if any(issubclass(one, (torch.Tensor, int)) for one in kinds) else []
    return any(is_foreign("", function) for function in functions)
