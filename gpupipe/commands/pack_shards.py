"""``gpupipe pack``: pack any dataset of images into shards."""

from __future__ import annotations

import csv
import io
import os
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

import numpy as np
from rich.filesize import decimal

from ..cache_folder import replacing
from ..datasets.images import EncodedImages
from ..datasets.index.progress import Progress
from ..errors import BadSample, ConfigError, DatasetError
from ..pack.columns import Column, carry
from ..pack.conversion import Conversion
from ..pack.formats import Format
from ..pack.images import Reencoded
from ..pack.journal import NAME, Journal, ShardDone
from ..pack.shards import Job, pack_shards, plan_shards
from ..pack.verify import verify
from ..planning.order import Shuffle
from ..printable import quantity
from ..sources.label_names import FILE as LABELS, text_of
from .answer import tell
from .console import bad_samples, console, libraries_silenced, pairs
from .pack_request import Request, placed, stopped
from .sources import open_images

LEFT_OUT, SUMS = "left-out.csv", "SHA256SUMS"
_SOME_LEFT_OUT = 3


def run(request: Request, format: Format, form: Conversion, shard_bytes: int) -> int:
    """Run the command; see :func:`gpupipe.commands.pack.run`."""
    source, destination = placed(request.source, request.destination)
    with libraries_silenced():
        dataset = open_images(source, kind=request.kind, image=request.image, label=request.label)
    if request.shuffle and dataset.pages is not None:
        raise ConfigError(
            f"--shuffle: the pages of {source} are compressed, and in random order nearly every image unpacks one; "
            "pack it without --shuffle first"
        )
    bad = [*dataset.index_summary().bad]
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
        return _pack(request, Job(dataset, form, format, destination, carried), indices, bad, shard_bytes)


def _pack(
    request: Request,
    job: Job,
    indices: np.ndarray[tuple[int], np.dtype[np.int64]],
    bad: list[BadSample],
    shard_bytes: int,
) -> int:
    dataset, destination = job.dataset, job.folder
    tasks = plan_shards(job, indices, split=request.split, shards=request.shards, shard_bytes=shard_bytes)
    about = {
        "source": placed(request.source, request.destination)[0], "samples": dataset.fingerprint, "form": str(job.form),
        "format": job.format.name, "columns": job.carried.digest,
        "split": request.split, "shards": len(tasks), "order": _seed(request),
    }  # fmt: skip
    began = time.monotonic()
    with closing(Journal(destination, about)) as journal:
        try:
            with Progress("Packing", len(indices)) as progress:
                done, now = pack_shards(job, tasks, journal, processes=request.processes, progress=progress)
            # Before verifying, which compares the classes that are read.
            if job.format.labels_file and dataset.classes:
                _keep(destination, LABELS, text_of(dataset.classes))
            seconds = time.monotonic() - began
            with Progress("Verifying", sum(shard.samples for shard in done)) as progress, libraries_silenced():
                packed = verify(job, done, processes=request.processes, progress=progress)
        except KeyboardInterrupt:
            return stopped()
        _keep(destination, SUMS, "".join(f"{shard.sha256}  {shard.name}\n" for shard in done).encode())
        bad += [
            BadSample(index, dataset.describe(index), kind, reason)
            for shard in done
            for index, kind, reason in shard.left_out
        ]
        if bad:
            _keep(destination, LEFT_OUT, _table(bad))
    _report(job, packed, done, bad, now, seconds)
    oriented = dataset.index_summary().oriented
    if oriented and request.decoded and not request.exif:
        text = f"{quantity(oriented, 'image')} had an EXIF orientation, which plain pixels do not keep"
        console(stderr=True).print(f"{text}; --exif turns them", style="yellow")
    return _SOME_LEFT_OUT if bad else 0


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
    bad_samples(out, bad, job.dataset.source.prefix, "left out")


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
