"""Pipelines: a frozen sequence of transforms, and its properties that do not depend on an image."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from .. import provided
from ..errors import ConfigError, GpupipeError, PipelineError
from ..rng import key_of, uniforms
from .boxes import BatchBoxes
from .lambda_ import Lambda
from .objects import OnObjects
from .ops import Dtype, Op, Views
from .ops.mixing import Mixing
from .ops.op import F64, I64
from .transform import Images, Ops, Transform

MemoryFormat = Literal["contiguous_format", "channels_last"]
Step: TypeAlias = "Transform | Compose | Callable[[Any], Any]"
"""A transform of gpupipe or another library, or a function of an image."""
Transforms: TypeAlias = "Step | Sequence[Step] | None"
"""What ``transform=`` takes."""

# Wide, tall, large, tiny and odd sizes, so that everything that depends on the size differs between them.
_PROBE = np.array([[375, 500], [500, 375], [2048, 1365], [64, 48], [37, 91]], np.int64)
_SHAPE = (64, 48)
"""Shape of a batch while properties of a pipeline are looked at."""


@dataclass(frozen=True)
class Output:
    """Size, channels and data type of the images that a pipeline produces."""

    size: tuple[int, int] | None
    """(height, width) if it is the same for all images, otherwise ``None``."""
    channels: int
    dtype: Dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of one sample in the batch, or ``None`` if it varies."""
        return None if self.size is None else (self.channels, *self.size)


class Resolved(NamedTuple):
    """Ops of a batch."""

    ops: Ops
    """Ops on samples. A plan carries them to every engine."""
    images: Images
    """Properties of the outgoing images."""
    mixing: tuple[Mixing, ...]
    """Ops on the finished batch and its targets."""


