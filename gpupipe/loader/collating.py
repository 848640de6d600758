"""The script's own collate function, which makes a batch of the samples that an engine made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..datasets.sample_form import Rest, SampleForm, View, leaves
from ..reading.global_rng import lent, seed_all
from ..rng import stream
from ..types import Plan

__all__ = ["Collate"]

_PAIR = SampleForm((View(0), Rest()))
_ALONE = SampleForm(View(0))


@dataclass(frozen=True)
class Collate:
    """Give the samples of a batch to ``function`` one by one, as torch's loader does, but with their images done and on
    the device. It draws from the global generators, which are seeded for every batch.
    """

    function: Callable[[list[Any]], Any]
    form: SampleForm | None

    def __call__(self, images: Any, target: Any, plan: Plan) -> Any:
        """The batch that the script gets.

        Args:
            images: [B, ...], or a tuple of such of several views.
            target: i64[B] labels, a dictionary of these and further columns, or a list of B targets of user code;
                ``None`` if there are none.
        """
        views: Sequence[Tensor] = images if isinstance(images, tuple) else (images,)
        form = self.form or (_ALONE if target is None else _PAIR)
        targets = _each(target, len(views[0]), form)
        samples = [
            form.sample(tuple(view[i] for view in views), None if targets is None else targets[i])
            for i in range(len(views[0]))
        ]
        device = views[0].device
        with lent(device):
            seed_all(stream(plan.seed, plan.epoch, "collate", plan.step), device)
            return self.function(samples)


def _each(target: Any, count: int, form: SampleForm) -> Any:
    """What belongs to each sample."""
    if isinstance(target, Tensor):
        return target.tolist()
    if not isinstance(target, dict):
        return target
    tensors = {leaf.path[0] for leaf in leaves(form.tree) if isinstance(leaf, Rest) and leaf.tensor}
    columns = {name: _rows(values, name in tensors) for name, values in target.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def _rows(values: Any, tensors: bool) -> list[Any]:
    """Those of a column of a batch."""
    if isinstance(values, Tensor) and values.ndim == 1 and not tensors:
        return values.tolist()
    return list(values)
