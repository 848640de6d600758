"""MixUp and CutMix: what changes a whole batch together with its targets, on its device, the same for all engines.

Bit by bit what torchvision does with the same numbers. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PipelineError
from ..transforms.ops import CutMix, MixUp
from ..transforms.ops.base import F32, I64
from ..transforms.ops.mixing import Mixing

__all__ = ["MIXES", "mix"]


def mix(images: Tensor, target: Any, ops: Sequence[Mixing], *, inplace: bool = False) -> tuple[Tensor, Tensor]:
    """Apply :class:`MixUp` and :class:`CutMix` to a batch.

    Args:
        images: float [B, C, H, W]; left as it is unless ``inplace``.
        target: i64[B] classes, or shares of classes [B, num_classes].
        ops: those of a plan's ``mixing``; all rows have the same numbers.
        inplace: whether ``images`` may be written to. On a CPU that takes a sixth of the time: fresh memory costs more
            than the arithmetic.

    Returns:
        images, in the memory format that they came in, and float shares of classes [B, num_classes].

    Raises:
        PipelineError: the target is none of the two, or does not fit ``num_classes``.
    """
    for op in ops:
        target = _shares(target, op, len(images))
        factor = _one(op, op.factor)
        if factor != 1.0:  # else nothing was drawn
            images, target = MIXES[type(op)](images, op, factor, inplace), _blend(target, op, factor)
    return images, target


def _one(op: Mixing, values: Any) -> Any:
    """The number that all rows have."""
    if (values != values[0]).any():
        raise PipelineError(f"{type(op).__name__} must have the same numbers for all samples of a batch")
    return values[0].item()


def _shares(target: Any, op: Mixing, batch: int) -> Tensor:
    name, n = type(op).__name__, op.num_classes
    if not isinstance(target, Tensor) or target.ndim not in (1, 2) or len(target) != batch:
        found = f"a tensor {list(target.shape)}" if isinstance(target, Tensor) else type(target).__name__
        raise PipelineError(
            f"{name} needs one tensor of targets, classes i64[{batch}] or their shares [{batch}, num_classes], "
            f"not {found}"
        )
    if target.ndim == 1:
        if n is None or target.is_floating_point():
            wanted = "integers" if target.is_floating_point() else "given with num_classes=..."
            raise PipelineError(f"{name}: the targets are {target.dtype}[{batch}]; classes must be {wanted}")
        try:
            return torch.nn.functional.one_hot(target.to(torch.int64), n).to(torch.float32)
        except RuntimeError as e:  # on the CPU; a GPU is not asked, because the answer would have to be waited for
            raise PipelineError(f"{name}: num_classes={n} does not fit the targets {target.tolist()}: {e}") from None
    if n is not None and target.shape[1] != n:
        raise PipelineError(f"{name}: targets of {target.shape[1]} classes do not fit num_classes={n}; leave that out")
    return target if target.is_floating_point() else target.to(torch.float32)


def _blend(x: Tensor, op: Mixing, factor: float, inplace: bool = False) -> Tensor:
    """``factor * x + (1 - factor) * partner``, rounded as torchvision rounds it."""
    if not _by_rows(x):
        return _partner(x, op).mul_(1.0 - factor).add_(x.mul(factor))
    own, others, share = np.float32(factor), np.float32(1.0 - factor), np.empty_like(x[:1].numpy()[0])

    def row(made: F32, image: F32, partner: F32) -> None:
        np.multiply(partner, others, out=share)
        np.add(np.multiply(image, own, out=made), share, out=made)

    return _rows(x, op, row, inplace)


def _cut(images: Tensor, op: CutMix, factor: float, inplace: bool = False) -> Tensor:
    """With a window of the partner's."""
    top, left, height, width = (_one(op, n) for n in (op.top, op.left, op.height, op.width))
    window = (..., slice(top, top + height), slice(left, left + width))
    if not _by_rows(images):
        cut = images.clone()
        cut[window] = _partner(images[window], op)
        return cut

    def row(made: F32, image: F32, partner: F32) -> None:
        if made is not image:
            np.copyto(made, image)
        made[window] = partner[window]

    return _rows(images, op, row, inplace)


def _by_rows(x: Tensor) -> bool:
    """Whether numpy does it, row by row: on the CPU, whose cache holds an image but no batch, and where torch would
    share its loops out to threads that wait for each other beside those of the loader. In half precision numpy rounds
    factors that torch does not round."""
    return x.device.type == "cpu" and x.ndim > 1 and x.dtype == torch.float32


def _rows(x: Tensor, op: Mixing, row: Callable[[F32, F32, F32], None], inplace: bool) -> Tensor:
    """``row(made, image, partner)`` for every image of a batch."""
    rows = list(x.numpy())
    if not (inplace and _is_next(op.partner)):
        out = torch.empty_like(x)
        for made, image, partner in zip(out.numpy(), rows, op.partner.tolist(), strict=True):
            row(made, image, rows[partner])
        return out
    last = rows[-1].copy()  # from the end on, so that a partner is still as it was
    for i in range(len(rows) - 1, -1, -1):
        row(rows[i], rows[i], rows[i - 1] if i else last)
    return x


def _is_next(partner: I64) -> bool:
    """Whether the partner is always the sample before, of the first one the last."""
    return np.array_equal(partner, np.roll(np.arange(len(partner)), 1))


def _partner(x: Tensor, op: Mixing) -> Tensor:
    """``x[op.partner]``, a new tensor in the memory format of ``x``."""
    n = len(x)
    if _is_next(op.partner):
        # Two copies between slices: torch.roll() would lose the memory format, and an index would have to be uploaded.
        out = torch.empty_like(x)
        out[:1], out[1:] = x[n - 1 :], x[: n - 1]
        return out
    index = torch.from_numpy(op.partner)
    return x[index.pin_memory().to(x.device, non_blocking=True) if x.is_cuda else index]


MIXES: dict[type[Mixing], Callable[[Tensor, Any, float, bool], Tensor]] = {MixUp: _blend, CutMix: _cut}
"""``MIXES[type(op)](images, op, factor, inplace)``: what becomes of the images."""
