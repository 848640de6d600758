"""Tests of decoding on a GPU: which decoder runs, and whether anything changes its pixels while the GPU is busy.

Neither causes an error. JPEGs that nvJPEG does not support are decoded by libjpeg-turbo on the CPU, correctly but
slowly. And a decoder on its own stream may write to memory that a queued kernel has yet to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpupipe.loader.dataloader import DataLoader
from gpupipe.parity.difference import Difference

__all__ = ["Changes", "MatrixProducts", "Quiet", "changes", "decoded_by", "quiet"]

_FEW, _MOST = 0.1, 0.9
"""Shares of images. Some images, such as small and smooth ones, are equal for both decoders."""


def decoded_by(found: Difference, *, jpeg_engine: bool) -> Literal["CPU", "GPU", "both", "GPU or CPU"]:
    """Return the decoder of images whose difference from the reference is ``found``.

    The reference is libjpeg-turbo through Pillow. libjpeg-turbo reproduces its own pixels exactly. nvJPEG's CUDA
    kernels differ by a level somewhere in every photograph. The GPU's JPEG engine has fixed hardware arithmetic: on an
    H200 it reproduced every photograph with 4:4:4 exactly, and two of three with 4:2:0.

    Args:
        jpeg_engine: whether the JPEG engine may have decoded, ``hw_decoder_load`` > 0.
    """
    if found.equal >= _MOST:
        return "GPU or CPU" if jpeg_engine else "CPU"
    return "GPU" if jpeg_engine or found.equal <= _FEW else "both"


# ---- under load


@dataclass(frozen=True)
class Quiet:
    """Lowest and highest value of every byte of a batch, u8[B, C, H, W], when nothing else runs."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Changes:
    """Bytes that differ from every quiet run."""

    batches: int
    """Number of batches checked."""
    images: int
    """Number of changed images, counted once for every occurrence."""
    bytes: int
    worst: int
    """Largest distance from the quiet runs in gray levels."""


class MatrixProducts:
    """Queues products of f32[N, N] on the consumer's stream: ten milliseconds of a large GPU for N = 4096."""

    def __init__(self, device: str):
        n = 4096 if torch.device(device).type == "cuda" else 64
        self._a = torch.randn(n, n, device=device)
        self._out = torch.empty_like(self._a)

    def __call__(self) -> None:
        for _ in range(4):
            torch.mm(self._a, self._a, out=self._out)


def _images(batch: Sequence[Tensor]) -> Tensor:
    if batch[0].dtype != torch.uint8:
        raise ValueError(f"bytes are compared, and this batch is {batch[0].dtype}: end the pipeline in PILToTensor")
    return batch[0]


def quiet(loader: DataLoader, epochs: int = 3) -> list[Quiet]:
    """Decode every batch of the loader's first epoch ``epochs`` times with nothing else running.

    Decoders need not be deterministic: which one takes an image may depend on which is free.

    Args:
        loader: yields u8[B, C, H, W] and targets.
        epochs: more epochs leave less to chance.
    """
    found: list[Quiet] = []
    for epoch in range(epochs):
        loader.set_epoch(0)
        for k, batch in enumerate(loader):
            if loader.device.type == "cuda":
                torch.cuda.synchronize(loader.device)
            images = _images(batch).clone()
            if epoch == 0:
                found.append(Quiet(images, images))
            else:
                found[k] = Quiet(torch.minimum(found[k].low, images), torch.maximum(found[k].high, images))
    return found


def changes(loader: DataLoader, expected: list[Quiet], iterations: int, load: Callable[[], object]) -> Changes:
    """Run the first epoch repeatedly for ``iterations`` batches, reading each only after ``load`` has run on the
    consumer's stream.

    Memory is therefore read late, and the decoder works beside ``load``.

    Args:
        loader: the loader given to :func:`quiet`, or one like it.
        expected: result of :func:`quiet`.
        load: queues work on the current stream without waiting for it.
    """
    if not expected:
        raise ValueError("there is no batch to compare: the loader's batches are larger than its dataset")
    device = loader.device
    total = torch.zeros(3, dtype=torch.int64, device=device)  # images, bytes, worst
    ahead: deque[torch.cuda.Event] = deque()
    done = 0
    while done < iterations:
        loader.set_epoch(0)
        for batch in loader:  # no zip or enumerate, which keep a batch until the next one
            images = _images(batch)
            load()
            late = images.clone().to(torch.int16)
            del batch, images  # from here only the stream protects their memory
            want = expected[done % len(expected)]
            beyond = torch.maximum(want.low.to(torch.int16) - late, late - want.high.to(torch.int16)).clamp_(min=0)
            changed = beyond > 0
            total[0] += changed.flatten(1).any(1).sum()
            total[1] += changed.sum()
            total[2] = torch.maximum(total[2], beyond.max())
            if device.type == "cuda":  # stay a few batches ahead, not hundreds, so that memory is reused
                ahead.append(torch.cuda.current_stream(device).record_event())
                if len(ahead) > 3:
                    ahead.popleft().synchronize()
            done += 1
            if done == iterations:
                break
    counted, changed_bytes, worst = total.tolist()
    return Changes(done, counted, changed_bytes, worst)
