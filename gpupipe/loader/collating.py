"""Calls the script's collate function with the samples of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..datasets.sample_form import Rest, SampleForm, View
from ..engines.staging import map_tensors
from ..global_rng import lent, seed_all
from ..reading.targets import targets_by_sample
from ..rng import stream
from ..transforms.ops import Crop
from ..types import ByHand, Plan

_PAIR = SampleForm((View(0), Rest()))
_ALONE = SampleForm(View(0))
_LAST = torch.channels_last


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
            images: [B, ...], a list of B tensors of different sizes, or a tuple of these for several views; ``None`` if
                user code made all samples.
            target: i64[B] labels, a dictionary of labels and further columns, or a list of B targets of user code;
                ``None`` if there are none.
            by_hand: samples that user code made, by row.
        """
        views: Sequence[Tensor | list[Tensor]] = images if isinstance(images, tuple) else (images,)
        device = torch.device("cpu") if images is None else views[0][0].device
        count = len(plan) // plan.images_per_sample
        form = self.form or (_ALONE if target is None else _PAIR)
        targets = None if images is None else targets_by_sample(target, count, form)

        # An engine may have left out the padding of images of different sizes.
        padding = next((op for op in plan.ops or () if isinstance(op, Crop) and op.content is not None), None)
        sizes = None if padding is None or padding.content is None else padding.content.tolist()

        def picture(view: Tensor | list[Tensor], i: int) -> Tensor:
            if sizes is None or isinstance(view, list):
                return view[i]
            # With the dimension of the batch, because only tensors of four dimensions have a channels-last layout.
            image = view[i : i + 1, :, : sizes[i][0], : sizes[i][1]]
            return image.contiguous(memory_format=torch.contiguous_format if view.is_contiguous() else _LAST)[0]

        def sample(i: int) -> Any:
            if i in by_hand:
                return map_tensors(lambda tensor: tensor.to(device), by_hand[i].sample)
            return form.sample(tuple(picture(view, i) for view in views), None if targets is None else targets[i])

        samples = list(map(sample, range(count)))
        with lent(device):
            # The position in the epoch tells batches apart, and stays the same when an epoch is resumed.
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
    # All shapes were checked before the first image is written.
    for row, made in by_hand.items():
        for one, view in zip(made.views or (), views, strict=True):
            view[row].copy_(one)
    return True
