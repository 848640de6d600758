"""The cases that parity is measured with: they can be made, differ where they should, and cover the table."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvidia.dali")

import parity_measure as parity

from gpupipe import DataLoader, datasets, targets, transforms as T
from gpupipe.bench.candidates import build
from gpupipe.bench.limits import limit
from gpupipe.bench.measure import count_images
from gpupipe.datasets.subset import Subset
from gpupipe.kernels.moving import Moves
from gpupipe.parity.compare import compare
from gpupipe.parity.drawing import sheet, with_targets
from gpupipe.parity.tolerances import TABLE, check


def test_every_case_has_a_pipeline_that_is_another_one() -> None:
    made = {name: repr(make()) for name, make in {**parity.CASES, **parity.RECIPES}.items()}
    assert len(set(made.values())) == len(made)


def test_the_cases_cover_the_table() -> None:
    measured = {
        name: {"photographs": {k: {"max": 0.0, "mean": 0.0, "over_1": 0.0} for k in ("interior", "border")}}
        for name in {**parity.CASES, **parity.RECIPES}
    }
    found = parity.rows(measured)
    assert set(found["rows"]) == set(TABLE) - {"decode"} and not found["unmeasured"]
    del measured["solarize add, timm"]
    assert parity.rows(measured)["unmeasured"] == ["solarizeadd"]
    floats = {row for row in TABLE if " float" in row and not row.startswith("arithmetic")}
    assert {row for row, of in found["rows"].items() if of["others"]} == {"erase", "mix", *floats}
    assert "arithmetic float32" in found["rows"] and not found["rows"]["arithmetic float32"]["others"]


@pytest.mark.parametrize("case", ["solarize add, timm", "box blur, timm"])
def test_cases_that_are_equal_on_the_cpu_are_promised_so_and_change_something(case: str) -> None:
    dataset = parity.arrays("photographs", parity.CASES[case], 5)
    found = parity.measure(dataset, "cpu")["reference"]
    assert found.max == 0 and not check("dali/torch", dataset.transform, found)
    plain = parity.arrays("photographs", parity.CASES["crop"], 5)
    pixels = [parity.batches(d, "torch", "cpu") for d in (dataset, plain)]
    assert parity.apart(plain, *pixels).equal < 0.5


def test_a_difference_is_found_in_whatever_view_it_is() -> None:
    dataset = parity.arrays("photographs", parity.CASES["views"], 3)
    one = parity.batches(dataset, "dali", "cpu")
    two = [tuple(v.clone() for v in views) for views in one]
    assert len(one[0]) == 5 and parity.apart(dataset, one, two).equal == 1
    two[0][3][1, 2, 7, 9] ^= 128
    found = parity.apart(dataset, one, two)
    assert found.max == 128 and found.images - found.equal_images == 1


def test_masks_and_boxes_are_compared_and_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    photos = datasets.Arrays(rng.integers(0, 256, (4, 40, 50, 3), np.uint8))
    ids, boxes = np.zeros((4, 40, 50), np.uint8), [np.array([[12.0, 9, 28, 27]], np.float32)] * 4
    ids[:, 10:20, 30:40] = 1
    dataset = datasets.Columns(photos, {"mask": targets.Masks(ids), "boxes": targets.Boxes(boxes)})
    steps = T.Compose([T.RandomIoUCrop(sampler_options=[0.0, 1.0]), T.RandomHorizontalFlip(), T.ToTensor()])
    found = compare(dataset, steps, samples=4, seed=1)
    assert found.ok and found.columns == ("mask", "boxes")
    for worst in found.worst:
        assert worst.dali_targets == worst.reference_targets
        (mask,), ((x0, y0, x1, _), *_) = worst.dali_targets.masks, worst.dali_targets.boxes.tolist()
        assert mask.shape == worst.dali.shape[:2]
        drawn = with_targets(worst.dali, worst.dali_targets)
        changed = (drawn != worst.dali).any(axis=2)
        assert changed[mask != 0].all() and changed[int(y0), int(x0) : int(x1)].all()
        assert not changed[0].all() and changed.sum() < mask.size
    assert sheet(found.worst, "both").size[0] > 600

    def other(self: Any, masks: Any, *rest: Any) -> Any:
        first = threading.current_thread().name.startswith("gpupipe-targets")
        return np.zeros(self.out_size, np.uint8) if first and next(calls) % 2 else moved(self, masks, *rest)

    calls, moved = itertools.count(), Moves.mask
    monkeypatch.setattr(Moves, "mask", other)
    found = compare(dataset, steps, samples=4, seed=1)
    assert found.unlike_targets and not found.ok


def test_limits_are_measured_on_the_same_samples(photos: Path) -> None:
    steps = T.Compose([T.Resize((16, 16)), T.ToTensor()])
    names = ("read", "decode", "augment", "ring")
    dataset = datasets.ImageFolder(photos)
    with build(names, dataset, steps, batch_size=8, num_workers=2, device="cpu") as found:
        assert set(found.start) == {"read", "decode", "augment"} and "no GPU" in found.left_out["ring"]
        for start in found.start.values():
            batches = iter(start())
            assert [count_images(next(batches)) for _ in range(3)] == [8, 8, 8]
    missing = datasets.ImageFolder(photos)
    name = missing.fetch(0)[0]
    assert isinstance(name, str)
    files = Subset(missing, [0] * 20)
    whole = limit("read", files, device="cpu", common={"batch_size": 8, "num_workers": 1})
    assert not isinstance(whole, DataLoader)
    assert [count_images(batch) for batch in whole()] == [8, 8, 4]
