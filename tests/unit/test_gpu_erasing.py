"""What erases windows on a GPU, here on the CPU, beside what erases them there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.kernels import erasing
from gpupipe.transforms.ops import Erase

RNG = np.random.default_rng(0)
N, H, W = 9, 32, 40
HEIGHT, WIDTH = RNG.integers(1, H, N), RNG.integers(1, W, N)
HEIGHT[2] = 0  # a window that no attempt found


@pytest.mark.parametrize("chunk", [1 << 22, 500], ids=["at once", "in groups"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    ("value", "per_pixel"), [(None, True), (None, False), ((1.0, 2.0, 3.0), True), ((0.5,), True)], ids=str
)
def test_windows_together_are_the_windows_one_by_one(
    value: Any, per_pixel: bool, memory_format: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_CHUNK", chunk)
    top, left = RNG.integers(0, H - HEIGHT + 1), RNG.integers(0, W - WIDTH + 1)
    window = (a.astype(np.int32) for a in (top, left, HEIGHT, WIDTH))
    seeds = RNG.integers(0, 1 << 63, N).astype(np.uint64)
    op = Erase(np.arange(N) != 4, *window, seeds, value=value, per_pixel=per_pixel)
    before = torch.randn(N, 3, H, W).contiguous(memory_format=memory_format)
    one_by_one = erasing.erase_batch(before.clone(), op)
    together = before.clone()
    groups = list(erasing.groups(np.flatnonzero(op.mask), op, 3))
    for rows in groups:
        erasing.erase_together(together, op, rows)
    assert torch.equal(together, one_by_one) and not torch.equal(together, before)
    assert torch.equal(together[4], before[4]) and (len(groups) > 1) == (chunk == 500)
