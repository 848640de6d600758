"""The global generators of Python, numpy and torch, lent to the code of others and given back as they were."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["drawn", "lent", "seed_all"]

_one_at_a_time = threading.RLock()
"""Of the loaders that run the code of others in threads of one process, one does at a time."""


def _in_forked_child() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_in_forked_child)


@contextmanager
def lent(device: torch.device | None = None) -> Iterator[None]:
    """Afterwards the generators are as they were, that of the GPU ``device`` too."""
    with _one_at_a_time:
        generators = _of_torch(device)
        states = random.getstate(), np.random.get_state(), [g.get_state() for g in generators]  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
            for generator, state in zip(generators, states[2], strict=True):
                generator.set_state(state)


def seed_all(seed: int, device: torch.device | None = None) -> None:
    """Begin all of them at ``seed``, 0 to 2**64 - 1."""
    random.seed(seed)
    # The legacy global generator is what the code of others draws from.
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    for generator in _of_torch(device):
        # Not torch.manual_seed(), which reaches for CUDA, and costs milliseconds in a forked process.
        generator.manual_seed(seed)


def drawn() -> tuple[Any, ...]:
    """Something else after every draw from one of them on the CPU."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tobytes(), numpy[2:], torch.default_generator.get_state().numpy().tobytes()


def _of_torch(device: torch.device | None) -> list[torch.Generator]:
    """torch's default generator, and that of the GPU if it is one. Their states lie in host memory."""
    if device is None or device.type != "cuda":
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[device.index]]
