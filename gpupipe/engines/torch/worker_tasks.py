"""Task of worker processes for one plan, which is picklable and immutable.

Problems of samples are returned rather than raised, so that the engine can name the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import BadSample
from ...kernels.apply import apply_sample, head_and_tail
from ...kernels.batches import stack_plan
from ...kernels.picture import Picture
from ...planning.epoch import resolve_missing
from ...reading.sample import bad_sample, naming
from ...reading.take import Take
from ...stages import DECODING, TRANSFORMS
from ...transforms.compose import Compose
from ...transforms.ops import Op
from ...types import Plan


class Decoded(NamedTuple):
    """Result of a task."""

    images: Any
    """[B, H, W, C] before the tail, or clips [B, T, H, W, C], or a tuple of these for several views; ``None`` if
    ``bad``."""
    bad: list[BadSample]


@dataclass(frozen=True)
class Decode:
    """Decode a batch and apply the ops on single images (:func:`~gpupipe.kernels.apply.head_and_tail`)."""

    take: Take
    pipeline: Compose

    def __call__(self, plan: Plan) -> Decoded:
        dataset = self.take.dataset
        bad = dataset.bad(plan.indices)
        if bad:
            return Decoded(None, bad)
        plan = resolve_missing(plan, self.pipeline)
        head = head_and_tail(plan.ops or ())[0]
        images: list[Any] = []
        batch = self.take.batch(plan, self.take.read_together(plan))
        for row, index in enumerate(plan.indices.tolist()):
            try:
                with DECODING:
                    taken = batch(row)
            except Exception as e:
                bad.append(bad_sample(dataset, index, e))
                continue
            images += [self._applied(one, head[taken.done :], row, index) for one in taken.pictures]
        return Decoded(None, bad) if bad else Decoded(stack_plan(plan, images), [])

    @TRANSFORMS
    def _applied(self, picture: Picture, ops: Sequence[Op], row: int, index: int) -> Any:
        with naming(lambda: self.take.dataset.describe(index)):
            return apply_sample(picture, ops, row)
