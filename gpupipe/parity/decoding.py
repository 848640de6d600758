"""Who decodes the JPEGs of a GPU's loader, and whether anything changes their pixels while the GPU is busy.

Two questions that no error answers. What nvJPEG does not take, libjpeg-turbo decodes on the CPU: the right pixels,
slowly. And a decoder that works on a stream of its own may write into memory that a queued kernel has yet to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..loader.dataloader import DataLoader
from .difference import Difference

__all__ = ["Changes", "MatrixProducts", "Quiet", "changes", "decoded_by", "quiet"]

_FEW, _MOST = 0.1, 0.9
"""Shares of the images: a few come out the same from both decoders, small and smooth ones for instance."""


def decoded_by(found: Difference) -> Literal["CPU", "GPU", "both"]:
    """Who decoded images that are ``found`` from the reference, which is libjpeg-turbo by way of Pillow.

    libjpeg-turbo gives its own pixels bit by bit; nvJPEG's differ by a level somewhere in every photograph.
    """
    if found.equal >= _MOST:
        return "CPU"
    return "GPU" if found.equal <= _FEW else "both"


# ---- under load


@dataclass(frozen=True)
class Quiet:
    """What one batch is if nothing else runs: the lowest and the highest value of every byte, u8[B, C, H, W]."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Changes:
    """What became of bytes that no quiet run gave."""

    batches: int
    """Looked at."""
    images: int
    """Changed, counted once for every time."""
    bytes: int
    worst: int
    """Grey levels beyond the quiet runs."""


class MatrixProducts:
    """A queue of products of f32[N, N] on the consumer's stream: ten milliseconds of a large GPU for N = 4096."""

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
    """Every batch of the loader's first epoch, decoded ``epochs`` times with nothing else running.

    Decoders need not repeat themselves to the bit: which one takes an image may depend on who is free.

    Args:
        loader: gives u8[B, C, H, W] and targets.
        epochs: more of them leave less to chance.
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
    """The first epoch again and again for ``iterations`` batches, each read only after ``load`` has run on the
    consumer's stream: so its memory is read late, and its decoder works beside ``load``.

    Args:
        loader: the one that :func:`quiet` read, or one like it.
        expected: what :func:`quiet` gave.
        load: queues work on the current stream, and does not wait for it.
    """
    if not expected:
        raise ValueError("there is no batch to compare: the loader's batches are larger than its dataset")
    device = loader.device
    total = torch.zeros(3, dtype=torch.int64, device=device)  # images, bytes, worst
    ahead: deque[torch.cuda.Event] = deque()
    done = 0
    while done < iterations:
        loader.set_epoch(0)
        for batch in loader:  # neither zip nor enumerate, which hold on to a batch until the next one
            images = _images(batch)
            load()
            late = images.clone().to(torch.int16)
            del batch, images  # from here on only the stream protects their memory
            want = expected[done % len(expected)]
            beyond = torch.maximum(want.low.to(torch.int16) - late, late - want.high.to(torch.int16)).clamp_(min=0)
            changed = beyond > 0
            total[0] += changed.flatten(1).any(1).sum()
            total[1] += changed.sum()
            total[2] = torch.maximum(total[2], beyond.max())
            if device.type == "cuda":  # a few batches ahead, not hundreds: memory is to be used again
                ahead.append(torch.cuda.current_stream(device).record_event())
                if len(ahead) > 3:
                    ahead.popleft().synchronize()
            done += 1
            if done == iterations:
                break
    counted, changed_bytes, worst = total.tolist()
    return Changes(done, counted, changed_bytes, worst)
