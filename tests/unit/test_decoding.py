"""Who decoded, and whether a byte changed: both questions can be answered with yes and with no, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import parity_measure as parity
import pytest
import torch
from decoding_changes import Changes, MatrixProducts, changes, decoded_by, quiet

from gpupipe import DataLoader
from gpupipe.datasets import Arrays
from gpupipe.parity.difference import Difference
from gpupipe.pipelines import imagenet

DALI = pytest.mark.skipif("not __import__('gpupipe.engines.dali').engines.dali.installed()", reason="needs DALI")


@pytest.mark.parametrize(
    ("equal", "who", "with_engine"),
    [(10, "CPU", "GPU or CPU"), (9, "CPU", "GPU or CPU"), (5, "both", "GPU"), (1, "GPU", "GPU"), (0, "GPU", "GPU")],
)
def test_who_decoded_is_told_by_how_many_images_are_equal(equal: int, who: str, with_engine: str) -> None:
    assert decoded_by(Difference(10, equal), jpeg_engine=False) == who
    assert decoded_by(Difference(10, equal), jpeg_engine=True) == with_engine


@DALI
@pytest.mark.parametrize("chroma", ["4:2:0", "4:4:4"])
def test_the_cpu_is_recognized(chroma: parity.Chroma, tmp_path: Path) -> None:
    dataset = parity.folder(parity.jpegs(tmp_path, 6, chroma), parity.CASES["random crop"])
    dali, reference = (parity.batches(dataset, engine, "cpu") for engine in ("dali", "torch"))
    assert decoded_by(parity.apart(dataset, dali, reference), jpeg_engine=False) == "CPU"
    other = [tuple(x + (x < 128).to(torch.uint8) for x in views) for views in dali]  # as another decoder rounds
    assert decoded_by(parity.apart(dataset, other, reference), jpeg_engine=False) == "GPU"


class Shaky(DataLoader):
    """Changes a byte of some batches, as a race does."""

    wrong: dict[int, tuple[int, int]] = {}
    """Which of all batches: (row, how many levels)."""
    count = 0

    def __iter__(self) -> Iterator[list[torch.Tensor]]:  # type: ignore[override]
        for batch in super().__iter__():
            if self.count in self.wrong:
                row, levels = self.wrong[self.count]
                batch[0][row, 0, 3, 5] += levels
            self.count += 1
            yield batch


def loader(pixels: int = 60) -> Shaky:
    x = np.random.default_rng(0).integers(50, 100, (20, pixels, pixels, 3), np.uint8)
    pipeline = imagenet.train(32, dtype="uint8")
    return Shaky(Arrays(x, np.arange(20), transform=pipeline), 8, shuffle=True, seed=1, engine="torch", device="cpu")


def test_nothing_changes_if_nothing_does() -> None:
    with loader() as quiet_one:
        expected = quiet(quiet_one, 2)
        assert [len(q.low) for q in expected] == [8, 8, 4]
        assert changes(quiet_one, expected, 7, MatrixProducts("cpu")) == Changes(7, 0, 0, 0)


def test_a_byte_that_changes_is_counted_with_its_image_and_by_how_much() -> None:
    with loader() as one:
        expected = quiet(one, 1)
        one.count, one.wrong = 0, {1: (2, 9), 4: (3, -30), 8: (0, 100)}
        assert changes(one, expected, 7, lambda: None) == Changes(7, 2, 2, 30)
