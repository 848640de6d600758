"""Resolves a loader's arguments: each one is honored, or rejected with an error that says what to do instead."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from ..datasets.dataset import Dataset
from ..engines.base import EngineConfig
from ..errors import ConfigError, DatasetError, PipelineError, TranslationError
from ..interop import translate_dataset
from ..interop.classes import exact_name, shown
from ..interop.huggingface import Originals
from ..interop.isolation import Isolated
from ..interop.other_libraries import named_class
from ..interop.reach import calls_reached
from ..interop.replaced import is_foreign
from ..interop.rows import Rows
from ..interop.same_names import UnsupportedError
from ..interop.samplers import gives_integers, is_batch_sampler_of_torch, key_of
from ..interop.worker_functions import only_seeds, repeats_seeds
from ..kernels.check import try_functions
from ..reading.kept import DecodedCache
from ..reading.setup import Setup
from ..reading.targets import check_targets
from ..reasons import FallbackWarning, Reason, about, sentence
from ..script_warnings import warn
from ..transforms.compose import Compose
from ..transforms.padding import padded
from .arguments import TIMEOUT, Arguments, DeviceLike
from .batching import Batching, batching_of
from .engine_choice import calls_of, choose_engine, has_calls


class NotNative(Exception):
    """Raised if only torch's DataLoader can do what was asked for."""

    def __init__(self, reasons: Iterable[Reason | str], error: ConfigError | None = None):
        self.reasons = tuple(dict.fromkeys(map(Reason.of, reasons)))
        super().__init__(sentence(self.reasons))
        self.error = error or ConfigError(f'{self}. Or use engine="auto"')
        """The error for an engine that was named and cannot do it."""

    @property
    def code(self) -> str:
        """Code of the first reason."""
        return self.reasons[0].code


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
    rows: tuple[Rows, ...] = ()
    """Arrays of scripts' datasets whose code does not run any more."""


def _refuse_others(dataset: Any) -> None:
    """Raise :class:`DatasetError` for a path, since torch's loader would make batches of its letters, for a loader, and
    for an object without samples."""
    if isinstance(dataset, (str, os.PathLike)):
        raise DatasetError(f"DataLoader: the dataset is {dataset!r}; {named_class(dataset)}")
    if isinstance(dataset, torch.utils.data.DataLoader):
        raise DatasetError(f"DataLoader: the dataset is a {type(dataset).__name__}; give its dataset")
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise DatasetError(
            f"DataLoader: the dataset is {shown(dataset)}; give one with __len__ and __getitem__, or one of "
            "gpupipe.datasets"
        )


def resolve(a: Arguments) -> Resolved:
    """Check how the arguments fit together and complete the open ones. Touches no GPU and starts nothing.

    Raises:
        NotNative: gpupipe's engines cannot do it, and ``a.dataset`` is one that torch's DataLoader can run.
        ConfigError: no loader can do it.
    """
    device = device_of(a.device)
    ours = isinstance(a.dataset, Dataset)
    # Reasons are collected before any of them is raised, so that one warning has them all.
    reasons = _foreign(a)
    _refuse_others(a.dataset)
    if not ours and (keys := _keys(a)):
        raise NotNative([*keys, *reasons])
    try:
        # On a CPU torch's loader transforms small images in memory as fast, and does so if nothing else is asked for.
        small = a.engine_name != "auto" or device.type != "cpu" or bool(a.not_in_torch)
        rows = list[Rows]()
        dataset = translate_dataset(a.dataset, small=small, of_rows=partial(_of_rows, a, rows))
    except TranslationError as e:
        raise NotNative([*e.reasons, *reasons], e) from None
    pipeline, more = _for_collate(a, dataset)
    reasons += more
    reasons += [*_whole_batches(a), *_own_seeds(a, dataset)] if dataset.runs_user_code else _worker_options(a)
    reasons += [] if ours else _asks_worker(a, dataset)
    if ours and reasons:
        raise ConfigError(
            f"{a.dataset!r} is gpupipe's, and its {a.engine_name} engine cannot do this: {sentence(reasons)}"
        )
    if reasons:
        raise NotNative(reasons)
    if len(dataset) == 0:
        error = ConfigError(f"{a.dataset!r} has no samples")
        if ours:
            raise error
        raise NotNative([Reason(about(type(a.dataset).__name__, "it has no samples"), "empty")], error)
    batching = batching_of(a, dataset)
    one_at_a_time = _one_at_a_time(a, batching, dataset)
    setup = Setup(
        dataset=dataset,
        pipeline=pipeline,
        device=str(device),
        batch_size=batching.batch_size,
        num_workers=a.num_workers,
        prefetch_factor=1 if one_at_a_time else 2 if a.prefetch_factor is None else a.prefetch_factor,
        collates=a.collates,
        one_at_a_time=one_at_a_time,
        pin_memory=a.pin_memory,
        timeout=a.timeout,
        worker_init_fn=a.worker_init_fn,
        multiprocessing_context=a.multiprocessing_context,
        given=a.dataset if dataset.runs_user_code else None,
        cache=_cache_of(a, dataset),
        scaled=_scaled(a, dataset),
    )
    for part in dataset.parts:
        check_targets(part, part.transform)
        part.check_transform()
    _check_targets(dataset)
    config, why, refused = choose_engine(a, setup)
    passed_over = tuple(Reason(text, "engine") for text in refused)
    if passed_over and not ours:
        raise NotNative(passed_over)
    if not ours:
        _try_functions(dataset)
    if passed_over:
        warn("engine='auto' takes the torch engine", passed_over, FallbackWarning)
    return Resolved(setup, batching, config, why, passed_over, tuple(rows))


