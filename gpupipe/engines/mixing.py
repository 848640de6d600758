"""MixUp and CutMix on a whole batch and its targets, on its device, for all engines.

Results are bitwise equal to torchvision's for the same numbers. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PipelineError
from ..kernels.device_random import on
from ..transforms.ops import CutMix, MixUp
from ..transforms.ops.mixing import Mixing
from ..transforms.ops.op import F32, I64


def mix(images: Tensor, target: Any, ops: Sequence[Mixing], *, inplace: bool = False) -> tuple[Tensor, Tensor]:
    """Apply :class:`MixUp` and :class:`CutMix` to a batch.

    Args:
        images: float [B, C, H, W], modified only if ``inplace``.
        target: i64[B] classes, or class shares [B, num_classes].
        ops: a plan's ``mixing``; all rows have the same numbers.
        inplace: whether to modify ``images``. On a CPU that takes a sixth of the time, because fresh memory costs more
            than the arithmetic.

    Returns:
        Images in their original memory format, and float class shares [B, num_classes].

    Raises:
        PipelineError: the target has another form, or does not match ``num_classes``.
    """
    for op in ops:
        target = _shares(target, op, len(images))
        factor = _one(op, op.factor)
        if factor != 1.0:  # else nothing was drawn
            images, target = MIXES[type(op)](images, op, factor, inplace), _blend(target, op, factor)
    return images, target


def _one(op: Mixing, values: Any) -> Any:
    """Return the number that all rows share."""
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
        except RuntimeError as e:  # on the CPU only, because checking on a GPU would wait for it
            raise PipelineError(f"{name}: num_classes={n} does not fit the targets {target.tolist()}: {e}") from None
    if n is not None and target.shape[1] != n:
        raise PipelineError(
            f"{name}: targets of {target.shape[1]} classes do not fit num_classes={n}; leave num_classes out"
        )
    return target if target.is_floating_point() else target.to(torch.float32)


def _blend(x: Tensor, op: Mixing, factor: float, inplace: bool = False) -> Tensor:
    """Compute ``factor * x + (1 - factor) * partner``, rounded as in torchvision."""
    if not _by_rows(x):
        return _partner(x, op).mul_(1.0 - factor).add_(x.mul(factor))
    # One scratch row for all images, because fresh memory costs more than the arithmetic.
    own, others, share = np.float32(factor), np.float32(1.0 - factor), np.empty_like(x[:1].numpy()[0])

    def row(made: F32, image: F32, partner: F32) -> None:
        np.multiply(partner, others, out=share)
        np.add(np.multiply(image, own, out=made), share, out=made)

    return _rows(x, op, row, inplace)


def _cut(images: Tensor, op: CutMix, factor: float, inplace: bool = False) -> Tensor:
    """Paste a window of the partner."""
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
    """Return whether numpy processes the batch row by row.

    It does on the CPU, whose cache holds an image but no batch, and where torch would divide loops among threads that
    wait for each other beside those of the loader. In half precision numpy rounds factors that torch does not round.
    """
    return x.device.type == "cpu" and x.ndim > 1 and x.dtype == torch.float32


def _rows(x: Tensor, op: Mixing, row: Callable[[F32, F32, F32], None], inplace: bool) -> Tensor:
    """Apply ``row(made, image, partner)`` to every image of a batch."""
    rows = list(x.numpy())
    if not (inplace and _is_next(op.partner)):
        out = torch.empty_like(x)
        for made, image, partner in zip(out.numpy(), rows, op.partner.tolist(), strict=True):
            row(made, image, rows[partner])
        return out
    last = rows[-1].copy()  # backwards, so that a partner is still unchanged
    for i in range(len(rows) - 1, -1, -1):
        row(rows[i], rows[i], rows[i - 1] if i else last)
    return x


def _is_next(partner: I64) -> bool:
    """Return whether the partner is always the previous sample, and the last one for the first."""
    return np.array_equal(partner, np.roll(np.arange(len(partner)), 1))


def _partner(x: Tensor, op: Mixing) -> Tensor:
    """Return ``x[op.partner]`` as a new tensor in the memory format of ``x``."""
    n = len(x)
    if _is_next(op.partner):
        # Two copies between slices: torch.roll() would lose the memory format, and an index would have to be uploaded.
        out = torch.empty_like(x)
        out[:1], out[1:] = x[n - 1 :], x[: n - 1]
        return out
    return x[on(op.partner, x.device)]


MIXES: dict[type[Mixing], Callable[[Tensor, Any, float, bool], Tensor]] = {MixUp: _blend, CutMix: _cut}
"""Functions that mix the images: ``MIXES[type(op)](images, op, factor, inplace)``."""
