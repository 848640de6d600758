"""Access to the global generators of Python, numpy and torch that leaves them unchanged."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_one_at_a_time = threading.RLock()
"""Lets only one loader at a time run user code in threads of this process."""


def _in_forked_child() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_in_forked_child)


@contextmanager
def lent(device: torch.device | None = None) -> Iterator[None]:
    """Restore the generators afterwards, including that of the GPU ``device``."""
    with _one_at_a_time:
        restore = rewind(device)
        try:
            yield
        finally:
            restore()


def rewind(device: torch.device | None = None) -> Callable[[], None]:
    """Return a function that sets the generators to their present states."""
    generators = _of_torch(device)
    states = random.getstate(), np.random.get_state(), [g.get_state() for g in generators]  # noqa: NPY002

    def restore() -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        for generator, state in zip(generators, states[2], strict=True):
            generator.set_state(state)

    return restore


def seed_all(seed: int, device: torch.device | None = None) -> None:
    """Seed all generators with ``seed``, 0 to 2**64 - 1."""
    random.seed(seed)
    # User code draws from the legacy global generator.
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    for generator in _of_torch(device):
        # Not torch.manual_seed(), which touches CUDA and takes milliseconds in a forked process.
        generator.manual_seed(seed)


def drawn() -> tuple[Any, ...]:
    """Return a value that changes after every draw from one of the generators on the CPU."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tobytes(), numpy[2:], torch.default_generator.get_state().numpy().tobytes()


def _of_torch(device: torch.device | None) -> list[torch.Generator]:
    """Return torch's default generator, and that of ``device`` if it is a GPU. Their states are in host memory."""
    if device is None or device.type != "cuda":
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[device.index]]
