"""Reading lists of images: lines of text files, and rows of CSV and TSV files."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper

from ..codecs.files import open_regular
from ..codecs.retry import reason_of
from ..errors import DatasetError, no_such_path
from .columns import are_fractions
from .extras import NotJsonError

_PATH = {"path", "paths", "file", "filename", "file_name", "filepath", "file_path", "image", "images", "image_path"}
_PATH |= {"video", "videos", "video_path", "clip", "clips", "clip_path"}
_LABEL = {"label", "labels", "class", "classes", "class_name", "class_id", "category", "target", "label_id", "y"}
LONGEST = 4 << 20
"""Maximum number of characters in a line."""
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def read_list(file: str, owner: str = "ImageList") -> tuple[list[str], list[int] | list[str] | None]:
    """Read (paths, labels) from a CSV file, or from a TSV file if its name ends in ``.tsv`` or its first line has a
    tab.

    Labels are integers if all of them are, otherwise class names; ``None`` if there is one column. The first line is a
    header if it names a path column, or if it alone has a label that is not a number.

    Raises:
        DatasetError: no such file, not text, or lines with different columns; names the line.
    """
    if os.path.isdir(file):
        other = owner.replace("List", "Folder")
        raise DatasetError(f"{owner}: {file} is a folder; use {other}, or give a list of paths")
    with opened_list(file, owner) as f:
        lines = list(csv_rows(f, file))
    if not lines:
        return [], None
    path, label, header = _columns(file, lines, owner)
    width = len(lines[0][1])
    body = lines[header:]
    for number, row in body:
        if len(row) != width or not row[path].strip():
            raise DatasetError(
                f"{owner}: line {number} of {file} is {row!r}; every line needs a path and as many columns as the "
                f"first line, which has {width}. A path with a comma is written in double quotes"
            )
    paths = [row[path].strip() for _, row in body]
    if label is None:
        return paths, None
    texts = [row[label].strip() for _, row in body]
    for (number, _), text in zip(body, texts, strict=True):
        if not text:
            raise DatasetError(f"{owner}: line {number} of {file} has no label, but other lines have; add it")
    return paths, _numbered(texts, file, owner)


def _numbered(texts: list[str], file: str, owner: str) -> list[int] | list[str]:
    """Return class numbers, or else names. Raises :class:`DatasetError` for numbers that cannot be class numbers."""
    if all(_INTEGER.fullmatch(t) for t in texts):
        return [int(t) for t in texts]
    if are_fractions(texts):
        raise DatasetError(
            f"{owner}: the labels in {file} are numbers such as {texts[0]}, but labels are class numbers or names; "
            "write integers, or add these values with datasets.Columns(dataset, {'target': array})"
        )
    return texts


@contextmanager
def opened_list(file: str, owner: str) -> Iterator[TextIOWrapper]:
    """Open a list. Raises :class:`DatasetError`, also for what the functions below raise in the block."""
    try:
        # utf-8-sig skips the mark with which some spreadsheets begin a file.
        with open(file, encoding="utf-8-sig", newline="", opener=open_regular) as opened:
            yield opened
    except FileNotFoundError:
        raise DatasetError(f"{owner}: {no_such_path(file)}; give the path of a list") from None
    except UnicodeDecodeError as e:
        raise DatasetError(f"{owner}: {file} is not a list in UTF-8 text ({e.reason} at byte {e.start})") from None
    except (OSError, csv.Error, NotJsonError) as e:
        why = reason_of(e) if isinstance(e, OSError) else e
        raise DatasetError(f"{owner}: the list {file} cannot be read: {why}") from None


def bounded_lines(file: TextIOWrapper) -> Iterator[str]:
    """Yield the lines of a file. Raises :class:`csv.Error` if one is too long, as in a sparse file."""
    if not os.fstat(file.fileno()).st_size:  # empty, or a file of /proc, which may be endless
        return
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise csv.Error(f"line {number} has more than {LONGEST:,} characters")
        yield line


def csv_rows(file: TextIOWrapper, path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, cells) of every line of a CSV or TSV file that is not empty."""
    head = file.readline(LONGEST)
    file.seek(0)
    tabs = path.lower().endswith(".tsv") or ("\t" in head and not path.lower().endswith(".csv"))
    reader = csv.reader(bounded_lines(file), delimiter="\t" if tabs else ",", strict=True)
    yield from ((reader.line_num, row) for row in reader if any(cell.strip() for cell in row))


def _columns(file: str, lines: Sequence[tuple[int, list[str]]], owner: str) -> tuple[int, int | None, int]:
    """Return (column of the path, column of the label, number of header lines)."""
    first = [cell.strip().lower() for cell in lines[0][1]]
    path = next((i for i, name in enumerate(first) if name in _PATH), None)
    if path is not None:
        others = [i for i in range(len(first)) if i != path]
        label = next((i for i in others if first[i] in _LABEL), others[0] if len(others) == 1 else None)
        return path, label, 1
    if len(first) == 1:
        return 0, None, 0
    if len(first) > 2:
        raise DatasetError(
            f"{owner}: {file} has {len(first)} columns and no header; name the columns in the first line, such as "
            "path,label"
        )
    rest = [row[1].strip() for _, row in lines[1:] if len(row) == 2]
    numbers_below = bool(rest) and all(_INTEGER.fullmatch(t) for t in rest)
    return 0, 1, int(numbers_below and _INTEGER.fullmatch(first[1]) is None)
