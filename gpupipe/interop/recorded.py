"""A script's own datasets that open images and give them to transforms that they hold. gpupipe takes the files before
they are decoded, and an engine does the transforms."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from ..codecs.decode import Media, Peeked, decode
from ..codecs.limits import Limits
from ..codecs.unread import encoded_of, header_of, pixels_of, sendable, unread
from ..datasets.sample_form import Arranged, Rest, View, leaves
from ..datasets.user_code import FromTorch
from ..errors import GpupipeError
from ..reading.sample import Drawing, Noticed, drawing
from ..reasons import failure
from ..signal_handlers import pass_on
from ..transforms import ops
from ..transforms.boxes import BatchBoxes
from ..transforms.compose import Compose
from ..types import ByHand
from .chains import Chains, channels_of, decoded, size_of
from .classes import exact_name
from .pending import PendingImage, PendingTensor, settled
from .same_names import UnsupportedError
from .seen import Seen
from .shapes import Shape, Structure, placed, read
from .steps import SampleCall, Step
from .trials import Trial, standing, tried
from .unread_arrays import UnreadArray, by_opencv

_ALONE = Drawing(0, 0, 0)
_LAST = Arranged("permute", (View(0),), (1, 2, 0))
"""Key of a sample that is read without a plan."""


_SMALL, _STILL_SMALL = 32 * 32, 64 * 64
"""Pixels of the largest images in memory, and of the largest results of quick transforms, for which torch's loader is
about as fast as an engine."""
_QUICK = (ops.Crop, ops.Flip, ops.Resize, ops.Warp, ops.ToDtype, ops.Normalize, ops.Erase)
"""Ops for which this is so."""
NO_TRANSFORMS = "gpupipe does not know what it reads, and it calls no transforms that an engine could do"


class Recorded(FromTorch):
    """A script's dataset whose transforms an engine does.

    A sample whose form the trials have not shown is made by hand, as torch's loader would make it.

    Args:
        ds: the script's dataset.
        shape: the shape of its samples.
        example: a sample.
        chains: the transforms that it holds.
        size: (height, width) of its images, if all trials had the same size.
    """

    makes_by_hand = True

    def __init__(self, ds: Any, shape: Shape, example: Trial, chains: Chains, size: tuple[int, int] | None):
        _, self._mode, upright = _media(example.structure.sources[0].image)
        found = shape.pipeline(chains, 1 if self._mode == "L" else 3)
        varies = any(output.size is None for output in found.pipeline.outputs)
        if varies and size is None and shape.images > 1 and len(found.pipeline.outputs) > 1:
            # An engine makes all results of every image, also those that no sample has.
            raise UnsupportedError("its images differ in size, and not all go through the same transforms", "views")
        form = shape.form(example.sample, example.structure.steps, mixed=bool(found.pipeline.mixing))
        images = [] if form is None else [leaf for leaf in leaves(form.tree) if not isinstance(leaf, Rest)]
        # Samples [H, W, C] need no copy if the batch has channels last in memory.
        pipeline = Compose([found.pipeline], memory_format="channels_last") if images == [_LAST] else found.pipeline
        super().__init__(ds, "pil", pipeline, Limits(exif=upright))
        self.form = form
        self.images_per_sample = shape.images
        self.results = tuple(shape.results) if shape.images > 1 else ()
        self._shape, self._chains, self._frame = shape, chains, shape.frame(chains)
        self._draws = any(transform.draws for transform in found.pipeline)
        self.refresh()
        self.brings_boxes = found.pipeline.draws_by_boxes
        self._example_boxes = _boxes_of(example.structure.steps)
        # Whether samples are read with unread arrays.
        self._arrays = example.arrays and bool(example.run.arrays)
        # Whether the script's own code chooses numbers, which come with every sample.
        self._rows = bool(shape.examples)
        # One batch needs results of one size: either the images have a common size, or, if code chooses numbers, the
        # results themselves are compared with the size in _made.
        self._size = size if not self._rows and varies else None
        self._made = found.pipeline.outputs[0].shape if self._rows else None

    def __getstate__(self) -> dict[str, Any]:
        # refresh() marks the transforms of the copy by their places again.
        return {name: value for name, value in self.__dict__.items() if name not in ("_standing", "_seen")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.refresh()

    def __repr__(self) -> str:
        return f"{type(self.ds).__name__}({len(self):,} samples, opened by itself)"

    def common_size(self) -> tuple[int, int] | None:
        """(height, width) of the images, if the size of a result depends on it. Images of other sizes are made by
        hand."""
        return self._size

    def refresh(self) -> None:
        self._standing, held, copied = standing(self.ds) if self._chains.are_marked else (self.ds, [], [])
        if not self._chains.are_like(held):  # in this process other transforms surround it, so none can be identified
            self._standing, held, copied = self.ds, [], []
        self._seen = Seen(copied, held)

    def fetch(self, index: int) -> Any:
        with unread():
            return self._fetched(index)

    def _fetched(self, index: int) -> Any:
        if self._seen.transforms_changed:
            return self.by_hand(index)
        at = drawing() or _ALONE
        run = SampleCall(self._chains, at.seed, at.epoch, at.key)
        before = torch.initial_seed()
        try:
            sample, structure = read(self._standing, index, run, arrays=self._arrays, calls=self._chains.has_written)
            if self._seen.undo() or (self._draws and torch.initial_seed() != before):
                raise _OnlyByHand
            self._seen.pass_on()
            # A tensor that the script has written to is not what an engine would get.
            if all(source.is_as_it_was for source in run.sources):
                media = self._media_of(structure, run)
                if media is not None:
                    images, noticed = media
                    return images[0] if self.images_per_sample == 1 else images, self._target(sample), noticed
                # The sample is complete, but not of the form that an engine makes.
                if run.failure is None:
                    return self._by_hand(settled(sample))
        except Exception as e:
            pass_on(e)
        # Something that the trials have not shown, or an error that the script would raise as well.
        if at is not _ALONE:
            # The code has drawn, and now makes the sample once more, so the generators start again as well.
            at.restart()
        return self.by_hand(index)

    def by_hand(self, index: int) -> ByHand:
        """Make the sample as torch's loader does."""
        try:
            return self._by_hand(self.ds[index])
        finally:
            seen = self._seen
            if seen.is_outdated():
                self.refresh()
                self._seen.follow(seen)

    def _by_hand(self, sample: Any) -> ByHand:
        views: dict[int, Any] = {}
        tree = (View(0), Rest()) if self.form is None else self.form.tree
        try:
            target = _rest(tree, sample, views)
        except _Unlike:
            return ByHand(sample)
        if self.form is None:
            target = target[1]
        return ByHand(sample, tuple(views[number] for number in sorted(views)), target)

    def _media_of(self, structure: Structure, run: SampleCall) -> tuple[list[Media], Noticed] | None:
        """Return what an engine gets for the images of a sample, and what the script's own code says about them;
        ``None`` if no engine can make the sample."""
        if run.looks or run.failure is not None:
            return None
        steps = structure.steps
        if structure.shape.frame(self._chains) != self._frame or any(step.run is not run for step in steps):
            return None  # the script kept an image that it had transformed before
        rows = self._shape.rows(steps, self._chains) if self._chains.has_written else []
        if rows is None or (self._made is not None and any(step.output()[0] != self._made for step in steps)):
            return None
        boxes = _boxes_of(steps)
        if self.brings_boxes and not _are_like(boxes, self._example_boxes):
            return None
        found, peeked = list[Media](), list[Peeked | None]()
        for source in structure.sources:
            media, mode, upright = _media(source.image)
            if mode != self._mode or (self._size is not None and size_of(source.image) != self._size):
                return None
            if upright != self.limits.exif and not isinstance(media, np.ndarray):
                media = _pixels(media, upright)  # the script opened it differently from the samples before
            found.append(self._read(media) if isinstance(media, str) else media)
            image = source.image.made.image if isinstance(source.image, UnreadArray) else source.image
            header = header_of(image) if isinstance(media, bytes) and not self.limits.exif else None
            peeked.append(None if header is None else Peeked(header.height, header.width, header.coding))
        return found, Noticed(np.array(rows) if self._rows else None, boxes, peeked)

    def open(self, media: Media, *, strict: bool = False) -> npt.NDArray[np.uint8] | Image.Image:
        opencv = self.limits.exif and isinstance(media, bytes)  # only images that OpenCV opens are turned upright here
        return by_opencv(media) if opencv else super().open(media, strict=strict)  # type: ignore[arg-type]

    def _target(self, sample: Any) -> Any:
        """Return the sample with zeros in place of its images, or the rest itself if it is a single value."""
        if self.form is None:
            return sample[1]

        # A converted image that is not decoded would keep its file open; Pillow would have decoded and closed it.
        def rest(part: Any, _: Any) -> Any:
            return 0 if isinstance(part, (PendingTensor, PendingImage)) else sendable(part)

        return placed(rest, sample)