def _of_rows(a: Arguments, used: list[Rows], rows: Rows) -> Dataset | None:
    """Return a dataset of the arrays of a script's dataset, and add them to ``used``; ``None`` if its code has to
    run."""
    # Without user code there are no samples for a function of the script, and no worker processes.
    if a.collates or _worker_options(a) or (rows.shows_index and not gives_integers(a.sampler, a.batch_sampler)):
        return None
    made = rows.dataset(live=a.num_workers == 0)
    used.append(rows)
    return made


def replaced_collate() -> str:
    """Return the name of a function of ``default_collate`` that the script has replaced; ``""`` if there is none."""
    if is_foreign("", torch_collate.default_collate):
        return "default_collate"
    for kind, function in torch_collate.default_collate_fn_map.items():
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if is_foreign("", function) and any(issubclass(one, (torch.Tensor, int)) for one in kinds):
            return f"default_collate_fn_map[{shown(kind)}]"
    return ""


def _for_collate(a: Arguments, dataset: Dataset) -> tuple[Compose, list[Reason]]:
    """Return the pipeline for the loader's collate function, and why there is none.

    Functions of scripts take samples of different sizes. torch's own one stacks the first images of all samples, then
    the second ones, and so on.
    """
    if not a.collates:
        if name := replaced_collate():
            return dataset.transform, [Reason(f"{name} is no longer torch's own", "replaced-function")]
        if any(isinstance(getattr(column, "target", column), Originals) for column in dataset.columns.values()):
            text = "its samples hold images before their transforms, which torch's default_collate rejects"
            return dataset.transform, [Reason(about(type(a.dataset).__name__, text), "original-images")]
        if dataset.form is not None and dataset.form.on_host and not isinstance(a.dataset, Dataset):
            text = "its samples hold PIL images, which torch's default_collate rejects"
            return dataset.transform, [Reason(about(type(a.dataset).__name__, text), "pil-images")]
        return _of_any_size(a, dataset) if dataset.images_per_sample > 1 else (dataset.transform, [])
    if dataset.transform.mixing:
        name = getattr(a.collate_fn, "__qualname__", None) or shown(a.collate_fn)
        raise ConfigError(f"collate_fn={name} beside {dataset.transform.mixing[0]!r}: remove one of them")
    dataset.keeps_targets = dataset.runs_user_code
    if a.num_workers and "get_worker_info" in calls_reached(a.collate_fn):
        text = f"collate_fn={shown(a.collate_fn)} asks for its worker process, and is called in the main process"
        return dataset.transform, [Reason(text, "asks-worker")]
    return _of_any_size(a, dataset)


def _of_any_size(a: Arguments, dataset: Dataset) -> tuple[Compose, list[Reason]]:
    """Return a pipeline for images that come out in different sizes, and why there is none."""
    pipeline = dataset.transform
    if not _may_differ_in_size(dataset):
        return pipeline, []
    if len(pipeline.outputs) == 1:
        return padded(pipeline), []
    if isinstance(a.dataset, Dataset):
        return pipeline, []
    text = "each of its samples has several views, which may come out in different sizes"
    return pipeline, [Reason(about(type(a.dataset).__name__, text), "unlike-sizes")]


def _whole_batches(a: Arguments) -> list[Reason]:
    if not _takes_batches(a.dataset):
        return []
    text = about(type(a.dataset).__name__, "its __getitems__ gets the indices of a whole batch")
    return [Reason(text, "whole-batches")]


def _own_seeds(a: Arguments, dataset: Dataset) -> list[Reason]:
    function, draws = a.worker_init_fn, any(t.draws for t in dataset.transform)
    if a.num_workers == 0 or function is None or not draws or not repeats_seeds(function):
        return []
    text = f"worker_init_fn={shown(function)} may give the transforms the same random numbers in every epoch"
    return [Reason(text, "own-seeds")]


