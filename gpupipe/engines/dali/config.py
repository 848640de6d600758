"""``Dali``, by which users choose the DALI engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...errors import ConfigError, MissingDependency, PipelineError
from ...reading.setup import Setup
from ..base import Engine, EngineConfig
from .codings import by_pillow
from .options import Options, installed


@dataclass(frozen=True)
class Dali(Options, EngineConfig):
    """Run NVIDIA DALI on the loader's device: on a GPU, or on a CPU with DALI's CPU backend.

    Some samples on a CPU bypass DALI: clips that are only cropped, resized, mirrored and normalized, images that
    ``cache=`` has kept, and images in memory (:class:`gpupipe.datasets.Arrays`). The thread that decodes or looks up
    such an image also transforms it, with torch, which takes less time and is closer to the reference.

    On a CPU, DALI decodes no more than the window of a first crop, and host threads run the ops image by image from the
    first one that is cheaper there. If the transforms contain user code for single images, host threads run it and the
    ops after it on every device. ``repr`` shows which ops run on the host.

    Args:
        hw_decoder_load: share of JPEGs given to the GPU's hardware decoder, 0 to 1. ``"auto"`` is 0.65, DALI's default.
        jpeg_fancy_upsampling: on a GPU, upsample chroma as libjpeg and Pillow do. ``"auto"`` is ``True``, for the same
            pixels; ``False`` is faster, and differs at edges of color.
        video: what decodes clips. ``"pyav"``: PyAV, in ``num_workers`` threads, the same pixels in every engine and on
            every device. ``"nvdec"``: the GPU's video decoder; PyAV decodes what it rejects. ``"auto"`` is ``"pyav"``
            until ``"nvdec"`` has been verified on a GPU.
        graph: ``"auto"``: as above. ``"whole"``: DALI runs on a CPU everything that it runs on a GPU, which is slower
            and further from the reference.

    >>> Dali(hw_decoder_load=0.5)
    Dali(hw_decoder_load=0.5, jpeg_fancy_upsampling='auto', video='auto', graph='auto')
    """

    name: ClassVar[str] = "dali"

    def check(self, setup: Setup) -> None:
        if not installed():
            raise MissingDependency(
                'DALI is not installed: pip install nvidia-dali-cuda120, or use engine="torch", which needs nothing'
            )
        if self.video == "nvdec":
            self._check_nvdec(setup)
        if setup.scaled and setup.cuda:
            raise ConfigError(
                "scaled=True: on a GPU DALI decodes with nvJPEG, which cannot decode at a smaller size; leave it "
                "out, or use "
                'engine="torch", which decodes on the CPU'
            )
        if setup.scaled and self.graph == "whole":
            raise ConfigError(
                'Dali: graph="whole" resizes images that were decoded in full, but scaled=True decodes them '
                "smaller; leave one of them out"
            )
        from .routes import route_of

        # Raises an error for what no route can do.
        route_of(setup, self)

    def _check_nvdec(self, setup: Setup) -> None:
        from .routes import end_of

        if not setup.dataset.medium.moves:
            raise ConfigError(f'Dali: video="nvdec" is for clips, but {setup.dataset!r} has images; leave it out')
        if not setup.cuda:
            raise ConfigError('Dali: video="nvdec" needs a GPU, and device is "cpu"; use video="pyav"')
        if setup.dataset.upright:
            raise ConfigError('Dali: video="nvdec" does not turn frames; use video="pyav", or upright=False')
        end = end_of(setup, self)
        if end.then_threads:
            raise PipelineError(f'Dali: video="nvdec" leaves frames on the GPU, and {end.why}; use video="pyav"')

    def build(self, setup: Setup) -> Engine:
        from .routes import route_of

        return route_of(setup, self).build()

    def remarks(self, setup: Setup) -> list[str]:
        from .routes import route_of

        return [sentence for sentence in (by_pillow(setup.dataset), route_of(setup, self).remark) if sentence]
