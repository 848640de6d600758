"""The weighted sums of AugMix in DALI against the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support import images_of

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Arrays
from gpupipe.engines import Dali
from gpupipe.testing.photos import photograph
from gpupipe.transforms.numbers import uniform_weights
from gpupipe.transforms.ops import Gray, Mix, Op
from gpupipe.transforms.ops.op import F64
from gpupipe.transforms.transform import Images


@dataclass(frozen=True, repr=False)
class Sum(T.Transform):
    """An image, its gray one drawn by half, and its mirrored one."""

    DRAWS: ClassVar[int] = 5

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        weights = uniform_weights(u[:, :3]).astype(np.float32)
        gray = Gray(u[:, 3] < 0.5, kind="tensor")
        (flip,), _ = T.RandomHorizontalFlip().resolve(u[:, 4:], images)
        mask = np.ones(len(u), np.bool_)
        return (Mix(mask, weights, ((), (gray,), (flip, gray)), kind=images.kind, always=True),), images


def run(transforms: list[T.Transform], engine: Any) -> torch.Tensor:
    noise = np.random.default_rng(0).integers(0, 256, (8, 40, 52, 3), np.uint8)
    blocks = (noise >> 7) * np.uint8(255)
    pictures = np.concatenate([noise, blocks, [photograph(40, 52, i) for i in range(16)]])
    dataset = Arrays(pictures, transform=T.Compose([*transforms, T.PILToTensor()]))
    with DataLoader(dataset, batch_size=16, seed=3, engine=engine, device="cpu") as loader:
        return torch.cat([images_of(batch) for batch in loader]).int()


@pytest.mark.parametrize("some", [False, True])
def test_sums(some: bool) -> None:
    chain: list[T.Transform] = [T.RandomApply([Sum()], p=0.5) if some else Sum()]
    found = (run(chain, Dali(graph="whole")) - run(chain, "torch")).abs()
    # a level of the gray images and one of the sum, whose fraction is cut off
    assert found.max() <= 2
    assert (found > 1).float().mean() < 1e-3 and found.float().mean() < 0.35


def test_what_dali_lacks_is_finished_in_torch() -> None:
    chain: list[T.Transform] = [T.CenterCrop(32), T.AugMix(interpolation="nearest")]
    found = (run(chain, Dali(graph="whole")) - run(chain, "torch")).abs().flatten(1)
    assert (found > 2).float().mean(dim=1).median() < 0.02
