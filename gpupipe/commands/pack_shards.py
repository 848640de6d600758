"""``gpupipe pack``: pack any dataset of images into shards."""

from __future__ import annotations

import csv
import io
import os
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
from rich.filesize import decimal

from ..cache_folder import replacing
from ..datasets.images import EncodedImages
from ..datasets.index.progress import Progress
from ..errors import BadSample, ConfigError, DatasetError
from ..formats.base import Unpacked
from ..pack.columns import Column, carry
from ..pack.conversion import Conversion
from ..pack.formats import Format
from ..pack.images import Reencoded
from ..pack.journal import NAME, Journal
from ..pack.parts import Part, check_part, check_whole, complete
from ..pack.shards import PARTS, Job, ShardDone, ShardTask, pack_shards, plan_shards
from ..pack.unpack import Unpacking
from ..pack.verify import verify
from ..planning.order import Shuffle
from ..printable import quantity
from ..sources.base import Source
from ..sources.label_names import FILE as LABELS, text_of
from ..sources.shards import RandomAccessError, Shards
from .answer import tell
from .console import bad_samples, console, libraries_silenced, pairs
from .pack_request import Request, placed, stopped
from .sources import open_images

LEFT_OUT, SUMS = "left-out.csv", "SHA256SUMS"
_SOME_LEFT_OUT = 3
_MEGABYTE = 1_000_000


