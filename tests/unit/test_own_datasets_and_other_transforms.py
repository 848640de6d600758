"""gpupipe's datasets take the transforms of torchvision and timm, and say why if they cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import same

from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.errors import TranslationError
from gpupipe.transforms.compose import as_compose

tvt: Any = pytest.importorskip("torchvision.transforms")
v2: Any = pytest.importorskip("torchvision.transforms.v2")

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 24, 32, 3), np.uint8)
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
OURS = T.Compose([T.Resize(16), T.CenterCrop(12), T.ToTensor(), T.Normalize(MEAN, STD)])


def v1_pipeline() -> Any:
    return tvt.Compose([tvt.Resize(16), tvt.CenterCrop(12), tvt.ToTensor(), tvt.Normalize(MEAN, STD)])


def v2_pipeline() -> Any:
    floats = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([v2.Resize(16), v2.CenterCrop(12), *floats])


@pytest.mark.parametrize(
    "transform",
    [
        v1_pipeline(),
        v2_pipeline(),
        v1_pipeline().transforms,
        (tvt.Resize(16), T.CenterCrop(12), [tvt.ToTensor(), T.Normalize(MEAN, STD)]),
    ],
    ids=["v1", "v2", "list", "mixed"],
)
def test_every_image_is_what_torchvision_makes(transform: Any, photos: Path) -> None:
    folder = pytest.importorskip("torchvision.datasets").ImageFolder(photos, v1_pipeline())
    with DataLoader(datasets.ImageFolder(photos, transform), 8, engine="torch", device="cpu") as loader:
        got = torch.cat([images for images, _ in loader])
    torch.testing.assert_close(got, torch.stack([image for image, _ in folder]), rtol=0, atol=1e-6)


DATASETS: dict[str, Callable[[Path, Any], Any]] = {
    "arrays": lambda root, t: datasets.Arrays(PIXELS, range(6), transform=t),
    "folder": lambda root, t: datasets.ImageFolder(root, t),
    "list": lambda root, t: datasets.ImageList(sorted(root.rglob("*.jpg")), range(36), transform=t),
    "subset": lambda root, t: datasets.Subset(datasets.ImageFolder(root), [0, 5, 9], transform=t),
    "from_torch": lambda root, t: datasets.from_torch([(x, 0) for x in PIXELS], media="array", transform=t),
    "mixture": lambda root, t: datasets.Mixture({datasets.ImageFolder(root, t): 1.0}),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_every_dataset_takes_them(kind: str, photos: Path) -> None:
    theirs, ours = (DATASETS[kind](photos, t) for t in (v1_pipeline(), OURS))
    assert theirs.transform == ours.transform
    assert same(*([*DataLoader(d, 4, engine="torch", device="cpu", seed=1)] for d in (theirs, ours)))


def test_clips_name_what_cannot_be_translated(videos: dict[str, Path]) -> None:
    transform = v2.Compose([v2.UniformTemporalSubsample(2), v2.Resize((16, 16))])
    with pytest.raises(TranslationError, match=r"\[0\].*UniformTemporalSubsample.*has no such transform"):
        datasets.VideoList([videos["single.mp4"]], frames=4, transform=transform)


def test_boxes_have_transforms_that_images_do_not() -> None:
    boxes = as_compose(
        [
            v2.RandomIoUCrop(),
            v2.ClampBoundingBoxes(),
            v2.SanitizeBoundingBoxes(min_size=3),
            v2.ConvertBoundingBoxFormat("XYWH"),
        ]
    )
    assert list(boxes)[1:] == [T.ClampBoundingBoxes(), T.SanitizeBoundingBoxes(3), T.ConvertBoundingBoxFormat("XYWH")]
    assert type(next(iter(boxes))) is T.RandomIoUCrop
    with pytest.raises(TranslationError, match=r"it has a labels_getter"):
        as_compose(v2.SanitizeBoundingBoxes(labels_getter=None))
    if hasattr(v2, "SanitizeKeyPoints"):  # torchvision 0.23
        with pytest.raises(TranslationError, match=r"SanitizeKeyPoints.*has no such transform"):
            as_compose(v2.SanitizeKeyPoints())


def test_transforms_of_timm() -> None:
    timm_data = pytest.importorskip("timm.data")
    theirs = timm_data.create_transform(16, is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.25)
    images, _ = next(iter(DataLoader(datasets.Arrays(PIXELS, range(6), transform=theirs), 6, device="cpu")))
    assert images.shape == (6, 3, 16, 16) and images.dtype == torch.float32


def test_what_cannot_be_translated_is_an_error_with_all_reasons() -> None:
    class Odd(tvt.Resize):  # type: ignore[misc]
        def forward(self, image: Any) -> Any:
            return np.asarray(image).sum()

    with pytest.raises(TranslationError, match=r"(?s)1 of 2 transforms.*Odd.*torchvision's dataset with these"):
        datasets.Arrays(PIXELS, transform=tvt.Compose([Odd(3), tvt.ToTensor()]))
    with pytest.raises(TranslationError, match="do not fit together"):
        datasets.Arrays(PIXELS, transform=tvt.Compose([tvt.Normalize(MEAN, STD)]))
