"""The transform lists of the recipes that people start from translate, and do what torchvision's objects do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Arrays
from gpupipe.errors import TranslationError
from gpupipe.testing.photos import photograph
from gpupipe.translate.transforms import pipeline_of

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
POLICIES = (None, "ra", "ta_wide", "augmix", "imagenet", "cifar10", "svhn")
PIXELS = np.stack([photograph(72, 96, i) for i in range(8)])


def training_preset(generation: Any, backend: str, policy: str | None, erase: float, flip: float) -> Any:
    """What the training script of torchvision's classification models builds from these settings."""
    bilinear = v1.InterpolationMode.BILINEAR
    steps: list[Any] = []
    if backend == "tensor":
        steps.append(generation.PILToTensor())
    steps.append(generation.RandomResizedCrop(32, interpolation=bilinear, antialias=True))
    if flip:
        steps.append(generation.RandomHorizontalFlip(flip))
    if policy == "ra":
        steps.append(generation.RandAugment(interpolation=bilinear, magnitude=9))
    elif policy == "ta_wide":
        steps.append(generation.TrivialAugmentWide(interpolation=bilinear))
    elif policy == "augmix":
        steps.append(generation.AugMix(interpolation=bilinear, severity=3))
    elif policy is not None:
        steps.append(generation.AutoAugment(policy=v1.AutoAugmentPolicy(policy), interpolation=bilinear))
    if backend == "pil":
        steps.append(generation.PILToTensor())
    steps.append(v2.ToDtype(torch.float, scale=True) if generation is v2 else generation.ConvertImageDtype(torch.float))
    steps.append(generation.Normalize(mean=MEAN, std=STD))
    if erase:
        steps.append(generation.RandomErasing(p=erase))
    if generation is v2:
        steps.append(v2.ToPureTensor())
    return generation.Compose(steps)


def evaluation_preset(generation: Any, backend: str) -> Any:
    steps: list[Any] = [generation.PILToTensor()] if backend == "tensor" else []
    steps += [generation.Resize(40, interpolation=v1.InterpolationMode.BILINEAR, antialias=True)]
    steps += [generation.CenterCrop(32)] + ([generation.PILToTensor()] if backend == "pil" else [])
    steps.append(v2.ToDtype(torch.float, scale=True) if generation is v2 else generation.ConvertImageDtype(torch.float))
    steps.append(generation.Normalize(mean=MEAN, std=STD))
    return generation.Compose(steps + ([v2.ToPureTensor()] if generation is v2 else []))


def presets() -> Iterator[Any]:
    for generation, backend, policy in itertools.product((v1, v2), ("pil", "tensor"), POLICIES):
        for erase, flip in ((0.0, 0.5), (0.2, 0.0)):
            name = f"{'v2' if generation is v2 else 'v1'}-{backend}-{policy}-{erase}"
            yield pytest.param(training_preset(generation, backend, policy, erase, flip), id=name)


@pytest.mark.part(of=3)
@pytest.mark.slow
@pytest.mark.parametrize("theirs", list(presets()))
def test_torchvisions_training_presets_translate_and_run_in_both_engines(theirs: Any) -> None:
    pipeline = pipeline_of(theirs)
    assert pipeline.output.size == (32, 32) and pipeline.output.dtype == "float32"
    ours = [type(t).__name__ for t in pipeline]
    for step in theirs.transforms:
        name = type(step).__name__
        assert name in ours or name == "ToPureTensor", name
    batches = {}
    for engine in ("torch", "dali"):
        with DataLoader(Arrays(PIXELS, transform=pipeline), 8, engine=engine, device="cpu", seed=1) as loader:
            ((batches[engine]),) = list(loader)
    assert batches["dali"].shape == batches["torch"].shape == (8, 3, 32, 32)
    assert batches["dali"].dtype == batches["torch"].dtype == torch.float32
    # How near they are is measured in the parity tests; here they must do the same.
    apart = (batches["dali"] - batches["torch"]).abs().mean().item()
    assert apart < 0.1 and batches["torch"].std() > 0.1


@pytest.mark.parametrize(
    ("generation", "backend"), [(v1, "pil"), (v2, "pil"), (v2, "tensor")], ids=["v1-pil", "v2-pil", "v2-tensor"]
)
def test_torchvisions_evaluation_preset_is_equal_to_the_last_bit(generation: Any, backend: str) -> None:
    """Not the first generation on tensors, which resizes bytes in floats, and is a gray level off the second."""
    theirs = evaluation_preset(generation, backend)
    want = torch.stack([torch.as_tensor(theirs(Image.fromarray(p))) for p in PIXELS])
    with DataLoader(Arrays(PIXELS, transform=pipeline_of(theirs)), 8, engine="torch", device="cpu") as loader:
        (got,) = list(loader)
    assert torch.equal(got, want)


