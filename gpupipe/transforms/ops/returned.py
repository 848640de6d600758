"""Declared results of user functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from ...errors import ConfigError
from .op import Dtype, Kind

_Type = Literal["RGB", "L", "uint8", "float16", "float32"]
_FORM = re.compile(rf"({'|'.join(get_args(_Type))})\[(.*)\]")
_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Returned:
    """Type and shape of a function's results.

    ``"RGB[224, 224]"`` is a PIL image with that mode, height and width; ``"float32[9, 3, 12, 12]"`` is a tensor. ``H``
    and ``W`` stand for the size of the incoming image.

    >>> Returned.of("float32[3, H, W]").text(20, 30)
    'a tensor float32[3, 20, 30]'
    """

    type: _Type
    shape: tuple[int | str, ...]

    @classmethod
    def of(cls, text: str) -> Returned:
        """Parse ``text``. Raises :class:`ConfigError` if it is malformed."""
        found = _FORM.fullmatch(text.replace(" ", ""))
        parts = [part for part in found[2].split(",") if part] if found else []
        shape = tuple(int(part) if part.isdigit() else part for part in parts)
        if not found or not all(part in ("H", "W") or type(part) is int for part in shape):
            raise ConfigError(
                f"returns={text!r}: give type and shape, such as 'float32[3, 64, 64]' or 'uint8[1, H, W]' for a "
                "tensor (uint8, float16 or float32), or 'RGB[64, 64]' or 'L[H, W]' for a PIL image; H and W stand for "
                "the size of the incoming image"
            )
        made = cls(cast(_Type, found[1]), shape)
        if made.kind == "pil" and len(shape) != 2:
            raise ConfigError(f"returns={text!r}: the shape of a PIL image is [height, width]")
        if not made.channels and not all(type(part) is int for part in shape):
            raise ConfigError(f"returns={text!r}: H and W need an image [1, H, W] or [3, H, W]; give numbers")
        return made

    def __str__(self) -> str:
        return f"{self.type}[{', '.join(map(str, self.shape))}]"

    @property
    def kind(self) -> Kind:
        return "pil" if self.type in _MODES.values() else "tensor"

    @property
    def dtype(self) -> Dtype:
        return "uint8" if self.kind == "pil" else cast(Dtype, self.type)

    @property
    def channels(self) -> int:
        """Channels of an image, 1 or 3; 0 for any other tensor, which is batched as it is."""
        if self.kind == "pil":
            return 3 if self.type == "RGB" else 1
        return int(self.shape[0]) if len(self.shape) == 3 and self.shape[0] in _MODES else 0

    def at(self, height: Any, width: Any) -> tuple[Any, ...]:
        """Return the shape for an incoming image of this height and width."""
        return tuple({"H": height, "W": width}.get(str(n), n) for n in self.shape)

    def text(self, height: int, width: int) -> str:
        """Describe the result for an incoming image of this size."""
        shape = self.at(height, width)
        if self.kind == "pil":
            return f"a PIL image of mode {self.type} and {shape[0]}x{shape[1]} pixels"
        return f"a tensor {self.type}{list(shape)}"
