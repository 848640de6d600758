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
from ..transforms.ops.mixing import Mixing

__all__ = ["MIXES", "mix"]


def mix(images: Tensor, target: Any, ops: Sequence[Mixing]) -> tuple[Tensor, Tensor]:
    """Apply :class:`MixUp` and :class:`CutMix` to a batch.

    Args:
        images: float [B, C, H, W]; left as it is.
        target: i64[B] classes, or shares of classes [B, num_classes].
        ops: those of a plan's ``mixing``; all rows have the same numbers.

    Returns:
        images, in the memory format that they came in, and float shares of classes [B, num_classes].

    Raises:
        PipelineError: the target is none of the two, or does not fit ``num_classes``.
    """
    for op in ops:
        target = _shares(target, op, len(images))
        factor = _one(op, op.factor)
        if factor != 1.0:  # else nothing was drawn
            images, target = MIXES[type(op)](images, op, factor), _blend(target, op, factor)
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


def _blend(x: Tensor, op: Mixing, factor: float) -> Tensor:
    """``factor * x + (1 - factor) * partner``, rounded as torchvision rounds it."""
    if _by_rows(x):
        out, share = torch.empty_like(x), np.empty_like(x[0].numpy())
        rows, made = x.numpy(), out.numpy()
        for i, partner in enumerate(op.partner.tolist()):
            np.multiply(rows[partner], np.float32(1.0 - factor), out=made[i])
            np.add(made[i], np.multiply(rows[i], np.float32(factor), out=share), out=made[i])
        return out
    return _partner(x, op).mul_(1.0 - factor).add_(x.mul(factor))


def _cut(images: Tensor, op: CutMix, factor: float) -> Tensor:
    """With a window of the partner's."""
    top, left, height, width = (_one(op, n) for n in (op.top, op.left, op.height, op.width))
    window = (..., slice(top, top + height), slice(left, left + width))
    if _by_rows(images):
        cut = torch.empty_like(images)
        rows, made = images.numpy(), cut.numpy()
        for i, partner in enumerate(op.partner.tolist()):
            np.copyto(made[i], rows[i])
            made[i][window] = rows[partner][window]
        return cut
    cut = images.clone()
    cut[window] = _partner(images[window], op)
    return cut


def _by_rows(x: Tensor) -> bool:
    """Whether numpy does it, row by row: on the CPU, whose cache holds an image but no batch, and where torch would
    share its loops out to threads that wait for each other beside those of the loader. In half precision numpy rounds
    factors that torch does not round."""
    return x.device.type == "cpu" and x.ndim > 1 and x.dtype == torch.float32


def _partner(x: Tensor, op: Mixing) -> Tensor:
    """``x[op.partner]``, a new tensor in the memory format of ``x``."""
    n = len(x)
    if np.array_equal(op.partner, np.roll(np.arange(n), 1)):
        # Two copies between slices: torch.roll() would lose the memory format, and an index would have to be uploaded.
        out = torch.empty_like(x)
        out[:1], out[1:] = x[n - 1 :], x[: n - 1]
        return out
    index = torch.from_numpy(op.partner)
    return x[index.pin_memory().to(x.device, non_blocking=True) if x.is_cuda else index]


MIXES: dict[type[Mixing], Callable[[Tensor, Any, float], Tensor]] = {MixUp: _blend, CutMix: _cut}
"""``MIXES[type(op)](images, op, factor)``: what becomes of the images."""