class Compose:
    """Apply transforms one after another. A nested ``Compose`` is flattened.

    Args:
        transforms: gpupipe transforms and functions. A function becomes a :class:`~gpupipe.transforms.Lambda`.
        memory_format: ``"contiguous_format"`` (NCHW) or ``"channels_last"``, or torch's constant of that name.
            Channels-last costs no copy, because DALI's output is a view. For clips it means ``channels_last_3d``.

    Raises:
        ConfigError: an item of the list is not a transform.
        PipelineError: the transforms do not fit together, such as Normalize before ToTensor. The error names the
            transform.

    >>> from gpupipe.transforms import CenterCrop, ToTensor
    >>> Compose([CenterCrop(224), ToTensor()]).output
    Output(size=(224, 224), channels=3, dtype='float32')
    """

    def __init__(self, transforms: Sequence[Step], *, memory_format: Any = "contiguous_format"):
        name = str(memory_format).removeprefix("torch.")
        if name not in ("contiguous_format", "channels_last"):
            raise ConfigError(f"memory_format must be contiguous_format or channels_last, not {memory_format!r}")
        self.transforms: tuple[Transform, ...] = flatten(transforms, "Compose")
        self.memory_format = cast(MemoryFormat, name)
        counts: dict[str, int] = {}
        keys = []
        for t in self.transforms:
            cls = type(t).__name__
            counts[cls] = counts.get(cls, 0) + 1
            # Key draws by name and not by position, so that adding a transform does not change the draws of the others.
            keys.append(key_of(f"{cls}#{counts[cls]}"))
        self._keys = tuple(keys)
        _ = self.outputs  # raises if the transforms do not fit together

    def resolve(
        self,
        seed: int,
        epoch: int,
        keys: npt.NDArray[np.uint64],
        sizes: npt.NDArray[np.integer],
        boxes: BatchBoxes | None = None,
        batch_shape: tuple[int, int] | None = None,
    ) -> Resolved:
        """Resolve all transforms for a batch.

        Args:
            seed, epoch: as in :func:`gpupipe.rng.uniforms`.
            keys: u64[B], keys of the samples.
            sizes: int[B, 2], height and width of the decoded images.
            boxes: boxes of the images; required if :attr:`draws_by_boxes`.
            batch_shape: height and width that the order of samples gives the images.
        """
        draw = lambda key, draws: uniforms(seed, epoch, key, keys, draws)  # noqa: E731
        return self.resolve_with(draw, sizes, boxes, batch_shape)

    @property
    def on_objects(self) -> tuple[OnObjects, ...]:
        """Transforms of boxes, which run after all pixels were moved."""
        return tuple(t for t in self.transforms if isinstance(t, OnObjects))

    @property
    def draws_by_boxes(self) -> bool:
        """Whether a transform needs the boxes of the images to resolve."""
        return any(t.draws_by_boxes for t in self.transforms)

    def resolve_with(
        self,
        draw: Callable[[int, int], F64],
        sizes: npt.NDArray[np.integer],
        boxes: BatchBoxes | None = None,
        batch_shape: tuple[int, int] | None = None,
    ) -> Resolved:
        """Resolve like :meth:`resolve`, taking uniform numbers f64[B, draws] from ``draw(key, draws)``."""
        # Every geometric op moves the boxes, which is wasted unless a transform draws by them.
        known = boxes if self.draws_by_boxes else None
        images = Images(np.asarray(sizes, np.int64).reshape(-1, 2), boxes=known, batch_shape=batch_shape)
        ops: list[Op] = []
        mixing: list[Mixing] = []
        on_batch = on_objects = None
        for transform, key in zip(self.transforms, self._keys, strict=True):
            if transform.on_objects:
                on_objects = transform
                continue
            u = draw(key, transform.draws)
            if transform.on_batch:
                # The whole batch uses the draw of its first sample.
                on_batch, u = transform, np.repeat(u[:1], len(u), axis=0)
            elif on_batch is not None:
                raise transform.refuse(f"it follows {on_batch!r}, which needs the finished batch; swap the two")
            # Views is always the last op. Later transforms extend its branches.
            if images.views:
                ops[-1], images = _each(transform, u, ops[-1], images)
                continue
            resolved, images = transform.resolved(u, images)
            if on_objects is not None and any(op.geometric for op in resolved):
                raise transform.refuse(f"it moves pixels, but {on_objects!r} must come after all that do; swap the two")
            if transform.on_batch:
                mixing += [op for op in resolved if isinstance(op, Mixing)]
            else:
                ops += resolved
        return Resolved(tuple(ops), images, tuple(mixing))

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Outputs of the pipeline, one for each view, found by resolving images of several sizes with several draws."""
        images = self._probed.images
        found = tuple(_output(view) for view in images.views or (images,))
        # Such a size depends on the other images of a batch, which probing cannot know.
        vary = any(transform.sizes_vary for transform in self.transforms)
        return tuple(replace(output, size=None) for output in found) if vary else found

    @property
    def output(self) -> Output:
        """Output of a pipeline with one view. Raises :class:`PipelineError` if there are several."""
        if len(self.outputs) > 1:
            raise PipelineError(f"the pipeline makes {len(self.outputs)} views of each image; see its .outputs")
        return self.outputs[0]

    @property
    def skeleton(self) -> Ops:
        """Ops with placeholder numbers, from which an engine can build a graph."""
        return self._probed.ops

    @property
    def mixing(self) -> tuple[Mixing, ...]:
        """Ops on the finished batch and its targets, with placeholder numbers."""
        return self._probed.mixing

    @cached_property
    def _probed(self) -> Resolved:
        # Every size meets each of the three kinds of draws of _probing().
        sizes = np.tile(_PROBE, (3, 1))
        for scale in (1, 8, 64, 4096):  # a crop may need larger images
            try:
                shape = _SHAPE[0] * scale, _SHAPE[1] * scale
                return self.resolve_with(_probing, sizes * scale, _some_boxes(sizes * scale), batch_shape=shape)
            except PipelineError:
                if scale == 4096:
                    raise
        raise AssertionError

    def draws_size(self, size: tuple[int, int]) -> bool:
        """Return whether images of one size (height, width) may come out in different sizes."""
        sizes = np.tile(np.array([size], np.int64), (3 * len(_PROBE), 1))
        try:
            found = self.resolve_with(_probing, sizes, _some_boxes(sizes), batch_shape=_SHAPE).images
        except PipelineError:  # the first batch will raise it
            return False
        return any(len(np.unique(view.sizes, axis=0)) > 1 for view in found.views or (found,))

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any argument of any transform."""
        return hashlib.blake2b(repr(self).encode(), digest_size=8).hexdigest()

    def __call__(self, image: Any) -> Any:
        """Return a PIL image as a tensor [C, H, W], or a tuple of views, as the reference makes it at once.

        It is for a Dataset of your own. Random numbers come from torch's generator. Transforms of whole batches, such
        as MixUp, are skipped.

        Raises TypeError for anything else than a PIL image.
        """
        return provided.one_image(self, image)

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)

    def __getitem__(self, i: int) -> Transform:
        return self.transforms[i]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compose) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        lines = [f"    {t!r}," for t in self.transforms]
        if self.memory_format != "contiguous_format":
            lines.append(f"    memory_format={self.memory_format!r},")
        return "\n".join(["Compose(", *lines, ")"]) if lines else "Compose()"


