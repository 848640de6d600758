"""What jitter and its neighbors resolve to: torchvision's ranges and checks, and its distributions."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, cast

import numpy as np
import pytest
import torch
from goodness import chi_square_p, ks_two_sample_p, ks_uniform_p
from PIL import Image

from gpupipe import transforms as T
from gpupipe.errors import ConfigError, PipelineError
from gpupipe.kernels.apply import apply_sample
from gpupipe.testing.photos import photograph
from gpupipe.transforms import ops
from gpupipe.transforms.compose import as_compose
from gpupipe.transforms.transform import Images

P = 1e-3
SIZES = np.full((3000, 2), 8)


def resolve(pipeline: Any, seed: int = 0, sizes: Any = SIZES) -> tuple[Any, ...]:
    return as_compose(pipeline).resolve(seed, 0, np.arange(len(sizes), dtype=np.uint64), sizes)[0]


# ---- ColorJitter

ARGUMENTS: list[dict[str, Any]] = [
    {"brightness": 0.4, "contrast": 0.3, "saturation": 0.2, "hue": 0.1},
    {"brightness": 1.7, "hue": (-0.1, 0.4)},
    {"contrast": (0.0, 0.5), "saturation": [1.0, 3.0]},
    {"brightness": 0, "contrast": None, "saturation": (1, 1), "hue": 0.0},
    {"hue": 0.5},
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_jitter_draws_as_torchvision_does(arguments: dict[str, Any]) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    theirs = v2.ColorJitter(**arguments)
    mine = T.ColorJitter(**arguments)
    for name in ("brightness", "contrast", "saturation", "hue"):
        assert getattr(mine, name) == getattr(theirs, name)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    drawn = [theirs.make_params([]) for _ in range(len(SIZES))]
    torch.set_rng_state(state)
    found = {type(op).__name__.lower(): op for op in resolve(mine)}
    for name in ("brightness", "contrast", "saturation", "hue"):
        want = [d[f"{name}_factor"] for d in drawn]
        assert (name in found) == (want[0] is not None)
        if name in found:
            op = found[name]
            assert op.kind == "pil"
            assert ks_two_sample_p(np.array(want), op.factor) > P
            low, high = getattr(mine, name)
            assert ks_uniform_p((op.factor - low) / (high - low)) > P


def orders_of(found: tuple[Any, ...]) -> list[tuple[type[Any], ...]]:
    """The steps that each image takes."""
    kinds = [type(op) for op in found]
    masks = np.stack([op.mask for op in found], axis=1)
    return [tuple(k for k, m in zip(kinds, row, strict=True) if m) for row in masks]


@pytest.mark.parametrize(
    ("arguments", "length"),
    [
        ({"brightness": 0.4, "contrast": 0.3, "saturation": 0.2, "hue": 0.1}, 15),
        ({"brightness": 0.4, "contrast": 0.3, "saturation": 0.2}, 7),
        ({"contrast": 0.4, "saturation": 0.3, "hue": 0.2}, 7),
        ({"contrast": 0.4, "saturation": 0.3}, 3),
        ({"saturation": 0.4, "hue": 0.3}, 3),
        ({"hue": 0.3}, 1),
        ({"contrast": 0.3}, 1),
    ],
)
def test_jitter_has_every_order_as_often(arguments: dict[str, Any], length: int) -> None:
    found = resolve(T.ColorJitter(**arguments))
    taken = Counter(orders_of(found))
    steps = {type(op) for op in found}
    assert len(found) == length and sum(type(op) is ops.Hue for op in found) == ("hue" in arguments)
    assert set(taken) == set(itertools.permutations(steps)) and len(steps) == len(arguments)
    assert length > 1 or found[0].always
    if length > 1:
        assert chi_square_p(list(taken.values()), np.full(len(taken), len(SIZES) / len(taken))) > P


def test_jitter_gives_each_step_its_own_numbers_and_the_order_others() -> None:
    found = resolve(T.ColorJitter(0.4, 0.3, 0.2, 0.1))
    by_kind = {type(op): op.factor for op in found}
    assert all(np.array_equal(op.factor, by_kind[type(op)]) for op in found)
    assert np.array_equal(by_kind[ops.Hue], resolve(T.ColorJitter(hue=0.1))[0].factor)
    orders = orders_of(found)
    drawn = [*by_kind.values(), *(np.array([order.index(k) for order in orders]) for k in list(by_kind)[:3])]
    scaled = [(x - x.min()) / np.ptp(x) for x in drawn]
    correlations = np.abs(np.corrcoef(scaled))
    assert (correlations[:4, :4] - np.eye(4)).max() < 0.08 and correlations[:4, 4:].max() < 0.08


@pytest.mark.parametrize("kind", ["pil", "tensor", "float"])
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_jitter_is_torchvisions_in_every_order(arguments: dict[str, Any], kind: str) -> None:
    """The same numbers and the same order in both."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    image = Image.fromarray(photograph(20, 24, 0))
    both: Any = {"pil": [], "tensor": [(T.PILToTensor(), v2.PILToTensor())]}
    both["float"] = [*both["tensor"], (T.ToDtype("float32", scale=True), v2.ToDtype(torch.float32, scale=True))]
    before, given = [mine for mine, _ in both[kind]], cast(Any, image)
    for _, theirs in both[kind]:
        given = theirs(given)
    pixels: Any = image if kind == "pil" else given.permute(1, 2, 0).numpy()
    found = resolve([*before, T.ColorJitter(**arguments)], sizes=np.full((60, 2), (20, 24)))
    found = tuple(op for op in found if isinstance(op, (ops.Brightness, ops.Contrast, ops.Saturation, ops.Hue)))
    if not found:
        return
    names = ["brightness", "contrast", "saturation", "hue"]
    for i, order in enumerate(orders_of(found)):
        steps = [names.index(step.__name__.lower()) for step in order]
        numbers: dict[str, Any] = {f"{name}_factor": None for name in names}
        numbers |= {f"{type(op).__name__.lower()}_factor": float(op.factor[i]) for op in found}
        numbers["fn_idx"] = torch.tensor(steps + [k for k in range(4) if k not in steps])
        want = v2.ColorJitter(**arguments).transform(given, numbers)
        want = np.asarray(want) if kind == "pil" else want.permute(1, 2, 0).numpy()
        assert np.array_equal(apply_sample(pixels.copy(), found, i), want)