def run(request: Request, format: Format, form: Conversion, shard_bytes: int) -> int:
    """Run the command; see :func:`gpupipe.commands.pack.run`."""
    source, destination = placed(request.source, request.destination)
    if request.part is not None and request.complete:
        raise ConfigError("--part writes a part and --complete joins all of them; run --complete after the last part")
    part = None if request.part is None else Part.of(request.part)
    packed_together: Source | None = None
    try:
        with libraries_silenced():
            dataset = open_images(source, kind=request.kind, image=request.image, label=request.label)
        # Read in random order, pages would be unpacked again and again.
        if not request.shuffle or dataset.pages is None:
            return _run(request, dataset, destination, format, form, shard_bytes)
        packed_together = dataset.source
    except RandomAccessError as e:
        packed_together = e.source
    assert isinstance(packed_together, Shards)
    if part is not None or request.complete:
        raise ConfigError(
            f"--part and --complete: the samples of {request.source} are compressed together, and every machine would "
            "unpack all of them; pack them on one machine"
        )
    with closing(Unpacking(packed_together, destination)) as unpacking:
        try:
            with Progress("Unpacking", unpacking.total // _MEGABYTE, "MB") as progress, libraries_silenced():
                unpacked = unpacking.run(lambda read: progress(read // _MEGABYTE))
        except KeyboardInterrupt:
            return stopped()
        try:
            with libraries_silenced():
                dataset = Unpacked(unpacked, request.image, request.label)
        except DatasetError as e:
            unpacking.remove()
            raise DatasetError(unpacking.shown(str(e))) from None
        code = _run(request, dataset, destination, format, form, shard_bytes, unpacking.shown)
        # After Ctrl-C, the next run continues with the unpacked files.
        if code in (0, _SOME_LEFT_OUT):
            unpacking.remove()
    return code


def _run(
    request: Request,
    dataset: EncodedImages,
    destination: str,
    format: Format,
    form: Conversion,
    shard_bytes: int,
    shown: Callable[[str], str] = str,
) -> int:
    bad = [it._replace(path=shown(it.path)) for it in dataset.index_summary().bad]
    labels_file = text_of(dataset.classes) if format.labels_file and dataset.classes else b""
    indices = _order(dataset, bad, request)
    with tempfile.TemporaryDirectory(prefix="gpupipe-pack-") as folder:
        with Progress("Reading columns", len(dataset)) as progress, libraries_silenced():
            carried = carry(
                dataset,
                folder,
                request.column_names,
                [it.index for it in bad],
                format.writer.arrange,
                format.writer.key_of,
                isinstance(form, Reencoded) and (form.side is not None or form.upright),
                progress,
            )
        job = Job(dataset, form, format, destination, carried)
        return _pack(request, job, indices, bad, labels_file, shard_bytes, shown)


def _pack(
    request: Request,
    job: Job,
    indices: np.ndarray[tuple[int], np.dtype[np.int64]],
    bad: list[BadSample],
    labels_file: bytes,
    shard_bytes: int,
    shown: Callable[[str], str],
) -> int:
    dataset, destination = job.dataset, job.folder
    tasks = plan_shards(job, indices, split=request.split, shards=request.shards, shard_bytes=shard_bytes)
    about = {
        "source": placed(request.source, request.destination)[0], "samples": dataset.fingerprint, "form": str(job.form),
        "format": job.format.name, "columns": job.carried.digest,
        "split": request.split, "shards": len(tasks), "order": _seed(request),
    }  # fmt: skip
    began = time.monotonic()
    if request.part is not None:
        return _pack_part(request, job, tasks, about, Part.of(request.part))
    if request.complete:
        complete(destination, about, [task.name for task in tasks], _done)
    check_whole(destination)
    with closing(Journal(destination, about, _done)) as journal:
        try:
            with Progress("Packing", len(indices)) as progress:
                done, now = pack_shards(job, tasks, journal, processes=request.processes, progress=progress)
            # Before verifying, which compares the classes that are read.
            if labels_file:
                _keep(destination, LABELS, labels_file)
            seconds = time.monotonic() - began
            with Progress("Verifying", sum(shard.samples for shard in done)) as progress, libraries_silenced():
                packed = verify(job, done, processes=request.processes, progress=progress)
        except KeyboardInterrupt:
            return stopped()
        _keep(destination, SUMS, "".join(f"{shard.sha256}  {shard.name}\n" for shard in done).encode())
        bad += [
            BadSample(index, shown(dataset.describe(index)), kind, reason)
            for shard in done
            for index, kind, reason in shard.left_out
        ]
        if bad:
            _keep(destination, LEFT_OUT, _table(bad))
    _report(job, packed, done, bad, now, seconds, shown)
    oriented = dataset.index_summary().oriented
    if oriented and request.decoded and not request.exif:
        text = f"{quantity(oriented, 'image')} had an EXIF orientation, which plain pixels do not keep"
        console(stderr=True).print(f"{text}; --exif turns them", style="yellow")
    return _SOME_LEFT_OUT if bad else 0


def _pack_part(request: Request, job: Job, tasks: Sequence[ShardTask], about: dict[str, object], part: Part) -> int:
    """Write the shards of a part."""
    check_part(job.folder, part)
    mine = tasks[part.range(len(tasks))]
    job = replace(job, unfinished=f"{PARTS}-{part.number}")
    began = time.monotonic()
    with closing(Journal(job.folder, {**about, "part": str(part)}, _done, part.journal)) as journal:
        try:
            with Progress("Packing", sum(len(task.indices) for task in mine)) as progress:
                done, now = pack_shards(job, mine, journal, processes=request.processes, progress=progress)
        except KeyboardInterrupt:
            return stopped()
    left_out = sum(len(shard.left_out) for shard in done)
    rows = [
        ("part", f"{part}: {quantity(len(done), 'shard')} of {len(tasks):,}, {sum(s.samples for s in done):,} samples"),
        ("left out", quantity(left_out, "bad sample") if left_out else "nothing"),
        ("this time", f"{now:,} in {time.monotonic() - began:.1f} s"),
        ("journal", part.journal),
        ("next", "when all parts are written: the same command with --complete in place of --part"),
    ]
    console().print(pairs(rows, title=job.folder))
    return _SOME_LEFT_OUT if left_out else 0


def _order(
    dataset: EncodedImages, bad: Sequence[BadSample], request: Request
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return i64[N], the samples not known to be bad. Raises :class:`DatasetError` if there is none."""
    good = np.ones(len(dataset), np.bool_)
    good[[sample.index for sample in bad]] = False
    indices = np.flatnonzero(good)
    if not len(indices):
        command = f"gpupipe index {shlex.quote(request.source)}"
        raise DatasetError(f"{request.source}: none of its {len(dataset)} images can be read; run {command}")
    if request.shuffle:
        indices = indices[Shuffle(len(indices), request.seed or 0, 0).at(np.arange(len(indices)))[0]]
    return indices


def _seed(request: Request) -> str:
    return f"shuffled, seed {request.seed or 0}" if request.shuffle else "as it was"


def _done(**values: object) -> ShardDone:
    # JSON turned tuples into lists.
    left_out = [tuple(row) for row in values.pop("left_out", [])]  # type: ignore[attr-defined]
    return ShardDone(**values, left_out=left_out)  # type: ignore[arg-type]


def _keep(folder: str, name: str, content: bytes) -> None:
    path = os.path.join(folder, name)
    with replacing(path) as file:
        file.write(content)
    # replacing() makes files that only this user may read.
    os.chmod(path, 0o644)


def _table(bad: Sequence[BadSample]) -> bytes:
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(["index", "path", "kind", "reason"])
    lines.writerows([b.index, b.path, b.kind, b.reason] for b in bad)
    return text.getvalue().encode(errors="surrogateescape")


def _report(
    job: Job,
    packed: EncodedImages,
    done: Sequence[ShardDone],
    bad: Sequence[BadSample],
    now: int,
    seconds: float,
    shown: Callable[[str], str],
) -> None:
    sizes, counts = [shard.bytes for shard in done], [shard.samples for shard in done]
    before, kept = sum(shard.read_bytes for shard in done), Counter[str]()
    for shard in done:
        kept.update(shard.kept)
    tell(
        destination=job.folder,
        samples=sum(counts),
        shards=[{"name": shard.name, "samples": shard.samples, "bytes": shard.bytes} for shard in done],
        left_out=[sample._asdict() for sample in bad],
        reader=type(packed).__name__,
        written=now,
        seconds=seconds,
    )
    rows = [
        ("samples", f"{sum(counts):,}, {job.form}" + "".join(f"; {n:,} kept ({kind})" for kind, n in kept.items())),
        ("shards", f"{len(done):,}, of {_spread(sizes, decimal)} and {_spread(counts, '{:,}'.format)} samples"),
        ("bytes", f"{decimal(before)} of images in {decimal(sum(sizes))} of shards"),
        ("classes", f"{len(packed.classes):,}" if packed.classes else "none named"),
        *_columns(job, sum(shard.changed_keys for shard in done)),
        ("left out", f"{quantity(len(bad), 'bad sample')}; all are in {LEFT_OUT}" if bad else "nothing"),
        ("this time", f"{now:,} in {seconds:.1f} s" + (f", {now / seconds:,.0f} images/s" if now else "")),
        ("verified", f"all shards and samples; {SUMS} is for sha256sum -c"),
        ("journal", NAME),
        ("read it by", f"gpupipe.datasets.{type(packed).__name__}({job.folder!r})"),
    ]
    out = console()
    out.print(pairs(rows, title=job.folder))
    bad_samples(out, bad, os.fsencode(shown(os.fsdecode(job.dataset.source.prefix))), "left out")


def _columns(job: Job, changed_keys: int) -> list[tuple[str, str]]:
    """Return the rows of the report about columns and keys."""
    carried = job.carried
    rows = [("columns", ", ".join(map(_shown, carried.stored)) or "none")]
    if carried.left_out:
        rows.append(("not copied", "; ".join(f"{name}: {reason}" for name, reason in carried.left_out)))
    if changed_keys:
        text = f"{quantity(changed_keys, 'key')} changed, because keys in tar files are unique and have no dots"
        rows.append(("keys", text))
    return rows


def _shown(column: Column) -> str:
    stored = "" if column.stored == column.name else f" as {column.stored}"
    return f"{column.name}{stored}" + (f" ({column.note})" if column.note else "")


def _spread(values: Sequence[int], shown: object) -> str:
    least, most = (shown(n) for n in (min(values), max(values)))  # type: ignore[operator]
    return least if least == most else f"{least} to {most}"