def _takes_batches(dataset: Any) -> bool:
    """Return whether torch calls a ``__getitems__`` of user code, possibly through its own ones, which only
    pass indices on."""
    name = exact_name(dataset, "torch.utils.data")
    if name == "Subset":
        return _takes_batches(dataset.dataset)
    if name == "StackDataset":
        return any(map(_takes_batches, _parts(dataset.datasets)))
    if exact_name(dataset, "datasets.arrow_dataset") == "Dataset":
        return False  # which gpupipe reads row by row, if its transform allows it
    return callable(getattr(dataset, "__getitems__", None))


def _parts(datasets: Any) -> Any:
    return datasets.values() if isinstance(datasets, dict) else datasets


def _one_at_a_time(a: Arguments, batching: Batching, dataset: Dataset) -> bool:
    """Return whether batches must be read when they are requested, as torch does without workers, because a sampler or
    a dataset of user code may watch the training."""
    runs_user_code = batching.sampler.ahead is None or dataset.runs_user_code
    return a.num_workers == 0 and a.prefetch_factor is None and runs_user_code


def same_work(one: Resolved, two: Resolved) -> bool:
    """Return whether an engine for ``one`` can continue with ``two``. This is certain only for files."""
    a, b = one.setup, two.setup
    return (
        a.dataset.in_files
        and a.dataset.fingerprint == b.dataset.fingerprint
        and a.pipeline == b.pipeline
        and not has_calls(a.pipeline)
        # Everything else is equal; the datasets are compared by their fingerprints.
        and replace(a, dataset=b.dataset) == b
    )


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


def _try_functions(dataset: Dataset) -> None:
    """Raise :class:`NotNative` if user code among the transforms does what only torch's DataLoader allows.

    An example is a change of the image size: the code was not written for gpupipe, so it need not follow its rules.
    """
    if not has_calls(dataset.transform):
        return
    size = dataset.common_size() or _TRIED
    try:
        with Isolated(dataset.transform) as isolated:
            try_functions(isolated.made[0], size)
    except PipelineError as e:
        raise NotNative([Reason(str(e), "own-function")], e) from None
    except UnsupportedError:
        return  # the first batch tries what cannot be copied


_TRIED = (256, 320)
"""Pixels of the trial image if images have several sizes."""


def _foreign(a: Arguments) -> list[Reason]:
    """Reasons why the samples and batches of user code need torch's DataLoader."""
    reasons = []
    if a.batch_sampler is None and a.batch_size is None:
        reasons.append(Reason("batch_size=None gives single samples", "single-samples"))
    if a.pin_memory_device:
        text = f"pin_memory_device={a.pin_memory_device!r} is torch's; gpupipe has device={a.pin_memory_device!r}"
        reasons.append(Reason(text, "pin-memory-device"))
    if not a.in_order:
        reasons.append(Reason("batches always come in order", "in-order"))
    return reasons


def _keys(a: Arguments) -> list[Reason]:
    """Reason from a sampler that gives anything else than integers, which only the script's dataset understands."""
    name, given, batched = "sampler", a.sampler, False
    if is_batch_sampler_of_torch(a.batch_sampler):
        given = a.batch_sampler.sampler
    elif a.batch_sampler is not None:
        name, given, batched = "batch_sampler", a.batch_sampler, True
    if given is None or a.replaced is not None or (key := key_of(given, batched=batched)) is None:
        return []
    return [Reason(f"the {name} {type(given).__name__} gives {key}, and gpupipe numbers the samples", "sampler-keys")]


def _worker_options(a: Arguments) -> list[Reason]:
    """Reasons from options of worker processes, which an engine that reads files itself does not have."""
    function = a.worker_init_fn
    if function is not None and (a.num_workers == 0 or only_seeds(function)):
        function = None  # torch does not call it, or it only gives each worker other random numbers
    given: list[tuple[str, Any, Any, str]] = [
        (
            "worker_init_fn",
            function,
            None,
            "gpupipe reads files without worker processes, and random numbers come from the seed",
        ),
        (
            "timeout",
            0 if a.timeout == TIMEOUT else a.timeout,
            0,
            "gpupipe reads files in threads, which cannot be interrupted",
        ),
        ("multiprocessing_context", a.multiprocessing_context, None, "gpupipe reads files without worker processes"),
    ]
    if a.engine_name == "torch":
        return []
    return [
        Reason(f"{name}={shown(value)} is for worker processes: {why}", "worker-option")
        for name, value, default, why in given
        if value != default
    ]


def _asks_worker(a: Arguments, dataset: Dataset) -> list[Reason]:
    """Reasons from functions among the transforms that ask for their worker process."""
    return [
        Reason(f"transform {shown(call.function)} asks for its worker process, and runs in a thread", "asks-worker")
        for call in calls_of(dataset)
        if a.num_workers and "get_worker_info" in calls_reached(call.function)
    ]


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


def _check_targets(dataset: Dataset) -> None:
    """Reject MixUp and CutMix if targets cannot be mixed. Targets of a user's own dataset are checked when they
    arrive."""
    for op in dataset.transform.mixing:
        if dataset.runs_user_code:
            continue
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