EVERY = {
    "ColorJitter": lambda g: (g.ColorJitter(0.4, (0.5, 2.0), 0.4, 0.1), T.ColorJitter(0.4, (0.5, 2.0), 0.4, 0.1)),
    "RandomRotation": lambda g: (
        g.RandomRotation((-5, 20), v1.InterpolationMode.BILINEAR, False, (3, 4), 7),
        T.RandomRotation((-5, 20), "bilinear", False, (3, 4), 7),
    ),
    "RandomAffine": lambda g: (
        g.RandomAffine(10, (0.1, 0.2), (0.9, 1.1), (1, 2, 3, 4), fill=9),
        T.RandomAffine(10, (0.1, 0.2), (0.9, 1.1), (1, 2, 3, 4), fill=9),
    ),
    "RandomPerspective": lambda g: (g.RandomPerspective(0.3, 0.7), T.RandomPerspective(0.3, 0.7)),
    "GaussianBlur": lambda g: (g.GaussianBlur((5, 3), (0.2, 1.0)), T.GaussianBlur((5, 3), (0.2, 1.0))),
    "RandomInvert": lambda g: (g.RandomInvert(0.3), T.RandomInvert(0.3)),
    "RandomPosterize": lambda g: (g.RandomPosterize(3, 0.3), T.RandomPosterize(3, 0.3)),
    "RandomSolarize": lambda g: (g.RandomSolarize(99, 0.3), T.RandomSolarize(99, 0.3)),
    "RandomAdjustSharpness": lambda g: (g.RandomAdjustSharpness(1.5, 0.3), T.RandomAdjustSharpness(1.5, 0.3)),
    "RandomAutocontrast": lambda g: (g.RandomAutocontrast(0.3), T.RandomAutocontrast(0.3)),
    "RandomEqualize": lambda g: (g.RandomEqualize(0.3), T.RandomEqualize(0.3)),
    "RandomChoice": lambda g: (
        g.RandomChoice([g.RandomInvert(1.0), g.Compose([g.RandomEqualize(), g.RandomPosterize(2)])], [0.25, 0.75]),
        T.RandomChoice([T.RandomInvert(1.0), T.Compose([T.RandomEqualize(), T.RandomPosterize(2)])], [0.25, 0.75]),
    ),
    "RandAugment": lambda g: (g.RandAugment(3, 5, 20, fill=[1, 2, 3]), T.RandAugment(3, 5, 20, fill=(1, 2, 3))),
    "TrivialAugmentWide": lambda g: (g.TrivialAugmentWide(), T.TrivialAugmentWide()),
    "AutoAugment": lambda g: (g.AutoAugment(v1.AutoAugmentPolicy.SVHN), T.AutoAugment("svhn")),
    "AugMix": lambda g: (g.AugMix(2, 4, 2, 1.0, False), T.AugMix(2, 4, 2, 1.0, False)),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("generation", [v1, v2], ids=["v1", "v2"])
def test_every_argument_arrives(generation: Any, name: str) -> None:
    theirs, ours = EVERY[name](generation)
    assert list(pipeline_of(theirs)) == [ours]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (v2.ScaleJitter((40, 50), (0.5, 2.0)), T.ScaleJitter((40, 50), (0.5, 2.0))),
        (v2.RandomShortestSize([30, 40], 100), T.RandomShortestSize([30, 40], 100)),
        (v2.RandomZoomOut(3, (1.0, 2.0), 0.3), T.RandomZoomOut(3, (1.0, 2.0), 0.3)),
        (v2.MixUp(alpha=0.2, num_classes=10), T.MixUp(alpha=0.2, num_classes=10)),
        (v2.CutMix(alpha=0.7, num_classes=10), T.CutMix(alpha=0.7, num_classes=10)),
    ],
    ids=lambda t: type(t).__name__,
)
def test_what_only_the_second_generation_has(theirs: Any, ours: T.Transform) -> None:
    if isinstance(ours, (T.MixUp, T.CutMix)):
        finish = [v2.CenterCrop(8), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        assert list(pipeline_of(v2.Compose([*finish, theirs])))[-1] == ours
    else:
        assert list(pipeline_of(theirs)) == [ours]


@pytest.mark.parametrize("generation", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("value", [0, 0.5, (0.1, 0.2, 0.3), "random"])
def test_random_erasing(generation: Any, value: Any) -> None:
    theirs = generation.Compose([generation.CenterCrop(8), v1.ToTensor(), generation.RandomErasing(0.3, value=value)])
    assert list(pipeline_of(theirs))[-1] == T.RandomErasing(0.3, value=value)


def _halved(image: Any) -> Any:
    return image.point(lambda value: value // 2)


def test_functions_become_lambdas_where_they_see_one_image() -> None:
    pipeline = pipeline_of(v1.Compose([v1.CenterCrop(8), v1.Lambda(_halved), _halved, v1.ToTensor()]))
    assert list(pipeline)[1:3] == [T.Lambda(_halved)] * 2
    with pytest.raises(TranslationError, match="for images of some types only"):
        pipeline_of(v2.Lambda(_halved, torch.Tensor))
