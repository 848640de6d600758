"""``gpupipe pack``"""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.filesize import decimal

from ..cache_folder import replacing
from ..datasets.images import EncodedImages
from ..datasets.index.progress import Progress
from ..errors import BadSample, ConfigError, DatasetError
from ..pack.images import QUALITY, AsIs, Conversion, Reencoded
from ..pack.journal import NAME, Journal, ShardDone
from ..pack.shards import Job, pack_shards, plan_shards, verify
from ..planning.order import Shuffle
from ..printable import quantity
from ..sources.label_names import FILE as LABELS, text_of
from ..sources.names import is_url
from .answer import tell
from .console import bad_samples, console, libraries_silenced, pairs
from .sources import open_images

LEFT_OUT, SUMS = "left-out.csv", "SHA256SUMS"
SHARD_BYTES = 512 << 20
_SIZE = re.compile(r"([0-9.]+)\s*([kMGT]?)(i?)B?", re.I)
_SOME_LEFT_OUT, _STOPPED = 3, 130


@dataclass(frozen=True)
class Request:
    """Command-line arguments of ``gpupipe pack``."""

    source: str
    destination: str
    resize: int | None = None
    quality: int | None = None
    exif: bool = False
    shards: int | None = None
    shard_bytes: str | None = None
    shuffle: bool = False
    seed: int | None = None
    split: str = "train"
    kind: str | None = None
    """Kind of the source."""
    image: str | None = None
    label: str | None = None
    columns: str | None = None
    """Names of columns, separated by commas."""
    num_workers: int | None = None


def run(**arguments: object) -> int:
    """Return the exit code: 0 if all samples were written, 3 if some were left out, 130 after Ctrl-C.

    Args:
        arguments: those of :class:`Request`.
    """
    request = Request(**arguments)  # type: ignore[arg-type]
    source, destination = _placed(request.source, request.destination)
    conversion, shard_bytes = _conversion(request), _shard_bytes(request)
    columns = [name.strip() for name in (request.columns or "").split(",") if name.strip()]
    with libraries_silenced():
        dataset = open_images(source, kind=request.kind, image=request.image, label=request.label, columns=columns)
    bad = [*dataset.index_summary().bad]
    indices = _order(dataset, bad, request)
    job = Job(dataset, conversion, destination)
    order = f"shuffled, seed {request.seed or 0}" if request.shuffle else "as it was"
    tasks = plan_shards(job, indices, split=request.split, shards=request.shards, shard_bytes=shard_bytes)
    about = {
        "source": source, "columns": columns, "samples": dataset.fingerprint, "form": str(conversion),
        "split": request.split, "shards": len(tasks), "order": order,
    }  # fmt: skip
    began, processes = time.monotonic(), request.num_workers or len(os.sched_getaffinity(0))
    with closing(Journal(destination, about)) as journal:
        try:
            with Progress("Packing", len(indices)) as progress:
                done, now = pack_shards(job, tasks, journal, processes=processes, progress=progress)
        except KeyboardInterrupt:
            console(stderr=True).print("stopped; run the same command again to continue", style="yellow")
            return _STOPPED
        seconds = time.monotonic() - began
        # Before verifying, which compares the classes that are read.
        if dataset.classes:
            _keep(destination, LABELS, text_of(dataset.classes))
        with libraries_silenced():
            packed = verify(job, tasks, done)
        _keep(destination, SUMS, "".join(f"{shard.sha256}  {shard.name}\n" for shard in done).encode())
        bad += [
            BadSample(index, dataset.describe(index), kind, reason)
            for shard in done
            for index, kind, reason in shard.left_out
        ]
        if bad:
            _keep(destination, LEFT_OUT, _table(bad))
    _report(job, packed, done, bad, now, seconds)
    return _SOME_LEFT_OUT if bad else 0


def _placed(source: str, destination: str) -> tuple[str, str]:
    """Return both as absolute paths, leaving URLs and patterns as they are.

    Raises :class:`ConfigError` if one contains the other.
    """
    if is_url(destination):
        raise ConfigError(
            f"{destination}: shards are written to a local folder; copy it afterwards with the store's own tool"
        )
    target = os.path.abspath(os.path.expanduser(destination))
    if is_url(source):
        return source, target
    given = os.path.abspath(os.path.expanduser(source))
    inner, outer = os.path.realpath(target), os.path.realpath(given)
    if os.path.commonpath([inner, outer]) in (inner, outer):
        raise ConfigError(f"{target} and {given} are the same folder, or one contains the other; name another folder")
    return given, target


