"""Resolves a loader's arguments: each one is honored, or rejected with an error that says what to do instead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..datasets.dataset import Dataset
from ..engines.base import EngineConfig
from ..errors import ConfigError, PipelineError
from ..reading.kept import DecodedCache
from ..reading.setup import Setup
from ..reading.targets import check_targets
from ..reasons import FallbackWarning, Reason
from ..script_warnings import warn
from ..transforms.compose import Compose
from ..transforms.padding import padded
from ..translate.classes import shown
from .arguments import TIMEOUT, Arguments, DeviceLike
from .batching import Batching, batching_of
from .engine_choice import choose_engine


class NotPlanned(Exception):
    """A translated dataset needs something that only its own code in torch's DataLoader does."""


@dataclass(frozen=True)
class Resolved:
    """Everything that follows from the arguments."""

    setup: Setup
    batching: Batching
    config: EngineConfig
    why: str
    """Why this engine was chosen."""
    reasons: tuple[Reason, ...] = ()
    """Why ``engine="auto"`` passed over DALI."""


def resolve(a: Arguments, dataset: Dataset) -> Resolved:
    """Check how the arguments fit together and complete the open ones. Touches no GPU and starts nothing.

    Args:
        a: the arguments.
        dataset: ``a.dataset``, or its translation.

    Raises:
        NotPlanned: ``dataset`` is a translation, and engines cannot make its batches.
        ConfigError: no loader can do it.
    """
    try:
        return _resolved(a, dataset)
    except PipelineError:
        if dataset is a.dataset:
            raise
        raise NotPlanned from None


def _resolved(a: Arguments, dataset: Dataset) -> Resolved:
    device, ours = device_of(a.device), dataset is a.dataset
    _refuse_options(a, dataset)
    pipeline = _pipeline_for_collate(a, dataset)
    if len(dataset) == 0:
        if not ours:
            raise NotPlanned
        raise ConfigError(f"{a.dataset!r} has no samples")
    batching = batching_of(a, dataset)
    setup = Setup(
        dataset=dataset,
        pipeline=pipeline,
        device=str(device),
        batch_size=batching.batch_size,
        num_workers=a.num_workers,
        prefetch_factor=2 if a.prefetch_factor is None else a.prefetch_factor,
        collates=a.collates,
        pin_memory=a.pin_memory,
        timeout=a.timeout,
        worker_init_fn=a.worker_init_fn,
        multiprocessing_context=a.multiprocessing_context,
        cache=_cache_of(a, dataset),
        scaled=_scaled(a, dataset),
    )
    for part in dataset.parts:
        check_targets(part, part.transform)
    _check_mixing(dataset)
    config, why, refused = choose_engine(a, setup)
    passed_over = tuple(Reason(text, "engine") for text in refused)
    if passed_over and not ours:
        raise NotPlanned
    if passed_over:
        warn("engine='auto' takes the torch engine", passed_over, FallbackWarning)
    return Resolved(setup, batching, config, why, passed_over)


def _refuse_options(a: Arguments, dataset: Dataset) -> None:
    """Raise :class:`ConfigError` for options of torch's loader that have no meaning for an engine."""
    refused = []
    if a.batch_sampler is None and a.batch_size is None:
        refused.append("batch_size=None gives single samples: use batch_size=1")
    if a.pin_memory_device:
        refused.append(f"pin_memory_device={a.pin_memory_device!r} is torch's: use device=")
    if not a.in_order:
        refused.append("batches always come in order: leave in_order=False out")
    if a.engine_name != "torch":
        for name, default in (("worker_init_fn", None), ("timeout", 0), ("multiprocessing_context", None)):
            if (value := getattr(a, name)) not in (default, TIMEOUT):
                refused.append(
                    f"{name}={shown(value)} is for worker processes, and gpupipe reads files in threads: leave it out, "
                    'or use engine="torch"'
                )
    if refused:
        raise ConfigError(f"{a.dataset!r} is gpupipe's, and its engines cannot do this: {'; '.join(refused)}")


def _pipeline_for_collate(a: Arguments, dataset: Dataset) -> Compose:
    """Return the pipeline, which may give images of different sizes to a collate function of the script."""
    pipeline = dataset.transform
    if not a.collates:
        return pipeline
    if pipeline.mixing:
        name = getattr(a.collate_fn, "__qualname__", None) or shown(a.collate_fn)
        raise ConfigError(f"collate_fn={name} beside {pipeline.mixing[0]!r}: remove one of them")
    return padded(pipeline) if len(pipeline.outputs) == 1 and _may_differ_in_size(dataset) else pipeline


def _cache_of(a: Arguments, dataset: Dataset) -> DecodedCache | None:
    if a.cache is None:
        return None
    if a.engine_name == "null":
        raise ConfigError(f"cache={a.cache!r}: the null engine decodes no images that could be kept; leave it out")
    return DecodedCache.of(a.cache, a.cache_bytes, dataset)


def _scaled(a: Arguments, dataset: Dataset) -> bool:
    if a.scaled and a.engine_name == "null":
        raise ConfigError("scaled=True: the null engine decodes nothing; leave it out")
    if a.scaled and (dataset.kind != "files" or dataset.sizes is None):
        raise ConfigError(
            f"scaled=True needs images in files, whose index knows their sizes, but {dataset!r} has "
            f"{dataset.kind}; leave it out"
        )
    return a.scaled


def device_of(device: DeviceLike) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        # torch.device(0) would query the driver.
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device={device!r} must be 'cpu', 'cuda', or 'cuda:' and a number") from None
    if found.type not in ("cpu", "cuda"):
        raise ConfigError(f'device={device!r}: batches can be delivered on "cpu" or "cuda"')
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f'device={device!r}, but torch sees no GPU; use device="cpu", or see gpupipe doctor')
    return found


def _may_differ_in_size(dataset: Dataset) -> bool:
    if dataset.kind == "mixture" or dataset.medium.moves:
        return False
    if all(output.size is not None for output in dataset.transform.outputs):
        return False
    common = dataset.common_size()
    return common is None or dataset.transform.draws_size(common)


def _check_mixing(dataset: Dataset) -> None:
    """Reject MixUp and CutMix if targets cannot be mixed."""
    for op in dataset.transform.mixing:
        name, n, labels = type(op).__name__, op.num_classes, dataset.labels
        if labels is None:
            raise ConfigError(
                f"{name} mixes labels, and {dataset!r} has none; leave it out, or give the dataset labels"
            )
        if n is None:
            raise ConfigError(f"{name}: the labels are integers, so it needs num_classes=..., the number of classes")
        low, high = (int(f(labels)) for f in (np.min, np.max))
        if low < 0 or high >= n:
            raise ConfigError(
                f"{name}: num_classes={n} does not fit labels of {low} to {high}; they must be 0 to num_classes - 1"
            )
