"""Calls the script's collate function with the samples of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..datasets.sample_form import Rest, SampleForm, View
from ..engines.delivery import delivered
from ..global_rng import lent, seed_all
from ..interop.snapshot import Snapshot
from ..reading.targets import targets_by_sample
from ..reasons import Reason
from ..rng import stream
from ..script_warnings import warn
from ..transforms.ops import Crop
from ..types import ByHand, Plan

_PAIR = SampleForm((View(0), Rest()))
_ALONE = SampleForm(View(0))
_LAST = torch.channels_last


@dataclass
class WatchedCalls:
    """Warns if a collate function changes itself, because torch's worker processes would call copies of it."""

    calls: int = 0

    def called(self, function: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
        self.calls += 1
        # The first call may build something that further ones use.
        if self.calls != 2:
            return function(samples)
        before = Snapshot.of(function)
        made = function(samples)
        if before.differs(function):
            name = getattr(function, "__qualname__", None) or type(function).__name__
            text = f"{name} changes what it holds when it is called, and torch would call a copy in each worker process"
            what = "collate_fn runs in the main process, and may make other batches than with torch's loader"
            warn(what, [Reason(text, "collate-changes")])
        return made


@dataclass(frozen=True)
class Collate:
    """Call ``function`` with a list of samples, as torch's loader does, but with transformed images on the device.

    The function draws from the global generators, which are seeded for every batch.
    """

    function: Callable[[list[Any]], Any]
    form: SampleForm | None
    watch: WatchedCalls | None = None
    """Watches its first calls, if torch would call copies of it in worker processes."""

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
        if images is not None and (on_host := form.on_host):
            views = [_on_host(view) if number in on_host else view for number, view in enumerate(views)]

        def sample(i: int) -> Any:
            if i in by_hand:
                return delivered(by_hand[i].sample, device, False)
            return form.sample(tuple(view[i] for view in views), None if targets is None else targets[i])

        samples = list(map(sample, range(count)))
        with lent(device):
            # The position in the epoch tells batches apart, and stays the same when an epoch is resumed.
            seed_all(stream(plan.seed, plan.epoch, "collate", plan.consumed), device)
            return self.function(samples) if self.watch is None else self.watch.called(self.function, samples)


def _on_host(view: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    return view.cpu() if isinstance(view, Tensor) else [image.cpu() for image in view]


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


def results_of(images: Any, plan: Plan, results: Sequence[tuple[int, int]]) -> Any:
    """Return the images of a batch, one after another if its samples have several.

    Args:
        images: of each view; the first images of all samples come first, then the second ones, and so on.
        plan: of the batch.
        results: for each image that a script receives, the number of the image that it is made from, and its view.
    """
    count = plan.images_per_sample
    if count == 1 or images is None:
        return images
    views = images if isinstance(images, tuple) else (images,)
    size = len(plan) // count
    return tuple(views[view][number * size : (number + 1) * size] for number, view in results)


def stacked(images: Any) -> Any:
    """Return the images of a batch in one tensor. Raises the error of torch's loader if their sizes differ."""
    if isinstance(images, tuple):
        return tuple(map(stacked, images))
    return torch.stack(images) if isinstance(images, list) else images


def put_in(by_hand: Mapping[int, ByHand], images: Any) -> bool:
    """Write the images that user code made into their rows of a batch [B, C, H, W], or of a tuple of batches for
    several views.

    Returns ``False`` if their shapes do not fit, or if images are in lists because they have different sizes.
    """
    views: Sequence[Tensor] = images if isinstance(images, tuple) else (images,)
    if any(isinstance(view, list) for view in views):
        return False
    for made in by_hand.values():
        if images is None or made.views is None or len(made.views) != len(views):
            return False
        if any(a.shape != b.shape[1:] or a.dtype != b.dtype for a, b in zip(made.views, views, strict=True)):
            return False
    # All shapes were checked before the first image is written.
    for row, made in by_hand.items():
        for one, view in zip(made.views or (), views, strict=True):
            view[row].copy_(delivered(one, view.device, False))
    return True
