"""Frames of clips by the libraries that people decode videos with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Decode = Callable[[str, int, int, int], Tensor]
"""(path, first frame, number of frames, distance between frames) → u8[T, 3, H, W]. The last frame is repeated if the
video ends."""


def by_pyav(path: str, start: int, count: int, stride: int) -> Tensor:
    import av

    last, found = start + (count - 1) * stride, list[Any]()
    with av.open(path) as container:
        stream = container.streams.video[0]
        # FFmpeg needs no threads of its own: the loader's workers decode in parallel already.
        stream.thread_type = "NONE"
        rate, base, first = stream.average_rate, stream.time_base, stream.start_time or 0
        assert rate is not None and base is not None
        if start:
            container.seek(first + int(start / rate / base), stream=stream)
        for frame in container.decode(stream):
            assert frame.pts is not None
            number = round((frame.pts - first) * base * rate)
            if number >= start and (number - start) % stride == 0:
                found.append(frame.to_ndarray(format="rgb24"))
            if number >= last:
                break
    found += found[-1:] * (count - len(found))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2)


def by_torchcodec(
    path: str, start: int, count: int, stride: int, *, mode: Any = "exact", device: str = "cpu"
) -> Tensor:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, num_ffmpeg_threads=1, seek_mode=mode, device=device)
    last = len(decoder) - 1
    frames: Tensor = decoder.get_frames_at([min(start + k * stride, last) for k in range(count)]).data
    return frames


def by_decord(path: str, start: int, count: int, stride: int) -> Tensor:
    import decord

    reader = decord.VideoReader(path, num_threads=1)
    frames = reader.get_batch([min(start + k * stride, len(reader) - 1) for k in range(count)])
    return torch.from_numpy(frames.asnumpy()).permute(0, 3, 1, 2)


DECODERS: dict[str, tuple[str, Decode]] = {
    "pyav": ("av", by_pyav),
    "torchcodec": ("torchcodec.decoders", by_torchcodec),
    "decord": ("decord", by_decord),
}
"""(module, function) by name."""
