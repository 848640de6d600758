"""The values of the DALI engine's options, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import ConfigError

Video = Literal["auto", "pyav", "nvdec"]


@dataclass(frozen=True)
class Options:
    """See :class:`~.config.Dali`."""

    roi: Literal["auto"] | bool = "auto"
    hw_decoder_load: float = 0.65
    jpeg_fancy_upsampling: Literal["auto"] | bool = "auto"
    video: Video = "auto"
    graph: Literal["auto", "whole"] = "auto"

    def __post_init__(self) -> None:
        for name in ("roi", "jpeg_fancy_upsampling"):
            if getattr(self, name) not in ("auto", True, False):
                raise ConfigError(f'Dali: {name} must be "auto", True or False, not {getattr(self, name)!r}')
        if self.video not in get_args(Video):
            raise ConfigError(f"Dali: video must be one of {', '.join(get_args(Video))}, not {self.video!r}")
        if self.graph not in ("auto", "whole"):
            raise ConfigError(f'Dali: graph must be "auto" or "whole", not {self.graph!r}')
        if not 0 <= self.hw_decoder_load <= 1:
            raise ConfigError(f"Dali: hw_decoder_load must be between 0 and 1, not {self.hw_decoder_load!r}")
