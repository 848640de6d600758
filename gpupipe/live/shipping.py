"""How a batch travels from the process that ran the script's code to the one that has the engine.

The batch is sent as it is. Tensors that wait arrive as tensors that wait, and become true ones in place when the engine
has made them, wherever they are in the objects of the script.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from .. import stages
from ..stages import Spent
from . import images, looks, trays
from .asked import Fetched, States
from .looks import Looks
from .recipe import Recipe, recipe_of
from .steps import SentStep
from .tensors import WAITING_CLASSES, WaitingTensor


@dataclasses.dataclass(eq=False)
class Shipment:
    """A batch, and what is needed to finish it.

    Attributes:
        batch: as the collate function returned it; ``None`` if all of its samples are missing.
        of: what was asked of the dataset, samples that are missing, and the states of the generators before the batch;
            without the samples.
        recipe: how to make the tensors that wait; ``None`` if none does.
        tensors: the tensors that wait for results of the recipe.
        after: the states behind the batch, if it was made once more.
        looks: what happened to the images of the batch.
        worker: number of the worker process that made it; 0 for this process.
        spent: what that process spent on it, if it is another one.
    """

    batch: Any
    of: Fetched
    recipe: Recipe | None
    tensors: list[WaitingTensor]
    after: States | None
    looks: Looks
    worker: int
    spent: Spent | None

    @property
    def is_empty(self) -> bool:
        """Whether all of its samples are missing."""
        return self.batch is None and bool(self.of.bad)


def shipped(batch: Any, of: Fetched, after: States | None, *, waits: bool, sends: bool) -> Any:
    """Return a shipment of a batch, in the process that made it. See :class:`~.fetching.Collate`."""
    worker = get_worker_info() if sends else None
    images.let_go()
    found = list({id(tensor): tensor for tensor in waiting_within(batch)}.values()) if waits else []
    recipe = recipe_of(found) if found else None
    number, spent = (0, None) if worker is None else (worker.id, _spent())
    # The states serve to make the batch once more.
    before = None if recipe is None and after is None else of.before
    known = dataclasses.replace(of, samples=None, before=before)
    made = Shipment(batch, known, recipe, [], after, looks.taken(), number, spent)
    if recipe is None:
        return made
    made.tensors = [tensor for tensor in found if isinstance(tensor, WaitingTensor) and tensor.number is not None]
    return _Sent(made) if sends else made


_counted: Spent | None = None


def _spent() -> Spent:
    """Return what this process has spent since the last batch."""
    global _counted
    before, _counted = _counted, stages.spent()
    return _counted if before is None else _counted.since(before)


class _Sent:
    """A shipment that is pickled at once, in the thread that made it, so that errors reach the script."""

    def __init__(self, shipment: Shipment):
        recipe = shipment.recipe
        assert recipe is not None
        self._payload, self._encoded = _pickled(shipment.batch), trays.sent(recipe.encoded)
        recipe = dataclasses.replace(recipe, encoded=[])
        self._rest = _pickled(dataclasses.replace(shipment, batch=None, recipe=recipe, tensors=[]))

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self._payload, self._rest, self._encoded)


class _Here(threading.local):
    arriving: dict[int, WaitingTensor] | None = None
    recipe: Recipe | None = None


_here = _Here()


class _Pickler(ForkingPickler):
    """Pickles tensors that wait by their number."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, WaitingTensor) and obj.number is not None:
            return _tensor, (obj.number, tuple(obj.step.shape), obj.step.dtype, type(obj).stands_for)
        return NotImplemented


def _pickled(batch: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(batch)
    return buffer.getvalue()


def _arrived(payload: bytes, others: bytes, encoded: trays.Sent) -> Shipment:
    """Return a shipment where it arrives."""
    rest: Shipment = pickle.loads(others)
    assert rest.recipe is not None
    rest.recipe.encoded = trays.arrived(encoded)
    _here.arriving, _here.recipe = {}, rest.recipe
    try:
        batch, tensors = pickle.loads(payload), _here.arriving
    finally:
        _here.arriving = _here.recipe = None
    return dataclasses.replace(rest, batch=batch, tensors=list(tensors.values()))


def _tensor(number: int, shape: tuple[int, ...], dtype: torch.dtype, kind: type[Tensor]) -> WaitingTensor:
    """Return a tensor that waits for the result of the recipe that arrives."""
    tensors, recipe = _here.arriving, _here.recipe
    assert tensors is not None and recipe is not None
    if number not in tensors:
        tensors[number] = WAITING_CLASSES[kind](SentStep(recipe, number, shape, dtype))
        tensors[number].number = number
    return tensors[number]


def waiting_within(value: Any, depth: int = 8) -> Iterator[WaitingTensor]:
    """Yield the tensors that wait within containers and within attributes of objects."""
    if isinstance(value, WaitingTensor):
        yield value
    elif isinstance(value, (int, float, str, bytes, type(None), Tensor)) or depth == 0:
        return
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from waiting_within(part, depth - 1)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        for part in value:
            yield from waiting_within(part, depth - 1)
    elif not isinstance(value, (type, FunctionType, ModuleType)):
        slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
        for part in [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]:
            yield from waiting_within(part, depth - 1)
