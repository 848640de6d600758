"""``gpupipe index``"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
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
        if kind is None and image is None and label is None and kind_of(source) == "imagefolder":
            dataset = open_media(Path(source), exif=exif, frames=1)
        else:
            dataset = open_images(source, kind=kind, image=image, label=label, exif=exif)
        summary = dataset.index_summary()
        # An index that was just built from nothing need not be built again.
        if rebuild and not (summary.built and not summary.reused):
            dataset.reindex()
            summary = dataset.index_summary()
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
    good = summary.count - len(summary.bad)
    formats = ", ".join(f"{name} {count:,}" for name, count in summary.formats.items()) or "none"
    if isinstance(dataset, VideoFiles):
        of_medium, turned = _of_videos(dataset, summary, formats)
        prefix = os.fsencode(os.path.join(os.path.abspath(os.path.expanduser(source)), ""))
    else:
        handed = by_pillow(dataset)
        of_medium = [("classes", _classes(dataset)), ("formats", formats), *([("with DALI", handed)] if handed else [])]
        turned, prefix = ("orientation", _orientation(summary.oriented, exif)), dataset.source.prefix
    rows = [
        (f"{dataset.medium.noun}s", f"{summary.count:,}" + (f", {good:,} of them usable" if summary.bad else "")),
        *of_medium,
        ("height", _spread(dataset.sizes[:, 0])),
        ("width", _spread(dataset.sizes[:, 1])),
        turned,
        ("files", decimal(summary.total_bytes)),
        ("index", summary.path or "kept in memory only: the cache folder is not writable"),
        ("", _how(summary)),
    ]
    out = console()
    out.print(pairs(rows, title=source))
    if summary.bad:
        bad_samples(out, summary.bad, prefix, "bad file")
        text = (
            "In a training script, a batch with such a file raises SampleError; "
            'on_error="skip" or "replace" goes on without it.'
        )
        out.print(text, style="dim", soft_wrap=True)
    return 0 if good else 1


def _of_videos(dataset: VideoFiles, summary: Summary, codecs: str) -> tuple[list[tuple[str, str]], tuple[str, str]]:
    """Return what only videos have, and how many are turned."""
    frames, rates = dataset.frame_counts, dataset.frame_rates
    known = frames > 0
    spread = f"{_range(frames[known], ',')} frames" if known.any() else "unknown"
    speed = f"{_range(rates[known], '.4g')} per second" if known.any() else "unknown"
    rows = [
        ("classes", f"{len(dataset.classes):,}" if dataset.classes else "none"),
        ("codecs", codecs),
        ("length", f"{spread}; {frames.sum():,} together"),
        ("frames", f"{speed}; of a varying rate: {quantity(int(dataset.variable.sum()), 'video')}"),
    ]
    turned = quantity(summary.oriented, "video has", "videos have")
    return rows, ("rotation", f"{turned} one; upright=True of VideoFolder turns them")


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


def _how(summary: Summary) -> str:
    if not summary.built:
        return f"read from the cache in {summary.seconds:.2f} s"
    unchanged = f", {summary.reused:,} of {summary.count:,} files unchanged" if summary.reused else ""
    return f"built in {summary.seconds:.2f} s{unchanged}"
