"""Datasets of other libraries, and paths: the gpupipe class that reads the same samples."""

from __future__ import annotations

import os
from typing import Any

from ..formats.registry import format_of, formats, others_files
from .classes import known_class

_IMAGES = {"jpg", "jpeg", "png", "webp", "ppm", "pgm", "bmp", "tif", "tiff"}
_CLASSES = {"cls", "cls2", "class", "count", "index", "inx", "id", "json"}
"""Names of members that webdataset reads as numbers, and the one with fields."""


def named_class(ds: Any) -> str | None:
    """Explain why a dataset is not translated and what to write to read the same samples; ``None`` if that is unknown.

    >>> named_class("train.tar")
    "a path names no transforms; write gpupipe.datasets.WebDataset('train.tar', transform)"
    """
    if isinstance(ds, (str, os.PathLike)):
        path = os.fspath(ds)
        found = format_of(path)
        if found is None and (why := others_files(path)):
            return why
        is_list = path.lower().endswith((".csv", ".tsv", ".txt"))
        name = found.__name__ if found is not None else "ImageList" if is_list else "ImageFolder"
        return f"a path names no transforms; write gpupipe.datasets.{name}({path!r}, transform)"
    libraries = [(module, kind, *about) for kind in formats().values() for module, about in kind.libraries.items()]
    for module, kind, arguments, why in libraries:
        if known_class(ds, module) is not None:
            call = (_webdataset_call(ds) if module == "webdataset" else None) or f"{kind.__name__}{arguments}"
            given = "(images, columns)" if "label=None" in call else "(images, labels)"
            given = "dictionaries of images and labels" if "return_dict" in call else given
            before = f"{why}; " if why else ""
            return f"{before}gpupipe.datasets.{call} reads the same images in any order, and returns {given}"
    return None


def _webdataset_call(pipeline: Any) -> str | None:
    """Return the class and its arguments for a pipeline of webdataset, as far as its stages show them; ``None`` if they
    show none."""
    stages: Any = getattr(pipeline, "pipeline", None)
    urls = getattr(stages[0], "urls", None) if isinstance(stages, list) and stages else None
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        return None
    given = [repr(urls[0]) if len(urls) == 1 else "urls", "transform"]
    fields = next((stage.args for stage in stages if _is_stage(stage, "_to_tuple")), None)
    if not fields:
        return f"WebDataset({', '.join([*given, 'return_dict=True'])})"
    # rename(new="old") comes before to_tuple("new"), and the shard's member has the old name.
    renamed = {new: old for stage in stages if _is_stage(stage, "_rename") for new, old in stage.kw.items()}
    names = [str(renamed.get(str(name), name)) for name in fields]
    # A name may list alternatives, such as "jpg;png".
    image = next((name for name in names if {*name.lower().split(";")} & _IMAGES), names[0])
    columns = [f"{name}:FIELD" if name == "json" else name for name in names if name != image]
    label = next((name for name in columns if name.partition(":")[0] in _CLASSES), None)
    if label is not None:
        columns.remove(label)
    given += [f"image={image!r}", f"label={label!r}", *([f"columns={columns!r}"] if columns else [])]
    return f"WebDataset({', '.join(given)})"


def _is_stage(stage: Any, name: str) -> bool:
    return getattr(getattr(stage, "f", None), "__name__", "") == name
