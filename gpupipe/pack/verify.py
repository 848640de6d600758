"""Read shards back: compare the files with their checksums, and the samples that are read with those written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..codecs.files import Undecodable
from ..datasets.images import EncodedImages
from ..errors import DatasetError
from ..sources.shards import Shards
from ..sources.storage import LOCAL
from .columns import KEY
from .journal import ShardDone
from .processes import Tell, in_processes
from .shards import Content, Job, chunks, read


@dataclass(frozen=True)
class _Task:
    folder: str
    shard: ShardDone
    first: int
    """Index of its first sample in the new dataset."""
    columns: tuple[str, ...]
    """Names of the columns that are read."""


def verify(job: Job, done: Sequence[ShardDone], *, processes: int, progress: Tell) -> EncodedImages:
    """Read all shards from the disk with the dataset class that will read them, and return that dataset.

    Raises:
        DatasetError: a checksum differs, or other samples, labels or classes are read than were written.
        EngineError: a process died.
    """
    dataset, count = job.format.open(job.folder), sum(shard.samples for shard in done)
    if len(dataset) != count:
        raise DatasetError(f"{job.folder}: {count} samples were written, but {len(dataset)} are read; {_ADVICE}")
    if dataset.classes != job.dataset.classes:
        raise DatasetError(f"{job.folder}: the classes that are read differ from those that were written; {_ADVICE}")
    firsts = np.cumsum([0, *(shard.samples for shard in done)]).tolist()
    columns = (*((KEY,) if job.carried.keys else ()), *(column.stored for column in job.carried.stored))
    tasks = [_Task(job.folder, shard, first, columns) for shard, first in zip(done, firsts, strict=False)]
    with closing(in_processes(partial(_check, dataset), tasks, processes, progress)) as results:
        for wrong in filter(None, results):
            raise DatasetError(f"{job.folder}: {wrong}; {_ADVICE}")
    return dataset


_ADVICE = "the disk or the memory may be damaged: remove it and run the same command again"


def _check(dataset: EncodedImages, task: _Task, tell: Tell) -> str:
    """Check a shard: what is wrong with it, or an empty text."""
    shard = task.shard
    path = os.path.join(task.folder, shard.name)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # read from the disk, not from memory
        while block := file.read(1 << 22):
            digest.update(block)
    if digest.hexdigest() != shard.sha256:
        return (
            f"{shard.name} is not what was written: its checksum is {digest.hexdigest()} and should be {shard.sha256}"
        )
    LOCAL.close(os.fsencode(path))  # this process may have read an earlier one
    labels, content = dataset.labels, Content()
    for some in chunks(np.arange(task.first, task.first + shard.samples), dataset.file_sizes):
        for index, data in zip(some.tolist(), read(dataset, some), strict=True):
            if isinstance(data, Undecodable):
                return f"{dataset.describe(index)} cannot be read: {data.reason}"
            content.add(data, None if labels is None else int(labels[index]))
        tell(len(some))
    values, source = Content(), dataset.source
    assert isinstance(source, Shards)
    with open(path, "rb") as opened:
        for row in replace(source, columns=task.columns).rows(opened, os.fsencode(path)) if task.columns else ():
            values.add_values(row.values)
    if f"{content.digest()} {values.digest()}" == shard.content:
        return ""
    what = "columns" if shard.content.startswith(content.digest()) else "samples"
    return f"{shard.name} is read as other {what} than were written"
