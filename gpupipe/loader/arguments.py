"""The loader's arguments: each is honoured, or refused with what to do instead."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from ..datasets.base import Dataset
from ..engines.base import EngineConfig
from ..errors import ConfigError, MissingDependency, PipelineError, TranslationError
from ..memory.limits import Budget
from ..planning.order import Order, Sequential, Shuffle
from ..reading.setup import Setup
from ..transforms.ops import Call, Op, split_off_mixing
from ..types import Shard

__all__ = ["Arguments", "Device", "EngineName", "Resolved", "Sampling", "resolve"]

Device = str | int | torch.device | None
EngineName = Literal["auto", "dali", "torch", "null"]

log = logging.getLogger("gpupipe")


@dataclass(frozen=True)
class Arguments:
    """What :class:`gpupipe.DataLoader` was called with; its docstring says what each means."""

    dataset: Any
    batch_size: int | None
    shuffle: bool | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool | None
    pin_memory_device: str
    in_order: bool
    device: Device
    engine: EngineName | EngineConfig
    seed: int | None
    shard: Shard | None


@dataclass(frozen=True)
class Sampling:
    """Which samples an epoch has, in which order, and how they are cut into batches."""

    batch_size: int
    drop_last: bool
    shard: Shard
    length: int
    """Samples of an epoch, over all ranks."""
    name: str
    """What a state says of the order, to recognise it by."""
    make: Callable[[int, int], Order]
    """(seed, epoch) to the order of that epoch."""
    epoch_of: Callable[[], int | None]
    """The epoch that the script set on its own sampler, where it has one that can be set."""


@dataclass(frozen=True)
class Resolved:
    """The arguments, checked and completed."""

    setup: Setup
    config: EngineConfig
    why: str
    """Why this engine."""
    sampling: Sampling
    budget: Budget
    device: torch.device
    seed: int


def resolve(a: Arguments) -> Resolved:
    """Check everything and complete what was left open. Touches no GPU and starts nothing."""
    _check_plain(a)
    device = _device(a.device)
    dataset = _dataset(a)
    sampling, sampler_seed = _sampling(a, len(dataset))
    setup = Setup(
        dataset=dataset,
        pipeline=dataset.transform,
        device=str(device),
        batch_size=sampling.batch_size,
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
    config, why = _engine(a.engine, setup)
    if config.name == "torch" or dataset.runs_user_code:
        _check_sendable(setup)
    if config.name != "torch" and not dataset.runs_user_code:
        _refuse_worker_options(a, config.name)
    samples = -(-sampling.length // sampling.shard.world_size)
    every = a.sampler is None and a.batch_sampler is None and not sampling.drop_last
    budget = Budget(config, setup, samples, every)
    budget.check_host()
    return Resolved(setup, config, why, sampling, budget, device, _seed(a, sampler_seed, sampling.shard))


def _integer(value: Any, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")


def _check_plain(a: Arguments) -> None:
    _integer(a.num_workers, "num_workers", 0)
    if a.prefetch_factor is not None:
        _integer(a.prefetch_factor, "prefetch_factor", 1)
    if a.batch_sampler is None and a.batch_size is None:
        raise ConfigError("batch_size=None (samples without batches) is not possible here; use batch_size=1")
    if a.timeout < 0:
        raise ConfigError(f"timeout must be seconds, not negative, not {a.timeout!r}")
    if a.pin_memory_device:
        raise ConfigError(f"pin_memory_device={a.pin_memory_device!r}: say device={a.pin_memory_device!r} instead")
    if not a.in_order:
        raise ConfigError("in_order=False: batches always come in order here; leave it out")
    if a.shard is not None and not isinstance(a.shard, Shard):
        raise ConfigError(f"shard must be a gpupipe.Shard, such as Shard.from_env(), not {a.shard!r}")
    if a.seed is not None and (isinstance(a.seed, bool) or not isinstance(a.seed, int)):
        raise ConfigError(f"seed must be an integer, not {a.seed!r}")


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


def _engine_name(engine: Any) -> str:
    return engine.name if isinstance(engine, EngineConfig) else str(engine)


def _dataset(a: Arguments) -> Dataset:
    """The dataset in gpupipe's form; or, for the torch engine, a wrapper that runs it as it is."""
    from torch.utils.data import default_collate

    from ..interop import translate_dataset

    as_is = _engine_name(a.engine) == "torch"
    collate = None if a.collate_fn is default_collate else a.collate_fn
    if collate is not None and not as_is:
        raise ConfigError(
            f"collate_fn={getattr(collate, '__qualname__', collate)!r}: batches are collated by the "
            "engine; leave it out and apply the function to the batch in the training loop, or use "
            'engine="torch", which runs dataset and collate_fn as they are'
        )
    if collate is None:
        try:
            dataset = translate_dataset(a.dataset)
        except TranslationError:
            if not as_is:
                raise
        else:
            if len(dataset) == 0:
                raise ConfigError(f"{a.dataset!r} has no samples")
            return dataset
    from ..datasets.user_code import Opaque

    return Opaque(a.dataset, collate)


