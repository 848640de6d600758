"""What a batch is: types, shapes, memory, device; and that the process is left as it was found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import BATCH, TRAIN, Case, gray_difference, images_of, pictures, plans_of, resolved
from torch import Tensor

from gpupipe import transforms as T
from gpupipe.datasets import Arrays, ImageList
from gpupipe.pipelines import imagenet


def test_a_batch_is_a_list_of_images_and_target(decoding: Case) -> None:
    batch = next(iter(decoding.loader()))
    assert type(batch) is list and len(batch) == 2
    images, target = batch
    assert isinstance(images, Tensor) and isinstance(target, Tensor)
    assert images.shape == (BATCH, 3, 32, 32) and images.dtype == torch.float32
    assert target.shape == (BATCH,) and target.dtype == torch.int64
    assert images.device.type == target.device.type == decoding.device
    assert images.is_contiguous()


def test_batches_can_be_written_to_and_kept(decoding: Case) -> None:
    """They are the consumer's own: later batches neither change them nor see what was done to them."""
    if decoding.device == "cuda":
        pytest.skip("tests/gpu does this with bounds for what a GPU decodes differently")
    wanted = [images_of(b).clone() for b in decoding.loader()]
    kept = []
    for batch in decoding.loader():
        kept.append(images_of(batch).clone())
        images_of(batch).zero_()
    assert all(torch.equal(a, b) for a, b in zip(kept, wanted, strict=True))
    held = list(decoding.loader())
    assert all(torch.equal(images_of(a), b) for a, b in zip(held, wanted, strict=True))
    for a, b in zip(held, wanted, strict=True):
        images_of(a).zero_()
        b.zero_()
        assert all(torch.equal(images_of(x), y) for x, y in zip(held, wanted, strict=True))


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
def test_memory_formats_and_dtypes(decoding: Case, dtype: str, memory_format: str) -> None:
    pipeline = imagenet.train(32, dtype=dtype, memory_format=memory_format)
    dataset = decoding.dataset(pipeline)
    images = next(iter(decoding.loader(dataset)))[0]
    assert images.dtype == getattr(torch, dtype)
    assert images.shape == (BATCH, 3, 32, 32)
    assert images.is_contiguous(memory_format=getattr(torch, memory_format))
    plan = plans_of(dataset)[0]
    sizes = Case("torch", "folder", "cpu", decoding.root).dataset().sizes
    assert sizes is not None
    difference = gray_difference(images, dataset, resolved(dataset, plan, sizes[plan.indices]))
    assert difference.mean() < (2.0 if decoding.device == "cuda" else 0.5)


def test_one_channel(decoding: Case) -> None:
    pipeline = T.Compose([T.Resize((24, 24)), T.Grayscale(1), T.PILToTensor()])
    images = images_of(next(iter(decoding.loader(decoding.dataset(pipeline)))))
    assert images.shape == (BATCH, 1, 24, 24)
    assert images.is_contiguous()
    assert images.float().std() > 1


def test_without_labels_the_images_come_alone(case: Case) -> None:
    dataset: Any
    if case.kind == "arrays":
        dataset = Arrays(pictures(), transform=TRAIN)
    elif case.kind == "folder":
        dataset = ImageList(sorted(str(p) for p in case.root.rglob("*.jpg")), transform=TRAIN)
    else:
        pytest.skip("what a sample has shows when it is read")
    batch = next(iter(case.loader(dataset)))
    assert not isinstance(batch, (list, tuple))
    assert len(batch) == BATCH


def test_global_generators_are_neither_read_nor_advanced(case: Case, rng_untouched: None) -> None:
    loader = case.loader()
    list(loader)
    next(iter(loader))
    loader.state_dict()
    repr(loader)
    loader.close()


def test_batches_do_not_depend_on_global_generators(decoding: Case) -> None:
    if decoding.device == "cuda":
        pytest.skip("says nothing more there")
    one = list(decoding.loader())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        other = list(decoding.loader())
    assert all(torch.equal(images_of(a), images_of(b)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_of_one_and_three_channels(channels: int, device: str) -> None:
    pixels = pictures(7)[..., :channels]
    for engine in ("torch", "dali"):
        case = Case(engine, "arrays", device, None)  # type: ignore[arg-type]
        dataset = Arrays(pixels, np.arange(7), transform=T.Compose([T.PILToTensor()]))
        got = torch.cat([images_of(b).cpu() for b in case.loader(dataset, shuffle=False)])
        case.close()
        assert torch.equal(got, torch.from_numpy(pixels).permute(0, 3, 1, 2).expand(7, 3, 48, 56)), engine
