"""Functions of user code among transforms that do nothing here, such as ``convert("RGB")`` of what is RGB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..reading.global_rng import drawn, lent
from .recording import StandIn

__all__ = ["does_nothing"]


class _Untouched(StandIn):
    """An image of known mode, which nobody may ask for anything else."""

    def __init__(self, mode: str):
        super().__init__(None)
        self._is = mode

    def __getattribute__(self, name: str) -> Any:
        if name in ("convert", "_is"):
            return object.__getattribute__(self, name)
        return self._is if name == "mode" else super().__getattribute__(name)

    def convert(self, mode: str | None = None) -> Any:  # type: ignore[override]
        return self if mode == self._is else None


def does_nothing(function: Callable[[Any], Any], channels: int) -> bool:
    """Whether a function gives back every image as it is: it asks for no more than its mode, and draws nothing."""
    image = _Untouched("RGB" if channels == 3 else "L")
    with lent():
        before = drawn()
        try:
            return function(image) is image and drawn() == before
        except Exception:
            return False  # it looked at the image