def _conversion(request: Request) -> Conversion:
    if request.resize is not None:
        return Reencoded(request.resize, QUALITY if request.quality is None else request.quality, request.exif)
    if request.quality is not None or request.exif:
        name = "--quality" if request.quality is not None else "--exif"
        raise ConfigError(
            f"{name} needs --resize: images that keep their size are copied as they are, because encoding them again "
            "would cost quality"
        )
    return AsIs()


def _shard_bytes(request: Request) -> int:
    if request.seed is not None and not request.shuffle:
        raise ConfigError("--seed needs --shuffle; without it samples keep their order")
    if re.fullmatch(r"\w[\w.]*", request.split) is None:
        raise ConfigError(f"--split {request.split!r}: it must be letters and digits, such as train or validation")
    text = request.shard_bytes
    if text is None:
        return SHARD_BYTES
    if request.shards is not None:
        raise ConfigError("--shards sets the number and --shard-bytes the size of shards; remove one of them")
    match = _SIZE.fullmatch(text.strip())
    try:
        number = float(match[1]) if match else 0.0
    except ValueError:
        number = 0.0
    if match is None or number <= 0:
        raise ConfigError(f"--shard-bytes {text!r}: it must be a size such as 500MB or 1GiB")
    # A space stands for no prefix, and the position is the power.
    return max(1, int(number * (1024 if match[3] else 1000) ** " kmgt".index(match[2].lower() or " ")))


def _order(dataset: EncodedImages, bad: Sequence[BadSample], request: Request) -> npt.NDArray[np.int64]:
    """Return i64[N], the samples not known to be bad. Raises :class:`DatasetError` if there is none."""
    indices = np.setdiff1d(np.arange(len(dataset)), [sample.index for sample in bad])
    if not len(indices):
        command = f"gpupipe index {shlex.quote(request.source)}"
        raise DatasetError(f"{request.source}: none of its {len(dataset)} images can be read; run {command}")
    if request.shuffle:
        indices = indices[Shuffle(len(indices), request.seed or 0, 0).at(np.arange(len(indices)))[0]]
    return indices


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
    job: Job, packed: EncodedImages, done: Sequence[ShardDone], bad: Sequence[BadSample], now: int, seconds: float
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
    columns = [f"{name} as {stored}" for name, stored in job.columns.items()]
    others = [name for name in job.dataset.source.fields() if name not in job.columns]
    changed = sum(shard.changed_keys for shard in done)
    rows = [
        ("samples", f"{sum(counts):,}, {job.conversion}" + "".join(f"; {n:,} kept ({k})" for k, n in kept.items())),
        ("shards", f"{len(done):,}, of {_spread(sizes, decimal)} and {_spread(counts, '{:,}'.format)} samples"),
        ("bytes", f"{decimal(before)} of images in {decimal(sum(sizes))} of shards"),
        ("classes", f"{len(packed.classes):,}" if packed.classes else "none named"),
        ("columns", ", ".join(columns) or "none"),
        *([("not copied", f"{', '.join(others)}; --columns names what to copy")] if others else []),
        *([("keys", f"{quantity(changed, 'key')} changed: they are unique and have no dots")] if changed else []),
        ("left out", f"{quantity(len(bad), 'bad sample')}; all are in {LEFT_OUT}" if bad else "nothing"),
        ("this time", f"{now:,} in {seconds:.1f} s" + (f", {now / seconds:,.0f} images/s" if now else "")),
        ("verified", f"samples, labels and columns; {SUMS} is for sha256sum -c"),
        ("journal", NAME),
        ("read it by", f"gpupipe.datasets.{type(packed).__name__}({job.folder!r})"),
    ]
    out = console()
    out.print(pairs(rows, title=job.folder))
    bad_samples(out, bad, job.dataset.source.prefix, "left out")


def _spread(values: Sequence[int], shown: Callable[[int], str]) -> str:
    least, most = shown(min(values)), shown(max(values))
    return least if least == most else f"{least} to {most}"
