"""Makes the tensors of recipes on a CPU: DALI decodes, and threads of the host do the rest, image by image."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ..codecs.decode import smaller_origin
from ..engines.dali.pieces import AHEAD, rows_of_pieces
from ..engines.host.image_batch import ImageBatch
from ..imports import uncollected
from ..reading.buffers import BatchPool
from ..reading.kept import DecodedCache, Name
from ..reading.smaller import can_be_reduced, factors_of, resized
from ..reading.torch_threads import torch_threads
from ..reading.windows import window_of
from ..signal_handlers import deferred
from ..stages import TRANSFORMS
from ..transforms.ops import Op, Resize
from .making import I32, U8, FailedImages, Maker, Making, media_of, windows_of
from .recipe import Job, Recipe

if TYPE_CHECKING:
    from ..engines.dali.runner import Piece, Runner

_MOST = 256
"""Images that DALI decodes at a time, at most."""


@dataclass(frozen=True, eq=False)
class _Smaller:
    """An image that is decoded at a reduced size.

    Attributes:
        window: top, left, height and width of its window at full size.
        resize: follows at once.
        row: of the image in the resize.
    """

    factor: int
    window: tuple[int, int, int, int]
    resize: Resize
    row: int

    def of(self, picture: Image.Image, size: tuple[int, int]) -> U8:
        """Return the window after the resize, given the reduced image. ``size``: (height, width) at full size."""
        top, left = smaller_origin(size, self.factor, 1)
        y, x, height, width = (number / self.factor for number in self.window)
        box = top + y, left + x, top + y + height, left + x + width
        return np.asarray(resized(picture, box, self.resize, self.row))


@dataclass(eq=False)
class _Plan:
    """What becomes of the decoded images of a recipe.

    Attributes:
        windows: i32[N, 4], top, left, height and width of what has to be decoded.
        targets: for each image, the (job, row) that need it.
        ops: the ops of each job, after decoding.
        smaller: images that are decoded at a reduced size, by number.
    """

    windows: I32
    targets: list[list[tuple[int, int]]]
    ops: list[tuple[Op, ...]]
    smaller: dict[int, _Smaller]

    @classmethod
    def of(cls, recipe: Recipe, *, windows: bool, scaled: bool) -> _Plan:
        """Plan a recipe.

        Args:
            windows: whether to decode windows of images.
            scaled: whether images may be decoded at a reduced size.
        """
        targets: list[list[tuple[int, int]]] = [[] for _ in recipe.encoded]
        for number, job in enumerate(recipe.jobs):
            for row, source in enumerate(job.sources.tolist()):
                targets[source].append((number, row))
        alone = np.array([len(some) == 1 for some in targets], np.bool_)
        plan = cls(np.concatenate([np.zeros_like(recipe.sizes), recipe.sizes], axis=1), targets, [], {})
        for job in recipe.jobs:
            mine = alone[job.sources]
            small = plan._reduced(job, mine, recipe.sizes) if scaled else np.zeros(len(mine), np.bool_)
            plan.ops.append(plan._windowed(job, mine & ~small if windows else np.zeros_like(mine), small, recipe.sizes))
        return plan

    def _reduced(self, job: Job, mine: npt.NDArray[np.bool_], sizes: I32) -> npt.NDArray[np.bool_]:
        """Choose images to decode at a reduced size, and return bool[B]."""
        resize = job.ops[int(window_of(job.ops) is not None) :][:1]
        if not resize or not can_be_reduced(resize[0]):
            return np.zeros(len(mine), np.bool_)
        (op,), windows = resize, windows_of(job, sizes)
        assert isinstance(op, Resize)
        factors = factors_of(windows[:, 2:], np.stack([op.height, op.width], axis=1))
        factors[~mine] = 1
        for row in np.flatnonzero(factors > 1).tolist():
            top, left, height, width = windows[row].tolist()
            self.smaller[int(job.sources[row])] = _Smaller(int(factors[row]), (top, left, height, width), op, row)
        return factors > 1

    def _windowed(
        self, job: Job, mine: npt.NDArray[np.bool_], small: npt.NDArray[np.bool_], sizes: I32
    ) -> tuple[Op, ...]:
        """Set the windows of images that nothing else needs, and return the ops that are left. Of images that were
        reduced the resize is done; it changes nothing when it is done once more."""
        crop = window_of(job.ops)
        if crop is None:
            return job.ops
        self.windows[job.sources[mine]] = windows_of(job, sizes)[mine]
        left: dict[str, Any] = {
            name: np.where(mine | small, 0, getattr(crop, name)).astype(np.int32) for name in ("top", "left")
        }
        if small.any():
            resize = job.ops[1]
            for name in ("height", "width"):
                left[name] = np.where(small, getattr(resize, name), getattr(crop, name)).astype(np.int32)
        return replace(crop, **left), *job.ops[1:]


class OnCpu(Maker):
    """See :class:`Maker`.

    Args:
        threads: number of threads that decode, and as many that do the rest.
        memory: of batches.
        cache: keeps decoded images of files.
        scaled: whether images may be decoded at a reduced size.
    """

    def __init__(self, threads: int, memory: BatchPool, cache: DecodedCache | None = None, *, scaled: bool = False):
        self.threads, self.cache, self.scaled, self._memory = threads, cache, scaled, memory
        self._pool: Any = None

    @cached_property
    def runner(self) -> Runner:
        with deferred(), uncollected():  # an import of DALI that a signal interrupted cannot be repeated
            from ..engines.dali.decoding import View, decoding_runner
            from ..engines.dali.graph import DecoderOptions

        cpu = torch.device("cpu")
        return decoding_runner([View()], cpu, DecoderOptions(), most=_MOST, threads=self.threads, ahead=AHEAD)

    def start(self, recipe: Recipe) -> Making:
        if self._pool is None:
            self._pool = torch_threads(self.threads, "gpupipe-images")
        # Later epochs take other windows of an image that is kept.
        plan = _Plan.of(recipe, windows=self.cache is None, scaled=self.scaled)
        jobs = zip(recipe.jobs, plan.ops, strict=True)
        batches = [ImageBatch(len(job.sources), ops, self._memory) for job, ops in jobs]
        making = _InThreads(recipe, plan, batches, self)
        making.begin(self._pool)
        return making

    def rest(self) -> None:
        if "runner" in vars(self):
            self.runner.rest()

    def close(self) -> None:
        runner = vars(self).pop("runner", None)
        if runner is not None:
            runner.reset()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        self._memory.close()


class _InThreads(Making):
    """A recipe that threads make, image by image."""

    def __init__(self, recipe: Recipe, plan: _Plan, batches: Sequence[ImageBatch], maker: OnCpu):
        self._recipe, self._plan, self._batches, self._maker = recipe, plan, batches, maker
        self._cache = maker.cache
        self._images = self._decoded()
        self._taking = threading.Lock()
        self._problems: dict[int, Exception] = {}
        self._working: list[Any] = []
        self._pieces: list[Piece] = []
        if self._cache is None:
            self._pieces = self._pieces_of([n for n in range(len(recipe.encoded)) if n not in plan.smaller])

    def begin(self, pool: Any) -> None:
        self._maker.runner.add(self._pieces)
        self._working = [pool.submit(self._work) for _ in range(min(self._maker.threads, len(self._recipe.encoded)))]

    def _pieces_of(self, numbers: Sequence[int]) -> list[Piece]:
        """Return the pieces for some images, which DALI decodes."""
        from ..engines.dali.runner import Piece

        which = np.array(numbers, np.int64)
        windows, media = self._plan.windows[which], media_of(self._recipe)
        nbytes = 3 * float(windows[:, 2:].astype(float).prod(axis=1).mean()) if numbers else 0.0
        pieces = []
        for rows in rows_of_pieces(len(numbers), nbytes, self._maker.threads, _MOST):
            some = {"start0": windows[rows, :2], "shape0": windows[rows, 2:]}
            fed = {"media": [media[number] for number in which[rows].tolist()], **some}
            pieces.append(Piece((self._recipe, which[rows].tolist()), rows, fed))
        return pieces

    def _decoded(self) -> Iterator[tuple[int, U8 | None, Any]]:
        """Yield the number of an image, the decoded window u8[H, W, 3], and the owner of its memory; ``None`` for an
        image that is decoded at a reduced size. Waits for DALI."""
        from ..engines.dali.runner import Failed

        for number in self._plan.smaller:
            yield number, None, None
        if self._cache is not None:
            left = []
            for number in range(len(self._recipe.encoded)):
                if number not in self._plan.smaller:
                    found = self._kept(number)
                    if found is None:
                        left.append(number)
                    else:
                        yield number, found, None
            self._pieces = self._pieces_of(left)
            self._maker.runner.add(self._pieces)
        for piece in self._pieces:
            numbers: list[int] = piece.ready[1]
            try:
                (images,), _ = self._maker.runner.get(piece)
            except Failed:
                for number in numbers:
                    try:
                        pixels = np.asarray(self._recipe.picture(number))
                    except Exception as e:
                        self._problems[number] = e
                        continue
                    top, left_, height, width = self._plan.windows[number].tolist()
                    yield number, pixels[top : top + height, left_ : left_ + width], None
                continue
            for number, image in zip(numbers, images, strict=True):
                yield number, np.asarray(image), images

    def _name(self, number: int, factor: int = 1) -> Name | None:
        file = self._recipe.files[number]
        height, width = self._recipe.sizes[number].tolist()
        return None if file is None else file.name((height, width), factor)

    def _kept(self, number: int, factor: int = 1) -> U8 | None:
        """Return an image from the cache, u8[H, W, 3]; ``None`` if it is not there."""
        name = self._name(number, factor)
        if self._cache is None or name is None:
            return None
        height, width = (-(-side // factor) for side in self._recipe.sizes[number].tolist())
        found = self._cache.read(name, 0, height * width * 3)
        return None if found is None else found.reshape(height, width, 3)

    def _keep(self, number: int, pixels: U8, factor: int = 1) -> None:
        name = self._name(number, factor)
        if self._cache is not None and name is not None:
            self._cache.keep(name, pixels)

    def _small(self, number: int) -> U8 | None:
        """Return an image that is decoded at a reduced size, after its resize; ``None`` if no decoder can read it."""
        smaller = self._plan.smaller[number]
        found = self._kept(number, smaller.factor)
        if found is None:
            try:
                found = np.asarray(self._recipe.picture(number, smaller.factor))
            except Exception as e:
                self._problems[number] = e
                return None
            self._keep(number, found, smaller.factor)
        height, width = self._recipe.sizes[number].tolist()
        return smaller.of(Image.fromarray(found), (height, width))

    def _work(self) -> None:
        while True:
            with self._taking:
                taken = next(self._images, None)
            if taken is None:
                return
            number, image, owner = taken
            if owner is not None and image is not None:
                self._keep(number, image)
            if image is None:
                image = self._small(number)
            if image is None:
                continue
            with TRANSFORMS:
                for job, row in self._plan.targets[number]:
                    self._batches[job].put_several([image], [row])

    def result(self) -> list[Tensor]:
        try:
            while self._working:
                self._working.pop().result()
        except BaseException:
            self.give_up()
            raise
        if self._problems:
            raise FailedImages(self._problems)
        return [batch.tensors[0] for batch in self._batches]

    def give_up(self) -> None:
        for piece in self._pieces:
            piece.wanted = False
        self._images = iter(())
