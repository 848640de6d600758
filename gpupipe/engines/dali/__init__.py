"""The DALI engine. The only folder that imports ``nvidia.dali``; even importing this package does not."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from ...errors import ConfigError, MissingDependency
from ..base import Engine, EngineConfig, Setup
from ..needs import Load, Need
from .needs import needs

__all__ = ["Dali", "installed"]

Video = Literal["auto", "pyav", "nvdec"]


def installed() -> bool:
    """Whether DALI can be imported."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True)
class Dali(EngineConfig):
    """NVIDIA DALI: on a GPU where the loader's device is one, else its CPU backend.

    Args:
        roi: decode only the window that a first crop takes. ``"auto"``: on the CPU always (it is bit-exact); on a GPU
        if a self-test
            in a process of its own passes, because some versions of the decoder crash on some GPUs.
        hw_decoder_load: share of JPEGs given to the GPU's hardware decoder, 0 to 1.
        jpeg_fancy_upsampling: on a GPU, upsample chroma as libjpeg and PIL do.
        video: what decodes clips. ``"pyav"``: PyAV, in ``num_workers`` threads, the same pixels in every engine and on
            every device. ``"nvdec"``: the GPU's video decoder; what it refuses, PyAV decodes. ``"auto"`` is ``"pyav"``,
            until ``"nvdec"`` has been verified on a GPU.
    """

    name: ClassVar[str] = "dali"

    roi: Literal["auto"] | bool = "auto"
    hw_decoder_load: float = 0.65
    jpeg_fancy_upsampling: bool = True
    video: Video = "auto"

    def __post_init__(self) -> None:
        if self.roi not in ("auto", True, False):
            raise ConfigError(f'Dali: roi must be "auto", True or False, not {self.roi!r}')
        if self.video not in get_args(Video):
            raise ConfigError(f"Dali: video must be one of {', '.join(get_args(Video))}, not {self.video!r}")
        if not 0 <= self.hw_decoder_load <= 1:
            raise ConfigError(f"Dali: hw_decoder_load must be between 0 and 1, not {self.hw_decoder_load!r}")

    def check(self, setup: Setup) -> None:
        if not installed():
            raise MissingDependency(
                'DALI is not installed: pip install nvidia-dali-cuda120, or use engine="torch", which needs nothing'
            )
        if self.video == "nvdec":
            self._check_nvdec(setup)
        from .graph import DecoderOptions, build_graph

        # Drawing the graph finds every op that DALI lacks; it starts nothing.
        build_graph(
            setup.pipeline,
            media="array" if setup.dataset.media == "clip" else setup.dataset.media,
            decoder=DecoderOptions(exif=setup.dataset.exif),
            batch_size=setup.batch_size,
            num_threads=1,
            prefetch=setup.prefetch_factor,
            device_id=None,
            common=setup.dataset.common_size,
        )

    def build(self, setup: Setup) -> Engine:
        from .engine import DaliEngine
        from .graph import DecoderOptions

        return DaliEngine(
            setup,
            DecoderOptions(
                exif=setup.dataset.exif,
                roi=self._roi(setup),
                hw_decoder_load=self.hw_decoder_load,
                jpeg_fancy_upsampling=self.jpeg_fancy_upsampling,
            ),
            nvdec=self.video == "nvdec",
        )

    def _check_nvdec(self, setup: Setup) -> None:
        if setup.dataset.media != "clip":
            raise ConfigError(f'Dali: video="nvdec" is for clips, and {setup.dataset!r} has images; leave it out')
        if not setup.cuda:
            raise ConfigError('Dali: video="nvdec" needs a GPU, and device is "cpu"; use video="pyav"')
        if setup.dataset.upright:
            raise ConfigError('Dali: video="nvdec" does not turn frames; use video="pyav", or upright=False')

    def needs(self, load: Load) -> list[Need]:
        return needs(load, self.roi)

    def _roi(self, setup: Setup) -> bool:
        if self.roi != "auto":
            return self.roi
        if not setup.cuda:
            return True
        from .roi import roi_decoding_works

        return roi_decoding_works(setup.device)