def record(ds: Any, *, small: bool = True) -> Recorded:
    """Translate a script's dataset that holds its transforms.

    Args:
        small: whether to translate datasets of small images in memory with quick transforms; see :data:`_SMALL`.

    Raises :class:`UnsupportedError` if it is not such a dataset.
    """
    if exact_name(ds, "torch.utils.data") == "TensorDataset":
        raise UnsupportedError(NO_TRANSFORMS, "own-pixels")
    is_stream = isinstance(ds, torch.utils.data.IterableDataset)  # torch iterates over it even if it has __getitem__
    if is_stream or not hasattr(ds, "__getitem__") or not hasattr(ds, "__len__"):
        raise UnsupportedError("it is a stream, whose samples cannot be ordered", "stream")
    try:
        count = len(ds)
    except TypeError as e:
        raise UnsupportedError(failure(e), "sample-fails") from None
    if not count:
        raise UnsupportedError("it has no samples", "empty")
    _, held, _ = standing(ds)
    chains = Chains(held)
    with unread():
        made = _recorded(ds, chains, small)
        if isinstance(made, UnsupportedError) and made.code == "unlike-samples" and held:
            # The code may choose among its transforms, so let them run and record what they call.
            again = _recorded(ds, Chains([], are_marked=False), small)
            made = made if isinstance(again, Exception) else again
    # Nothing was recorded, so any other reason would mislead.
    if isinstance(made, UnsupportedError) and not held and not chains.has_written:
        raise UnsupportedError(NO_TRANSFORMS, "own-pixels")
    if isinstance(made, Exception):
        raise made
    return made


