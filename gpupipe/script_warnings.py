"""Warnings that point to a line of the script, issued once per process and line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from .printable import printable
from .reasons import GpupipeWarning, Reason, sentence

_NOT_SCRIPTS = {
    *("accelerate", "composer", "fastai", "gpupipe", "ignite", "lightning", "lightning_fabric", "mmengine"),
    *("pytorch_lightning", "ray", "timm", "torch", "torchdata", "torchvision", "transformers"),
    *sys.stdlib_module_names,
}
"""Packages whose code may stand between a script and a loader."""

_SAID: set[tuple[str, str, int]] = set()


def warn(what: str, reasons: Sequence[Reason], category: type[GpupipeWarning] = GpupipeWarning) -> None:
    """Warn at the line of the script that is running, unless that line was warned about before.

    Some scripts create the same loader in every epoch, and Python forgets which warnings it showed whenever a library
    changes filters.

    Args:
        what: the event, as a clause.
        reasons: at least one reason.
    """
    text = printable(f"{what}: {sentence(reasons)}", lines=True)
    frame = frame_of_script()
    file, line, module = frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "")
    key = (text, file, line)
    if key in _SAID and not _wanted_again(category, text, module, line):
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(category(text, reasons), category, file, line, module, registry)
    _SAID.add(key)


def frame_of_script() -> FrameType:
    """Return the first frame outside gpupipe, torch and frameworks, or the outermost frame."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_SCRIPTS:
        frame = frame.f_back
    return frame


def _wanted_again(category: type[Warning], text: str, module: str, line: int) -> bool:
    """Return whether the script's filters ask for an error, or for every warning."""
    for action, message, kind, where, at in warnings.filters:
        fits = issubclass(category, kind) and at in (0, line)
        if fits and _matches(message, text) and _matches(where, module):
            # As in Python, the first filter that fits decides.
            return action in ("always", "all", "error")
    return False


def _matches(pattern: object, text: str) -> bool:
    """Match the pattern of a filter: ``None``, a compiled pattern, or a text that the interpreter itself set."""
    match = getattr(pattern, "match", None)
    return pattern is None or (pattern == text if match is None else match(text) is not None)


def place_in_script() -> str:
    """Return file and line of the script that runs, such as "train.py:18"."""
    frame = frame_of_script()
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
