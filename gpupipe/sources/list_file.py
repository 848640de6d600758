"""Reading lists of images from CSV and TSV files."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from typing import IO

from ..codecs.files import open_regular
from ..codecs.retry import reason_of
from ..errors import DatasetError, no_such_path
from .columns import are_fractions

_PATH = {"path", "paths", "file", "filename", "file_name", "filepath", "file_path", "image", "images", "image_path"}
_PATH |= {"video", "videos", "video_path", "clip", "clips", "clip_path"}
_LABEL = {"label", "labels", "class", "classes", "class_name", "class_id", "category", "target", "label_id", "y"}
_LONGEST = 1 << 20
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
    try:
        # utf-8-sig skips the mark with which some spreadsheets begin a file.
        with open(file, encoding="utf-8-sig", errors="strict", newline="", opener=open_regular) as f:
            if not os.fstat(f.fileno()).st_size:  # empty, or a file of /proc, which may be endless
                return [], None
            head = f.readline(_LONGEST)
            f.seek(0)
            tabs = file.lower().endswith(".tsv") or ("\t" in head and not file.lower().endswith(".csv"))
            reader = csv.reader(_lines(f), delimiter="\t" if tabs else ",", strict=True)
            lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except FileNotFoundError:
        raise DatasetError(f"{owner}: {no_such_path(file)}; name a list, or put a single image in a list") from None
    except OSError as e:
        raise DatasetError(f"{owner}: the list {file} cannot be read: {reason_of(e)}") from None
    except UnicodeDecodeError as e:
        raise DatasetError(f"{owner}: {file} is not a list in UTF-8 text ({e.reason} at byte {e.start})") from None
    except csv.Error as e:
        raise DatasetError(f"{owner}: {file} is not a CSV or TSV file: {e}") from None
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


def _lines(file: IO[str]) -> Iterator[str]:
    """Yield the lines of a file. Raises :class:`csv.Error` if a line is too long, as in a sparse file."""
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST and not line.endswith("\n"):
            raise csv.Error(f"a line has more than {_LONGEST} characters")
        yield line


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
