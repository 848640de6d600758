"""timm's transforms: every step as timm does it, and all that ``create_transform`` returns."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from goodness import chi_square_p
from PIL import Image

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Arrays
from gpupipe.errors import ConfigError, TranslationError
from gpupipe.kernels.apply import apply_sample
from gpupipe.testing.photos import photograph
from gpupipe.transforms.timm import Levels, TimmAugMix, TimmAutoAugment, TimmRandAugment
from gpupipe.translate.transforms import pipeline_of

timm_data = pytest.importorskip("timm.data")
from timm.data import auto_augment  # noqa: E402

PIXELS = np.stack([photograph(60, 76, i) for i in range(6)])
KEYS = np.arange(6, dtype=np.uint64)
SIZES = np.tile([60, 76], (6, 1))


def ours(transform: T.Transform, epoch: int = 0) -> tuple[list[np.ndarray[Any, Any]], Any]:
    ops, *_ = T.Compose([transform]).resolve(0, epoch, KEYS, SIZES)
    return [np.asarray(apply_sample(Image.fromarray(p), ops, i)) for i, p in enumerate(PIXELS)], ops


STEPS = [name for name in auto_augment.NAME_TO_OP if name != "GaussianBlurRand"]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("magnitude", [0, 3, 9.5])
@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_timms_to_the_last_bit(
    name: str, magnitude: float, interpolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = Levels(fill=(1, 2, 3), interpolation=(interpolation,), translate_const=20)
    got, _ = ours(TimmRandAugment([(name, 1.0, magnitude)], 1, levels=levels))
    pillow = getattr(Image.Resampling, interpolation.upper())
    hparams = {"translate_const": 20, "img_mean": (1, 2, 3), "interpolation": pillow}
    step = auto_augment.AugmentOp(name, 1.0, magnitude, hparams)
    either = []
    for sign in (1, -1):
        monkeypatch.setattr(auto_augment, "_randomly_negate", lambda v, sign=sign: sign * v)
        if name.startswith("Posterize") and not _bits(name, magnitude):
            either.append([np.zeros_like(p) for p in PIXELS])  # what it was, before Pillow refused to keep no bit
            continue
        either.append([np.asarray(step(Image.fromarray(p))) for p in PIXELS])
    signs = set()
    for i, image in enumerate(got):
        same = [bool(np.array_equal(image, theirs[i])) for theirs in either]
        assert any(same), f"{name} of image {i} is neither of timm's"
        signs |= {k for k, s in enumerate(same) if s}
    signed = not np.array_equal(either[0][0], either[1][0])
    assert signs == {0, 1} or not signed  # with these keys both come up


def _bits(name: str, magnitude: float) -> int:
    (bits,) = auto_augment.LEVEL_TO_ARG[name](magnitude, {})
    return int(bits)


def test_a_random_blur_is_timms_for_some_radius() -> None:
    got, ops = ours(TimmRandAugment([("GaussianBlurRand", 1.0, 10)], 1))
    (radius,) = [op.radius for op in ops]
    assert radius.min() > 0.1 and radius.max() < 2.0 and len(set(radius)) == 6
    from PIL import ImageFilter

    for i, image in enumerate(got):
        want = Image.fromarray(PIXELS[i]).filter(ImageFilter.GaussianBlur(float(radius[i])))
        assert np.array_equal(image, np.asarray(want))


def drawn(transform: T.Transform, n: int = 40_000) -> Any:
    ops, *_ = T.Compose([transform]).resolve(3, 1, np.arange(n, dtype=np.uint64), np.tile([60, 76], (n, 1)))
    return ops


def test_steps_are_chosen_as_often_as_by_timm() -> None:
    names = ["Invert", "Equalize", "AutoContrast"]
    count = [int(op.mask.sum()) for op in drawn(TimmRandAugment([(n, 0.4, 5) for n in names], 1))]
    assert chi_square_p([*count, 40_000 - sum(count)], [40_000 * 0.4 / 3] * 3 + [40_000 * 0.6]) > 1e-4


@pytest.mark.thorough
def test_weighted_choice_takes_no_step_twice_and_the_same_shares_as_numpy() -> None:
    names, weights = ["Invert", "Equalize", "AutoContrast", "Posterize"], np.array([0.5, 0.25, 0.15, 0.1])
    ops = drawn(TimmRandAugment([(n, 1.0, 5) for n in names], 2, weights))
    masks = np.stack([op.mask for op in ops]).reshape(2, 4, -1)
    assert (masks.sum(axis=1) == 1).all() and masks.sum(axis=0).max() == 1
    rng = np.random.default_rng(0)
    theirs = np.array([rng.choice(4, 2, replace=False, p=weights) for _ in range(40_000)])
    pairs = masks.argmax(axis=1)
    table = [
        np.bincount(4 * a + b, minlength=16)[[1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14]] for a, b in (pairs, theirs.T)
    ]
    both = table[0] + table[1]
    assert chi_square_p(np.concatenate(table), np.concatenate([both / 2, both / 2])) > 1e-4


def test_magnitudes_are_noisy_as_timms_are() -> None:
    """Solarize keeps the magnitude as it is, so its thresholds tell the distribution."""
    for std, draw in ((1.5, lambda: random.gauss(6, 1.5)), (float("inf"), lambda: random.uniform(0, 6))):
        (op,) = drawn(TimmRandAugment([("Solarize", 1.0, 6)], 1, levels=Levels(magnitude_std=std)))
        random.seed(0)
        theirs = [min(256, int(max(0.0, min(draw(), 10.0)) / 10 * 256)) for _ in range(40_000)]
        edges = np.quantile(theirs, np.linspace(0, 1, 17))
        edges[[0, -1]] = -1, 257
        a, b = (np.histogram(x, np.unique(edges))[0] for x in (op.threshold, theirs))
        assert chi_square_p(np.concatenate([a, b]), np.concatenate([a + b, a + b]) / 2) > 1e-4


def test_auto_augment_takes_one_policy_for_an_image() -> None:
    policy = [[("Invert", 1.0, 0), ("Equalize", 1.0, 0)], [("AutoContrast", 1.0, 0)]]
    invert, auto_contrast, equalize = drawn(TimmAutoAugment(policy))
    assert np.array_equal(invert.mask, equalize.mask) and np.array_equal(invert.mask, ~auto_contrast.mask)
    assert abs(invert.mask.mean() - 0.5) < 0.02


def test_aug_mix_is_between_the_image_and_its_chains() -> None:
    got, (op,) = ours(TimmAugMix([("Invert", 1.0, 3)], depth=1))
    share = op.weights[:, 1]
    for i, image in enumerate(got):
        want = PIXELS[i] * (1 - share[i]) + (255.0 - PIXELS[i]) * share[i]
        assert np.abs(image - want).max() < 2.5
    assert np.allclose(op.branches[1][0].weights.sum(axis=1), 1, atol=1e-6)


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "no augmentation": {"no_aug": True},
    "bilinear": {"interpolation": "bilinear"},
    "jitter with hue": {"color_jitter": (0.4, 0.4, 0.4, 0.1), "vflip": 0.5},
    "simclr-like": {"color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5, "color_jitter": 0.4},
    "rand": {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel", "interpolation": "bicubic"},
    "rand, weighted": {"auto_augment": "rand-m6-n3-mstd101-tweights", "re_prob": 0.2, "re_mode": "rand", "re_count": 3},
    "3-augment": {"auto_augment": "rand-m9-n1-p1-t3a", "color_jitter": 0.3},
    "original": {"auto_augment": "original-mstd0.5", "re_prob": 0.1, "re_mode": "const"},
    "v0": {"auto_augment": "v0"},
    "v0r": {"auto_augment": "v0r-mstd0.5"},
    "3a": {"auto_augment": "3a"},
    "augmix": {"auto_augment": "augmix-m5-w4-d2"},
}
EVALUATION: dict[str, dict[str, Any]] = {
    "center": {"crop_pct": 0.9, "interpolation": "bicubic"},
    "squash": {"crop_mode": "squash", "crop_pct": 1.0},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_training_transforms_translate_and_run(name: str) -> None:
    pipeline = pipeline_of(timm_data.create_transform(32, is_training=True, **OPTIONS[name]))
    assert pipeline.output.size == (32, 32) and pipeline.output.dtype == "float32"
    batches = {}
    for engine in ("torch", "dali"):
        with DataLoader(Arrays(PIXELS, transform=pipeline), 6, engine=engine, device="cpu", seed=1) as loader:
            ((batches[engine]),) = list(loader)
        assert batches[engine].shape == (6, 3, 32, 32) and batches[engine].std() > 0.1
    assert (batches["dali"] - batches["torch"]).abs().mean() < 0.15


@pytest.mark.parametrize("name", EVALUATION)
def test_evaluation_transforms_are_timms_to_the_last_bit(name: str) -> None:
    options = {"input_size": (3, 32, 32), **EVALUATION[name]}
    theirs = timm_data.create_transform(is_training=False, **options)
    want = torch.stack([theirs(Image.fromarray(p)) for p in PIXELS])
    pipeline = pipeline_of(theirs)
    with DataLoader(Arrays(PIXELS, transform=pipeline), 6, engine="torch", device="cpu") as loader:
        (got,) = list(loader)
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    "given",
    [
        {"is_training": True, "train_crop_mode": "rkrc"},
        {"is_training": True, "auto_augment": "augmix-m5-b1"},
        {"input_size": (3, 32, 40)},
        {"crop_mode": "border"},
    ],
)
def test_what_has_no_form_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TranslationError, match="timm"):
        pipeline_of(timm_data.create_transform(**{"input_size": 32, **given}))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: TimmRandAugment([("Cutout", 1.0, 3)]), "unknown operation 'Cutout'"),
        (lambda: TimmRandAugment([("Invert", 2.0, 3)]), "prob must be between 0 and 1"),
        (lambda: TimmRandAugment([("Invert", 1.0, 3)], 2, [1.0]), "weights must be"),
        (lambda: TimmAutoAugment([]), "policy is empty"),
        (lambda: T.Compose([T.ToTensor(), TimmRandAugment([("Invert", 1.0, 3)])]), "put it before ToTensor"),
    ],
)
def test_wrong_arguments(make: Any, why: str) -> None:
    with pytest.raises((ConfigError, Exception), match=why):
        make()
