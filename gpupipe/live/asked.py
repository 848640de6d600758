"""What is asked of a script's dataset, and what comes back, before it is collated."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..errors import BadSample


@dataclass(frozen=True)
class States:
    """States of the global generators of Python, numpy and torch."""

    python: Any
    numpy: Any
    torch: bytes

    @classmethod
    def now(cls) -> States:
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state().numpy().tobytes())  # noqa: NPY002

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, States) or self.python != other.python or self.torch != other.torch:
            return False
        return all(np.array_equal(a, b) for a, b in zip(self.numpy, other.numpy, strict=True))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Asked:
    """What is asked of a dataset in place of an index.

    Attributes:
        what: what torch would ask for: the index of a sample, or the indices of a batch.
        seeds: a seed for each sample; ``None`` if draws follow each other, as in torch.
        states: states of the generators to begin with, if the batch is made once more, with pixels.
        again: whether it is made once more, with pixels.
        tag: comes back with the batch.
    """

    what: Any
    seeds: list[int] | None = None
    states: States | None = None
    again: bool = False
    tag: Any = None


@dataclass
class Fetched:
    """Samples of a batch, before they are collated.

    Attributes:
        asked: what was asked of the dataset; ``None`` for samples of a stream.
        before: states of the generators before the first one, if draws follow each other.
        bad: samples that are missing.
    """

    samples: Any
    asked: Asked | None = None
    before: States | None = None
    bad: list[BadSample] = field(default_factory=list)
