"""Selection of the engine that runs a setup, and checks for what only torch's DataLoader can do."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from typing import Any

from .. import engines
from ..datasets.dataset import Dataset
from ..datasets.mixture import Mixture
from ..engines.base import EngineConfig
from ..engines.parts import PartEngines, setups_of
from ..errors import ConfigError, MissingDependency, PipelineError
from ..reading.setup import Setup
from ..transforms.compose import Compose
from ..transforms.ops import Call
from ..transforms.ops.structure import calls_in
from .arguments import Arguments, EngineName


def choose_engine(a: Arguments, setup: Setup) -> tuple[EngineConfig, str, list[str]]:
    """Return the engine's options, checked against the setup, why it was chosen, and why ``"auto"`` passed over
    DALI."""
    if isinstance(setup.dataset, Mixture):
        found_for = [choose_engine(a, part) for part in setups_of(setup)]
        configs, why, refused = zip(*found_for, strict=True)
        return PartEngines(configs), "; ".join(dict.fromkeys(why)), [reason for each in refused for reason in each]
    found = _checked(a.engine, setup)
    if found[0].name == "torch":
        _check_sendable(setup)
    return found


def _checked(engine: EngineName | EngineConfig, setup: Setup) -> tuple[EngineConfig, str, list[str]]:
    if isinstance(engine, EngineConfig):
        engine.check(setup)
        return engine, "as asked", []
    if engine == "auto":
        try:
            dali = engines.Dali()
            dali.check(setup)
            return dali, "auto: DALI is installed", []
        except (MissingDependency, PipelineError) as e:
            torch_engine = engines.Torch()
            torch_engine.check(setup)
            # That DALI is not installed is no reason for a warning.
            return torch_engine, f"auto: {e}", [str(e)] if isinstance(e, PipelineError) else []
    by_name: dict[str, type[EngineConfig]] = {"dali": engines.Dali, "torch": engines.Torch, "null": engines.Null}
    if engine not in by_name:
        raise ConfigError(f"engine must be auto, {', '.join(by_name)} or an engine's options, not {engine!r}")
    config = by_name[engine]()
    config.check(setup)
    return config, "as asked", []


def has_calls(pipeline: Compose) -> bool:
    """Return whether user code is among the transforms."""
    return next(calls_in(pipeline.skeleton), None) is not None


def start_method(context: Any) -> str:
    """Return the way in which worker processes start, given the loader's ``multiprocessing_context``."""
    method = context if isinstance(context, str) else context and context.get_start_method()
    # get_start_method() would fix the method for the whole program.
    return method or multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _check_sendable(setup: Setup) -> None:
    """Reject functions that cannot be sent to worker processes, if these do not inherit them."""
    method = start_method(setup.multiprocessing_context)
    if not setup.num_workers or method == "fork":
        return
    for call in calls_in(setup.pipeline.skeleton):
        try:
            pickle.dumps(call.function)
        except Exception as e:
            raise ConfigError(
                f"{call.name} cannot be sent to worker processes, which are started by {method!r}: "
                f"{type(e).__name__}: {e}; define it with def at the top of a module, or use num_workers=0 or "
                'multiprocessing_context="fork"'
            ) from None


def calls_of(dataset: Dataset) -> Iterator[Call]:
    """Yield the user code in the transforms of a dataset and of its parts."""
    for part in dataset.parts:
        yield from calls_in(part.transform.skeleton)