def test_jitter_of_gray_images_and_of_tensors() -> None:
    jitter = T.ColorJitter(0.4, 0.3, 0.2, 0.1)
    assert {type(op) for op in resolve([T.Grayscale(1), jitter])[1:]} == {ops.Brightness, ops.Contrast}
    assert {op.kind for op in resolve([T.ToImage(), jitter])} == {"tensor"}
    assert T.ColorJitter() == T.ColorJitter(0, 0, 0, 0) and resolve(T.ColorJitter()) == ()
    assert T.ColorJitter(0.5) == T.ColorJitter((0.5, 1.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"brightness": -0.1}, "brightness must not be negative if it is a single number"),
        ({"contrast": (-0.1, 1)}, "within 0 to inf"),
        ({"saturation": (2, 1)}, "must be increasing"),
        ({"hue": 0.6}, "within -0.5 to 0.5"),
        ({"hue": (-0.6, 0.1)}, "within -0.5 to 0.5"),
        ({"hue": "0.1"}, "one number or a pair"),
        ({"brightness": (1, 2, 3)}, "one number or a pair"),
        ({"brightness": True}, "one number or a pair"),
        ({"brightness": float("nan")}, "must not be negative"),
    ],
)
def test_jitter_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        T.ColorJitter(**arguments)


