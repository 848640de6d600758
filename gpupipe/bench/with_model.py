"""Training steps on the batches of a loader, to see whether the loader or the model limits a training."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..engines.staging import map_tensors
from ..errors import ConfigError, GpupipeError
from .measure import Batches, Result

ALONE = "model"
"""Name of the measurement of a model with a batch from memory."""
_FAST_ENOUGH, _DISTURBED = 0.95, 1.1
"""Shares of the model's own speed: from the first on a loader does not limit it, and none can exceed the second."""


def name_with(loader: str) -> str:
    """Return the name of the measurement of a loader with the model."""
    return f"{loader}+{ALONE}"


def open_model(text: str) -> nn.Module:
    """Return the model that a name of torchvision or ``module:function`` or ``file.py:function`` stands for.

    Raises:
        ConfigError: there is no such model.
    """
    if ":" not in text:
        try:
            models = importlib.import_module("torchvision.models")
        except (ImportError, RuntimeError) as e:  # RuntimeError: built for another torch
            reason = str(e).splitlines()[0]
            raise ConfigError(f"--model {text}: torchvision cannot be imported: {reason}; name module:function") from e
        function = getattr(models, text, None) or getattr(models.video, text, None)
        if not callable(function) or text[:1].isupper():
            raise ConfigError(f"--model {text}: torchvision has no such model, as resnet18 is; or name module:function")
        return _called(function, text)
    name, _, attribute = text.rpartition(":")
    folder = str(Path(name).resolve().parent if name.endswith(".py") else Path.cwd())
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(Path(name).stem if name.endswith(".py") else name)
    except Exception as e:  # raised by user code, too
        raise ConfigError(f"--model {text}: {type(e).__name__}: {e}") from e
    finally:
        # The module may have changed the path itself.
        with suppress(ValueError):
            sys.path.remove(folder)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ConfigError(f"--model {text}: {name} has no function {attribute!r}")
    return _called(function, text)


def _called(function: Callable[[], Any], text: str) -> nn.Module:
    try:
        model = function()
    except GpupipeError:
        raise
    except Exception as e:  # raised by user code
        raise ConfigError(f"--model {text}: {type(e).__name__}: {e}") from e
    if not isinstance(model, nn.Module):
        raise ConfigError(f"--model {text}: it returned {type(model).__name__}, not a torch.nn.Module")
    return model


class Training:
    """A model that is trained: forward, loss, backward, and a step of SGD."""

    def __init__(self, model: nn.Module, device: str):
        self.model = model.to(device).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def step(self, batch: Any) -> None:
        """Train with one batch. Raises :class:`ConfigError` if the model does not take it."""
        images, target = batch[0], batch[1] if len(batch) > 1 else None
        try:
            found = self.model(images)
        except Exception as e:  # raised by the model
            shape = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise ConfigError(f"the model does not take batches {shape}: {type(e).__name__}: {e}") from e
        self.optimizer.zero_grad()
        _loss(found, target).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def with_loader(self, start: Batches) -> Batches:
        """Return a function that starts an epoch whose batches are trained with."""

        def epoch() -> Iterator[Any]:
            for batch in start():
                self.step(batch)
                yield batch

        return epoch

    def alone(self, start: Batches) -> Batches:
        """Return a function that trains with the first batch of a loader, again and again."""
        kept: list[Any] = []

        def epoch() -> Iterator[Any]:
            if not kept:
                # Some loaders overwrite the memory of a batch.
                kept.append(map_tensors(lambda tensor: tensor.clone(), next(iter(start()))))
            while True:
                self.step(kept[0])
                yield kept[0]

        return epoch


def _loss(found: Any, target: Any) -> Tensor:
    if isinstance(found, Tensor) and found.ndim == 2 and isinstance(target, Tensor):
        if not target.is_floating_point():
            # The model may have fewer classes than the dataset, which does not matter for speed.
            return nn.functional.cross_entropy(found, target.long() % found.shape[1])
        if target.shape == found.shape:
            return nn.functional.cross_entropy(found, target)
    if not isinstance(found, Tensor):
        found = next(iter(found.values() if isinstance(found, dict) else found))
    assert isinstance(found, Tensor)
    # Only the time of a backward pass counts, so any loss will do.
    return found.float().square().mean()


def limited_by(result: Result, loader: str) -> tuple[str, float]:
    """Return what limits a training with a loader, and its share of the model's own speed.

    This is ``"model"``, ``"loader"``, ``"both"`` if each alone is faster, because they share the processor, or
    ``"disturbed"`` if the model was slower alone than with the loader.
    """
    alone = result.median(ALONE)
    share = result.median(name_with(loader)) / alone
    if share > _DISTURBED:
        return "disturbed", share
    if share >= _FAST_ENOUGH:
        return "model", share
    return ("loader" if result.median(loader) < alone else "both"), share
