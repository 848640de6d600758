"""A pipeline: a frozen sequence of transforms, and what can be known of it without an image."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, GpupipeError, PipelineError
from ..rng import key_of, uniforms
from .base import Images, Ops, Transform
from .lambda_ import Lambda
from .ops import Dtype, Op, Views
from .ops.base import F64, I64
from .ops.mixing import Mixing

__all__ = ["Compose", "Output", "Resolved", "as_compose", "flatten"]

MemoryFormat = Literal["contiguous_format", "channels_last"]

# Wide, high, large, tiny, and odd ones: what depends on the size of an image differs between these.
_PROBE = np.array([[375, 500], [500, 375], [2048, 1365], [64, 48], [37, 91]], np.int64)


@dataclass(frozen=True)
class Output:
    """What a pipeline hands out."""

    size: tuple[int, int] | None
    """(height, width) if it is the same for all images, else ``None``."""
    channels: int
    dtype: Dtype
    tensor: tuple[int, ...] = field(default=(), repr=False)
    """The shape of what a function returned that is no image; then ``size`` is (1, 1)."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of one sample in the batch, if it is known."""
        return self.tensor or (None if self.size is None else (self.channels, *self.size))


class Resolved(NamedTuple):
    """The numbers of a batch."""

    ops: Ops
    """On samples; what a plan carries to every engine."""
    images: Images
    """What goes out."""
    mixing: tuple[Mixing, ...]
    """On the finished batch and its targets."""


