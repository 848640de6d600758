"""Reads the size, coding and orientation of an image file without decoding it, and checks that it seems complete.

This file is also the program of the worker processes (see :mod:`gpupipe.datasets.index.probe_pool`), so it imports only
Pillow, the standard library and modules of this folder.
"""

from __future__ import annotations

import json
import pickle
import signal
import sys
from collections.abc import Callable
from typing import IO, Any, BinaryIO, NamedTuple

from PIL import Image, ImageFile

from .coding import Coding
from .files import Place, ReadAt, Undecodable, use_bytes, use_place
from .limits import Limits
from .pillow import guarded, header, open_image, quiet

__all__ = ["KINDS", "Probe", "answer", "probe", "probe_bytes", "quiet"]

KINDS = (
    "ok",
    "missing",
    "empty",
    "unreadable",
    "undecodable",
    "bomb",
    "zero-sized",
    "truncated",
    "no-video",
    "no-frames",
    "temporary",
)
"""Meanings of status numbers. They are written to disk: append only."""
OK, MISSING, EMPTY, UNREADABLE, UNDECODABLE, BOMB, ZERO_SIZED, TRUNCATED, NO_VIDEO, NO_FRAMES = range(10)
TEMPORARY = 10


class Probe(NamedTuple):
    """Properties of one image. ``height`` and ``width`` are as stored, before any orientation."""

    status: int
    height: int = 0
    width: int = 0
    coding: Coding = Coding()
    orientation: int = 1
    reason: str = ""


def probe(place: Place, limits: Limits = Limits()) -> Probe:
    """Read the header and the end of one image.

    Never raises for the content of a file. Call it inside :func:`~gpupipe.codecs.pillow.quiet`.
    """

    def look(file: IO[bytes], read: ReadAt, size: int) -> Probe:
        return guarded(lambda: _identify(file, read, size, limits), reading=True)

    try:
        return use_place(place._replace(max_bytes=limits.max_bytes), look)
    except Undecodable as e:
        return Probe(KINDS.index(e.kind), reason=e.reason)


def probe_bytes(data: bytes, limits: Limits = Limits()) -> Probe:
    """Probe an image that was read already, like :func:`probe`."""

    def look(file: IO[bytes], read: ReadAt, size: int) -> Probe:
        return guarded(lambda: _identify(file, read, size, limits))

    try:
        return use_bytes(data, look)
    except Undecodable as e:
        return Probe(KINDS.index(e.kind), reason=e.reason)


def _identify(file: IO[bytes], read: ReadAt, size: int, limits: Limits) -> Probe:
    if size == 0:
        raise Undecodable("empty", "0 bytes")
    with open_image(file, limits.max_pixels) as image:
        height, width, orientation, coding = header(image, read, size)
    return Probe(OK, height, width, coding, orientation)


# ------------------------------------------------------------------ the worker: a list of places, a list of results


def send(stream: BinaryIO, message: list[Any]) -> None:
    pickle.dump(message, stream, pickle.HIGHEST_PROTOCOL)
    stream.flush()


def answer(requests: BinaryIO, answers: BinaryIO, of: Callable[[Place], Any]) -> None:
    """Answer every request with ``of`` each place, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes stdin
    while True:
        try:
            places = pickle.load(requests)
        except EOFError:
            return
        send(answers, [of(place) for place in places])


def settings(limits: Limits) -> str:
    """Return the settings of this process that a worker needs, for its command line."""
    return json.dumps([Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, limits])


def serve(given: str) -> None:
    """Answer requests from stdin on stdout until stdin is closed. ``given`` are the :func:`settings`."""
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, values = json.loads(given)
    limits = Limits(*values)
    with quiet():
        answer(sys.stdin.buffer, sys.stdout.buffer, lambda place: probe(place, limits))
