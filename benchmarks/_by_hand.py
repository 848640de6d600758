"""DALI's graph of the classic training pipeline, as an expert writes it from DALI's documentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack


def graph(
    files: Sequence[str],
    labels: Sequence[int],
    transforms: Iterable[Any],
    *,
    batch_size: int,
    threads: int,
    cuda: bool = False,
    windows: bool = True,
    decoder: dict[str, Any] | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    channels_last: bool = False,
    prefetch: int = 2,
) -> Any:
    """Return a built ``nvidia.dali.Pipeline`` without end: (images, labels).

    Args:
        transforms: RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize.
        windows: decode only the window of the crop.
        decoder: further arguments of the decoder.
        prefetch: batches ahead.
    """
    from nvidia.dali import Pipeline, fn, types

    crop, flip, _, normalize = transforms
    settings: dict[str, Any] = {"device": "mixed" if cuda else "cpu", "adjust_orientation": False, **(decoder or {})}
    window: dict[str, Any] = {"random_area": list(crop.scale), "random_aspect_ratio": list(crop.ratio)}
    window["num_attempts"] = crop.ATTEMPTS
    resize: dict[str, Any] = {"size": list(crop.size), "interp_type": types.INTERP_LINEAR, "antialias": True}
    pipe = Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=0 if cuda else None,
        prefetch_queue_depth=prefetch,
        seed=0,
    )
    with pipe:
        encoded, label = fn.readers.file(files=list(files), labels=list(labels), random_shuffle=True, name="reader")
        if windows:
            image = fn.resize(fn.decoders.image_random_crop(encoded, **settings, **window), **resize)
        else:
            image = fn.random_resized_crop(fn.decoders.image(encoded, **settings), **resize, **window)
        image = fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT16 if dtype == "float16" else types.FLOAT,
            output_layout="HWC" if channels_last else "CHW",
            # DALI normalizes bytes, so ToTensor's division by 255 is a part of mean and std.
            mean=[255 * m for m in normalize.mean],
            std=[255 * s for s in normalize.std],
            mirror=fn.random.coin_flip(probability=flip.p),
        )
        pipe.set_outputs(image, label.gpu() if cuda else label)
    pipe.build()
    return pipe


def batches(pipe: Any, *, cuda: bool = False, channels_last: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images, labels) of a graph without copying them, and without end."""
    while True:
        out = pipe.run(torch.cuda.current_stream().cuda_stream) if cuda else pipe.run()
        images, labels = (from_dlpack(x.as_tensor()) for x in out)
        yield images.permute(0, 3, 1, 2) if channels_last else images, labels.squeeze(1)
