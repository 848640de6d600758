"""``gpupipe index``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.filesize import decimal

from ..datasets.images import EncodedImages
from ..datasets.index.summary import Summary
from ..datasets.video.files import VideoFiles
from ..engines.dali.codings import by_pillow
from ..printable import quantity
from .answer import tell
from .console import bad_samples, console, libraries_silenced, pairs
from .inputs import open_media
from .sources import kind_of, open_images


def run(source: str, *, rebuild: bool, exif: bool, kind: str | None, image: str | None, label: str | None) -> int:
    with libraries_silenced():
        dataset = _opened(source, exif, kind, image, label)
    if isinstance(dataset, VideoFiles):
        return _videos(dataset, source, rebuild)
    summary = dataset.index_summary()
    # An index that was just built from nothing need not be built again.
    if rebuild and not (summary.built and not summary.reused):
        with libraries_silenced():
            dataset.reindex()
        summary = dataset.index_summary()
    _tell(dataset, summary)
    out = console()
    good = summary.count - len(summary.bad)
    rows = [
        ("images", f"{summary.count:,}" + (f", {good:,} of them usable" if summary.bad else "")),
        ("classes", _classes(dataset)),
        ("formats", ", ".join(f"{name} {count:,}" for name, count in summary.formats.items()) or "none"),
        *([("with DALI", handed)] if (handed := by_pillow(dataset)) else []),
        ("height", _spread(dataset.sizes[:, 0])),
        ("width", _spread(dataset.sizes[:, 1])),
        ("orientation", _orientation(summary.oriented, exif)),
        ("files", decimal(summary.total_bytes)),
        ("index", summary.path or "kept in memory only: the cache folder is not writable"),
        ("", _how(summary.built, summary.reused, summary.count, summary.seconds)),
    ]
    out.print(pairs(rows, title=source))
    return _bad(out, dataset.source.prefix, summary)


def _tell(dataset: EncodedImages | VideoFiles, summary: Summary) -> None:
    tell(
        samples=summary.count,
        bad=[sample._asdict() for sample in summary.bad],
        classes=list(dataset.classes or ()),
        formats=dict(summary.formats),
        oriented=summary.oriented,
        bytes=summary.total_bytes,
        index=summary.path,
        built=summary.built,
        seconds=summary.seconds,
    )


def _opened(
    given: str, exif: bool, kind: str | None, image: str | None, label: str | None
) -> EncodedImages | VideoFiles:
    """Open images of any kind, or videos if there are no images."""
    if kind is None and image is None and label is None and kind_of(given) == "imagefolder":
        return open_media(Path(given), exif=exif, frames=1)
    return open_images(given, kind=kind, image=image, label=label, exif=exif)


def _bad(out: Console, prefix: bytes, summary: Summary) -> int:
    """Print the bad files. Return the exit code: 1 if no file is usable."""
    if summary.bad:
        bad_samples(out, summary.bad, prefix, "bad file")
        text = (
            "In a training script, a batch with such a file raises SampleError; "
            'on_error="skip" or "replace" goes on without it'
        )
        out.print(f"{text}.", style="dim", soft_wrap=True)
    return 1 if summary.count == len(summary.bad) else 0


def _videos(dataset: VideoFiles, given: str, rebuild: bool) -> int:
    summary = dataset.index_summary()
    if rebuild and not (summary.built and not summary.reused):
        dataset.reindex()
        summary = dataset.index_summary()
    _tell(dataset, summary)
    out = console()
    good = summary.count - len(summary.bad)
    frames, rates = dataset.frame_counts, dataset.frame_rates
    known = frames > 0
    spread = f"{_range(frames[known], ',')} frames" if known.any() else "unknown"
    speed = f"{_range(rates[known], '.4g')} per second" if known.any() else "unknown"
    rows = [
        ("videos", f"{summary.count:,}" + (f", {good:,} of them usable" if summary.bad else "")),
        ("classes", f"{len(dataset.classes):,}" if dataset.classes else "none"),
        ("codecs", ", ".join(f"{name} {count:,}" for name, count in summary.formats.items()) or "none"),
        ("length", f"{spread}; {frames.sum():,} together"),
        ("frames", f"{speed}; of a varying rate: {quantity(int(dataset.variable.sum()), 'video')}"),
        ("height", _spread(dataset.sizes[:, 0])),
        ("width", _spread(dataset.sizes[:, 1])),
        (
            "rotation",
            f"{quantity(summary.oriented, 'video has', 'videos have')} one; upright=True of VideoFolder turns them",
        ),
        ("files", decimal(summary.total_bytes)),
        ("index", summary.path or "kept in memory only: the cache folder is not writable"),
        ("", _how(summary.built, summary.reused, summary.count, summary.seconds)),
    ]
    out.print(pairs(rows, title=given))
    return _bad(out, os.fsencode(os.path.join(os.path.abspath(os.path.expanduser(given)), "")), summary)


def _classes(dataset: EncodedImages) -> str:
    if dataset.labels is None:
        return "none"
    if not dataset.classes:
        return f"{len(np.unique(dataset.labels)):,} numbers"
    counts = np.bincount(dataset.labels, minlength=len(dataset.classes))
    least, most = int(counts.min()), int(counts.max())
    text = (
        f"{len(dataset.classes):,}, of {quantity(most, 'image') if least == most else f'{least:,} to {most:,} images'}"
    )
    if not counts.min():
        empty = [dataset.classes[i] for i in np.flatnonzero(counts == 0)]
        text += f"; empty: {', '.join(empty[:5])}" + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
    return text


def _spread(column: npt.NDArray[np.int32]) -> str:
    known = column[column > 0]
    if not len(known):
        return "unknown"
    median = f", median {int(np.median(known)):,}" if known.min() < known.max() else ""
    return f"{_range(known, ',')} pixels{median}"


def _range(values: npt.NDArray[Any], form: str) -> str:
    least, most = values.min(), values.max()
    return f"{least:{form}}" if least == most else f"{least:{form}} to {most:{form}}"


def _orientation(count: int, exif: bool) -> str:
    if not count:
        return "no image has an EXIF orientation"
    what = "turned upright" if exif else "not turned, as in torchvision; --exif turns them"
    return f"{quantity(count, 'image has', 'images have')} one: {what}"


def _how(built: bool, reused: int, count: int, seconds: float) -> str:
    if not built:
        return f"read from the cache in {seconds:.2f} s"
    return f"built in {seconds:.2f} s" + (f", {reused:,} of {count:,} files unchanged" if reused else "")
