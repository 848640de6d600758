"""Effects of a script's ``worker_init_fn`` on the random generators of a worker process."""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable
from typing import Any

from ..global_rng import drawn, lent, seed_all
from .reach import RESETS, calls_reached, reached

_HARMLESS = {*RESETS, "abs", "get_state", "getstate", "hash", "initial_seed", "int", "max", "min", "np", "numpy",
             "random", "torch"}  # fmt: skip
_STORES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_DEREF")


def only_seeds(function: Callable[[int], Any]) -> bool:
    """Tell whether a function seeds random generators from torch's seed and does nothing else, like the one in torch's
    notes on reproducibility. Then the loader's random numbers replace it."""
    codes = list(reached(_plain(function)))
    steps = (step.opname for code in codes for step in dis.get_instructions(code))
    # Nothing is known about a function without Python code.
    if not codes or not calls_reached(_plain(function)) <= _HARMLESS or any(step in _STORES for step in steps):
        return False
    return not _gives_fixed_states(function)


def repeats_seeds(function: Callable[[int], Any]) -> bool:
    """Tell whether a function may seed generators with the same numbers in every epoch."""
    return not calls_reached(_plain(function)).isdisjoint(RESETS) and not only_seeds(function)


def _plain(function: Any) -> Any:
    return _plain(function.func) if isinstance(function, functools.partial) else function


def _gives_fixed_states(function: Callable[[int], Any]) -> bool:
    """Tell whether a generator is in the same state after the function, however it was seeded before."""
    after = []
    with lent():
        for seed in (1, 2):
            seed_all(seed)
            try:
                function(0)
            except Exception:  # outside of a worker process it may fail
                return True
            # The value left out is numpy's position, which is the same after every seed.
            python, numpy, _, of_torch = drawn()
            after.append((python, numpy, of_torch))
    return any(one == other for one, other in zip(*after, strict=True))
