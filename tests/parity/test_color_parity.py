"""Color ops against torchvision's own functions bit by bit; on batches against single images; DALI against both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import from_reference

from gpupipe import transforms as T
from gpupipe.datasets import Arrays
from gpupipe.engines import Dali
from gpupipe.kernels import BATCH_FORMS, hue, levels
from gpupipe.kernels.apply import apply_batch, apply_sample
from gpupipe.kernels.picture import array
from gpupipe.parity.difference import Difference
from gpupipe.parity.tolerances import check
from gpupipe.testing.photos import photograph
from gpupipe.transforms import ops as O

F = pytest.importorskip("torchvision.transforms.v2.functional")

Make = Callable[[str, int], O.Op]


def on(n: int) -> Any:
    return np.ones(n, np.bool_)


def whole(value: int) -> Callable[[int], Any]:
    return lambda n: np.full(n, value, np.int32)


FACTORS = (0.0, 0.2, 0.61803, 1.0, 1.3, 1.8, 3.7)
TURNS = (-0.5, -0.31, -0.003, 0.0, 0.004, 0.1, 0.2, 0.5)
CASES: dict[str, tuple[Make, Callable[[Any], Any]]] = {}
for f in FACTORS:
    for cls, function in (
        (O.Brightness, F.adjust_brightness),
        (O.Contrast, F.adjust_contrast),
        (O.Saturation, F.adjust_saturation),
        (O.Sharpness, F.adjust_sharpness),
    ):
        CASES[f"{cls.__name__} {f}"] = (
            lambda kind, n, cls=cls, f=f: cls(on(n), np.full(n, f), kind=kind),
            lambda x, function=function, f=f: function(x, f),
        )
for f in TURNS:
    CASES[f"Hue {f}"] = (
        lambda kind, n, f=f: O.Hue(on(n), np.full(n, f), kind=kind),
        lambda x, f=f: F.adjust_hue(x, f),
    )
for bits in (1, 3, 7, 8):
    CASES[f"Posterize {bits}"] = (
        lambda kind, n, bits=bits: O.Posterize(on(n), whole(bits)(n)),
        lambda x, bits=bits: F.posterize(x, bits),
    )
for threshold in (0.0, 0.4, 1.0, 127.5, 128.0, 255.0):
    CASES[f"Solarize {threshold}"] = (
        lambda kind, n, threshold=threshold: O.Solarize(on(n), np.full(n, threshold)),
        lambda x, threshold=threshold: F.solarize(x, threshold),
    )
CASES["Invert"] = (lambda kind, n: O.Invert(on(n)), F.invert)
CASES["AutoContrast"] = (lambda kind, n: O.AutoContrast(on(n), kind=kind), F.autocontrast)
CASES["Equalize"] = (lambda kind, n: O.Equalize(on(n), kind=kind), F.equalize)


def pictures() -> list[Any]:
    """u8[H, W, 3] of several sizes: photographs, pale and dark ones, noise, black and white, one color, tiny ones."""
    rng = np.random.default_rng(0)
    dull = (photograph(60, 50, 3) * 0.4 + 70).astype(np.uint8)
    blocks = np.kron(rng.integers(0, 2, (8, 8, 1)) * 255, np.ones((7, 6, 3), np.int64)).astype(np.uint8)
    one = np.full((20, 30, 3), (9, 200, 77), np.uint8)
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, 2)
    return [
        photograph(97, 61, 0),
        photograph(90, 120, 1),
        dull,
        rng.integers(0, 256, (64, 48, 3)).astype(np.uint8),
        rng.integers(100, 104, (40, 41, 3)).astype(np.uint8),
        blocks,
        one,
        ramp,
        photograph(2, 9, 4),
        photograph(3, 3, 5),
        photograph(1, 1, 6),
    ]


def equal(got: torch.Tensor, want: Any, what: object) -> None:
    want = want if isinstance(want, torch.Tensor) else F.pil_to_tensor(want)
    want = want.as_subclass(torch.Tensor)
    assert got.shape == want.shape and got.dtype == want.dtype, (what, got.shape, want.shape, got.dtype, want.dtype)
    assert torch.equal(got, want), f"{what}: {(got.double() - want.double()).abs().max()}"


def as_tensor(picture: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array(picture))).permute(2, 0, 1)


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
@pytest.mark.parametrize("name", CASES)
def test_pil_images(name: str, gray: bool) -> None:
    make, theirs = CASES[name]
    for k, pixels in enumerate(pictures()):
        image = Image.fromarray(pixels)
        image = image.convert("L") if gray else image
        want = theirs(image)
        op = make("pil", 1)
        equal(as_tensor(apply_sample(image, (op,), 0)), want, k)
        equal(as_tensor(apply_sample(array(image), (op,), 0)), want, k)  # where the dataset gives pixels
        equal(apply_batch(as_tensor(image)[None], (op,))[0], want, k)
        equal(apply_batch(as_tensor(image)[None].contiguous(), (op,))[0], want, k)


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=["uint8", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_tensors(name: str, dtype: torch.dtype, gray: bool) -> None:
    make, theirs = CASES[name]
    if dtype == torch.float32 and name.startswith("Solarize") and float(name.split()[1]) > 1:
        return
    for k, pixels in enumerate(pictures()):
        x = F.to_dtype(F.pil_to_tensor(Image.fromarray(pixels)), dtype, scale=True)
        x = x[:1].contiguous() if gray else x
        want = theirs(x.clone())
        op = make("tensor", 1)
        equal(as_tensor(apply_sample(x.permute(1, 2, 0).numpy().copy(), (op,), 0)), want, k)
        equal(apply_batch(x[None], (op,))[0], want, k)


@pytest.mark.parametrize("kind", ["pil", "tensor"])
@pytest.mark.parametrize("name", CASES)
def test_all_rows_at_once(name: str, kind: str) -> None:
    """What a GPU does: one number per image in a tensor; where floats multiply and add in one step there, in two."""
    make, _ = CASES[name]
    x = torch.stack([as_tensor(photograph(40, 50, i)) for i in range(4)])
    op = make(kind, 4)
    at_once: Any = BATCH_FORMS[type(op)].__wrapped__  # type: ignore[attr-defined]
    got, want = at_once(x.clone(), op), apply_batch(x, (op,))
    if kind == "pil":
        equal(got, want, name)
    else:
        assert got.dtype == want.dtype and (got.int() - want.int()).abs().max() <= 1


@pytest.mark.parametrize("kind", ["pil", "tensor"])
@pytest.mark.parametrize("name", CASES)
def test_what_the_mask_leaves_out_stays(name: str, kind: str) -> None:
    make, _ = CASES[name]
    mask = np.array([True, False, True, False])
    op = make(kind, 4).where(mask, np.full((4, 2), 40))
    pixels = [photograph(40, 40, i) for i in range(4)]
    batch = torch.stack([as_tensor(p) for p in pixels])
    got = apply_batch(batch, (op,))
    assert torch.equal(batch, torch.stack([as_tensor(p) for p in pixels])), "the input was written to"
    for i, p in enumerate(pixels):
        equal(
            as_tensor(apply_sample(Image.fromarray(p), (op,), i) if kind == "pil" else apply_sample(p, (op,), i)),
            got[i],
            i,
        )
        assert mask[i] or torch.equal(got[i], batch[i])


# ---- hue


def cubes() -> Iterator[Any]:
    """A fifth of all triples of bytes: 52 times u8[256, 256, 3]. All of them agree, and take half a minute."""
    second, third = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8), indexing="ij")
    for first in range(0, 256, 5):
        yield np.stack([np.full_like(second, first), second, third], axis=2)


def test_hsv_is_pillows() -> None:
    tables = hue.tables(torch.device("cpu"))
    for cube in cubes():
        x = as_tensor(cube)[None]
        want = np.asarray(Image.fromarray(cube).convert("HSV"))
        assert np.array_equal(torch.stack(levels.hsv_of(x, tables), dim=-1)[0].numpy(), want)
        hsv = Image.merge("HSV", Image.fromarray(cube).split())
        got = levels.rgb_of(x[:, 0], x[:, 1], x[:, 2], tables)
        assert np.array_equal(got[0].permute(1, 2, 0).numpy(), np.asarray(hsv.convert("RGB")))


def test_hue_that_does_not_turn() -> None:
    """Bytes of HSV do not hold all colors, so they change; the lowest channel is looked up by those of RGB."""
    for cube in cubes():
        got = hue.pil_hue(as_tensor(cube)[None], torch.zeros(1, dtype=torch.uint8))
        equal(got[0], Image.fromarray(cube).convert("HSV").convert("RGB"), cube[0, 0, 0])


def test_every_turn_of_hue_on_a_batch() -> None:
    image = Image.fromarray(photograph(40, 30, 2))
    factors = np.linspace(-0.5, 0.5, 511)
    turn = torch.from_numpy((factors * 255).astype(np.int32).astype(np.uint8))
    got = hue.pil_hue(as_tensor(image).expand(511, -1, -1, -1), turn)
    for row, factor in zip(got, factors, strict=True):
        equal(row, F.adjust_hue(image, float(factor)), factor)


# ---- what may stand behind hue


@pytest.mark.parametrize("kind", ["pil", "tensor"])
@pytest.mark.parametrize("channels", [1, 3])
def test_gray_on_a_batch(kind: Any, channels: Any) -> None:
    mask = np.array([True, channels == 1, True])
    op = O.Gray(mask, channels=channels, always=channels == 1, kind=kind)
    pixels = [photograph(33, 44, i) for i in range(3)]
    for source in (pixels, [p[:, :, :1] for p in pixels]):
        for dtype in (torch.uint8, torch.float32) if kind == "tensor" else (torch.uint8,):
            x = F.to_dtype(torch.stack([as_tensor(p) for p in source]), dtype, scale=True)
            if channels == 3 and x.shape[1] == 1:
                op = O.Gray(np.ones(3, np.bool_), channels=3, always=True, kind=kind)
            got = apply_batch(x, (op,))
            for i, row in enumerate(x):
                equal(as_tensor(apply_sample(row.permute(1, 2, 0).numpy().copy(), (op,), i)), got[i], (i, dtype))


# ---- DALI

TRANSFORMS: dict[str, Any] = {
    "brightness": T.ColorJitter(brightness=1.0),
    "contrast": T.ColorJitter(contrast=1.0),
    "saturation": T.ColorJitter(saturation=1.0),
    "hue": T.ColorJitter(hue=0.5),
    "sharpness 0": T.RandomAdjustSharpness(0, 0.7),
    "sharpness 1.9": T.RandomAdjustSharpness(1.9, 1.0),
    "posterize": T.RandomPosterize(3),
    "solarize": T.RandomSolarize(127.5),
    "solarize nothing": T.RandomSolarize(255.0, 1.0),
    "invert": T.RandomInvert(),
    "autocontrast": T.RandomAutocontrast(0.8),
    "equalize": T.RandomEqualize(0.8),
    "jitter": T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "jitter without hue": T.ColorJitter(0.8, 0.8, 0.8),
    "jitter of some": T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.7),
}


def sets() -> dict[str, Any]:
    """u8[n, H, W, 3] on which the table was measured."""
    rng = np.random.default_rng(0)
    blocks = [np.kron(rng.integers(0, 2, (8, 8, 3)) * 255, np.ones((5, 4, 1), np.int64)) for _ in range(5)]
    specks = [np.where(rng.random((40, 40, 3)) < 0.05, rng.integers(0, 256, (40, 40, 3)), v) for v in (0, 99, 255)]
    return {
        "photographs": np.stack([photograph(72, 96, i) for i in range(9)]),
        "small photographs": np.stack([photograph(32, 32, i) for i in range(9)]),
        "noise": rng.integers(0, 256, (5, 48, 48, 3)).astype(np.uint8),
        "blocks": np.stack(blocks).astype(np.uint8),
        "one value": np.stack([np.full((20, 30, 3), v, np.uint8) for v in (0, 1, 77, 254, 255)]),
        "specks": np.stack(specks).astype(np.uint8),
        "two rows": np.stack([photograph(2, 9, i) for i in range(3)]),
    }


@pytest.mark.part("name", "kind", of=5)
@pytest.mark.parametrize("kind", ["pil", "tensor", "gray"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_dali_keeps_its_promises(name: str, kind: str) -> None:
    flips = [T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
    before = {"pil": [], "tensor": [T.ToImage()], "gray": [T.Grayscale(1)]}[kind]
    pipeline = T.Compose([*flips, *before, TRANSFORMS[name], T.ToImage()])
    photographs = Difference()
    for what, pixels in sets().items():
        found = run_dali(pixels, pipeline)
        photographs += found if what == "photographs" else Difference()
        # The mean is promised of photographs only.
        limit = [
            line for line in check("dali/torch", pipeline, found, "graph") if "largest" in line or what == "photographs"
        ]
        assert not limit, (what, limit, found.to_dict())
    assert photographs.images == 9


def run_dali(pixels: Any, pipeline: T.Compose) -> Difference:
    return from_reference(Arrays(pixels, np.arange(len(pixels)), transform=pipeline), Dali(graph="whole"), 4)


def test_dali_leaves_alone_what_was_not_drawn() -> None:
    pixels = sets()["photographs"]
    for transform in (
        T.RandomAdjustSharpness(0, 0),
        T.RandomEqualize(0),
        T.RandomAutocontrast(0),
        T.RandomSolarize(0, 0),
    ):
        pipeline = T.Compose([transform, T.PILToTensor()])
        assert run_dali(pixels, pipeline).equal == 1


def test_the_graph_ends_before_hue_and_torch_goes_on() -> None:
    chain = [T.CenterCrop(40), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.5), T.RandomSolarize(128, 0.5)]
    chain += [T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,), (0.25,))]
    found = run_dali(sets()["photographs"], T.Compose(chain))
    assert found.mean < 0.2 and found.over_1 < 0.01
