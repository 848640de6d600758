"""MultiView: numbers, order, and everything that has to know of views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe import transforms as T
from gpupipe.bench.measure import count_images
from gpupipe.datasets import ImageFolder
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.parity.compare import compare
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
        (lambda: T.Compose([T.MultiView([[T.MultiView(T.CenterCrop(3), 2)], []])]), "views within a view"),
        (lambda: T.Compose([T.MultiView(T.ToTensor(), 2), T.MultiView([[], []])]), "already has several views"),
        (lambda: T.Compose([T.MultiView([T.ToTensor(), []]), T.Normalize((0,), (1,))]), "PIL image at this point"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, match: str) -> None:
    with pytest.raises((ConfigError, PipelineError), match=match):
        make()


# ---- what has to know of views


TWO = T.Compose([T.MultiView([T.RandomResizedCrop(32), T.RandomResizedCrop(16)]), T.ToTensor()])


def test_compare_tells_of_each_view(numbered: Path) -> None:
    pytest.importorskip("nvidia.dali")
    pipeline = T.Compose([T.Resize(50), *TWO, T.RandomHorizontalFlip()])
    found = compare(ImageFolder(numbered, None), pipeline, samples=6)
    names = [step.name for step in found.steps]
    assert names == [
        "decode",
        "Resize",
        *(f"{name}, view {k}" for name in ("MultiView", "ToTensor", "RandomHorizontalFlip, the whole") for k in (1, 2)),
    ]
    assert found.ok and all(step.difference.images == 6 for step in found.steps)
    sizes = {worst.dali.shape for worst in found.worst}
    assert sizes <= {(32, 32, 3), (16, 16, 3)}


def test_compare_leaves_out_what_both_engines_share(numbered: Path) -> None:
    pytest.importorskip("nvidia.dali")
    pipeline = T.Compose([T.CenterCrop(32), T.ToTensor(), T.MixUp(num_classes=2)])
    found = compare(ImageFolder(numbered, None), pipeline, samples=4)
    assert [step.name for step in found.steps] == ["decode", "CenterCrop", "ToTensor, the whole"] and found.ok


def test_compare_promises_nothing_of_a_function(numbered: Path) -> None:
    pytest.importorskip("nvidia.dali")
    pipeline = T.Compose([T.CenterCrop(32), T.ToTensor(), T.Lambda(torch.square)])
    found = compare(ImageFolder(numbered, None), pipeline, samples=4)
    assert [step.verdict for step in found.steps] == ["ok", "ok", "ok", "not measured"]


def test_batches_of_views_are_counted_in_images() -> None:
    views = torch.zeros(5, 3, 2, 2), torch.zeros(5, 3, 1, 1)
    assert count_images([views, torch.zeros(5)]) == 5 and count_images(views) == 5
    assert count_images([torch.zeros(4, 3, 2, 2), torch.zeros(4)]) == 4
