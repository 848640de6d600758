"""What a user's function returns, if that is not what it got."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from ...errors import ConfigError
from .base import Dtype, Kind

__all__ = ["Returned"]

_Type = Literal["RGB", "L", "uint8", "float16", "float32"]
_FORM = re.compile(rf"({'|'.join(get_args(_Type))})\[(.*)\]")
_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Returned:
    """The type and the shape of a function's results: ``"RGB[224, 224]"`` is a PIL image of that mode, height and
    width, ``"float32[9, 3, 12, 12]"`` a tensor; ``H`` and ``W`` are those of the image that it got.

    >>> Returned.of("float32[3, H, W]").text(20, 30)
    'a tensor float32[3, 20, 30]'
    """

    type: _Type
    shape: tuple[int | str, ...]

    @classmethod
    def of(cls, text: str) -> Returned:
        """Raises :class:`ConfigError` if it is none of these."""
        found = _FORM.fullmatch(text.replace(" ", ""))
        parts = [part for part in found[2].split(",") if part] if found else []
        shape = tuple(int(part) if part.isdigit() else part for part in parts)
        if not found or not all(part in ("H", "W") or type(part) is int for part in shape):
            raise ConfigError(
                f"returns={text!r}: say the type and the shape, such as 'float32[3, 64, 64]' or 'uint8[1, H, W]' of "
                "a tensor (uint8, float16 or float32), or 'RGB[64, 64]' or 'L[H, W]' of a PIL image; H and W are those "
                "of the image that the function gets"
            )
        made = cls(cast(_Type, found[1]), shape)
        if made.kind == "pil" and len(shape) != 2:
            raise ConfigError(f"returns={text!r}: a PIL image has height and width")
        if not made.channels and not all(type(part) is int for part in shape):
            raise ConfigError(f"returns={text!r}: H and W are for images [1, H, W] or [3, H, W]; say numbers")
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
        """1 or 3 of an image; 0 of a tensor that is none, of which batches are made as it is."""
        if self.kind == "pil":
            return 3 if self.type == "RGB" else 1
        return int(self.shape[0]) if len(self.shape) == 3 and self.shape[0] in _MODES else 0

    def at(self, height: Any, width: Any) -> tuple[Any, ...]:
        """The shape for an image of this height and width."""
        return tuple({"H": height, "W": width}.get(str(n), n) for n in self.shape)

    def text(self, height: int, width: int) -> str:
        """What an error says of such a result."""
        shape = self.at(height, width)
        if self.kind == "pil":
            return f"a PIL image of mode {self.type} and {shape[0]}x{shape[1]} pixels"
        return f"a tensor {self.type}{list(shape)}"
