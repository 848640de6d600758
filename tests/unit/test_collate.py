"""Batches of images of different sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe import DataLoader, collate, datasets, targets, transforms as T
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.kernels.moving import Moves

IMAGES = np.random.default_rng(0).integers(0, 256, (9, 40, 56, 3), np.uint8)
BOXES = [np.array([[1.0, 2, 30 + k, 20 + k]], np.float32) for k in range(9)]
STEPS = [T.RandomShortestSize([20, 30, 37], interpolation="nearest"), T.RandomHorizontalFlip()]


def dataset(*more: Any) -> Any:
    columns = {
        "mask": targets.Masks(IMAGES[..., 0], nearest="center"),
        "boxes": targets.Boxes(BOXES),
        "number": np.arange(9),
    }
    transform = T.Compose([*STEPS, *more])
    return datasets.Columns(datasets.Arrays(IMAGES, transform=transform), columns, return_dict=True)


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize("workers", [0, 2])
def test_lists_have_images_masks_and_boxes_of_their_own_size(engine: Any, workers: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "device": "cpu", "collate_fn": collate.as_lists}
    with DataLoader(dataset(T.ToTensor()), 4, engine=engine, num_workers=workers, **options) as loader:
        plans = [loader.plan_at(0, step) for step in range(3)]
        sizes = set()
        for plan, (images, found) in zip(plans, loader, strict=True):
            for row, (image, target) in enumerate(zip(images, found, strict=True)):
                moves = Moves.of(plan.ops, row, (40, 56))
                assert image.is_contiguous() and image.shape[1:] == moves.out_size == target["mask"].shape
                assert torch.equal((image[0] * 255).round().to(torch.uint8), target["mask"])
                np.testing.assert_array_equal(target["boxes"], moves.boxes(BOXES[target["number"]]))
                sizes.add(moves.out_size)
        assert len(sizes) == 3


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_images_keep_the_memory_format(engine: Any) -> None:
    made = datasets.Arrays(IMAGES, transform=T.Compose([*STEPS, T.ToTensor()], memory_format="channels_last"))
    with DataLoader(made, 9, engine=engine, device="cpu", seed=1, collate_fn=collate.as_lists) as loader:
        (images,) = next(iter(loader))
    assert all(image[None].is_contiguous(memory_format=torch.channels_last) for image in images)


def test_images_of_one_size_need_no_padding() -> None:
    with DataLoader(dataset(T.Resize((20, 20))), 9, engine="null", collate_fn=collate.as_lists) as loader:
        assert not any(getattr(op, "content", None) is not None for op in loader.plan_at(0, 0).ops)


def test_padded_images_have_a_mask() -> None:
    options: dict[str, Any] = {"engine": "torch", "device": "cpu", "seed": 1}
    with DataLoader(dataset(T.ToTensor()), 9, collate_fn=collate.Padded(divisor=16), **options) as loader:
        (padded, mask), found = next(iter(loader))
    with DataLoader(dataset(T.ToTensor()), 1, **options) as loader:
        alone = [batch["image"][0] for batch in loader]
    assert padded.shape[2] % 16 == padded.shape[3] % 16 == 0 and len(found) == 9
    for image, whole, hidden in zip(alone, padded, mask, strict=True):
        height, width = image.shape[1:]
        sides = [0, 0, whole.shape[2] - width, whole.shape[1] - height]
        assert torch.equal(whole, F.pad(image, sides))
        assert torch.equal(~hidden, F.pad(torch.ones(1, height, width, dtype=torch.bool), sides)[0])


def test_parts_of_a_sample_become_lists() -> None:
    assert collate.as_lists([(1, 2), (3, 4)]) == ([1, 3], [2, 4])
    assert collate.as_lists([5, 6]) == ([5, 6],)
    with pytest.raises(ConfigError, match="divisor must be a positive integer"):
        collate.Padded(0)


def test_different_sizes_without_a_collate_function_are_refused() -> None:
    with pytest.raises(PipelineError, match=r"collate_fn=gpupipe\.collate\.as_lists"):
        list(DataLoader(dataset(), 9, engine="torch", device="cpu"))
