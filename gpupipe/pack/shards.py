"""Pack a dataset into shards: large files with many samples each."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ..codecs.files import Undecodable, read_place
from ..datasets.images import EncodedImages
from ..errors import ConfigError, DatasetError
from .columns import Carried, canonical
from .conversion import Conversion, Kept
from .formats import Format, Record, ShardWriter
from .images import Reencoded
from .journal import Journal, ShardDone
from .processes import Tell, in_processes

I64 = npt.NDArray[np.int64]

_PARTS = ".gpupipe-parts"
"""Name of the folder, in the destination, of shards that are being written."""
_BYTES, _SAMPLES = 8_000_000, 512
"""At most so much is read and held at a time."""
_ESTIMATED = 64
"""Samples from which the size of all is estimated, if it is only known after converting them."""


@dataclass(frozen=True)
class Job:
    """Samples to write, their form and format, and the destination."""

    dataset: EncodedImages
    form: Conversion
    format: Format
    folder: str
    carried: Carried


@dataclass(frozen=True)
class ShardTask:
    """One shard to write."""

    name: str
    indices: I64
    """Indices of its samples in the dataset."""


class Content:
    """Checksum of the labels, bytes and columns of samples in order."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, data: bytes, label: int | None) -> None:
        # With the length in front, no bytes can move from one sample to the next unnoticed.
        self._hash.update(struct.pack("<q?q", len(data), label is not None, label or 0))
        self._hash.update(data)

    def add_values(self, values: Iterable[Any]) -> None:
        """Add what ``columns=`` reads of a sample."""
        for value in values:
            self._hash.update(canonical(value))
            self._hash.update(b"\n")

    def digest(self) -> str:
        return self._hash.hexdigest()


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


def chunks(indices: I64, sizes: I64) -> Iterator[I64]:
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
    total, weights = _weights(job, indices)
    if shards is None:
        assert shard_bytes is not None
        shards = min(max(1, -(-total // shard_bytes)), len(indices))
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
    return [ShardTask(job.format.file(split, k, shards), part) for k, part in enumerate(parts)]


def _weights(job: Job, indices: I64) -> tuple[int, I64]:
    """(approximate bytes of all shards; i64[N]: share of each sample)"""
    form, columns = job.form, job.carried.stored
    more = job.carried.sizes(indices) + job.format.overhead + job.format.writer.overhead(columns)
    if not isinstance(form, Reencoded):
        weights = job.dataset.file_sizes[indices] + more
    elif form.side is None:
        # Three bytes for each pixel.
        weights = job.dataset.sizes[indices].astype(np.int64).prod(axis=1) * 3 + more
    else:  # images that were reduced to one side are of nearly one size
        some = indices[np.linspace(0, len(indices) - 1, min(_ESTIMATED, len(indices))).astype(np.int64)]
        files = [data for data in read(job.dataset, some) if isinstance(data, bytes)]
        made = [len(m) if isinstance(m := form(f), bytes) else len(f) for f in files]
        weights = int(np.mean(made or [0])) + more
    return int(weights.sum()), weights


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
        shutil.rmtree(
            os.path.join(job.folder, _PARTS), ignore_errors=True
        )  # including those of processes that were killed
    found = [journal.done[task.name] for task in tasks]
    return found, sum(journal.done[task.name].samples for task in left)


def _is_there(folder: str, done: ShardDone | None) -> bool:
    try:
        return done is not None and os.stat(os.path.join(folder, done.name)).st_size == done.bytes
    except OSError:
        return False


class _Hashed(io.RawIOBase):
    """A file for writing that computes its checksum."""

    def __init__(self, file: io.FileIO):
        self._file = file
        self._at = 0
        self.sha256 = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        count = self._file.write(data)
        self.sha256.update(memoryview(data).cast("B")[:count])
        self._at += count
        return count


def _write(job: Job, task: ShardTask, tell: Tell) -> ShardDone:
    """Write one shard, under another name until it is complete."""
    part = os.path.join(job.folder, _PARTS, f"{task.name}.{os.getpid()}")
    try:
        os.makedirs(os.path.dirname(part), exist_ok=True)
        with open(part, "wb", buffering=0) as raw:
            hashed = _Hashed(raw)
            with io.BufferedWriter(hashed, 1 << 20) as file:
                found = _fill(job, task, _writer(job, file), tell)
                # It must be on the disk before it gets its name, because a file of that name counts as complete.
                file.flush()
                os.fsync(raw.fileno())
        done = ShardDone(task.name, bytes=hashed.tell(), sha256=hashed.sha256.hexdigest(), **found)
        os.replace(part, os.path.join(job.folder, task.name))
    except OSError as e:
        where = os.fspath(e.filename or part)
        raise DatasetError(f"{where}: {e.strerror or e}; run the same command again when it can be written") from None
    return done


def _writer(job: Job, file: Any) -> ShardWriter:
    dataset, carried = job.dataset, job.carried
    return job.format.writer(file, dataset.labels is not None, dataset.classes, carried.stored, carried.keys)


def _fill(job: Job, task: ShardTask, writer: ShardWriter, tell: Tell) -> dict[str, Any]:
    """Write the samples of a shard; return the fields of :class:`ShardDone` about them."""
    dataset, content, values_content = job.dataset, Content(), Content()
    carried, changed = job.carried, 0
    labels, prefix = dataset.labels, os.fsdecode(dataset.source.prefix)
    kept: dict[str, int] = {}
    left_out: list[tuple[int, str, str]] = []
    count = read_bytes = 0
    for some in chunks(task.indices, dataset.file_sizes):
        rows = carried.rows(some.tolist())
        for (index, data, made), (given, values) in zip(_made(job, some), rows, strict=True):
            format = job.form.made if isinstance(made, bytes) and job.form.made else _format_of(dataset, index)
            refused = made if isinstance(made, Undecodable) else None
            if refused is None and (why := writer.refuses(format)):
                refused = Undecodable("format", why)
            if refused is not None:
                left_out.append((index, refused.kind, refused.reason))
                continue
            if isinstance(made, Kept):
                kept[made.kind] = kept.get(made.kind, 0) + 1
            label = None if labels is None else int(labels[index])
            new = made if isinstance(made, bytes) else data
            key = writer.key_of(given)
            # Readers would take samples with one key for one sample.
            if writer.unique_keys and carried.is_repeated(index):
                key += f"-{index:09d}"
            changed += key != given
            writer.add(Record(index, dataset.describe(index).removeprefix(prefix), new, format, label, key, values))
            content.add(new, label)
            values_content.add_values((*((key,) if carried.keys else ()), *values))
            count, read_bytes = count + 1, read_bytes + len(data)
        tell(len(some))
    writer.close()
    return {
        "samples": count, "content": f"{content.digest()} {values_content.digest()}", "changed_keys": changed,
        "read_bytes": read_bytes, "kept": kept, "left_out": left_out,
    }  # fmt: skip


def _made(job: Job, indices: I64) -> Iterator[tuple[int, bytes, bytes | Kept | Undecodable]]:
    """Yield (index, bytes in the source, result of the form) for each sample."""
    for index, data in zip(indices.tolist(), read(job.dataset, indices), strict=True):
        if isinstance(data, bytes):
            yield index, data, job.form(data)
        else:
            yield index, b"", data


def _format_of(dataset: EncodedImages, index: int) -> str:
    """Pillow's name of the format of a sample."""
    codes, codings = dataset.codings
    code = int(codes[index])
    return codings[code].format if code < len(codings) else "?"
