"""MultiView, FiveCrop and TenCrop: numbers, order, and everything that has to know of views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import write_photos

from gpupipe import transforms as T
from gpupipe.bench.measure import count_images
from gpupipe.datasets import ImageFolder
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.kernels.apply import apply_sample
from gpupipe.parity.compare import compare
from gpupipe.testing.photos import photograph
from gpupipe.transforms.ops import Flip, Views, by_view

KEYS = np.arange(2000, dtype=np.uint64)


def views_of(pipeline: Any, n: int = 2000, size: tuple[int, int] = (40, 50)) -> Views:
    found, *_ = T.Compose(pipeline).resolve(3, 0, KEYS[:n], np.tile(size, (n, 1)))
    last = found[-1]
    assert isinstance(last, Views)
    return last


# ---- MultiView


def test_each_view_draws_for_itself() -> None:
    views = views_of([T.MultiView(T.RandomHorizontalFlip(), 2), T.RandomVerticalFlip()])
    (a, later), (b, same) = views.branches
    assert isinstance(a, Flip) and isinstance(b, Flip) and isinstance(later, Flip) and isinstance(same, Flip)
    assert 0.4 < (a.mask == b.mask).mean() < 0.6
    assert np.array_equal(later.mask, same.mask)  # what comes after is the same for all


def test_a_pipeline_for_each_view() -> None:
    small = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip()])
    pipeline = T.Compose([T.Resize(64), T.MultiView([T.RandomResizedCrop(32), [*small], small]), T.ToTensor()])
    assert [output.size for output in pipeline.outputs] == [(32, 32), (16, 16), (16, 16)]
    assert {output.dtype for output in pipeline.outputs} == {"float32"}
    shared, views = pipeline.skeleton
    assert type(shared).__name__ == "Resize" and isinstance(views, Views)
    assert [len(ops) for ops in by_view(pipeline.skeleton)] == [4, 5, 5]
    with pytest.raises(PipelineError, match=r"3 views of each image; see its \.outputs"):
        _ = pipeline.output


def test_views_of_one_pipeline_are_the_same_as_so_many_pipelines() -> None:
    one, other = (
        views_of([T.MultiView(T.RandomResizedCrop(8), 3)]),
        views_of([T.MultiView([T.RandomResizedCrop(8)] * 3)]),
    )
    for a, b in zip(one.branches, other.branches, strict=True):
        assert all(np.array_equal(v, b[0].numbers()[k]) for k, v in a[0].numbers().items())
    assert repr(T.MultiView(T.PILToTensor(), 3)) == "MultiView([PILToTensor()], 3)"
    assert repr(T.MultiView([T.PILToTensor(), []])) == "MultiView([[PILToTensor()], []])"


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: T.MultiView([]), "a list with one pipeline per view"),
        (lambda: T.MultiView(T.Resize(3)), "a list with one pipeline per view"),
        (lambda: T.MultiView(T.Resize(3), 0), "views must be a positive integer"),
        (lambda: T.MultiView(T.Resize(3), True), "views must be a positive integer"),
        (lambda: T.MultiView([[3]]), "MultiView: 3 .* is not a gpupipe transform"),
        (lambda: T.Compose([T.MultiView([[T.FiveCrop(3)], []])]), "views within a view"),
        (lambda: T.Compose([T.MultiView(T.ToTensor(), 2), T.FiveCrop(3)]), "already has several views"),
        (lambda: T.Compose([T.MultiView([T.ToTensor(), []]), T.Normalize((0,), (1,))]), "PIL image at this point"),
        (lambda: T.FiveCrop(0), "FiveCrop: size must be"),
        (lambda: T.TenCrop((1, 2, 3)), "TenCrop: size must be"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, match: str) -> None:
    with pytest.raises((ConfigError, PipelineError), match=match):
        make()


# ---- FiveCrop, TenCrop


@pytest.mark.parametrize("size", [(40, 50), (33, 33), (20, 61)])
@pytest.mark.parametrize("crop", [20, (11, 32), (19, 31), (20, 33)])
@pytest.mark.parametrize("tensor", [False, True])
def test_the_crops_and_their_order_are_those_of_torchvision(size: Any, crop: Any, tensor: bool) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    image = Image.fromarray(photograph(*size, 5))
    before = [T.PILToTensor()] if tensor else []
    given = v2.functional.pil_to_tensor(image) if tensor else image
    for ours, theirs in (
        (T.FiveCrop(crop), v2.FiveCrop(crop)),
        (T.TenCrop(crop), v2.TenCrop(crop)),
        (T.TenCrop(crop, vertical_flip=True), v2.TenCrop(crop, vertical_flip=True)),
    ):
        found, *_ = T.Compose([*before, ours]).resolve(0, 0, KEYS[:1], [size])
        want = [np.asarray(x.permute(1, 2, 0) if tensor else x) for x in theirs(given)]
        got = apply_sample(image, found, 0)
        assert isinstance(got, tuple) and len(got) == len(want)
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_an_image_smaller_than_the_crops_is_named() -> None:
    with pytest.raises(PipelineError, match="an image of 40x31 pixels is smaller than the crops; put a Resize"):
        T.Compose([T.FiveCrop(32)]).resolve(0, 0, KEYS[:2], [[40, 50], [40, 31]])


def test_a_bad_sample_needs_no_size_that_fits() -> None:
    from gpupipe.planning.epoch import resolve_plan
    from gpupipe.types import Plan

    pipeline = T.Compose([T.FiveCrop(32)])
    plan = Plan(0, 0, 0, np.arange(3), KEYS[:3], 3, 3)
    for sizes in ([[0, 0], [40, 50], [40, 60]], [[0, 0]] * 3):
        resolved = resolve_plan(plan, pipeline, np.array(sizes, np.int32))
        assert resolved.sizes is not None and resolved.sizes.tolist() == sizes


# ---- what has to know of views


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("views"), 6)


TWO = T.Compose([T.MultiView([T.RandomResizedCrop(32), T.RandomResizedCrop(16)]), T.ToTensor()])


def test_compare_tells_of_each_view(folder: Path) -> None:
    pytest.importorskip("nvidia.dali")
    pipeline = T.Compose([T.Resize(50), *TWO, T.RandomHorizontalFlip()])
    found = compare(ImageFolder(folder, None), pipeline, samples=6)
    names = [step.name for step in found.steps]
    assert names == [
        "decode",
        "Resize",
        *(f"{name}, view {k}" for name in ("MultiView", "ToTensor", "RandomHorizontalFlip, the whole") for k in (1, 2)),
    ]
    assert found.ok and all(step.difference.images == 6 for step in found.steps)
    sizes = {worst.dali.shape for worst in found.worst}
    assert sizes <= {(32, 32, 3), (16, 16, 3)}


def test_compare_leaves_out_what_both_engines_share(folder: Path) -> None:
    pytest.importorskip("nvidia.dali")
    pipeline = T.Compose([T.CenterCrop(32), T.ToTensor(), T.MixUp(num_classes=2)])
    found = compare(ImageFolder(folder, None), pipeline, samples=4)
    assert [step.name for step in found.steps] == ["decode", "CenterCrop", "ToTensor, the whole"] and found.ok


def test_compare_promises_nothing_of_a_function(folder: Path) -> None:
    pytest.importorskip("nvidia.dali")
    pipeline = T.Compose([T.CenterCrop(32), T.ToTensor(), T.Lambda(torch.square, batch=True)])
    found = compare(ImageFolder(folder, None), pipeline, samples=4)
    assert [step.verdict for step in found.steps] == ["ok", "ok", "ok", "not measured"]


def test_batches_of_views_are_counted_in_images() -> None:
    views = torch.zeros(5, 3, 2, 2), torch.zeros(5, 3, 1, 1)
    assert count_images([views, torch.zeros(5)]) == 5 and count_images(views) == 5
    assert count_images([torch.zeros(4, 3, 2, 2), torch.zeros(4)]) == 4
