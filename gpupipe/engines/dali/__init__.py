"""The DALI engine. The only folder that imports ``nvidia.dali``; even importing this package does not."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from ...errors import ConfigError, MissingDependency, PipelineError
from ...reading.setup import Setup
from ...reading.windows import window_of
from ...transforms.ops import Crop
from ..base import Engine, EngineConfig
from ..memory_uses import MemoryUse, Place, Workload
from .codings import by_pillow, is_safe, share_by_pillow
from .pieces import AHEAD, images_of_a_piece
from .presence import installed

if TYPE_CHECKING:
    from ..host.clip_frames import ClipBatches
    from ..host.kept_images import KeptImages
    from .graph_end import GraphEnd

__all__ = ["Dali", "installed"]

Video = Literal["auto", "pyav", "nvdec"]

log = logging.getLogger("gpupipe")


@dataclass(frozen=True)
class Dali(EngineConfig):
    """NVIDIA DALI: on a GPU if the loader's device is one, else its CPU backend.

    Clips on the CPU that are only cropped, resized, mirrored and normalised never reach DALI: torch does that to each
    frame in the thread that decoded it, in less time and closer to the reference. Nor do images that are kept decoded
    (``cache=``): the thread that read one does the rest.

    On a CPU DALI decodes, and threads of the host do the rest image by image, as soon as that is cheaper; so they do on
    every device if user code for single images is among the transforms. ``repr`` says what is done on the host.

    Args:
        roi: decode only the window that a first crop takes. ``"auto"``: on the CPU always (it is bit-exact); on a GPU
            if nvJPEG decodes such windows itself with this upsampling (with the fancy one from version 13.2 on), and a
            self-test in a process of its own passes, because some versions of the decoder crash on some GPUs.
        hw_decoder_load: share of JPEGs given to the GPU's hardware decoder, 0 to 1.
        jpeg_fancy_upsampling: on a GPU, upsample chroma as libjpeg and Pillow do. ``"auto"`` is ``True``, for the same
            pixels; ``False`` is faster, above all with an nvJPEG before 13.2, which then decodes windows, and differs
            at edges of colour.
        video: what decodes clips. ``"pyav"``: PyAV, in ``num_workers`` threads, the same pixels in every engine and on
            every device. ``"nvdec"``: the GPU's video decoder; what it refuses, PyAV decodes. ``"auto"`` is ``"pyav"``,
            until ``"nvdec"`` has been verified on a GPU.
        graph: ``"auto"``: as above. ``"whole"``: on a CPU too, DALI does all that it does on a GPU; slower there, and
            further from the reference.

    >>> Dali(roi=False, hw_decoder_load=0.5)
    Dali(roi=False, hw_decoder_load=0.5, jpeg_fancy_upsampling='auto', video='auto', graph='auto')
    """

    name: ClassVar[str] = "dali"

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

    def check(self, setup: Setup) -> None:
        if not installed():
            raise MissingDependency(
                'DALI is not installed: pip install nvidia-dali-cuda120, or use engine="torch", which needs nothing'
            )
        if self.video == "nvdec":
            self._check_nvdec(setup)
        if setup.scaled and setup.cuda:
            raise ConfigError(
                "scaled=True: on a GPU DALI decodes with nvJPEG, which decodes nothing smaller; leave it out, or use "
                'engine="torch", which decodes on the CPU'
            )
        if setup.scaled and self.graph == "whole":
            raise ConfigError(
                'Dali: graph="whole" has DALI resize whole images, and scaled=True images that were decoded smaller; '
                "leave one of them out"
            )
        from ...reading.choose import feed_of
        from .graph import ACCEPTS

        feed_of(setup, ACCEPTS, is_safe)
        end = self._end(setup)
        if end.on_host and self.video == "nvdec":
            raise PipelineError(f'Dali: video="nvdec" leaves frames on the GPU, and {end.why}; use video="pyav"')

    def build(self, setup: Setup) -> Engine:
        without = self._without_graph(setup)
        if without is not None:
            return without
        from .engine import DaliEngine
        from .graph import DecoderOptions

        fancy = self.jpeg_fancy_upsampling is not False
        options = DecoderOptions(
            roi=self._roi(setup, fancy),
            hw_decoder_load=self.hw_decoder_load,
            jpeg_fancy_upsampling=fancy,
        )
        return DaliEngine(setup, options, self._end(setup), nvdec=self.video == "nvdec")

    def _without_graph(self, setup: Setup) -> Engine | None:
        """What does all of the work, if there is nothing left for DALI to do."""
        from ..host.engine import NoGraph

        clips, images = _clip_batches(setup), self._kept_images(setup)
        if clips is not None:
            return NoGraph.of_clips(setup, clips)
        return None if images is None else NoGraph.of_images(setup, images, self._end(setup))

    def _kept_images(self, setup: Setup) -> KeptImages | None:
        """What makes batches of images that are kept decoded, if a graph would only pass them on."""
        from ..host.kept_images import KeptImages  # which loads torch

        images = KeptImages.of(setup)
        if images is None:
            return None
        end, window = self._end(setup), window_of(setup.pipeline.skeleton)
        return images if end.on_host and end.shared == int(window is not None) else None

    def _end(self, setup: Setup) -> GraphEnd:
        from .graph_end import graph_end

        whole = setup.cuda or self.graph == "whole"
        return graph_end(setup.pipeline.skeleton, whole=whole, common=setup.dataset.common_size)

    def _check_nvdec(self, setup: Setup) -> None:
        if not setup.dataset.has_frames:
            raise ConfigError(f'Dali: video="nvdec" is for clips, and {setup.dataset!r} has images; leave it out')
        if not setup.cuda:
            raise ConfigError('Dali: video="nvdec" needs a GPU, and device is "cpu"; use video="pyav"')
        if setup.dataset.upright:
            raise ConfigError('Dali: video="nvdec" does not turn frames; use video="pyav", or upright=False')

    def remarks(self, setup: Setup) -> list[str]:
        end = self._end(setup)
        host = end.on_host and setup.cuda
        slower = f"DALI decodes on the CPU, and only batches are finished on the GPU, because {end.why}" if host else ""
        return [sentence for sentence in (by_pillow(setup.dataset), slower) if sentence]

    def memory_uses(self, workload: Workload) -> list[MemoryUse]:
        """DALI's pools are larger: a freed buffer stays in them, and is only used again for what fits into it."""
        s, batch = workload.setup, workload.batch_size
        if _clip_batches(s) is not None:
            return workload.output(s.prefetch_factor + 2, "(prefetch_factor + 1 in flight + the one handed out)")
        if self._kept_images(s) is not None:
            return workload.output(max(s.prefetch_factor, 2) + 1, "(prefetch_factor in flight + the one handed out)")
        on_host = self._end(s).on_host
        if on_host:  # each is made when it was decoded
            uses = workload.output(min(s.prefetch_factor, 2) + 1, "(what the host makes + the one handed out)")
        else:
            uses = workload.output(s.prefetch_factor + 1, "(prefetch_factor + the one handed out) in flight")
        staging: Place = "pinned" if s.cuda else "host"
        ahead = (2 * s.prefetch_factor + 1) * batch
        if s.dataset.has_frames:  # decoded ahead of the graph
            return uses + workload.decoded(staging, ahead)
        if (
            s.dataset.kind == "files" and not s.dataset.whole_files
        ):  # read ahead of the graph, which reads them in place
            uses += workload.encoded(staging, ahead)
        if share := share_by_pillow(s.dataset):
            handed = workload.decoded(staging, math.ceil(share * ahead))
            uses += [replace(use, what="images that Pillow decodes") for use in handed]
        pixels = s.dataset.common_size() if s.cuda and s.dataset.kind == "pixels" else None
        if pixels is not None:  # from pinned memory the GPU reads them
            formula = f"{batch:,} × 3 × {pixels[0]} × {pixels[1]} × 1 byte × {s.prefetch_factor} in flight"
            nbytes = batch * 3 * pixels[0] * pixels[1] * s.prefetch_factor
            uses.append(MemoryUse("pinned pixels", "pinned", nbytes, formula))
        first = next(iter(s.pipeline.skeleton), None)
        windows = isinstance(first, Crop) and not first.padded and self.roi is not False
        if on_host:  # with DALI, and with the host
            pieces = (AHEAD + 1) * images_of_a_piece(3 * workload.pixels, s.threads)
            return uses + workload.decoded("host", min(pieces, (s.prefetch_factor + 1) * batch), at_once=not windows)
        return uses + workload.decoded("device" if s.cuda else "host", batch, at_once=not windows)

    def _roi(self, setup: Setup, fancy: bool) -> bool:
        if not setup.cuda or self._end(setup).on_host:  # decoded on the CPU
            return self.roi is not False
        from .decoder import FANCY_WINDOWS, fancy_windows, nvjpeg_version, windows_work

        on_gpu = not fancy or fancy_windows()
        if self.roi is True and not on_gpu:
            found, wanted = nvjpeg_version(), ".".join(map(str, FANCY_WINDOWS))
            log.warning(
                "roi=True with fancy upsampling needs nvJPEG %s, and here is %s: windows of most JPEGs are decoded on "
                'the CPU; leave roi="auto", use jpeg_fancy_upsampling=False, or a newer nvJPEG (see gpupipe doctor)',
                wanted, ".".join(map(str, found)) if found else "none",
            )  # fmt: skip
        if self.roi != "auto":
            return self.roi
        return on_gpu and _cuts(setup) and windows_work(setup.device, fancy=fancy)


def _cuts(setup: Setup) -> bool:
    """Whether DALI decodes files of which a first crop takes a window."""
    from ...reading.choose import feed_of
    from .graph import ACCEPTS

    feed = feed_of(setup, ACCEPTS, is_safe)
    return feed.form in ("paths", "encoded") and window_of(setup.pipeline.skeleton) is not None


def _clip_batches(setup: Setup) -> ClipBatches | None:
    """What makes batches of clips where they are decoded, if nothing else is to be done."""
    from ..host.clip_frames import ClipBatches  # which loads torch

    return ClipBatches.of(setup)
