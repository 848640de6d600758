"""Pack a dataset into shards: tar files with many samples each."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable, read_place
from ..datasets.images import EncodedImages
from ..errors import ConfigError, DatasetError
from ..formats.webdataset import WebDataset
from .images import AsIs, Conversion, Kept
from .journal import Journal, ShardDone
from .processes import Tell, in_processes
from .tar import EXTENSIONS, member_key, members_of, sizes_of, stored_names

I64 = npt.NDArray[np.int64]

_PARTS = ".gpupipe-parts"
"""Name of the folder, in the destination, of shards that are being written."""
_BYTES, _SAMPLES = 8_000_000, 512
"""At most so much is read and held at a time."""
_ESTIMATED = 64
"""Samples from which the size of all is estimated."""
_ADVICE = "the disk or the memory may be damaged: remove it and run the same command again"


@dataclass(frozen=True)
class Job:
    """Samples to write, their conversion, and the destination."""

    dataset: EncodedImages
    conversion: Conversion
    folder: str

    @property
    def columns(self) -> dict[str, str]:
        """Names of the columns in the shards, by their names in the dataset."""
        return stored_names(self.dataset.columns)


@dataclass(frozen=True)
class ShardTask:
    """One shard to write."""

    name: str
    indices: I64
    """Indices of its samples in the dataset."""


def read(dataset: EncodedImages, indices: I64) -> list[bytes | Undecodable]:
    """Read the bytes of samples, or why a sample cannot be read."""
    places = [dataset.place(i) for i in indices.tolist()]
    if not dataset.whole_files:
        return dataset.source.read(places)
    found: list[bytes | Undecodable] = []
    for place in places:
        try:
            found.append(read_place(place))
        except Undecodable as e:
            found.append(e)
    return found


def _chunks(indices: I64, sizes: I64) -> Iterator[I64]:
    """Split samples into chunks that are read together. ``sizes``: i64[N], bytes of all samples of the dataset."""
    ends = np.cumsum(sizes[indices])
    start = 0
    while start < len(indices):
        before = int(ends[start - 1]) if start else 0
        # As many samples as fit, but at least one: a large sample is a chunk of its own.
        stop = int(np.searchsorted(ends, before + _BYTES, "right"))
        stop = min(max(stop, start + 1), start + _SAMPLES)
        yield indices[start:stop]
        start = stop


def plan_shards(
    job: Job, indices: I64, *, split: str, shards: int | None = None, shard_bytes: int | None = None
) -> list[ShardTask]:
    """Plan shards of nearly the same size, with samples in the given order. The result depends on the arguments only.

    Args:
        split: beginning of the names of the shards.
        shards: number of shards.
        shard_bytes: approximate maximum size of a shard, if ``shards`` is None.

    Raises:
        ConfigError: ``shards`` is less than 1 or more than the number of samples.
    """
    weights = _weights(job, indices)
    if shards is None:
        assert shard_bytes is not None
        shards = min(max(1, -(-int(weights.sum()) // shard_bytes)), len(indices))
    if not 1 <= shards <= len(indices):
        raise ConfigError(f"{len(indices)} samples do not fill {shards} shards; ask for fewer")
    ends = np.cumsum(weights)
    # The sample whose middle lies behind a boundary begins the next shard, and every shard has one at least.
    cuts = np.searchsorted(ends - weights / 2, ends[-1] * np.arange(1, shards) / shards)
    least = np.arange(1, shards)
    # Cut k comes after at least k samples and after the cut before it. With k subtracted, it must only not decrease.
    cuts = np.maximum.accumulate(np.maximum(cuts, least) - least) + least
    # Enough samples must be left for the shards that follow.
    cuts = np.minimum(cuts, len(indices) - shards + least)
    parts = np.split(indices, cuts)
    return [ShardTask(f"{split}-{k:06d}.tar", part) for k, part in enumerate(parts)]


def _weights(job: Job, indices: I64) -> I64:
    """i64[N]: approximate bytes of each sample in the shards."""
    some = indices[np.linspace(0, len(indices) - 1, min(_ESTIMATED, len(indices))).astype(np.int64)]
    beside = [sizes_of([*members]) for members in _beside(job, some)]
    images = job.dataset.file_sizes[indices]
    if not isinstance(job.conversion, AsIs):  # images that were reduced to one side are of nearly one size
        files = [data for data in read(job.dataset, some) if isinstance(data, bytes)]
        made = [len(new) if isinstance(new := job.conversion(data), bytes) else len(data) for data in files]
        images = np.full(len(indices), int(np.mean(made or [0])))
    # A header, and half a block that is empty.
    return images + 768 + int(np.mean(beside))


def _beside(job: Job, indices: I64) -> Iterator[Iterator[tuple[str, bytes]]]:
    """Yield the members of each sample beside its image: (extension, content)."""
    labels, names = job.dataset.labels, job.columns
    columns = {stored: job.dataset.columns[name].of(indices) for name, stored in names.items()}
    for k, index in enumerate(indices.tolist()):
        label = None if labels is None else int(labels[index])
        yield members_of(label, {name: values[k] for name, values in columns.items()})


def pack_shards(
    job: Job, tasks: Sequence[ShardTask], journal: Journal, *, processes: int, progress: Tell
) -> tuple[list[ShardDone], int]:
    """Write all shards that are not in the journal: (one :class:`ShardDone` per task, in order; how many samples were
    written by this call).

    Raises:
        DatasetError: a shard cannot be written.
        EngineError: a process died.
    """
    left = [task for task in tasks if not _is_there(job.folder, journal.done.get(task.name))]
    there = sum(len(task.indices) for task in tasks) - sum(len(task.indices) for task in left)
    progress(there)
    try:
        with closing(in_processes(partial(_write, job), left, processes, lambda n: progress(there + n))) as results:
            for done in results:
                journal.add(done)
    finally:
        # Including those of processes that were killed.
        shutil.rmtree(os.path.join(job.folder, _PARTS), ignore_errors=True)
    found = [journal.done[task.name] for task in tasks]
    return found, sum(journal.done[task.name].samples for task in left)


def _is_there(folder: str, done: ShardDone | None) -> bool:
    try:
        return done is not None and os.stat(os.path.join(folder, done.name)).st_size == done.bytes
    except OSError:
        return False


def _write(job: Job, task: ShardTask, tell: Tell) -> ShardDone:
    """Write one shard, under another name until it is complete."""
    part = os.path.join(job.folder, _PARTS, f"{task.name}.{os.getpid()}")
    try:
        os.makedirs(os.path.dirname(part), exist_ok=True)
        with open(part, "wb") as file:
            found = _fill(job, task, file, tell)
            # It must be on the disk before it gets its name, because a file of that name counts as complete.
            file.flush()
            os.fsync(file.fileno())
        with open(part, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        done = ShardDone(task.name, bytes=os.stat(part).st_size, sha256=sha256, **found)
        os.replace(part, os.path.join(job.folder, task.name))
    except OSError as e:
        where = os.fspath(e.filename or part)
        raise DatasetError(f"{where}: {e.strerror or e}; run the same command again when it can be written") from None
    return done


def _fill(job: Job, task: ShardTask, file: Any, tell: Tell) -> dict[str, Any]:
    """Write the samples of a shard; return the fields of :class:`ShardDone` about them."""
    dataset = job.dataset
    codes, codings = dataset.codings
    kept: dict[str, int] = {}
    left_out: list[tuple[int, str, str]] = []
    keys = set[str]()
    read_bytes = changed = 0
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for some in _chunks(task.indices, dataset.file_sizes):
            for index, data, members in zip(some.tolist(), read(dataset, some), _beside(job, some), strict=True):
                made = job.conversion(data) if isinstance(data, bytes) else data
                format = codings[code].format if (code := int(codes[index])) < len(codings) else "?"
                if isinstance(made, bytes) and not isinstance(job.conversion, AsIs):
                    format = "JPEG"
                if not isinstance(made, Undecodable) and format not in EXTENSIONS:
                    made = Undecodable("format", f"readers of tar files know no extension for {format}")
                if isinstance(made, Undecodable):
                    left_out.append((index, made.kind, made.reason))
                    continue
                assert isinstance(data, bytes)
                if isinstance(made, Kept):
                    kept[made.kind] = kept.get(made.kind, 0) + 1
                    made = data
                given = _key(dataset, index)
                key = member_key(given)
                if key in keys:  # readers would take samples with one key for one sample
                    key += f"-{index:09d}"
                keys.add(key)
                changed += key != given
                read_bytes += len(data)
                for extension, content in ((EXTENSIONS[format], made), *members):
                    # TarInfo's own values are owner 0 and time 0, so nothing depends on who writes it, and when.
                    member = tarfile.TarInfo(f"{key}.{extension}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
            tell(len(some))
    return {
        "samples": len(keys), "changed_keys": changed, "read_bytes": read_bytes, "kept": kept, "left_out": left_out,
    }  # fmt: skip


def _key(dataset: EncodedImages, index: int) -> str:
    """Name of a sample below the folder of the dataset, without its extension; its number if it has no name."""
    name = dataset.sample_name(index)
    if name.isdigit():  # a position
        return f"{index:09d}"
    folder, slash, last = name.rpartition("/")
    stem = last.rpartition(".")[0] or last
    return (folder + slash + stem).encode(errors="surrogateescape").decode(errors="replace")


def verify(job: Job, tasks: Sequence[ShardTask], done: Sequence[ShardDone]) -> WebDataset:
    """Open the shards, which reads the beginning of every image, and return that dataset.

    Raises :class:`DatasetError` if it has other samples, labels, columns or classes than were written.
    """
    packed: WebDataset = WebDataset(job.folder, columns=[*job.columns.values()])
    left_out = [index for shard in done for index, _, _ in shard.left_out]
    indices = np.concatenate([task.indices for task in tasks])
    indices = indices[~np.isin(indices, left_out)]
    if len(packed) != len(indices) or packed.bad(np.arange(len(packed))):
        raise DatasetError(f"{job.folder}: not all of the {len(indices)} samples are read that were written; {_ADVICE}")
    wrong = [] if packed.classes == job.dataset.classes else ["classes"]
    if isinstance(job.conversion, AsIs) and (packed.file_sizes != job.dataset.file_sizes[indices]).any():
        wrong.append("images")
    labels = job.dataset.labels
    if labels is not None and not np.array_equal(packed.labels, labels[indices]):  # type: ignore[arg-type]
        wrong.append("labels")
    for name, stored in job.columns.items():
        read, written = packed.columns[stored].of(np.arange(len(packed))), job.dataset.columns[name].of(indices)
        if not np.array_equal(np.asarray(read), np.asarray(written)):
            wrong.append(name)
    if wrong:
        raise DatasetError(f"{job.folder}: other {wrong[0]} are read than were written; {_ADVICE}")
    return packed
