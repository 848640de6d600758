"""Whether DALI is installed, and the values of its engine's options, checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

from ...errors import ConfigError

Video = Literal["auto", "pyav", "nvdec"]


def installed() -> bool:
    """Return whether DALI can be imported, without importing it."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True)
class Options:
    """See :class:`~.config.Dali`."""

    hw_decoder_load: Literal["auto"] | float = "auto"
    jpeg_fancy_upsampling: Literal["auto"] | bool = "auto"
    video: Video = "auto"
    graph: Literal["auto", "whole"] = "auto"

    def __post_init__(self) -> None:
        fancy = self.jpeg_fancy_upsampling
        if not (isinstance(fancy, bool) or _is_one_of(fancy, ("auto",))):
            raise ConfigError(f'Dali: jpeg_fancy_upsampling must be "auto", True or False, not {fancy!r}')
        if not _is_one_of(self.video, get_args(Video)):
            raise ConfigError(f"Dali: video must be one of {', '.join(get_args(Video))}, not {self.video!r}")
        if not _is_one_of(self.graph, ("auto", "whole")):
            raise ConfigError(f'Dali: graph must be "auto" or "whole", not {self.graph!r}')
        load: Any = self.hw_decoder_load
        is_share = isinstance(load, Real) and not isinstance(load, bool) and 0 <= float(load) <= 1
        if not (is_share or _is_one_of(load, ("auto",))):
            raise ConfigError(f'Dali: hw_decoder_load must be "auto" or a number from 0 to 1, not {load!r}')


def _is_one_of(value: Any, words: Sequence[str]) -> bool:
    return isinstance(value, str) and value in words
