"""The base class of video datasets: which clips there are, and which frames each of them has."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs.coding import VideoCoding
from ...codecs.probe import OK
from ...codecs.video.decode import VideoEntry, decode_clip, require_av
from ...errors import BadSample
from ...media import Clip
from ...rng import uniforms
from ...sources.base import Source
from ...transforms.compose import as_compose
from ..dataset import Batches, Sample
from ..images import Indexed
from ..index.open_index import open_kind
from ..index.video import VIDEOS, VideoIndex
from ..options import ClipOptions
from .sampling import Clips, choose, fits

I64 = npt.NDArray[np.int64]


class VideoFiles(Indexed[Sample, Batches]):
    """Base class of datasets of clips of video files, with an index.

    Sample ``i`` is clip ``i % k`` of video ``i // k``, where ``k`` is the number of clips per video. With
    ``padding="skip"``, videos that are too short are removed first. Videos that cannot be read stay, as bad samples.
    """

    kind = "clips"
    _index: VideoIndex
    _made_again = frozenset({"frame_counts", "frame_rates", "variable", "clip_ids", "_all_rows", "sizes", "labels"})

    def __init__(self, source: Source, frames: int, options: ClipOptions):
        require_av()
        self.medium = Clip(options.get("layout", "CTHW"))
        self.transform = as_compose(options.get("transform"))
        self.clips = Clips(
            frames,
            options.get("stride"),
            options.get("fps"),
            options.get("clips", 1),
            options.get("sampling", "random"),
            options.get("padding", "repeat"),
        )
        self.upright = bool(options.get("upright", False))
        self._source = source
        self._prefix = source.prefix
        self._open(rebuild=False)

    def _open(self, *, rebuild: bool) -> None:
        self._index = open_kind(self._source, VIDEOS, rebuild=rebuild)
        super()._open(rebuild=rebuild)
        self._rows: I64 | None = None
        if self.clips.padding == "skip":
            every = np.arange(len(self._index))
            kept = (self._index.status.all != OK) | fits(self._index.times(every, frames=False), self.clips)
            self._rows = None if kept.all() else np.flatnonzero(kept)

    # ---------------------------------------------------------------- videos

    @property
    def video_count(self) -> int:
        """V, the number of videos that clips are taken from."""
        return len(self._index) if self._rows is None else len(self._rows)

    @cached_property
    def frame_counts(self) -> I64:
        """i64[V]: number of frames of each video, 0 for bad ones."""
        return self._of_videos(self._index.frames.all)

    @cached_property
    def frame_rates(self) -> npt.NDArray[np.float64]:
        """f64[V]: average frames per second of each video, 0 for bad ones."""
        rate = self._of_videos(self._index.rate.all)
        return np.asarray(rate[:, 0] / np.maximum(rate[:, 1], 1))

    @cached_property
    def variable(self) -> npt.NDArray[np.bool_]:
        """bool[V]: whether the frame rate varies, by more than the container's rounding of times."""
        return self._of_videos(self._index.is_variable())

    def _of_videos(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return column if self._rows is None else column[self._rows]

    def entry(self, index: int) -> VideoEntry:
        """Return what :func:`~gpupipe.codecs.video.decode.decode_clip` needs to know about a sample's video."""
        row = int(self._row(np.array([self.checked_index(index)]))[0])
        return self._index.entry(row, self._named(row))

    def file(self, index: int) -> bytes:
        """Return the path of a sample's video."""
        return self.entry(index).path.encode("utf-8", "surrogateescape")

    # ---------------------------------------------------------------- clips

    def __len__(self) -> int:
        return self.video_count * self.clips.clips

    @cached_property
    def clip_ids(self) -> npt.NDArray[np.int32]:
        """i32[N, 2]: video (0 to V - 1) and clip number of each sample, to average scores over the clips of a video."""
        videos, clips = np.divmod(np.arange(len(self), dtype=np.int32), np.int32(self.clips.clips))
        return np.stack([videos, clips], axis=1)

    def choose(self, seed: int, epoch: int, keys: npt.NDArray[np.uint64], indices: I64) -> I64:
        """Return the frames of a batch of samples, a function of the arguments and the index only.

        Args:
            seed, epoch: of the plan.
            keys: u64[B], keys of the samples' random numbers, from a plan.
            indices: int[B], the samples.

        Returns:
            i64[B, T], frame numbers from 0; all 0 for bad samples.
        """
        indices = np.asarray(indices, np.int64)
        u = uniforms(seed, epoch, "clip", keys, 1)[:, 0]
        return choose(u, indices % self.clips.clips, self._index.times(self._row(indices)), self.clips)

    @property
    def pictures_per_sample(self) -> int:
        return self.clips.frames

    def _row(self, indices: I64) -> I64:
        """Return i64[B], rows of the index."""
        videos = np.asarray(indices, np.int64) // self.clips.clips
        return videos if self._rows is None else self._rows[videos]

    @cached_property
    def _all_rows(self) -> I64 | None:
        """i64[N], or ``None`` if the samples are the rows of the index."""
        if self._rows is None and self.clips.clips == 1:
            return None
        return self._row(np.arange(len(self)))

    def _of_samples(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return column if self._all_rows is None else column[self._all_rows]

    @cached_property
    def sizes(self) -> npt.NDArray[np.int32]:
        """i32[N, 2]: height and width after decoding, upright if ``upright``; 0 and 0 for bad samples."""
        return self._of_samples((self._index.upright_sizes if self.upright else self._index.stored_sizes).all)

    @cached_property
    def labels(self) -> I64 | None:
        labels = self._index.labels
        return None if labels is None else self._of_samples(labels.all)

    @property
    def video_codings(self) -> tuple[npt.NDArray[np.uint8], list[VideoCoding]]:
        """(u8[N], codings)"""
        return self._of_samples(self._index.coding.all), self._index.codings

    @property
    def file_sizes(self) -> I64:
        """i64[N]: bytes of the video of each clip."""
        return self._of_samples(self._index.sample_sizes())

    @property
    def fingerprint(self) -> str:
        content = f"clips 1 {self._index.columns.meta['fingerprint']} {self.clips!r} {self.upright}"
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    def fetch(self, index: int) -> tuple[str, int | None]:
        """Return (absolute path of the video, label)."""
        row = int(self._row(np.array([self.checked_index(index)]))[0])
        labels = self._index.labels
        return self._named(row), None if labels is None else int(labels.all[row])

    def describe(self, index: int) -> str:
        """Return the absolute path, and the clip number if there are several."""
        i, k = self.checked_index(index), self.clips.clips
        path = self._named(int(self._row(np.array([i]))[0]))
        return path if k == 1 else f"{path} (clip {i % k + 1} of {k})"

    def bad(self, indices: I64) -> list[BadSample]:
        indices = np.asarray(indices, np.int64)
        rows = self._row(indices)
        wrong = np.flatnonzero(self._index.status.all[rows])
        found = zip(indices[wrong].tolist(), self._index.bad(rows[wrong]), strict=True)
        return [BadSample(i, self.describe(i), kind, reason) for i, (_, kind, reason) in found]

    def encoded_paths(self, indices: I64) -> list[npt.NDArray[np.uint8]]:
        return self._index.encoded(self._row(indices), self._prefix)

    def raw(self, index: int) -> tuple[npt.NDArray[np.uint8], int | None]:
        i = self.checked_index(index)
        at = np.array([i], np.int64)
        frames = self.choose(0, 0, at.astype(np.uint64), at)[0]
        return decode_clip(self.entry(i), frames, upright=self.upright), self.fetch(i)[1]

    def _named(self, row: int) -> str:
        return os.fsdecode(os.path.join(self._prefix, self._index.path(row)))
