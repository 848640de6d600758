"""Loaders of clips that people write today: a decoder in torch's DataLoader, and torchvision's transforms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..datasets.video.files import VideoFiles
from ..errors import ConfigError
from ..transforms import ToTensor
from .clip_decoders import DECODERS, Decode
from .measure import Batches
from .peers import Peer, Work, imported, torch_loader, translated


class ClipFiles(torch.utils.data.Dataset[Any]):
    """Dataset of clips that begin at random, one of each video."""

    def __init__(self, videos: VideoFiles, indices: list[int], decode: Decode, transform: Callable[[Tensor], Tensor]):
        paths = [videos.entry(i).path for i in range(videos.video_count)]
        self.paths, self.counts = [paths[i] for i in indices], [int(videos.frame_counts[i]) for i in indices]
        labels = [0] * videos.video_count if videos.labels is None else videos.labels.tolist()
        self.labels = [labels[i] for i in indices]
        self.frames, self.stride = videos.clips.frames, videos.clips.stride or 1
        self.decode, self.transform = decode, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        room = max(self.counts[index] - (self.frames - 1) * self.stride, 1)
        start = int(torch.randint(room, ()))
        frames = self.decode(self.paths[index], start, self.frames, self.stride)
        return self.transform(frames).transpose(0, 1).contiguous(), self.labels[index]


def transforms_of_clips(work: Work) -> Callable[[Tensor], Tensor]:
    """Return torchvision's transforms v2 of the pipeline, for u8[T, 3, H, W]."""
    v2 = imported("torchvision.transforms.v2")
    steps = [
        v2.ToDtype(torch.float32, scale=True) if isinstance(t, ToTensor) else translated(t, v2) for t in work.pipeline
    ]
    found: Callable[[Tensor], Tensor] = v2.Compose(steps)
    return found


def _start(name: str, work: Work) -> Batches:
    module, decode = DECODERS[name]
    imported(module)
    if not isinstance(work.samples.dataset, VideoFiles):
        raise ConfigError(f"{name} decodes videos")
    clips = ClipFiles(work.samples.dataset, work.samples.indices.tolist(), decode, transforms_of_clips(work))
    return torch_loader(work, clips)


def _pixels(name: str, work: Work) -> str:
    """Compare the frames of a clip with those of PyAV."""
    videos = work.samples.dataset
    assert isinstance(videos, VideoFiles)
    text = "resizes tensors, as torchvision's v2 does"
    if name == "pyav":
        return text
    path = videos.entry(int(work.samples.indices[0])).path
    ours, theirs = (
        decode(path, 0, videos.clips.frames, videos.clips.stride or 1)
        for _, decode in (DECODERS["pyav"], DECODERS[name])
    )
    if ours.shape != theirs.shape:
        return f"{text}; frames {list(theirs.shape)}, not {list(ours.shape)}"
    apart = int((ours.int() - theirs.int()).abs().max())
    return f"{text}; frames up to {apart} levels from PyAV's" if apart else text


CLIP_PEERS: dict[str, Peer] = {
    name: Peer(f"torch DataLoader + {title}", partial(_start, name), partial(_pixels, name))
    for name, title in (("pyav", "PyAV"), ("torchcodec", "TorchCodec"), ("decord", "decord"))
}
"""By name, the usual baseline first."""
