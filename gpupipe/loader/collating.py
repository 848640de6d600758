"""Calls the script's collate function with the samples of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..datasets.sample_form import Rest, SampleForm, View, leaves
from ..engines.staging import map_tensors
from ..global_rng import lent, seed_all
from ..rng import stream
from ..transforms.ops import Crop
from ..types import ByHand, Plan

__all__ = ["Collate", "put_in"]

_PAIR = SampleForm((View(0), Rest()))
_ALONE = SampleForm(View(0))


@dataclass(frozen=True)
class Collate:
    """Call ``function`` with a list of samples, as torch's loader does, but with transformed images on the device.

    The function draws from the global generators, which are seeded for every batch.
    """

    function: Callable[[list[Any]], Any]
    form: SampleForm | None

    def __call__(
        self, images: Any, target: Any, plan: Plan, by_hand: Mapping[int, ByHand] = MappingProxyType({})
    ) -> Any:
        """Return the batch that the script receives.

        Args:
            images: [B, ...], or a tuple of these for several views; ``None`` if user code made all samples.
            target: i64[B] labels, a dictionary of labels and further columns, or a list of B targets of user code;
                ``None`` if there are none.
            by_hand: samples that user code made, by row.
        """
        views: Sequence[Tensor] = images if isinstance(images, tuple) else (images,)
        device = torch.device("cpu") if images is None else views[0].device
        count = len(plan) // plan.images_per_sample
        form = self.form or (_ALONE if target is None else _PAIR)
        targets = None if images is None else _each(target, count, form)

        padding = next((op for op in plan.ops or () if isinstance(op, Crop) and op.content is not None), None)
        sizes = None if padding is None or padding.content is None else padding.content.tolist()

        def picture(view: Tensor, i: int) -> Tensor:
            return view[i] if sizes is None else view[i, :, : sizes[i][0], : sizes[i][1]].contiguous()

        def sample(i: int) -> Any:
            if i in by_hand:
                return map_tensors(lambda tensor: tensor.to(device), by_hand[i].sample)
            return form.sample(tuple(picture(view, i) for view in views), None if targets is None else targets[i])

        samples = list(map(sample, range(count)))
        with lent(device):
            seed_all(stream(plan.seed, plan.epoch, "collate", plan.consumed), device)
            return self.function(samples)


def put_in(by_hand: Mapping[int, ByHand], images: Any) -> bool:
    """Write the images that user code made into their rows of a batch [B, C, H, W], or of a tuple of batches for
    several views.

    Returns ``False`` if their shapes do not fit.
    """
    views: Sequence[Tensor] = images if isinstance(images, tuple) else (images,)
    for made in by_hand.values():
        if images is None or made.views is None or len(made.views) != len(views):
            return False
        if any(a.shape != b.shape[1:] or a.dtype != b.dtype for a, b in zip(made.views, views, strict=True)):
            return False
    for row, made in by_hand.items():
        for one, view in zip(made.views or (), views, strict=True):
            view[row].copy_(one)
    return True


def _each(target: Any, count: int, form: SampleForm) -> Any:
    """Target of each sample."""
    if isinstance(target, Tensor):
        return target.tolist()
    if not isinstance(target, dict):
        return target
    tensors = {leaf.path[0] for leaf in leaves(form.tree) if isinstance(leaf, Rest) and leaf.tensor}
    columns = {name: _rows(values, name in tensors) for name, values in target.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def _rows(values: Any, tensors: bool) -> list[Any]:
    """Rows of one column of a batch."""
    if isinstance(values, Tensor) and values.ndim == 1 and not tensors:
        return values.tolist()
    return list(values)
