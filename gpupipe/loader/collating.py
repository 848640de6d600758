"""Calls the script's collate function with the samples of an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..datasets.sample_form import Rest, SampleForm, View
from ..global_rng import lent, seed_all
from ..reading.targets import targets_by_sample
from ..rng import stream
from ..transforms.ops import Crop
from ..types import Plan

_PAIR = SampleForm((View(), Rest()))
_ALONE = SampleForm(View())
_LAST = torch.channels_last


@dataclass(frozen=True)
class Collate:
    """Call ``function`` with a list of samples, as torch's loader does, but with transformed images on the device.

    The function draws from the global generators, which are seeded for every batch.
    """

    function: Callable[[list[Any]], Any]
    form: SampleForm | None

    def __call__(self, images: Any, target: Any, plan: Plan) -> Any:
        """Return the batch that the script receives.

        Args:
            images: [B, ...], a list of B tensors of different sizes, or a tuple of these for several views.
            target: i64[B] labels, or a dictionary of labels and further columns; ``None`` if there are none.
        """
        views: Sequence[Tensor | list[Tensor]] = images if isinstance(images, tuple) else (images,)
        device, count = views[0][0].device, len(plan)
        form = self.form or (_ALONE if target is None else _PAIR)
        targets = targets_by_sample(target, count)

        def sample(i: int) -> Any:
            made = tuple(view[i] for view in views)
            return form.sample(made if isinstance(images, tuple) else made[0], None if targets is None else targets[i])

        samples = list(map(sample, range(count)))
        with lent(device):
            # The position in the epoch tells batches apart, and stays the same when an epoch is resumed.
            seed_all(stream(plan.seed, plan.epoch, "collate", plan.consumed), device)
            return self.function(samples)


def without_padding(images: Any, plan: Plan) -> Any:
    """Return the images of a batch as a list if they have different sizes, and unchanged otherwise."""
    padding = next((op for op in plan.ops or () if isinstance(op, Crop) and op.content is not None), None)
    # An engine may have left out the padding.
    if padding is None or padding.content is None or not isinstance(images, Tensor):
        return images
    sizes = padding.content.tolist()
    if all(size == [*images.shape[2:]] for size in sizes):
        return images
    layout = torch.contiguous_format if images.is_contiguous() else _LAST
    # With the dimension of the batch, because only tensors of four dimensions have a channels-last layout.
    return [
        images[i : i + 1, :, :height, :width].contiguous(memory_format=layout)[0]
        for i, (height, width) in enumerate(sizes)
    ]


def stacked(images: Any) -> Any:
    """Return the images of a batch in one tensor. Raises the error of torch's loader if their sizes differ."""
    if isinstance(images, tuple):
        return tuple(map(stacked, images))
    return torch.stack(images) if isinstance(images, list) else images
