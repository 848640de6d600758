"""Transforms of a batch that is already in memory, on its own device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..engines.host.image_batch import ImageBatch
from ..errors import ConfigError
from ..kernels.apply import apply_batch
from ..kernels.each import apply_each
from ..reading.buffers import BatchPool
from ..rng import uniforms
from ..transforms import Compose, PILToTensor, ToDtype, Transform
from ..transforms.lambda_ import Lambda
from ..transforms.ops import Op
from ..translate.classes import shown
from ..translate.transforms import translation
from .moved_targets import MovedTargets, mapped, name_of_target, wrapped


def augment(batch: Any, transforms: Any, *, seed: int, step: int, index: Any = None) -> Any:
    """Apply transforms to every image of a batch, with random numbers of its own.

    torchvision's transforms draw once for a whole batch. Here each image draws for itself, and images on a GPU stay
    there. On a CPU, results have the bits of torchvision's functions, called with the same numbers for one image after
    the other. Gradients are not computed.

    Args:
        batch: images, uint8 or float32 [B, C, H, W] with C = 1 or 3; or a list, tuple or dictionary whose first tensor
            holds the images. In it, ``tv_tensors.Mask`` [B, ..., H, W] moves with the images. A list of B elements has
            one for each image, and every ``tv_tensors.Mask``, ``BoundingBoxes`` and ``KeyPoints`` in an element moves
            with that image; the host computes this. Everything else stays as it is. Nothing is modified.
        transforms: torchvision's transforms of tensors, gpupipe's, or a list or ``Compose`` of them. Pass the same
            object in every step, because translating it takes milliseconds.
        seed: seed of the run.
        step: number of the batch. The same seed, step and index give the same numbers.
        index: int64[B], one number per image; by default 0 to B - 1. The result for an image depends on its own
            number, never on other images or on B. With positions in the dataset as ``index`` and the epoch as
            ``step``, results do not depend on the batch size.

    Returns:
        ``batch`` with images [B, C', H', W'] on the same device, in channels-last layout if they came in it. If the
        transforms make several views, the images are a tuple of tensors.

    Raises:
        ConfigError: an argument is invalid.
        TranslationError: gpupipe does not have one of the transforms.
        PipelineError: the transforms do not fit together, or one cannot be applied on this device or to a target.
        ValueError: the images come out in different sizes.

    >>> from gpupipe.transforms import RandomCrop
    >>> augment(torch.zeros(2, 3, 32, 32), RandomCrop(28), seed=0, step=0).shape
    torch.Size([2, 3, 28, 28])
    """
    images = _images_of(batch)
    numbers = _checked(images, index)
    pipeline, begun = _pipeline(transforms, images.shape[1], images.dtype)
    sizes = np.tile(np.array(images.shape[2:]), (len(images), 1))
    ops = pipeline.resolve_with(lambda key, draws: uniforms(seed, step, key, numbers, draws), sizes).ops[begun:]
    plain = images.detach().as_subclass(Tensor)
    # A tensor may have both layouts, such as one with a single channel; it then counts as contiguous.
    flat = plain.is_contiguous() or not plain.is_contiguous(memory_format=torch.channels_last)
    layout = "contiguous_format" if flat else "channels_last"
    made = (_on_cpu if images.device.type == "cpu" else apply_each)(plain, ops, layout)
    made = tuple(wrapped(view, images) for view in made) if isinstance(made, tuple) else wrapped(made, images)
    if batch is images:
        return made
    targets = MovedTargets(transforms, ops, len(images), (images.shape[2], images.shape[3]))
    return mapped(lambda part: made if part is images else targets.moved(part), batch)


def _images_of(batch: Any) -> Tensor:
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else (batch,)
    found = next((part for part in parts if isinstance(part, Tensor) and name_of_target(part) is None), None)
    if found is None:
        raise ConfigError(
            "augment: batch must be a tensor uint8 or float32 [B, C, H, W], or a list, tuple or dictionary with one, "
            f"not {shown(batch)}"
        )
    return found


def _checked(images: Tensor, index: Any) -> npt.NDArray[np.int64]:
    """Return the numbers of the images. Raises :class:`ConfigError`."""
    form = f"{str(images.dtype).removeprefix('torch.')}{list(images.shape)}"
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise ConfigError(f"augment: images must be [B, 1 or 3, H, W] with at least one image, not {form}")
    if images.dtype not in _PREFIX:
        raise ConfigError(f"augment: images must be uint8 or float32, not {form}; convert them, or augment before that")
    if index is None:
        return np.arange(len(images))
    numbers = np.asarray(index.cpu() if isinstance(index, Tensor) else index)
    if numbers.shape != (len(images),) or numbers.dtype.kind not in "iu":
        raise ConfigError(f"augment: index must be {len(images)} integers, one per image, not {shown(index)}")
    return numbers.astype(np.int64)


_PREFIX: dict[torch.dtype, list[Transform]] = {
    torch.uint8: [PILToTensor()],
    torch.float32: [PILToTensor(), ToDtype("float32", scale=True)],
}
"""Pipelines start from PIL images. These transforms come first and are not applied, because a batch is made of their
results."""

_Key = tuple[int, str, int, torch.dtype]
_known: dict[_Key, tuple[Any, Compose, int]] = {}
"""Translated pipelines, with the objects that they were made from, so that nothing else gets an id in use."""
_MOST_KNOWN = 16


def _pipeline(transforms: Any, channels: int, dtype: torch.dtype) -> tuple[Compose, int]:
    """Translate transforms. Returns the pipeline and how many of its first ops must not be applied."""
    # The repr shows settings that the script has changed on the same object.
    key = id(transforms), repr(transforms), channels, dtype
    if key in _known:
        return _known[key][1:]
    prefix = _PREFIX[dtype]
    given = list(transforms) if isinstance(transforms, (list, tuple)) else [transforms]
    pipeline = translation([*prefix, *given], channels=channels).pipeline
    if pipeline.mixing:
        raise ConfigError("augment: MixUp and CutMix also change the targets; call them in the training loop")
    if pipeline.temporal:
        raise ConfigError(
            f"augment: {pipeline.temporal[0]!r} selects frames of clips, and the batch consists of images"
        )
    begun = len(translation(prefix, channels=channels).pipeline.skeleton)
    # What a script's functions do may change without a change of their names.
    if not any(isinstance(t, Lambda) for t in _all(pipeline)):
        if len(_known) >= _MOST_KNOWN:
            _known.pop(next(iter(_known)), None)
        _known[key] = transforms, pipeline, begun
    return pipeline, begun


def _all(transforms: Any) -> Iterator[Any]:
    for transform in transforms:
        yield transform
        yield from _all(getattr(transform, "transforms", ()))


_memory = BatchPool(keep=2)


def _on_cpu(batch: Tensor, ops: Sequence[Op], layout: str) -> Any:
    made = ImageBatch(len(batch), ops, _memory, layout, exact=True)
    images = batch.permute(0, 2, 3, 1)
    together = made.group_of(tuple(images.shape[1:])) if batch.dtype == torch.uint8 else 1
    for row in range(0, len(batch), together):
        some = images[row : row + together]
        if together > 1:
            made.put_group(some.clone().numpy(), row)  # which may be modified
        else:
            made.put(some[0].numpy(), row)
    views = tuple(apply_batch(x, rest, layout) for x, rest in zip(made.tensors, made.rest, strict=True))
    return views if made.has_views else views[0]
