"""Exceptions of gpupipe.

    GpupipeError
    ├── ConfigError          (also ValueError)    an argument is wrong, or two of them do not fit together
    │   ├── DatasetError                          a dataset is empty or missing, or its index is unusable
    │   ├── MemoryBudgetError                     a batch does not fit into /dev/shm
    │   ├── StepError        (also IndexError)    an epoch has no step of this number
    │   ├── PipelineError                         an engine cannot run this pipeline; names the transform
    │   └── TranslationError                      a torch or torchvision object has no gpupipe equivalent
    ├── StateError           (also ValueError)    a state_dict does not belong to this loader
    ├── SampleError          (also RuntimeError)  samples of one batch could not be read; `.samples` lists them
    ├── EngineError          (also RuntimeError)  an engine failed for another reason than a sample
    └── MissingDependency    (also ImportError)   a required package is not installed

Every message states the value, the rule and the next step.
Warnings and their reasons are in :mod:`gpupipe.reasons`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .printable import printable

__all__ = [
    "BadSample",
    "ConfigError",
    "DatasetError",
    "EngineError",
    "GpupipeError",
    "MemoryBudgetError",
    "MissingDependency",
    "PipelineError",
    "SampleError",
    "StateError",
    "StepError",
    "TranslationError",
]


def no_such_path(path: object) -> str:
    """Return the operating system's words for a path where nothing is."""
    return f"{os.strerror(errno.ENOENT)}: {str(path)!r}"


class BadSample(NamedTuple):
    """A sample that could not be delivered.

    >>> BadSample(7, "cats/07.jpg", "truncated", "image file is truncated").path
    'cats/07.jpg'
    """

    index: int  # type: ignore[assignment]
    """Index in the dataset."""
    path: str
    """File of the sample, or a description if there is no file."""
    kind: str
    """Short name of the failure, such as ``missing``, ``empty``, ``truncated`` or ``undecodable``."""
    reason: str
    """Message of the decoder or the operating system."""


class GpupipeError(Exception):
    """Base class of all exceptions that gpupipe raises deliberately."""

    def __init__(self, message: str = "", *more: object):
        super().__init__(printable(message, lines=True), *more)


class ConfigError(GpupipeError, ValueError):
    """An argument is wrong, or two arguments do not fit together."""


class DatasetError(ConfigError):
    """A dataset is empty or missing, or its index is unusable."""


class MemoryBudgetError(ConfigError):
    """A batch does not fit into /dev/shm, through which worker processes hand it over."""


class StepError(ConfigError, IndexError):
    """An epoch has no step of this number."""


class PipelineError(ConfigError):
    """An engine cannot run this pipeline. The message names the transform."""


class TranslationError(ConfigError):
    """A torch or torchvision object has no gpupipe equivalent. The message names the object and the alternatives."""


class StateError(GpupipeError, ValueError):
    """A ``state_dict`` does not belong to this loader."""


class SampleError(GpupipeError, RuntimeError):
    """Samples of one batch could not be read. The loader continues with the next batch.

    >>> raise SampleError([BadSample(7, "cats/07.jpg", "truncated", "image file is truncated")])
    Traceback (most recent call last):
    gpupipe.errors.SampleError: sample 7 (cats/07.jpg): truncated: image file is truncated
    """

    def __init__(self, samples: Sequence[BadSample], headline: str = ""):
        self.samples: tuple[BadSample, ...] = tuple(samples)
        self._headline = headline
        lines = [headline] if headline else []
        lines += [f"sample {s.index} ({printable(s.path)}): {s.kind}: {printable(s.reason)}" for s in self.samples[:5]]
        if len(self.samples) > 5:
            lines.append(f"... and {len(self.samples) - 5} more in the same batch")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[SampleError], tuple[tuple[BadSample, ...], str]]:
        return type(self), (self.samples, self._headline)


class EngineError(GpupipeError, RuntimeError):
    """An engine failed for another reason than a sample."""


class MissingDependency(GpupipeError, ImportError):
    """A required package is not installed. The message says how to install it."""


def unexpected_argument(owner: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for a keyword that ``owner`` does not take, with the most similar one that it takes.

    >>> unexpected_argument("Resize.__init__", "sise", ["size", "antialias"])
    TypeError("Resize.__init__() got an unexpected keyword argument 'sise'. Did you mean 'size'?")
    """
    from difflib import get_close_matches  # takes a millisecond to import

    similar = get_close_matches(name, list(known), 1)
    hint = f". Did you mean {similar[0]!r}?" if similar else ""
    return TypeError(f"{owner}() got an unexpected keyword argument {name!r}{hint}")
