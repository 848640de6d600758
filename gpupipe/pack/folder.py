"""Pack a folder of images into another folder: every image becomes a file of the same name."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ..codecs.files import open_regular
from ..errors import DatasetError
from .conversion import Conversion, Kept
from .journal import Journal
from .processes import Tell, in_processes

_PARTS = ".gpupipe-parts"
_BYTES, _FILES = 8_000_000, 512
"""At most so much in one task, which is one message between processes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One file of the source."""

    name: str
    """Its path below the source, as ``os.fsdecode`` returns it."""
    size: int
    """Bytes."""
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written: a line of the journal."""

    name: str
    size: int
    mtime_ns: int
    written: int
    """Bytes."""
    kind: str = ""
    """Empty if it has the new form, otherwise the kind of :class:`~gpupipe.pack.conversion.Kept`."""
    reason: str = ""

    def line(self) -> dict[str, Any]:
        """JSON values, without empty ones."""
        return {name: value for name, value in asdict(self).items() if value != ""}


def pack_folder(
    source: str,
    samples: Sequence[Sample],
    form: Conversion,
    writer: FolderWriter,
    journal: Journal[Written],
    *,
    processes: int,
    progress: Tell,
) -> tuple[list[Written], int]:
    """Write all samples that are not in the journal: (one :class:`Written` per sample, in order; how many were written
    by this call).

    Args:
        source: the folder that contains the samples.
        processes: number of processes; none is started for a single task.
        progress: called with the number of samples that are done.

    Raises:
        DatasetError: a file cannot be read or written.
        EngineError: a process died.
    """
    left = [s for s in samples if not _is_done(s, journal.done.get(s.name), writer)]
    there = len(samples) - len(left)
    progress(there)
    work = partial(_work, source, form, writer)
    with closing(in_processes(work, list(_tasks(left)), processes, lambda n: progress(there + n))) as results:
        for written in results:
            journal.add(written)
    return [journal.done[s.name] for s in samples], len(left)


def _is_done(sample: Sample, found: Written | None, writer: FolderWriter) -> bool:
    """Return whether a sample was written and has not changed since."""
    unchanged = found is not None and (found.size, found.mtime_ns) == (sample.size, sample.mtime_ns)
    return found is not None and unchanged and writer.has(sample, found.written)


def _tasks(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    task: list[Sample] = []
    size = 0
    for sample in samples:
        if task and (size + sample.size > _BYTES or len(task) == _FILES):
            yield task
            task, size = [], 0
        task.append(sample)
        size += sample.size
    if task:
        yield task


def _work(source: str, form: Conversion, writer: FolderWriter, task: list[Sample], tell: Tell) -> list[Written]:
    """Read, convert and write the samples of one task."""
    done = []
    for sample in task:
        data = _read(source, sample)
        made = form(data)
        kept = Kept("", "") if isinstance(made, bytes) else Kept(made.kind, made.reason)
        content = made if isinstance(made, bytes) else data
        try:
            writer.write(sample, content)
        except OSError as e:
            where = os.fspath(e.filename or sample.name)
            raise DatasetError(f"{where}: {e.strerror}; run the same command again when it can be written") from None
        done.append(Written(sample.name, sample.size, sample.mtime_ns, len(content), kept.kind, kept.reason))
        tell(1)
    return done


def find(root: str, extensions: tuple[str, ...], progress: Callable[[int], None]) -> tuple[list[Sample], int]:
    """Find files: (all below a folder with these extensions, sorted by name; the number of others). Links are followed.

    Raises:
        DatasetError: there is no such folder, or a folder below it cannot be read.
    """
    samples: list[Sample] = []
    others = 0
    for folder, files in _folders(root):
        for file in files:
            if not file.lower().endswith(extensions):
                others += 1
                continue
            path = os.path.join(folder, file)
            try:
                found = os.stat(path)
            except OSError as e:
                raise DatasetError(f"{path}: {e.strerror}; repair or remove it") from None
            if not stat.S_ISREG(found.st_mode):  # reading a FIFO would wait for a writer
                others += 1
                continue
            samples.append(Sample(os.path.relpath(path, root), found.st_size, found.st_mtime_ns))
        progress(len(samples))
    return sorted(samples, key=lambda s: s.name), others


def _folders(root: str) -> Iterator[tuple[str, list[str]]]:
    def stop(error: OSError) -> None:
        raise DatasetError(f"{error.filename}: {error.strerror}") from None

    seen: set[tuple[int, int]] = set()
    for folder, below, files in os.walk(root, onerror=stop, followlinks=True):
        found = os.stat(folder)
        if (found.st_dev, found.st_ino) in seen:  # a link to a folder above
            below.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        yield folder, files


def _read(root: str, sample: Sample) -> bytes:
    """Read a sample. Raises :class:`DatasetError`."""
    path = os.path.join(root, sample.name)
    try:
        with open(path, "rb", opener=open_regular) as file:
            return file.read()
    except OSError as e:
        raise DatasetError(f"{path}: {e.strerror}; repair or remove it, and run the same command again") from None


@dataclass(frozen=True)
class FolderWriter:
    """Writes one file per sample below ``root``, with the same name and modification time."""

    root: str

    def write(self, sample: Sample, data: bytes) -> None:
        """Write one sample atomically; it replaces what an earlier run left."""
        path = os.path.join(self.root, sample.name)
        part = os.path.join(self.root, _PARTS, str(os.getpid()))
        os.makedirs(os.path.dirname(part), exist_ok=True)
        with open(part, "wb") as file:
            file.write(data)
        os.utime(part, ns=(sample.mtime_ns, sample.mtime_ns))
        try:
            # Most folders exist already, so one is made only if this fails.
            os.replace(part, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(part, path)

    def has(self, sample: Sample, size: int) -> bool:
        """Return whether the file of a sample exists and has ``size`` bytes."""
        try:
            return os.stat(os.path.join(self.root, sample.name)).st_size == size
        except OSError:
            return False

    def close(self) -> None:
        """Remove unfinished files of processes that were killed."""
        shutil.rmtree(os.path.join(self.root, _PARTS), ignore_errors=True)
