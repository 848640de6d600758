"""Counts images that wait, and finds the lines of a script that look at them."""

from __future__ import annotations

import copy
import dis
import functools
import sys
import sysconfig
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import PIL
import torch
from torch.overrides import resolve_name

from .steps import Encoded
from .switch import is_on

_OURS = str(Path(__file__).parents[1])
_PILLOW = str(Path(PIL.__file__).parent)
_STANDARD = sysconfig.get_paths()["stdlib"]
_BETWEEN = torch.overrides.__file__, torch._tensor.__file__
"""Files that only pass on calls of torch's functions."""
_INSTALLED = ("site-packages", "dist-packages")
_FETCH = "torch.utils.data._utils.fetch"
"""Module in which torch calls the script's code."""
_LOAD = "PIL.Image.Image.load"
_SHOWN = {"PIL.Image.Image.__array_interface__": "numpy.array"}
"""What a script calls that no frame of Python shows."""


@dataclass
class Looks:
    """What happened to the images that a script opened.

    Attributes:
        opened: number of images that waited, at least at first.
        looked: number of those that code looked at.
        places: how often a line looked: ``"train.py:41, in __getitem__: numpy.array"``.
        decoded: number of images that did not wait, by what they are.
    """

    opened: int = 0
    looked: int = 0
    places: Counter[str] = field(default_factory=Counter)
    decoded: Counter[str] = field(default_factory=Counter)

    @property
    def waited(self) -> int:
        """Number of images that an engine made."""
        return max(self.opened - self.looked, 0)  # the Dataset of another loader may keep some that it opened

    def why(self) -> str:
        """Return who needs pixels, most often."""
        if self.places:
            (place, _), *_ = self.places.most_common(1)
            return f"{place} reads pixels of {self.looked:,} of {self.opened:,} images; it is fine to leave it so"
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.decoded.most_common(3))
        return f"its images are no plain JPEG files ({kinds}), which Pillow decodes; it is fine to leave it so"

    def remarks(self) -> list[str]:
        """Notes for users."""
        made = []
        if self.opened:
            made.append(f"images: DALI, {self.waited:,} of {self.opened:,}")
        made += [f"{count:,} looked at by {place}" for place, count in self.places.most_common(3)]
        made += [f"{count:,} decoded by Pillow: {kind}" for kind, count in self.decoded.most_common(3)]
        return made

    def add(self, other: Looks) -> None:
        self.opened += other.opened
        self.looked += other.looked
        self.places += other.places
        self.decoded += other.decoded


class _Here(threading.local):
    def __init__(self) -> None:
        self.looks = Looks()


_here: Any = _Here()


def count_all_threads() -> None:
    """Count the images of all threads of this process, a worker, together."""
    global _here
    _here = SimpleNamespace(looks=Looks())


def taken() -> Looks:
    """Return what happened in this thread, or in this worker process, since the last call."""
    found: Looks
    found, _here.looks = _here.looks, Looks()
    return found


def opened(step: Encoded) -> None:
    """Note that an image waits."""
    _here.looks.opened += 1


def looked(step: Encoded, place: str | None = None) -> None:
    """Note that code needs pixels that are made of an encoded image. ``place`` stands for the line that runs."""
    if step.looked or not is_on():
        return
    step.looked = True
    _here.looks.looked += 1
    otherwise = "a batch with an image of an earlier one" if step.sent else "unknown"
    _here.looks.places[place or _place() or otherwise] += 1


def decoded(image: Any) -> None:
    """Note that Pillow decodes an image that does not wait."""
    if is_on():
        _here.looks.decoded[f"{image.format or type(image).__name__}, {image.mode}"] += 1


def _place() -> str:
    """Return the line of the script that runs, the function of a library that it calls, and the one that looks; without
    such a line, the function of a library that calls Pillow; ``""`` if only gpupipe runs."""
    frame: FrameType | None = sys._getframe(2)
    calls: list[str] = []
    while frame is not None and frame.f_globals.get("__name__") != _FETCH:
        path = frame.f_code.co_filename
        if not _is_library(path):
            inner = [calls[-1], calls[0]] if len(calls) > 1 and calls[0] != _LOAD else calls[-1:]
            within = f": {_SHOWN.get(inner[0], ' > '.join(inner))}" if inner else ""
            return f"{Path(path).name}:{frame.f_lineno}, in {frame.f_code.co_name}{within}"
        if frame.f_code.co_name == "_on_values":  # of tensors that wait
            calls.append(resolve_name(frame.f_locals["func"]) or "torch")
        elif not path.startswith((_OURS, *_BETWEEN, "<")):
            calls.append(f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    at = next((n for n, call in enumerate(calls) if not call.startswith("PIL.")), len(calls))
    return ": ".join([*calls[at : at + 1], *(_SHOWN.get(call, call) for call in calls[at - 1 : at])])


@functools.cache
def compares_types(code: CodeType) -> bool:
    """Return whether code may compare the type of an object by identity, as in ``type(x) is Tensor``."""
    compares = "type" in code.co_names and any(found.opname == "IS_OP" for found in dis.get_instructions(code))
    return compares or any(compares_types(part) for part in code.co_consts if isinstance(part, CodeType))


def function_compares_types(function: Any) -> bool:
    """Return whether a function of the script may compare types by identity."""
    function = getattr(function, "func", function)  # of a functools.partial
    method = vars(type(function)).get("__call__", function)
    code = getattr(function, "__code__", None) or getattr(method, "__code__", None)
    return isinstance(code, CodeType) and not _is_library(code.co_filename) and compares_types(code)


def asks_for_type() -> bool:
    """Return whether a function of the script that runs in this thread may compare types by identity.

    A tensor that waits belongs to a subclass, and nothing else shows it.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != _FETCH:
        code = frame.f_code
        if not _is_library(code.co_filename) and compares_types(code):
            return True
        frame = frame.f_back
    return False


def is_copied() -> bool:
    """Return whether the ``copy`` module asks an image of Pillow's for its state."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((_OURS, _PILLOW)):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == copy.__file__


@functools.cache
def _is_library(path: str) -> bool:
    return path.startswith((_OURS, _STANDARD, "<")) or any(f"/{name}/" in path for name in _INSTALLED)
