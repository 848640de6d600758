"""Other libraries' loaders of the same photographs, each as its documentation shows it.

FFCV reads a file of its own format, written beforehand, and resizes with OpenCV's area filter. SPDL decodes, crops and
resizes with FFmpeg. So the pixels of both differ from torchvision's.
"""

from __future__ import annotations

import importlib
import os
import random
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from _common import import_torchvision
from _recipes import MEAN, STD, ours
from torch import Tensor

from gpupipe.bench.torchs_loader import Files

__all__ = ["MODULES", "image_peer", "missing_module"]

Samples = Iterator[tuple[Any, Tensor]]
MODULES = {"ffcv-jpeg": "ffcv", "ffcv-raw": "ffcv", "spdl": "spdl.io", "timm": "timm.data", "torchvision-tensors": ""}
"""Module that each of these loaders needs besides torchvision."""


def missing_module(loader: str) -> str | None:
    """Why a loader cannot take part."""
    try:
        import_torchvision()
        for module in filter(None, [MODULES.get(loader)]):
            importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as e:
        return str(e).splitlines()[0]
    return None


def image_peer(
    loader: str, files: list[str], labels: list[int], *, batch_size: int, workers: int, size: int
) -> Samples:
    """Batches without end: RandomResizedCrop(size), flip and normalization to float32, on the CPU."""
    import_torchvision()
    if loader.startswith("ffcv"):
        return _ffcv(files, labels, batch_size, workers, size, "jpg" if loader == "ffcv-jpeg" else "raw")
    if loader == "spdl":
        return _spdl(files, labels, batch_size, workers, size)
    return (_timm if loader == "timm" else _tensors)(files, labels, batch_size, workers, size)


def _for_ever(loader: Any) -> Samples:
    while True:
        yield from loader


def _ffcv(files: list[str], labels: list[int], batch_size: int, workers: int, size: int, mode: str) -> Samples:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    different = sorted(set(files))
    with tempfile.TemporaryDirectory(prefix="gpupipe-ffcv-") as folder:
        path = os.path.join(folder, "photographs.beton")
        fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=90), "label": IntField()}
        known = dict(zip(files, labels, strict=True))
        photographs = Files(different, [known[file] for file in different], lambda image: image)
        writer = DatasetWriter(path, fields, page_size=1 << 26, num_workers=workers)
        writer.from_indexed_dataset(photographs, shuffle_indices=False)
        mean, std = (255 * np.array(values) for values in (MEAN, STD))
        decoder = RandomResizedCropRGBImageDecoder((size, size))
        steps = [decoder, RandomHorizontalFlip(), NormalizeImage(mean, std, np.float32), ToTensor(), ToTorchImage()]
        loader = Loader(
            path,
            batch_size=batch_size,
            num_workers=workers,
            order=OrderOption.RANDOM,
            indices=np.resize(np.arange(len(different)), len(files)),
            os_cache=True,
            drop_last=True,
            pipelines={
                "image": steps,
                "label": [IntDecoder(), ToTensor(), Squeeze()],
            },
        )
        yield from _for_ever(loader)


def _spdl(files: list[str], labels: list[int], batch_size: int, workers: int, size: int) -> Samples:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    crop = import_torchvision().transforms.RandomResizedCrop(size)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))

    def decode(index: int) -> tuple[Any, int]:
        packets = spdl.io.demux_image(files[index])
        found = packets.codec
        image = torch.empty(1, found.height, found.width, device="meta")
        top, left, height, width = crop.get_params(image, crop.scale, crop.ratio)
        flip = ",hflip" if random.random() < 0.5 else ""
        filters = f"crop={width}:{height}:{left}:{top},scale={size}:{size}{flip},format=rgb24"
        return spdl.io.decode_packets(packets, filter_desc=filters), labels[index]

    def collate(rows: list[tuple[Any, int]]) -> tuple[Tensor, Tensor]:
        images = spdl.io.to_torch(spdl.io.convert_frames([frames for frames, _ in rows]))
        values = images.permute(0, 3, 1, 2).contiguous().to(torch.float32)
        return values.div_(255).sub_(mean).div_(std), torch.tensor([label for _, label in rows])

    while True:
        order = random.sample(range(len(files)), len(files))
        builder = PipelineBuilder().add_source(order).pipe(decode, concurrency=workers)
        pipeline = builder.aggregate(batch_size, drop_last=True).pipe(collate).add_sink(2).build(num_threads=workers)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


def _timm(files: list[str], labels: list[int], batch_size: int, workers: int, size: int) -> Samples:
    from timm.data import create_loader

    crop, flip, _, normalize = ours("train", size)
    loader = create_loader(
        Files(files, labels, lambda image: image),
        crop.size,
        batch_size,
        is_training=True,
        scale=crop.scale,
        ratio=crop.ratio,
        hflip=flip.p,
        color_jitter=None,
        interpolation=crop.interpolation,
        mean=normalize.mean,
        std=normalize.std,
        num_workers=workers,
        device=torch.device("cpu"),
    )
    return _for_ever(loader)


def _tensors(files: list[str], labels: list[int], batch_size: int, workers: int, size: int) -> Samples:
    """torchvision's transforms v2 on tensors of bytes, as its documentation recommends for speed."""
    from torchvision.transforms import v2 as V

    first = [V.ToImage(), V.RandomResizedCrop(size), V.RandomHorizontalFlip()]
    steps = V.Compose([*first, V.ToDtype(torch.float32, scale=True), V.Normalize(MEAN, STD)])
    dataset = Files(files, labels, steps)
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "shuffle": True, "drop_last": True}
    return _for_ever(torch.utils.data.DataLoader(dataset, batch_size, **options))