def _some_boxes(sizes: I64) -> BatchBoxes:
    """Return a box in the center of every image."""
    height, width = sizes.T.astype(np.float32)
    values = np.stack([width / 4, height / 4, width * 3 / 4, height * 3 / 4], axis=1)
    return BatchBoxes(values, np.arange(len(sizes)))


def _probing(key: int, draws: int) -> F64:
    """f64[3 * probes, draws]: arbitrary numbers, then the lowest, then the highest. If a transform applies to some
    images only, this covers images with it and without it."""
    n = len(_PROBE)
    edge = 2.0**-40
    u = uniforms(0, 0, key, np.arange(3 * n), draws)
    u[n : 2 * n], u[2 * n :] = edge, 1 - edge
    return u


def flatten(transforms: Iterable[Any], where: str) -> tuple[Transform, ...]:
    """Turn the list given to a Compose into transforms.

    Args:
        where: owner of the list, for errors.

    Raises :class:`ConfigError` if an item is neither a transform nor a function.
    """
    flat: list[Transform] = []
    for t in transforms:
        if isinstance(t, Compose):
            flat.extend(t.transforms)
        elif isinstance(t, Transform):
            flat.append(t)
        elif isinstance(t, type) and issubclass(t, Transform):
            raise ConfigError(f"{where}: {t.__name__} is a class; create an instance: {t.__name__}(...)")
        elif callable(t) and not isinstance(t, type) and not _of_torchvision(t):
            flat.append(Lambda(t))
        else:
            raise ConfigError(
                f"{where}: {t!r} ({type(t).__module__}.{type(t).__qualname__}) is not a gpupipe transform; "
                "a dataset's transform= takes torchvision's as they are, in a list or in its Compose"
            )
    return tuple(flat)


def _of_torchvision(t: Any) -> bool:
    """Return whether ``t`` is a torchvision transform or inherits from one; ``translate`` translates those."""
    return _is_from(t, "torchvision")


def _is_from(t: Any, *libraries: str) -> bool:
    return any(cls.__module__.partition(".")[0] in libraries for cls in type(t).__mro__)


def _has_others(t: Any) -> bool:
    """Return whether ``t`` is a transform of another library, or a list with such transforms."""
    if isinstance(t, (list, tuple)):
        return any(map(_has_others, t))
    if isinstance(t, (Transform, Compose, type)):
        return False
    return _is_from(t, *_OTHERS) or type(t).__module__.startswith("torch.nn.modules")


_OTHERS = "timm", "torchvision"
"""Libraries whose transforms ``translate`` translates."""


def _each(transform: Transform, u: F64, views: Op, images: Images) -> tuple[Views, Images]:
    """Apply one transform, with the same draws, to every view."""
    if transform.on_batch:
        raise transform.refuse(
            "it needs a batch of single images, but each image has several views here; remove one of the two"
        )
    branches, out = [], []
    for branch, view in zip(views.branches, images.views, strict=True):
        resolved, after = transform.resolved(u, view)
        if after.views:
            raise transform.refuse("the image already has several views; create all views in one transform")
        branches.append((*branch, *resolved))
        out.append(after)
    return Views(tuple(branches)), replace(images, views=tuple(out))


def _output(images: Images) -> Output:
    same = (images.sizes == images.sizes[0]).all()
    size = (int(images.sizes[0, 0]), int(images.sizes[0, 1])) if same else None
    return Output(size, images.channels, images.dtype)


def as_compose(transform: Any) -> Compose:
    """Convert a dataset's ``transform`` argument to a pipeline: ``None``, one transform, several, or a Compose.
    Transforms of other libraries are translated."""
    if isinstance(transform, Compose):
        return transform
    if transform is None:
        return Compose([])
    if _has_others(transform):
        pipeline: Compose = provided.pipeline_of(transform)
        return pipeline
    if isinstance(transform, (list, tuple)):
        return Compose(transform)
    try:
        return Compose([transform])
    except GpupipeError as e:
        raise ConfigError(f"transform: {e}") from None
