"""From a loader's arguments to all that follows from them: each is honoured, or refused with what to do instead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import default_collate

from ..datasets.base import Dataset
from ..datasets.user_code import Opaque
from ..engines.base import EngineConfig
from ..errors import ConfigError, PipelineError, TranslationError
from ..interop import translate_dataset
from ..memory.limits import check_host
from ..memory.uses import Workload
from ..reading.setup import Setup
from ..transforms.ops import split_off_mixing
from .arguments import Arguments, Device
from .batching import Batching, batching_of
from .engine_choice import choose_engine

__all__ = ["Resolved", "resolve"]


@dataclass(frozen=True)
class Resolved:
    """What follows from the arguments."""

    setup: Setup
    batching: Batching
    config: EngineConfig
    why: str
    """Why this engine."""
    seed: int

    @property
    def workload(self) -> Workload:
        """What the engine has to do on this rank."""
        return Workload(self.setup, -(-self.batching.sampler.length // self.batching.shard.world_size))


def resolve(a: Arguments) -> Resolved:
    """Check how the arguments fit together and complete what was left open. Touches no GPU and starts nothing."""
    device = _device(a.device)
    dataset = _dataset(a)
    batching = batching_of(a, len(dataset))
    setup = Setup(
        dataset=dataset,
        pipeline=dataset.transform,
        device=str(device),
        batch_size=batching.batch_size,
        num_workers=a.num_workers,
        prefetch_factor=2 if a.prefetch_factor is None else a.prefetch_factor,
        pin_memory=a.pin_memory,
        timeout=a.timeout,
        worker_init_fn=a.worker_init_fn,
        multiprocessing_context=a.multiprocessing_context,
    )
    _check_targets(dataset)
    if not dataset.has_frames and dataset.transform.temporal:
        raise PipelineError(
            f"{dataset.transform.temporal[0]!r} chooses among the frames of clips, and {dataset!r} has images; leave "
            "it out, or use datasets.VideoFolder or datasets.VideoList"
        )
    config, why = choose_engine(a, setup)
    resolved = Resolved(setup, batching, config, why, _seed(a, batching))
    check_host(config, resolved.workload)
    return resolved


def _device(device: Device) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        # torch.device(0) asks the driver.
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as e:
        raise ConfigError(f"device={device!r}: {str(e).splitlines()[0]}") from None
    if found.type not in ("cpu", "cuda"):
        raise ConfigError(f'device={device!r}: batches can be handed out on "cpu" or "cuda"')
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f'device={device!r}, but torch sees no GPU; use device="cpu", or see gpupipe doctor')
    return found


def _dataset(a: Arguments) -> Dataset:
    """The dataset in gpupipe's form; or, for the torch engine, a wrapper that runs it as it is."""
    as_is = a.engine_name == "torch"
    collate = None if a.collate_fn is default_collate else a.collate_fn
    if collate is not None and not as_is:
        raise ConfigError(
            f"collate_fn={getattr(collate, '__qualname__', collate)!r}: batches are collated by the "
            "engine; leave it out and apply the function to the batch in the training loop, or use "
            'engine="torch", which runs dataset and collate_fn as they are'
        )
    if collate is not None:
        return Opaque(a.dataset, collate)
    try:
        dataset = translate_dataset(a.dataset)
    except TranslationError:
        if not as_is:
            raise
        return Opaque(a.dataset)
    if len(dataset) == 0:
        raise ConfigError(f"{a.dataset!r} has no samples")
    return dataset


def _check_targets(dataset: Dataset) -> None:
    """Refuse MixUp and CutMix if targets cannot be mixed; those of a user's own dataset are seen when they come."""
    for op in split_off_mixing(dataset.transform.skeleton)[1]:
        if dataset.runs_user_code:
            continue
        name, n, labels = type(op).__name__, op.num_classes, dataset.labels  # type: ignore[attr-defined]
        if labels is None:
            raise ConfigError(f"{name} mixes labels, and {dataset!r} has none; leave it out, or give it labels")
        if n is None:
            raise ConfigError(f"{name}: the labels are integers, so it needs num_classes=..., the number of classes")
        low, high = (int(f(labels)) for f in (np.min, np.max))
        if low < 0 or high >= n:
            raise ConfigError(
                f"{name}: num_classes={n} does not fit labels of {low} to {high}; they must be 0 to num_classes - 1"
            )


def _seed(a: Arguments, batching: Batching) -> int:
    if a.seed is not None:
        return a.seed
    if batching.sampler.seed is not None:
        return batching.sampler.seed
    if a.generator is not None:
        return a.generator.initial_seed()
    # Ranks must agree on the order, and each process's initial seed is its own.
    return 0 if batching.shard.world_size > 1 else torch.initial_seed()
