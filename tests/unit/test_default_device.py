"""``torch.set_default_device()`` of the script does not reach the buffers that must be on the host.

The device of tensors without values stands for a GPU here: whatever is made there by mistake cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("nvidia.dali")

import parity_measure as parity

from gpupipe import DataLoader

NAMES = ("imagenet.train", "AugMix", "mixup", "erasing with noise", "hue, pil")


@pytest.fixture
def elsewhere() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.part(of=3)
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "workers"), [("torch", 0), ("torch", 2), ("dali", 2)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("elsewhere")
def test_batches_are_whole(name: str, engine: Any, workers: int) -> None:
    dataset = parity.arrays("photographs", {**parity.CASES, **parity.RECIPES}[name], 4)
    with DataLoader(dataset, 2, engine=engine, num_workers=workers, device="cpu", seed=1) as loader:
        for images, target in loader:
            assert images.device.type == target.device.type == "cpu"
            assert float(images.float().std()) > 0
