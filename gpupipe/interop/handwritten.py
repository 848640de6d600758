"""Transforms that scripts write by hand, such as MoCo's blur with Pillow, as transforms of gpupipe.

If everything that a function can see is known (:mod:`.closed`), :mod:`.tracing` runs it along every path. What it did
is expressed as transforms of gpupipe (:mod:`gpupipe.transforms.handwritten`). Then both get the same images and the
same draws. The translation is used only if every bit agrees; otherwise the function stays user code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from ..errors import GpupipeError
from ..global_rng import drawn, lent, seed_all
from ..kernels.apply import apply_sample
from ..kernels.picture import chw, hwc, pil
from ..transforms import Grayscale, Transform
from ..transforms.handwritten import HandWritten, Path, Step
from ..transforms.lambda_ import name_of
from ..transforms.transform import Images
from .closed import NotClosed, Outside, outside
from .draws import NotUnderstood, TracedRun, replayed
from .isolation import Isolated
from .marks import marked_function
from .recording import Mark
from .same_names import UnsupportedError
from .tracing import HeldTransform, Trace, TracedImage, TracedTensor, traces

Array = npt.NDArray[Any]

_WITHIN = (0.5, 0.001, 0.999, 0.25, 0.75)
"""Positions within the range of a number that decides about a path, at which the proof tries it."""


@dataclass(frozen=True)
class PipelinePosition:
    """Position of user code in a pipeline."""

    is_pil: bool
    """Whether the code gets PIL images; otherwise it gets tensors of float32."""
    channels: int
    """Channels of the image, 1 or 3."""
    translate: Callable[[Any], list[Transform]]
    """Translates a transform that the code holds. Raises the errors of translation."""

    def images(self, rows: int, height: int, width: int) -> Images:
        sizes = np.tile(np.array([[height, width]], np.int64), (rows, 1))
        if self.is_pil:
            return Images(sizes, channels=self.channels)
        return Images(sizes, "tensor", "float32", self.channels)

    @property
    def mode(self) -> str:
        return "tensor" if not self.is_pil else "RGB" if self.channels == 3 else "L"


def recognized(function: Any, place: PipelinePosition) -> list[Transform] | None:
    """Return transforms equivalent to a function of user code; ``None`` if it is not understood or the proof fails."""
    try:
        with lent(), Isolated(function) as isolated:
            (function,) = isolated.made
            seed_all(0)
            # Whatever the function draws in another way than by the replaced functions changes the generators.
            before = drawn()
            found = _recognized(function, place, outside(function))
            isolated.check()
            return found if drawn() == before else None
    except (NotClosed, NotUnderstood, UnsupportedError, GpupipeError):
        return None
    except Exception:  # raised by a function that cannot work with a stand-in
        return None


def _recognized(function: Any, place: PipelinePosition, reached: Outside) -> list[Transform] | None:
    def stand_in(run: TracedRun) -> Any:
        return TracedImage(run, place.mode) if place.is_pil else TracedTensor.of(run)

    paths = traces(_with_marks(function, Mark), stand_in, reached.namespaces)
    modes = {path.mode for path in paths}
    becomes_gray = modes == {"L"} and place.mode == "RGB"
    # All samples of a batch have the same kind, so all paths must return it.
    if modes != {place.mode} and not becomes_gray:
        return None
    draws = max(len(path.ranges) for path in paths)
    made = HandWritten(name_of(function), tuple(_written(paths, draws, place)))
    # A traced gray image keeps three equal channels until the end.
    finish: list[Transform] = [Grayscale(1)] if becomes_gray else []
    proof = _Proof(function, made, finish, place, reached, draws)
    if not all(proof.holds(n, len(path.ranges)) for n, path in enumerate(paths)):
        return None
    # A function that does nothing on any path needs no transform.
    return [made, *finish] if any(path.steps for path in made.paths) else finish


def _with_marks(function: Any, mark: Callable[[Any], Any]) -> Any:
    """Return the function with marks in place of the transforms that it holds; unchanged if it holds none."""
    marked, held = marked_function(function, mark)
    return marked if held else function


def _written(paths: Sequence[Trace], draws: int, place: PipelinePosition) -> Iterator[Path]:
    """Express every path as transforms of gpupipe. Transforms that the function holds draw for themselves: they get the
    numbers after the ``draws`` of the function."""
    for path in paths:
        # A draw whose whole range leads along this path decides nothing.
        where = tuple((k, low, high) for k, (low, high) in enumerate(path.ranges) if (low, high) != (0.0, 1.0))
        # An image takes only one path, so all paths may use the same further numbers.
        steps, free = [], draws
        for step, numbers in path.steps:
            if isinstance(step, HeldTransform):
                for transform in place.translate(step.transform):
                    _check_form(transform, place)
                    steps.append(Step(transform, tuple(range(free, free + transform.draws))))
                    free += transform.draws
            else:
                steps.append(Step(step, numbers))
        yield Path(where, tuple(steps))


def _check_form(transform: Transform, place: PipelinePosition) -> None:
    images = place.images(2, 40, 60)
    after = transform.resolve(np.full((2, transform.draws), 0.5), images)[1]
    same = (after.kind, after.dtype, after.channels) == (images.kind, images.dtype, images.channels)
    if transform.on_batch or transform.temporal or after.views or not same or (after.sizes != images.sizes).any():
        raise UnsupportedError(
            f"it holds {transform!r}, which changes the kind, size or data type of the image", "own-function"
        )


# ---- the proof


class _Proof:
    """Runs a function with the draws of a plan in place of its own, beside the transforms that were derived from it."""

    def __init__(
        self,
        function: Any,
        made: HandWritten,
        finish: Sequence[Transform],
        place: PipelinePosition,
        reached: Outside,
        draws: int,
    ):
        self.made, self.finish, self.place, self.reached, self.draws = made, finish, place, reached, draws
        self.function = _with_marks(function, self._acting)
        self._left: list[float] = []
        """Numbers left for the transforms that the function holds."""

    def holds(self, n: int, own: int) -> bool:
        """Tell whether both return the same images for numbers that lead along path ``n``, on which the function draws
        ``own`` numbers."""
        u = np.random.default_rng(n).random((len(_WITHIN), max(self.made.draws, self.draws)))
        # Numbers that decide lie at set positions in their ranges; all others are random.
        for k, low, high in self.made.paths[n].where:
            u[:, k] = low + (high - low) * np.array(_WITHIN)
        images = list(_images(self.place))
        # Every image with the first row of numbers, and every further row with one of the images.
        tried = [(image, u[0]) for image in images] + [(images[i % len(images)], row) for i, row in enumerate(u[1:])]
        return all(self._is_same(image, row, own) for image, row in tried)

    def _is_same(self, image: Array, u: npt.NDArray[np.float64], own: int) -> bool:
        images = self.place.images(1, *image.shape[:2])
        ops, images = self.made.resolve(u[None], images)
        for transform in self.finish:
            ops += transform.resolve(np.zeros((1, transform.draws)), images)[0]
        ours = apply_sample(image, ops, 0)
        self._left = u[self.draws :].tolist()
        given = pil(image) if self.place.is_pil else chw(image).clone(memory_format=torch.contiguous_format)
        with replayed(u[:own].tolist(), self.reached.namespaces):
            theirs = self.function(given)
        pixels = np.asarray(theirs) if isinstance(theirs, Image.Image) else hwc(theirs)
        return _bits(pixels) == _bits(np.asarray(ours))

    def _acting(self, transform: Any) -> Callable[[Image.Image], Image.Image]:
        """Return a replacement for a transform that the function holds."""

        def act(image: Image.Image) -> Image.Image:
            for part in self.place.translate(transform):
                u, self._left = np.array([self._left[: part.draws]]), self._left[part.draws :]
                images = self.place.images(1, image.height, image.width)
                image = pil(np.asarray(apply_sample(image, part.resolve(u, images)[0], 0)))
            return image

        return act


def _bits(pixels: Array) -> tuple[Any, ...]:
    """Return everything that tells images apart. A gray image equals itself with a third axis."""
    return pixels.dtype, pixels.reshape(*pixels.shape[:2], -1).shape, np.ascontiguousarray(pixels).tobytes()


def _images(place: PipelinePosition) -> Iterator[Array]:
    """Iterate over images [H, W, C]: noise, a gradient, low contrast, many saturated pixels, one color, one pixel."""
    rng = np.random.default_rng(0)
    shape = 24, 33, place.channels
    noise = rng.integers(0, 256, shape, np.uint8)
    soft = np.linspace(0, 255, 24 * 33 * place.channels).astype(np.uint8).reshape(shape)
    bright = np.clip(noise.astype(np.int32) * 2 - 60, 0, 255).astype(np.uint8)
    found = [noise, soft, 100 + noise // 16, bright, np.full(shape, 77, np.uint8), noise[:1, :1]]
    if place.is_pil:
        yield from found
        return
    for pixels in found[:2]:
        yield pixels.astype(np.float32) / np.float32(255)
    yield rng.standard_normal(shape).astype(np.float32)
    yield (1000 * rng.standard_normal(shape)).astype(np.float32)
