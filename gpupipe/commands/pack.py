"""``gpupipe pack``: checks of the request."""

from __future__ import annotations

import re
from typing import Any

from ..errors import ConfigError
from ..pack.conversion import AsIs, Conversion
from ..pack.formats import FORMATS
from ..pack.images import QUALITY, Reencoded
from ..sources.names import is_url
from . import pack_shards
from .pack_request import Request

SHARD_BYTES = 512 << 20
_NAMES = " or ".join(", ".join(FORMATS).rsplit(", ", 1))
_SIZE = re.compile(r"([0-9.]+)\s*([kMGT]?)(i?)B?", re.I)


def run(**arguments: Any) -> int:
    """Return the exit code: 0 if all samples were written, 3 if some were left out, 130 after Ctrl-C.

    Args:
        arguments: those of :class:`~gpupipe.commands.pack_request.Request`.
    """
    request = Request(**arguments)
    if is_url(request.destination):
        raise ConfigError(
            f"{request.destination}: shards are written to a local folder; copy it afterwards with the store's own tool"
        )
    if request.format not in FORMATS:
        raise ConfigError(f"--format {request.format}: it must be {_NAMES}")
    format = FORMATS[request.format]
    return pack_shards.run(request, format, _form(request), _shard_bytes(request))


def _form(request: Request) -> Conversion:
    resize, decoded, quality = request.resize, request.decoded, request.quality
    if decoded and quality is not None:
        raise ConfigError("--quality is for JPEG, but --decoded writes pixels; remove one of them")
    if resize is None and not decoded:
        if quality is not None or request.exif:
            name = "--quality" if quality is not None else "--exif"
            raise ConfigError(
                f"{name} needs --resize: images that keep their size are copied as they are, because encoding "
                "them again would cost quality"
            )
        return AsIs()
    return Reencoded(resize, QUALITY if quality is None else quality, decoded, request.exif)


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