def _check_targets(dataset: Dataset) -> None:
    """Refuse MixUp and CutMix where targets cannot be mixed; those of a user's own dataset are seen when they come."""
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


def _check_sendable(setup: Setup) -> None:
    """Refuse functions that cannot reach the worker processes, where those do not inherit them."""
    context = setup.multiprocessing_context
    method = context if isinstance(context, str) else context and context.get_start_method()
    # get_start_method() would settle it for the whole program.
    method = method or multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if not setup.num_workers or method == "fork":
        return
    for call in _calls(setup.pipeline.skeleton):
        try:
            pickle.dumps(call.function)
        except Exception as e:
            raise ConfigError(
                f"{call.name} cannot be sent to worker processes, which are started by {method!r}: "
                f"{type(e).__name__}: {e}; define it with def at the top of a module, or use num_workers=0 or "
                'multiprocessing_context="fork"'
            ) from None


def _calls(ops: Sequence[Op]) -> Iterator[Call]:
    for op in ops:
        if isinstance(op, Call):
            yield op
        for branch in getattr(op, "branches", ()):
            yield from _calls(branch)


def _sampling(a: Arguments, n: int) -> tuple[Sampling, int | None]:
    """How samples are ordered and cut, and the seed that the sampler brings along."""
    from ..interop import split_batch_sampler, translate_sampler

    sampler, batch_size, drop_last, shuffle = a.sampler, a.batch_size, a.drop_last, bool(a.shuffle)
    if a.batch_sampler is not None:
        if batch_size not in (1, None) or a.shuffle is not None or sampler is not None or drop_last:
            raise ConfigError("batch_sampler goes without batch_size, shuffle, sampler and drop_last, as in torch")
        sampler, batch_size, drop_last = split_batch_sampler(a.batch_sampler)
    _integer(batch_size, "batch_size", 1)
    assert batch_size is not None
    if sampler is None:
        make: Callable[[int, int], Order] = (
            (lambda seed, epoch: Shuffle(n, seed, epoch)) if shuffle else (lambda seed, epoch: Sequential(n))
        )
        name = "shuffled" if shuffle else "sequential"
        return Sampling(batch_size, drop_last, a.shard or Shard(), n, name, make, lambda: None), None
    if shuffle:
        raise ConfigError("shuffle=True and a sampler exclude each other, as in torch; leave one of them out")
    plan = translate_sampler(sampler, n)
    if a.shard is not None and plan.shard is not None and a.shard != plan.shard:
        raise ConfigError(f"the sampler is for {plan.shard}, but shard={a.shard}; leave one of them out")
    shard = plan.shard or a.shard or Shard()
    return Sampling(batch_size, drop_last, shard, plan.length, plan.name, plan.order, plan.epoch_of), plan.seed


def _seed(a: Arguments, sampler_seed: int | None, shard: Shard) -> int:
    if a.seed is not None:
        return a.seed
    if sampler_seed is not None:
        return sampler_seed
    if a.generator is not None:
        return a.generator.initial_seed()
    # Ranks must agree on the order, and each process's initial seed is its own.
    return 0 if shard.world_size > 1 else torch.initial_seed()


def _engine(engine: EngineName | EngineConfig, setup: Setup) -> tuple[EngineConfig, str]:
    """The engine's options, checked against the setup, and why it is this one."""
    from .. import engines

    if isinstance(engine, EngineConfig):
        engine.check(setup)
        return engine, "as asked"
    if engine == "auto":
        try:
            dali = engines.Dali()
            dali.check(setup)
            return dali, "auto: DALI is installed and runs every transform"
        except (MissingDependency, PipelineError) as e:
            torch_engine = engines.Torch()
            torch_engine.check(setup)
            if isinstance(e, PipelineError):
                log.warning("engine='auto' takes the torch engine: %s", e)
            return torch_engine, f"auto: {e}"
    by_name: dict[str, type[EngineConfig]] = {"dali": engines.Dali, "torch": engines.Torch, "null": engines.Null}
    if engine not in by_name:
        raise ConfigError(f"engine must be auto, {', '.join(by_name)} or an engine's options, not {engine!r}")
    config = by_name[engine]()
    config.check(setup)
    return config, "as asked"


def _refuse_worker_options(a: Arguments, engine: str) -> None:
    for name, value, default, instead in (
        ("worker_init_fn", a.worker_init_fn, None, "random numbers come from seed=..., so leave it out"),
        ("timeout", a.timeout, 0, "files are read by threads that cannot be interrupted, so leave it out"),
        ("multiprocessing_context", a.multiprocessing_context, None, "leave it out"),
    ):
        if value != default:
            raise ConfigError(
                f"{name}={value!r}: the {engine} engine has no worker processes for this dataset; "
                f'{instead}, or use engine="torch"'
            )