def test_photometric_distort_takes_torchvisions_steps() -> None:
    F = pytest.importorskip("torchvision.transforms.v2.functional")
    rng = np.random.default_rng(0)
    u, transform = rng.random((40, 13)), T.RandomPhotometricDistort(p=0.6)
    found, _ = transform.resolve(u, Images(np.tile([12, 15], (40, 1))))
    for i, numbers in enumerate(u):
        picture = Image.fromarray(rng.integers(0, 256, (12, 15, 3), np.uint8))
        ours = apply_sample(picture, found, i)
        ranges = transform.brightness, transform.contrast, transform.saturation, transform.hue
        functions = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
        order = [0, 1, 2, 3] if numbers[8] < 0.5 else [0, 2, 3, 1]
        for k in order:
            low, high = ranges[k] or (0, 0)
            if numbers[2 * k] < 0.6:
                picture = functions[k](picture, low + (high - low) * numbers[2 * k + 1])
        if numbers[9] < 0.6:
            picture = F.permute_channels(picture, np.argsort(numbers[10:]).tolist())
        np.testing.assert_array_equal(ours, np.asarray(picture))
    gray = [T.Grayscale(1), T.RandomPhotometricDistort(p=1.0)]
    assert [type(op).__name__ for op in resolve(gray)[1:]] == ["Brightness", "Contrast", "Contrast"]
    with pytest.raises(ConfigError, match="must be increasing"):
        T.RandomPhotometricDistort(hue=(0.3, 0.1))


# ---- channels


def test_channels_come_in_every_order_as_often() -> None:
    (op,) = resolve(T.RandomPhotometricDistort((1, 1), (1, 1), (1, 1), (0, 0), 1.0))
    orders, counts = np.unique(op.permutation, axis=0, return_counts=True)
    assert op.always and op.permutation.dtype == np.int32
    assert sorted(map(tuple, orders.tolist())) == sorted(itertools.permutations(range(3)))
    assert chi_square_p(counts, np.full(6, 500.0)) > P


# ---- by chance

BY_CHANCE: list[tuple[Any, dict[str, Any], type[Any]]] = [
    (T.RandomInvert, {}, ops.Invert),
    (T.RandomPosterize, {"bits": 3}, ops.Posterize),
    (T.RandomSolarize, {"threshold": 100.5}, ops.Solarize),
    (T.RandomAdjustSharpness, {"sharpness_factor": 2}, ops.Sharpness),
    (T.RandomAutocontrast, {}, ops.AutoContrast),
    (T.RandomEqualize, {}, ops.Equalize),
]


@pytest.mark.parametrize(("cls", "arguments", "op_type"), BY_CHANCE)
def test_by_chance(cls: Any, arguments: dict[str, Any], op_type: type[Any]) -> None:
    for p in (0.0, 0.25, 0.5, 1.0):
        (op,) = resolve(cls(**arguments, p=p))
        assert type(op) is op_type and op.always == (p == 1.0)
        n = int(op.mask.sum())
        assert n in (0, len(SIZES)) if p in (0, 1) else chi_square_p([n, 3000 - n], [3000 * p, 3000 * (1 - p)]) > P
        for value in arguments.values():
            (numbers,) = (v for k, v in op.numbers().items() if k != "mask")
            assert (numbers == value).all()
    assert cls(**arguments).p == 0.5
    assert not np.array_equal(resolve(cls(**arguments))[0].mask, resolve(cls(**arguments), seed=1)[0].mask)
    half = np.arange(len(SIZES)) % 2 == 0
    some = op.where(half, SIZES)
    assert not some.always and np.array_equal(some.mask, half)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomInvert(1.5), "RandomInvert: p must be"),
        (lambda: T.RandomPosterize(9), "bits must be an integer from 0 to 8, not 9"),
        (lambda: T.RandomPosterize(2.0), "bits must be an integer"),  # type: ignore[arg-type]
        (lambda: T.RandomSolarize("x"), "threshold must be a number"),  # type: ignore[arg-type]
        (lambda: T.RandomAdjustSharpness(-1), "sharpness_factor must be a number of at least 0, not -1"),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_refusals_that_depend_on_the_place() -> None:
    with pytest.raises(PipelineError, match="whose largest value is 1; give threshold in"):
        T.Compose([T.ToTensor(), T.RandomSolarize(128)])
    with pytest.raises(PipelineError, match="whose largest value is 255"):
        T.Compose([T.ToImage(), T.RandomSolarize(256)])
    T.Compose([T.RandomSolarize(256), T.ToTensor(), T.RandomSolarize(0.5)])
