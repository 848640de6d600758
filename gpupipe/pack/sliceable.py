"""The sliceable form of JPEG files, made by ``jpegtran``; :mod:`gpupipe.codecs.jpeg.tiles` describes it."""

from __future__ import annotations

import io
import shutil
import signal
import subprocess
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable
from ..codecs.jpeg.tile_index import Unsliceable, layout_of, tile_width, with_tile_index
from ..codecs.jpeg.tiles import cut
from ..codecs.pillow import guarded, open_image, quiet
from ..errors import MissingDependency
from .conversion import Kept

_INSTALL = (
    "install it with apt install libjpeg-turbo-progs (Debian, Ubuntu), dnf install libjpeg-turbo-utils (Fedora), "
    "conda install libjpeg-turbo, or brew install jpeg-turbo"
)
_TIMEOUT = 120
"""Seconds for one file. The largest image that Pillow opens takes about ten."""


def find_jpegtran() -> str:
    """The path of libjpeg-turbo's ``jpegtran``.

    Raises:
        MissingDependency: it is not on ``PATH``, or the one there is another library's, which may write progressive
            files (MozJPEG) or lack options.
    """
    path = shutil.which("jpegtran")
    if path is None:
        raise MissingDependency(f"--sliceable needs the program jpegtran of libjpeg-turbo: {_INSTALL}")
    try:
        shown = subprocess.run(
            [path, "-version"], capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
        version = (shown.stderr + shown.stdout).strip()
    except (OSError, subprocess.TimeoutExpired) as e:
        version = str(e)
    if "libjpeg-turbo" not in version:
        said = version.splitlines()[0] if version else "nothing"
        raise MissingDependency(
            f"--sliceable needs the program jpegtran of libjpeg-turbo, and {path} -version says {said!r}: put "
            f"libjpeg-turbo's first on PATH, or {_INSTALL}"
        )
    return path


@dataclass(frozen=True)
class Sliceable:
    """JPEG files with tiles that can be decoded one by one, each verified to have the pixels of its original.

    Raises:
        MissingDependency: there is no ``jpegtran`` of libjpeg-turbo.
    """

    program: str = field(default_factory=find_jpegtran)
    made = ""

    def __str__(self) -> str:
        return "sliceable"

    def __call__(self, data: bytes) -> bytes | Kept:
        if not data:
            return Kept("empty", "0 bytes")
        try:
            with quiet():
                return self._verified(data)
        except (Undecodable, Unsliceable) as e:
            return Kept(e.kind, e.reason)

    def _verified(self, data: bytes) -> bytes:
        before = _pixels(data)
        layout = layout_of(data)
        if layout.several_images:
            raise Unsliceable("MPO", "it contains several images and their offsets")
        if len(layout.sampling) not in (1, 3):
            kind = "CMYK" if len(layout.sampling) == 4 else "unusual"
            raise Unsliceable(kind, f"it has {len(layout.sampling)} components")
        # jpegtran does not copy what follows the end of the image.
        made = with_tile_index(self._transformed(data, tile_width(layout))) + data[layout.end :]
        try:
            after = _pixels(made)
        except Undecodable as e:
            raise Unsliceable("unproven", f"the new file cannot be decoded: {e.reason}") from None
        if not np.array_equal(before, after):
            raise Unsliceable("unproven", "the new file has other pixels, as decoders repair damage in different ways")
        if cut(lambda n, at: made[at : at + n], len(made), (0, 0, *before.shape[:2])) is None:
            raise Unsliceable("unproven", "the new file cannot be cut")
        return made

    def _transformed(self, data: bytes, tile: int) -> bytes:
        """The file with the same coefficients in one scan, and a restart marker every ``tile`` MCUs."""
        # With B, the interval counts MCUs; without it, rows of MCUs.
        command = [self.program, "-copy", "all", "-optimize", "-restart", f"{tile}B"]
        try:
            # In a session of its own, so that Ctrl-C does not look like a failure of this file.
            done = subprocess.run(
                command, input=data, capture_output=True, timeout=_TIMEOUT, start_new_session=True, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unsliceable("slow", f"jpegtran did not finish within {_TIMEOUT} s") from None
        except OSError as e:
            raise MissingDependency(f"{self.program} cannot be run any more ({e.strerror}): {_INSTALL}") from None
        if done.returncode < 0:
            raise Unsliceable("failed", f"jpegtran was ended by {signal.Signals(-done.returncode).name}")
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise Unsliceable("broken", f"jpegtran: {said[0] if said else f'exit status {done.returncode}'}")
        return done.stdout


def _pixels(data: bytes) -> npt.NDArray[np.uint8]:
    image = guarded(lambda: open_image(io.BytesIO(data)))
    if image.format not in ("JPEG", "MPO"):
        raise Unsliceable(image.format or "?", "only JPEGs can be cut")
    return guarded(lambda: np.asarray(image))