def _refuse_small(chains: Chains, first: Trial) -> None:
    """Raise :class:`UnsupportedError` if the images are small and in memory, and their transforms are quick."""
    steps = first.structure.steps
    if steps and all(_is_quick(chains, step) for step in steps):
        height, width = size_of(steps[0].source.image)
        raise UnsupportedError(
            f"its code makes images of {width} x {height} pixels, which torch's loader transforms as fast on a CPU",
            "small-images",
        )


def _is_quick(chains: Chains, step: Step) -> bool:
    media, *_ = _media(step.source.image)
    if not isinstance(media, np.ndarray) or math.prod(media.shape[:2]) > _SMALL:
        return False
    ops_of_step = chains.translated(step.places).pipeline.skeleton
    return all(isinstance(op, _QUICK) for op in ops_of_step) and math.prod(step.output()[0][-2:]) <= _STILL_SMALL


def _recorded(ds: Any, chains: Chains, small: bool) -> Recorded | Exception:
    """Return the dataset, or the reason against it. Raising would keep the images of the trials alive, and their files
    open."""
    check = None if small else partial(_refuse_small, chains)
    try:
        shape, example, size = tried(ds, chains, check)
        return Recorded(ds, shape, example, chains, size)
    except (UnsupportedError, GpupipeError) as e:
        e.__context__ = None
        return e.with_traceback(None)


def _boxes_of(steps: Sequence[Step]) -> BatchBoxes | None:
    """Return the boxes of a sample by which a transform draws."""
    return next((one.boxes for step in steps for one in step.chain if one.boxes is not None), None)


def _are_like(boxes: BatchBoxes | None, others: BatchBoxes | None) -> bool:
    """Return whether boxes of two samples can lie in one array."""
    if boxes is None or others is None:
        return False
    same_type = boxes.values.dtype == others.values.dtype
    return same_type and (boxes.format, boxes.clamping) == (others.format, others.clamping)


class _OnlyByHand(Exception):
    """The script's code sets a seed or changes its transforms, which no engine can follow."""


class _Unlike(Exception):
    """The sample has another form than the example."""


def _rest(tree: Any, part: Any, views: dict[int, Any]) -> Any:
    """Return the parts of a sample other than images, with zeros in place of images, and fill ``views`` with the images
    by number. Raises :class:`_Unlike`."""
    if isinstance(tree, View):
        # A view may stand in several places of a sample, with the same pixels.
        known = views.setdefault(tree.number, part)
        if not isinstance(part, torch.Tensor) or (known is not part and not torch.equal(known, part)):
            raise _Unlike
        return 0
    if isinstance(tree, Rest):
        return part
    if isinstance(tree, Mapping):
        if not isinstance(part, Mapping) or part.keys() != tree.keys():
            raise _Unlike
        return {key: _rest(tree[key], part[key], views) for key in tree}
    if not isinstance(tree, (list, tuple)) or not isinstance(part, (list, tuple)) or len(part) != len(tree):
        raise _Unlike
    return [_rest(a, b, views) for a, b in zip(tree, part, strict=True)]


def _media(image: Any) -> tuple[Media, str, bool]:
    """Return (what an engine decodes or uses as it is, mode, whether a file's image has to be turned upright)."""
    swapped = False
    if isinstance(image, UnreadArray):
        swapped, image = image.swapped, image.made.image
        if isinstance(image, bytes):
            # The script keeps the order blue, green, red, which only decoded pixels can have.
            return (_swapped(by_opencv(image)) if swapped else image), "RGB", True
    elif isinstance(image, (np.ndarray, torch.Tensor)):
        return decoded(image), "L" if channels_of(image) == 1 else "RGB", False
    # Engines decode to red, green, blue.
    found = None if swapped else encoded_of(image)
    if found is not None:
        encoded, mode = found
        return (os.path.abspath(encoded) if isinstance(encoded, str) else encoded), mode, False
    pixels = pixels_of(image)
    if image.mode not in ("RGB", "L"):
        return pixels, image.mode, False
    return (pixels[:, :, None] if image.mode == "L" else _swapped(pixels) if swapped else pixels), image.mode, False


def _pixels(media: Media, upright: bool) -> npt.NDArray[np.uint8]:
    return by_opencv(media) if upright and isinstance(media, bytes) else decode(media)


def _swapped(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(pixels[:, :, ::-1])
