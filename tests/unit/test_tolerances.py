"""Differences are measured in gray levels and at the right place, and a promise that is broken is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from parity_measure import markdown

from gpupipe import transforms as T
from gpupipe.errors import ConfigError
from gpupipe.parity.difference import Difference, Spread, border_masks, difference, gray_levels, to_pixels
from gpupipe.parity.tolerances import SCALED, TABLE, Bound, Pair, Tolerance, check, rows_of, tolerance
from gpupipe.pipelines import imagenet
from gpupipe.transforms import ops
from gpupipe.transforms.ops.promise import CPU, CUDA, GRAPH

SIZES = np.array([[100, 60], [40, 300]])
KEYS = np.arange(2, dtype=np.uint64)


def ops_of(*transforms: T.Transform) -> tuple[T.Compose, tuple]:  # type: ignore[type-arg]
    pipeline = T.Compose(list(transforms))
    return pipeline, pipeline.resolve(0, 0, KEYS, SIZES)[0]


# ---- gray levels


@pytest.mark.parametrize(
    ("transforms", "image"),
    [
        ([T.ToImage()], lambda gray: gray),
        ([T.ToTensor()], lambda gray: gray / 255),
        ([T.ToImage(), T.ToDtype("float32")], lambda gray: gray),
        ([T.ToTensor(), T.Normalize((0.5, 0.4, 0.3), (0.1, 0.2, 0.4))], None),
    ],
)
def test_outputs_become_gray_levels_again(transforms: list[T.Transform], image) -> None:  # type: ignore[no-untyped-def]
    gray = torch.arange(0, 240, 5, dtype=torch.float32).reshape(3, 4, 4)
    if image is None:
        mean, std = (torch.tensor(v)[:, None, None] for v in ((0.5, 0.4, 0.3), (0.1, 0.2, 0.4)))
        out = (gray / 255 - mean) / std
    else:
        out = image(gray)
    _, ops = ops_of(T.Resize((4, 4)), *transforms)
    factor, offset = gray_levels(ops)
    back = out.double().numpy() * factor[:, None, None] + offset[:, None, None]
    assert np.abs(back - gray.numpy()).max() < 1e-4
    assert np.array_equal(to_pixels(out, ops), gray.numpy().transpose(1, 2, 0).astype(np.uint8))


# ---- where a filter reaches over the edge


def test_only_axes_that_are_reduced_have_a_border() -> None:
    _, ops = ops_of(T.Resize((50, 90)))
    first, second = border_masks(ops, SIZES)  # 100x60: reduced in height; 40x300: in width
    assert first is not None and second is not None
    assert first[[0, -1]].all() and not first[1:-1].any()
    assert second[:, [0, -1]].all() and not second[:, 1:-1].any()
    assert border_masks(ops_of(T.Resize((400, 400)))[1], SIZES) == [None, None]
    assert border_masks(ops_of(T.Resize((9, 9), "nearest"))[1], SIZES) == [None, None]


def test_a_wider_filter_has_a_wider_border() -> None:
    (bilinear,), (bicubic,), (lanczos,) = (
        border_masks(ops_of(T.Resize((25, 60), name))[1], SIZES)[:1] for name in ("bilinear", "bicubic", "lanczos")
    )
    rows = [int(m[:, 0].sum()) for m in (bilinear, bicubic, lanczos) if m is not None]
    assert rows == [2, 4, 6]


def test_the_border_moves_with_crops_and_flips() -> None:
    _, ops = ops_of(T.Resize((50, 60)), T.CenterCrop((48, 60)))
    assert border_masks(ops, SIZES)[0] is None  # both rows are cut off
    _, ops = ops_of(T.Resize((50, 60)), T.Pad((0, 0, 0, 7)), T.RandomVerticalFlip(1.0))
    mask = border_masks(ops, SIZES)[0]
    assert mask is not None and np.flatnonzero(mask[:, 0]).tolist() == [7, 56]
    _, ops = ops_of(T.Resize((50, 60)), T.Resize((100, 60)))
    mask = border_masks(ops, SIZES)[0]
    assert mask is not None and mask[:2].all() and not mask[4:96].any()


def test_a_difference_is_counted_on_its_side_of_the_border() -> None:
    _, ops = ops_of(T.Resize((50, 60)), T.ToImage())
    a = torch.zeros(1, 3, 50, 60, dtype=torch.uint8)
    b = a.clone()
    b[0, 1, 0, 5] = 9
    b[0, 2, 25, 5] = 2
    found = difference(a, b, tuple(ops), SIZES[:1])
    assert (found.border.max, found.interior.max, found.max) == (9, 2, 9)
    assert found.border.values == 3 * 2 * 60 and found.whole.values == a.numel()
    assert found.over_1 == 2 / a.numel() and found.equal == 0
    twice = found + difference(a, a, tuple(ops), SIZES[:1])
    assert twice.images == 2 and twice.equal == 0.5 and twice.mean == found.mean / 2


def test_batches_of_another_shape_or_dtype_are_refused() -> None:
    _, ops = ops_of(T.Resize((4, 4)))
    for other in (torch.zeros(1, 3, 4, 5), torch.zeros(1, 3, 4, 4, dtype=torch.float16)):
        with pytest.raises(ValueError, match="cannot compare batches of different type or shape"):
            difference(torch.zeros(1, 3, 4, 4), other, ops, SIZES[:1])


# ---- promises


def found(interior: Spread = Spread(), border: Spread = Spread()) -> Difference:  # noqa: B008
    return Difference(1, 0, interior, border)


def test_a_broken_promise_is_seen_and_a_kept_one_is_not() -> None:
    pipeline = T.Compose([T.Resize((9, 9)), T.ToImage()])
    both = found(Spread(1000, 1.0, 590.0, 0), Spread(100, 30.0, 200.0, 40))
    assert check("dali/torch", pipeline, both, "graph") == []
    assert len(check("dali/torch", pipeline, both)) == 3  # on the host the border is as good as the rest
    (one,) = check("dali/torch", pipeline, found(Spread(1000, 1.0, 610.0, 0)), "graph")
    assert one == "everywhere: the mean difference is 0.61, promised at most 0.6"
    broken = check("dali/torch", pipeline, found(Spread(1000, 3.0, 10.0, 4), Spread(100, 70.0, 2100.0, 60)), "graph")
    assert len(broken) == 4 and broken[0].startswith("inside: the largest") and broken[2].startswith("at the border")


def test_what_only_moves_pixels_is_promised_to_be_equal() -> None:
    for pair in get_args(Pair):
        promised = tolerance(pair, T.Compose([T.CenterCrop(9), T.RandomHorizontalFlip(), T.ToImage()]))
        assert promised is not None and str(promised) == "equal"
    assert check("dali/torch", T.Compose([T.CenterCrop(9)]), found(Spread(9, 1.0, 1.0, 0)))


def test_promises_add_up() -> None:
    once = tolerance("dali/torch", T.Compose([T.Resize((9, 9))]))
    twice = tolerance("dali/torch", T.Compose([T.Resize((19, 19)), T.Resize((9, 9)), T.ToTensor()]))
    assert once is not None and twice is not None
    assert once.interior == Bound(2, 0.6, 0.0001) and twice.interior.max == pytest.approx(4, abs=0.01)
    assert 0 < twice.interior.over_1 <= 1


def test_nothing_is_promised_where_nothing_was_measured() -> None:
    measured = {where for row in TABLE.values() for where in row.tolerances}
    assert measured <= {CPU, CUDA, GRAPH} and all(row.tolerances for row in TABLE.values())
    assert tolerance("dali/torch", imagenet.train(), "cuda") is None or ("dali", "cuda") in TABLE["decode"].tolerances
    no_antialias = T.Compose([T.ToImage(), T.Resize((9, 9), "bicubic", antialias=False)])
    assert tolerance("dali/torch", no_antialias) is None  # which has no row


def test_a_promise_is_of_an_engine_and_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    flips = T.Compose([T.RandomHorizontalFlip()])
    for key in ("decode", "flip"):
        cuda = {**TABLE[key].tolerances, ("dali", "cuda"): Tolerance(Bound(3, 0.1))}
        monkeypatch.setitem(TABLE, key, replace(TABLE[key], tolerances=cuda))
    there, here = (tolerance("dali/torch", flips, device) for device in ("cuda", "cpu"))
    assert there is not None and here is not None
    assert (str(here), there.interior.max) == ("equal", 6)
    assert "| flip | equal | equal |  | max 3, mean 0.1 |" in markdown()


def test_half_precision_counts_once_and_views_are_asked_one_by_one() -> None:
    half = [T.ToTensor(), T.ToDtype("float16"), *[T.Normalize((0.5,), (0.5,))] * 3]
    assert rows_of(ops_of(*half)[1]) == ["arithmetic float16"]
    with pytest.raises(ConfigError, match="each view has promises of its own"):
        tolerance("dali/torch", T.Compose([T.MultiView(T.CenterCrop(9), 2)]))
    with pytest.raises(ConfigError, match="Op has no promise; measure it, and add one to the class"):
        tolerance("dali/torch", [ops.Op()])


def test_a_change_of_the_filter_or_the_window_would_break_a_promise() -> None:
    """The table is tight enough to notice what people get wrong: no antialiasing, or a window one pixel off."""
    from gpupipe.kernels.apply import apply_sample
    from gpupipe.testing.photos import photograph

    image = photograph(120, 160, 3)
    pipeline = T.Compose([T.Resize((60, 80)), T.ToImage()])
    ops, *_ = pipeline.resolve(0, 0, KEYS[:1], np.array([[120, 160]]))
    right = torch.from_numpy(apply_sample(image, ops, 0).copy()).permute(2, 0, 1)[None]
    nearest = T.Compose([T.Resize((60, 80), "nearest"), T.ToImage()]).resolve(0, 0, KEYS[:1], np.array([[120, 160]]))[0]
    no_antialias = torch.from_numpy(apply_sample(image, nearest, 0).copy()).permute(2, 0, 1)[None]
    for wrong in (no_antialias, right.roll(1, dims=3)):
        assert check("dali/torch", ops, difference(right, wrong, ops, np.array([[120, 160]])))
    assert not check("dali/torch", ops, difference(right, right, ops, np.array([[120, 160]])))


def test_the_table_is_written_from_the_code() -> None:
    text = markdown()
    table, _, scaled = text.partition("\n\nThe reference against torchvision")
    lines = table.splitlines()
    assert len(lines) == 2 + len(TABLE) and len({line.count("|") for line in lines}) == 1
    assert "| resize, bilinear, antialias | max 2, mean 0.6, 0.01 % over 1 | max 1, mean 0.6 | max 60," in text
    assert all(
        f"| resize, {name}, of an image decoded smaller | {one.interior} |" in scaled for name, one in SCALED.items()
    )
