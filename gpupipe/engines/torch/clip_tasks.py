"""The task of a worker process for clips, which PyAV decodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...codecs.video.decode import decode_clip
from ...datasets.base import Dataset
from ...planning.epoch import resolve_missing
from ...transforms.compose import Compose
from ...types import Plan
from ..forms.apply import apply_sample, head_and_tail
from ..forms.clip_layout import unflatten
from .worker_tasks import Decoded, bad_sample, stack_images

__all__ = ["DecodeClips"]


@dataclass(frozen=True)
class DecodeClips:
    """The job of :class:`~gpupipe.engines.torch.worker_tasks.Decode` for clips: images are u8[B, T, H, W, C]."""

    dataset: Dataset
    pipeline: Compose

    def __call__(self, plan: Plan) -> Decoded:
        dataset = self.dataset
        bad = dataset.bad(plan.indices)
        if bad:
            return Decoded(None, None, None, bad)
        plan = resolve_missing(plan, self.pipeline)
        assert plan.ops is not None and plan.frames is not None
        head = head_and_tail(plan.ops)[0]
        images: list[Any] = []
        for row, index in enumerate(plan.indices.tolist()):
            try:
                clip = decode_clip(dataset.entry(index), plan.frames[row], upright=dataset.upright)
                images.extend(apply_sample(frame, head, row) for frame in clip)
            except Exception as e:
                bad.append(bad_sample(dataset, index, e))
        if bad:
            return Decoded(None, None, None, bad)
        return Decoded(unflatten(stack_images(images), plan.frames.shape), None, None, [])
