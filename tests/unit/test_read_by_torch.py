"""What gpupipe should read, in torch's own DataLoader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import warned
from torch.utils.data import DataLoader as TorchLoader, Subset

from gpupipe import GpupipeWarning, transforms as T
from gpupipe.datasets import Arrays


def pixels() -> Any:
    return Arrays(np.zeros((8, 6, 6, 3), np.uint8), range(8), transform=T.Compose([T.CenterCrop(4), T.ToTensor()]))


@pytest.mark.parametrize("wrapped", [lambda x: x, lambda x: Subset(Subset(x, [1, 3, 5]), [0, 1, 2])])
def test_it_is_told_once(wrapped: Any) -> None:
    dataset = wrapped(pixels())
    with pytest.warns(
        GpupipeWarning, match=r"torch's DataLoader iterates over a dataset of gpupipe: .*read-by-torch"
    ) as seen:
        found = [labels.tolist() for _, labels in TorchLoader(dataset, 2)]
    assert len(seen) == 1 and sum(map(len, found)) == len(dataset)


def test_one_sample_is_not_a_loop() -> None:
    with warned() as told:
        assert pixels()[3][1] == 3
    assert told == []