class Compose:
    """Transforms one after another. ``Compose`` within ``Compose`` is flattened.

    Args:
        transforms: gpupipe transforms, and functions, each of which becomes a
            :class:`~gpupipe.transforms.Lambda`.
        memory_format: ``"contiguous_format"`` (NCHW) or ``"channels_last"`` of the batch, as in torch; also the torch
            objects. Channels-last costs no copy: DALI's output is a view. Of clips it is ``channels_last_3d``.

    Raises:
        ConfigError: something in the list is not a transform.
        PipelineError: the transforms do not fit together, such as Normalize before ToTensor; names the one.

    >>> from gpupipe.transforms import CenterCrop, ToTensor
    >>> Compose([CenterCrop(224), ToTensor()]).output
    Output(size=(224, 224), channels=3, dtype='float32')
    """

    def __init__(self, transforms: Sequence[Any], *, memory_format: Any = "contiguous_format"):
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
            # By name and not by place: adding a transform does not change what the others draw.
            keys.append(key_of(f"{cls}#{counts[cls]}"))
        self._keys = tuple(keys)
        _ = self.outputs  # refuse here what does not fit together

    def resolve(self, seed: int, epoch: int, keys: npt.NDArray[np.uint64], sizes: npt.NDArray[np.integer]) -> Resolved:
        """Every number of a batch.

        Args:
            seed, epoch: as in :func:`gpupipe.rng.uniforms`.
            keys: u64[B], the keys of the samples.
            sizes: int[B, 2], height and width of the images as decoded.
        """
        return self.resolve_with(lambda key, draws: uniforms(seed, epoch, key, keys, draws), sizes)

    def choose(self, seed: int, epoch: int, keys: npt.NDArray[np.uint64], frames: I64) -> I64:
        """What the temporal transforms leave of the frames of clips: i64[B, T'] of ``frames`` i64[B, T].

        ``seed``, ``epoch``, ``keys`` as in :meth:`resolve`, which knows nothing of these transforms.
        """
        for transform, key in zip(self.transforms, self._keys, strict=True):
            if transform.temporal:
                frames = transform.choose(uniforms(seed, epoch, key, keys, transform.draws), frames)
        return frames

    @property
    def temporal(self) -> tuple[Transform, ...]:
        """Those that choose frames, and so need clips."""
        return tuple(t for t in self.transforms if t.temporal)

    @property
    def draw_keys(self) -> tuple[int, ...]:
        """For each transform what its draws are keyed by: its name, and how often it came before."""
        return self._keys

    def resolve_with(self, draw: Callable[[int, int], F64], sizes: npt.NDArray[np.integer]) -> Resolved:
        """Like :meth:`resolve`, with ``draw(key, draws)`` for the numbers f64[B, draws] of the transform with a key."""
        images = Images(np.asarray(sizes, np.int64).reshape(-1, 2))
        ops: list[Op] = []
        mixing: list[Mixing] = []
        on_batch = None
        for transform, key in zip(self.transforms, self._keys, strict=True):
            if transform.temporal:
                continue
            u = draw(key, transform.draws)
            if transform.on_batch:
                # One draw for the whole batch: that of the first sample.
                on_batch, u = transform, np.repeat(u[:1], len(u), axis=0)
            elif on_batch is not None:
                raise transform.refuse(f"it comes after {on_batch!r}, which needs the finished batch; put it before")
            if images.views:
                ops[-1], images = _each(transform, u, ops[-1], images)
                continue
            resolved, images = transform.resolved(u, images)
            if transform.on_batch:
                mixing += [op for op in resolved if isinstance(op, Mixing)]
            else:
                ops += resolved
        return Resolved(tuple(ops), images, tuple(mixing))

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """What goes out, one for each view, found by resolving images of several sizes with several draws."""
        images = self._probed.images
        return tuple(_output(view) for view in images.views or (images,))

    @property
    def output(self) -> Output:
        """What goes out. Raises :class:`PipelineError` if that are several views."""
        if len(self.outputs) > 1:
            raise PipelineError(f"the pipeline makes {len(self.outputs)} views of each image; see its .outputs")
        return self.outputs[0]

    @property
    def skeleton(self) -> Ops:
        """The ops with numbers that mean nothing: what a graph can be built from."""
        return self._probed.ops

    @property
    def mixing(self) -> tuple[Mixing, ...]:
        """What is done to the finished batch and its targets, with numbers that mean nothing."""
        return self._probed.mixing

    @cached_property
    def _probed(self) -> Resolved:
        sizes = np.tile(_PROBE, (3, 1))
        for scale in (1, 8, 64, 4096):  # a crop may need larger images than the first ones
            try:
                return self.resolve_with(_probing, sizes * scale)
            except PipelineError:
                if scale == 4096:
                    raise
        raise AssertionError

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any argument of any transform."""
        return hashlib.blake2b(repr(self).encode(), digest_size=8).hexdigest()

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


def _probing(key: int, draws: int) -> F64:
    """f64[3 * probes, draws]: any, then the lowest, then the highest. So if only some images have a transform,
    there are some with it and some without."""
    n = len(_PROBE)
    edge = 2.0**-40
    u = uniforms(0, 0, key, np.arange(3 * n), draws)
    u[n : 2 * n], u[2 * n :] = edge, 1 - edge
    return u


def flatten(transforms: Iterable[Any], where: str) -> tuple[Transform, ...]:
    """A list of what a Compose takes as transforms.

    Args:
        where: whose list it is, for the error.

    Raises :class:`ConfigError` if something is neither a transform nor a function.
    """
    flat: list[Transform] = []
    for t in transforms:
        if isinstance(t, Compose):
            flat.extend(t.transforms)
        elif isinstance(t, Transform):
            flat.append(t)
        elif isinstance(t, type) and issubclass(t, Transform):
            raise ConfigError(f"{where}: {t.__name__} is a class; call it: {t.__name__}(...)")
        elif callable(t) and not isinstance(t, type) and not _of_torchvision(t):
            flat.append(Lambda(t))
        else:
            raise ConfigError(
                f"{where}: {t!r} ({type(t).__module__}.{type(t).__qualname__}) is not a gpupipe transform; "
                "gpupipe.interop.translate_transform() turns torchvision's into ours"
            )
    return tuple(flat)


def _of_torchvision(t: Any) -> bool:
    """Also by inheritance: those draw and have settings, which interop knows how to read."""
    return any(cls.__module__.partition(".")[0] == "torchvision" for cls in type(t).__mro__)


def _each(transform: Transform, u: F64, views: Op, images: Images) -> tuple[Views, Images]:
    """The same transform, with the same draws, on every view."""
    if transform.on_batch:
        raise transform.refuse(
            "it works on a batch of single images, and these are views of each; leave one of them out"
        )
    branches, out = [], []
    for branch, view in zip(views.branches, images.views, strict=True):
        resolved, after = transform.resolved(u, view)
        if after.views:
            raise transform.refuse("the image has become several views already; make all of them in one place")
        branches.append((*branch, *resolved))
        out.append(after)
    return Views(tuple(branches)), replace(images, views=tuple(out))


def _output(images: Images) -> Output:
    same = (images.sizes == images.sizes[0]).all()
    size = (int(images.sizes[0, 0]), int(images.sizes[0, 1])) if same else None
    return Output(size, images.channels, images.dtype, images.shape)


def as_compose(transform: Any) -> Compose:
    """What a dataset was given as ``transform``, as a pipeline: ``None``, one transform, several, or a Compose."""
    if isinstance(transform, Compose):
        return transform
    if transform is None:
        return Compose([])
    if isinstance(transform, (list, tuple)):
        return Compose(transform)
    try:
        return Compose([transform])
    except GpupipeError as e:
        raise ConfigError(f"transform: {e}") from None
