"""Contents of a lock file: settings, groups of samples, and some steps with their numbers and pixels."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from xxhash import xxh3_64_hexdigest

from ..bench.machine import versions
from ..datasets.dataset import Dataset
from ..errors import ConfigError
from ..loader.any_step import Step
from ..loader.session import Session
from ..show.page import labels_of, numbers_of
from ..transforms.ops.structure import by_view

VERSION = 1
_GROUPS = 4096
"""Most groups of samples that a lock file tells apart."""
_SAMPLES = 8
"""Samples of a step that are recorded."""
_PACKAGES = ("gpupipe", "torch", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "pillow", "numpy")


@dataclass(frozen=True)
class Sample:
    """A sample of a recorded step."""

    index: int
    name: str
    size: str
    """Width and height of the decoded image; empty if unknown."""
    target: dict[str, str]
    ops: list[str]
    """Ops with the numbers that they drew for this sample."""
    pixels: list[str]
    """Checksum of the image of each view; empty if the engine makes none."""
    means: list[float]
    """Mean value of the image of each view."""


@dataclass(frozen=True)
class Lock:
    """Contents of a lock file."""

    settings: dict[str, Any]
    """What the loader reads, and in which order."""
    versions: dict[str, str]
    """Installed packages, engine and device."""
    count: int
    """Number of samples of the dataset."""
    groups: list[str]
    """Checksums of groups of consecutive samples: names, sizes, and labels."""
    steps: dict[str, list[Sample]]
    """Samples by step, such as ``"epoch 0, step 12"``."""

    def save(self, path: Path) -> None:
        text = json.dumps({"version": VERSION, **asdict(self)}, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Lock:
        """Raise :class:`ConfigError` if the file is missing or is no lock file."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as e:
            raise ConfigError(f"cannot read {path}: {e.strerror}") from None
        except ValueError:
            content = None
        version = content.pop("version", None) if isinstance(content, dict) else None
        if version != VERSION:
            raise ConfigError(f"{path} is no lock file of this gpupipe; make one with loader.lock({str(path)!r})")
        try:
            steps = {step: [Sample(**one) for one in samples] for step, samples in content.pop("steps").items()}
            return cls(steps=steps, **content)
        except (TypeError, KeyError, AttributeError) as e:
            raise ConfigError(f"{path} is a damaged lock file ({e}); delete it, and make it anew") from None


def record(session: Session, count: int, version: str) -> Lock:
    """Return what a loader reads, with some samples of ``count`` steps of its first epoch.

    Args:
        version: gpupipe's.
    """
    steps: list[Step] = [session.step_at(0, step) for step in _spread(session, count)]
    state, (engine, _) = session.state(), session.engine
    dataset = steps[0].dataset
    settings = {
        "dataset": type(dataset).__name__,
        "transforms": "\n".join(repr(part.transform) for part in dataset.parts),
        "order": state["order"],
        "seed": state["seed"],
        "global batch": state["global_batch"],
        "drop_last": bool(state["drop_last"]),
    }
    found = {"gpupipe": version, **versions()}
    packages = {name: found[name] for name in _PACKAGES if name in found}
    return Lock(
        settings,
        {**packages, "engine": engine, "device": torch.device(session.device).type},
        len(dataset),
        _groups(dataset),
        {f"epoch {found.plan.epoch}, step {found.plan.step}": _samples(found) for found in steps},
    )


def _name(dataset: Dataset, index: int) -> str:
    """Return a name that does not depend on where the dataset lies."""
    named = getattr(dataset, "sample_name", None)
    return dataset.describe(index) if named is None else str(named(index))


def _groups(dataset: Dataset) -> list[str]:
    """Return a checksum of each group of samples."""
    n, named = len(dataset), hasattr(dataset, "sample_name")
    arrays = [a for a in (dataset.sizes, dataset.file_sizes, dataset.labels) if a is not None]
    size = group_size(n)
    found = []
    for begin in range(0, n, size):
        here = range(begin, min(begin + size, n))
        names = "\0".join(_name(dataset, i) for i in here) if named else ""
        parts = (np.ascontiguousarray(a[begin : here.stop], "<i8").tobytes() for a in arrays)
        found.append(xxh3_64_hexdigest(b"".join(chain([names.encode("utf-8", "surrogateescape")], parts))))
    return found


def group_size(count: int) -> int:
    """Return the number of samples in a group of ``count`` samples."""
    return max(-(-count // _GROUPS), 1)


def _samples(found: Step) -> list[Sample]:
    dataset, plan = found.dataset, found.plan
    views = found.images if isinstance(found.images, tuple) else (found.images,)
    ops = () if plan.ops is None else tuple(dict.fromkeys(chain.from_iterable(by_view(plan.ops))))
    samples = []
    for row in range(min(plan.valid, _SAMPLES)):
        images = [view[row].cpu().contiguous() for view in views if isinstance(view, Tensor)]
        index = int(plan.indices[row])
        samples.append(
            Sample(
                index,
                _name(dataset, index),
                "" if plan.sizes is None else "{1} x {0}".format(*plan.sizes[row].tolist()),
                labels_of(dataset, found.target, row),
                [text for op in ops if (text := numbers_of(op, row))],
                [xxh3_64_hexdigest(image.flatten().view(torch.uint8).numpy().tobytes()) for image in images],
                [round(float(image.double().mean()), 6) for image in images],
            )
        )
    return samples


def _spread(session: Session, count: int) -> list[int]:
    """Return ``count`` steps of an epoch, from its first to its last one."""
    try:
        last = len(session) - 1
    except TypeError:  # an endless epoch
        last = count - 1
    return np.unique(np.linspace(0, max(last, 0), count).astype(np.int64)).tolist()  # type: ignore[no-any-return]
