"""Each row of the table of functions: engines make what the library makes, within the promises."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor
from torchvision.transforms import _functional_pil, _functional_tensor, functional as F
from torchvision.transforms.v2.functional import _augment, _color, _geometry, _misc

from gpupipe.live.functions import _OF_V1, _OF_V2, _TENSORS
from gpupipe.live.on_cpu import OnCpu
from gpupipe.live.recipe import Recipe, recipe_of, results_of
from gpupipe.live.rows import _FILTERS
from gpupipe.live.switch import switched
from gpupipe.live.tensors import WaitingTensor
from gpupipe.parity.difference import difference
from gpupipe.parity.tolerances import broken, tolerance
from gpupipe.reading.buffers import BatchPool
from gpupipe.transforms.ops import Replay

from .beside import by_channels, jpeg, waits

pytest.importorskip("nvidia.dali")
SEED = os.environ.get("GPUPIPE_ROWS_SEED", "")
"""Other random arguments."""
Change = Callable[[Any], Any]
HEIGHT, WIDTH = 40, 48


def factor(r: random.Random) -> float:
    return r.choice([0.0, 1.0, r.uniform(0, 2)])


def sides(r: random.Random, least: int = 0) -> list[int]:
    return [r.randint(least, 6) for _ in range(4)]


def color(r: random.Random) -> Any:
    return r.choice([0, (r.randrange(256), 3, 250)])


def sized(r: random.Random) -> tuple[int, int]:
    return r.randint(9, 60), r.randint(9, 60)


def turned(r: random.Random) -> Change:
    method = r.choice([Image.Transform.AFFINE, Image.Transform.PERSPECTIVE])
    count = 6 if method == Image.Transform.AFFINE else 8
    data = [1 + r.uniform(-0.2, 0.2), 0.1, r.uniform(-5, 5), r.uniform(-0.2, 0.2), 0.9, 2, 1e-3, -1e-3][:count]
    how = r.choice([Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC])
    return lambda im: im.transform(im.size, method, data, how, fillcolor=(9, 8, 7))


def rotated(r: random.Random) -> Change:
    angle, how, wide = r.choice([90, 180, r.uniform(-180, 180)]), r.choice([0, 2, 3]), r.random() < 0.5
    return lambda im: im.rotate(angle, how, expand=wide)


def cut(r: random.Random) -> Change:
    top, left = r.randint(-5, 9), r.randint(-5, 9)
    return lambda im: im.crop((left, top, left + 30, top + 33))


def filtered(r: random.Random) -> Change:
    kernel = ImageFilter.Kernel((3, 3), [r.randint(-2, 3) for _ in range(9)], 4)
    filters = [ImageFilter.BLUR, ImageFilter.SHARPEN, ImageFilter.BoxBlur(2), ImageFilter.MedianFilter(3), kernel]
    found = r.choice([*filters, ImageFilter.UnsharpMask(2, 90), ImageFilter.GaussianBlur((1, 3))])
    return lambda im: im.filter(found)


def pasted(r: random.Random) -> Change:
    """An image on a color, or a part of it on itself, at a place or through a mask."""
    at, shade = (r.randint(-9, 20), r.randint(-9, 20)), (r.randrange(256), 3, 250)

    def on_a_color(im: Image.Image) -> Image.Image:
        canvas = Image.new("RGB", (70, 60), shade)
        canvas.paste(im, at)
        return canvas

    def on_itself(im: Image.Image) -> Image.Image:
        made, patch = im.copy(), im.crop((3, 4, 20, 25)).rotate(30)
        made.paste(patch, at, mask=patch.convert("L") if at[0] % 2 else None)
        made.paste(shade, (1, 2, 9, 8))
        return made

    def through_a_mask(im: Image.Image) -> Image.Image:
        made, mask = im.copy(), Image.new("L", im.size, 99)
        mask.paste(200, (5, 5, 20, 20))
        made.paste(ImageOps.invert(im), mask)
        return made

    return r.choice([on_a_color, on_itself, through_a_mask])


def drawn(r: random.Random) -> Change:
    box, shade = (r.randint(-5, 9), 4, r.randint(12, 60), 30), (r.randrange(256), 3, 250)
    name = r.choice(["rectangle", "ellipse", "line", "polygon"])

    def change(im: Image.Image) -> Image.Image:
        made = im.copy()
        draw = ImageDraw.Draw(made)
        getattr(draw, name)([(1, 2), (20, 8), (5, 30)] if name == "polygon" else box, fill=shade)
        draw.point((3, 3), "red")
        return made

    return change


def in_other_modes(r: random.Random) -> Change:
    def luma(im: Image.Image) -> Image.Image:
        y, cb, cr = im.convert("YCbCr").split()
        return Image.merge("YCbCr", (ImageOps.equalize(y), cb, cr)).convert("RGB")

    def turned_clear(im: Image.Image) -> Image.Image:
        clear = (
            im.convert("RGBA").rotate(20, 2, expand=True, fillcolor=(1, 2, 3, 4)).crop((-3, 2, 30, 28)).resize((30, 30))
        )
        return Image.composite(clear, Image.new("RGBA", clear.size, (9, 8, 7, 128)), clear).convert("RGB")

    return r.choice(
        [luma, turned_clear, lambda im: im.convert("1").convert("RGB"), lambda im: im.convert("LA").convert("RGB")]
    )


def combined(r: random.Random) -> Change:
    return r.choice(
        [
            lambda im: ImageChops.offset(im, 3, 4),
            lambda im: ImageChops.add(im, im.transpose(0), 2, 3),
            lambda im: Image.blend(im, ImageOps.solarize(im), 0.3),
            lambda im: ImageChops.difference(im, Image.new("RGB", im.size, (9, 8, 7))),
        ]
    )


IMAGES: dict[str, Callable[[random.Random], Change]] = {
    "called filters": filtered,
    "called point": lambda r: (lambda f: lambda im: im.point(lambda v: v * f))(r.uniform(0, 2)),
    "called paste": pasted,
    "called draw": drawn,
    "called thumbnail": lambda r: (lambda to: lambda im: (small := im.copy(), small.thumbnail(to, 2))[0])(sized(r)),
    "called in modes": in_other_modes,
    "called chops": combined,
    "called autocontrast": lambda r: (lambda c: lambda im: ImageOps.autocontrast(im, c))(r.randint(1, 9)),
    "called resize": lambda r: (lambda box: lambda im: im.resize((21, 12), 2, box, reducing_gap=2.0))(
        r.choice([None, (1, 2, 20.5, 30), [0, 0, 9, 9]])
    ),
    "called fit": lambda r: (lambda to: lambda im: ImageOps.fit(im, to))(sized(r)),
    "negative expand": lambda r: (lambda b: lambda im: ImageOps.expand(im, b))(
        r.choice([r.randint(-5, -1), (-2, 2, 0, 0), tuple(r.randint(-5, 5) for _ in range(4))])
    ),
    "crop": cut,
    "resize": lambda r: (lambda to, how: lambda im: im.resize(to, how))(sized(r), r.choice([*_FILTERS])),
    "transpose": lambda r: (lambda m: lambda im: im.transpose(m))(r.choice([0, 1, 2, 3, 4])),
    "transform": turned,
    "rotate": rotated,
    "filter": lambda r: (lambda s: lambda im: im.filter(ImageFilter.GaussianBlur(s)))(r.uniform(0.1, 3)),
    "convert": lambda r: lambda im: im.convert("L").convert("RGB"),
    "copy": lambda r: lambda im: im.copy(),
    "expand": lambda r: (lambda b, c: lambda im: ImageOps.expand(im, b, c))(tuple(sides(r)), color(r)),
    "posterize": lambda r: (lambda b: lambda im: ImageOps.posterize(im, b))(r.randint(1, 8)),
    "solarize": lambda r: (lambda t: lambda im: ImageOps.solarize(im, t))(r.randint(0, 256)),
    "invert": lambda r: ImageOps.invert,
    "autocontrast": lambda r: ImageOps.autocontrast,
    "equalize": lambda r: ImageOps.equalize,
    "Brightness": lambda r: (lambda f: lambda im: ImageEnhance.Brightness(im).enhance(f))(factor(r)),
    "Color": lambda r: (lambda f: lambda im: ImageEnhance.Color(im).enhance(f))(factor(r)),
    "Contrast": lambda r: (lambda f: lambda im: ImageEnhance.Contrast(im).enhance(f))(factor(r)),
    "Sharpness": lambda r: (lambda f: lambda im: ImageEnhance.Sharpness(im).enhance(f))(factor(r)),
    "adjust_hue": lambda r: (lambda f: lambda im: _functional_pil.adjust_hue(im, f))(r.uniform(-0.5, 0.5)),
    "to_grayscale": lambda r: lambda im: _functional_pil.to_grayscale(im, 3),
    "pad": lambda r: (lambda p, m: lambda im: _functional_pil.pad(im, p, 3, m))(
        sides(r), r.choice(["constant", "edge", "reflect", "symmetric"])
    ),
    "gaussian_blur": lambda r: (lambda k, s: lambda im: F.gaussian_blur(im, k, s))(
        r.choice([3, [5, 3]]), r.uniform(0.1, 2)
    ),
}
"""Functions of PIL images, by the names of their rows."""

ARGUMENTS: dict[str, Callable[[random.Random], tuple[Any, ...]]] = {
    "adjust_brightness": lambda r: (factor(r),),
    "adjust_contrast": lambda r: (factor(r),),
    "adjust_saturation": lambda r: (factor(r),),
    "adjust_sharpness": lambda r: (factor(r),),
    "adjust_hue": lambda r: (r.uniform(-0.5, 0.5),),
    "autocontrast": lambda r: (),
    "equalize": lambda r: (),
    "erase": lambda r: (r.randint(0, 9), r.randint(0, 9), r.randint(1, 20), r.randint(1, 20), torch.tensor(7)),
    "gaussian_blur": lambda r: ([3, 5], [(s := r.uniform(0.1, 2)), s]),
    "invert": lambda r: (),
    "normalize": lambda r: ([0.1, 0.2, 0.3], [0.5, 0.6, 0.7]),
    "pad": lambda r: (sides(r), r.choice([4, 0.3]), "constant"),
    "permute_channels": lambda r: (r.sample(range(3), 3),),
    "posterize": lambda r: (r.randint(1, 8),),
    "resize": lambda r: (list(sized(r)), r.choice(["bilinear", "bicubic"]), r.random() < 0.7),
    "rgb_to_grayscale": lambda r: (3,),
    "solarize": lambda r: (r.uniform(0, 1),),
    "affine": lambda r: ([1.1, r.uniform(-0.2, 0.2), 2.0, 0.1, 0.9, -1.0], r.choice(["nearest", "bilinear"])),
    "perspective": lambda r: ([1.1, 0.1, r.uniform(-3, 3), 0.1, 0.9, -1.0, 1e-3, 1e-3], "bilinear"),
    "rotate": lambda r: (r.uniform(-90, 90), F.InterpolationMode.BILINEAR, r.random() < 0.5),
}
"""Arguments of functions of tensors."""
V2 = {
    "affine": lambda r: (r.uniform(-40, 40), [2, -3], r.uniform(0.8, 1.2), [r.uniform(-9, 9), 2.0]),
    "perspective": lambda r: (None, None, F.InterpolationMode.BILINEAR, None, ARGUMENTS["perspective"](r)[0]),
    "resize": lambda r: (list(sized(r)), r.choice([F.InterpolationMode.BILINEAR, F.InterpolationMode.BICUBIC])),
}
"""Where v2 has others."""
BYTES = {"equalize", "posterize"}
FLOATS = {"normalize", "v1 adjust_hue", "v1 adjust_saturation", "v1 adjust_sharpness", "v1 autocontrast", "v1 resize"}


IN_OTHER_ORDER = {"v1 adjust_hue", "v1 adjust_saturation", "v1 adjust_sharpness", "v1 autocontrast", "v1 gaussian_blur"}
IN_OTHER_ORDER |= {"v1 adjust_contrast", "v1 rgb_to_grayscale"}
"""v1 adds or multiplies floats in another order than v2 and gpupipe."""


ARITHMETIC: dict[str, Change] = {
    "255 levels": lambda x: x * 255,
    "255 levels as bytes": lambda x: (x * 255).to(torch.uint8),
    "255 levels, normalized": lambda x: F.normalize(x.mul(255), [1, 2, 3], [3, 4, 5]),
    "several": lambda x: (x.mul(2).sub(1) / 0.1 + 3).mul(0.7),
    "numpy's numbers": lambda x: np.float32(0.3) * x + x * np.float32(3),
    "from the right": lambda x: (1 - x) + 1 / (2 - x) + (x - 0.1) ** 2,
    "a gray image": lambda x: F.rgb_to_grayscale(x),
    "back to an image": lambda x: F.to_tensor(F.resize(F.to_pil_image(x), [12, 12])),
    "in place": lambda x: x.mul_(255).sub_(127.5).div_(127.5),
    "a value for each channel": lambda x: (x - torch.tensor([[[0.1]], [[0.2]], [[0.3]]])) * torch.tensor([[[3.0]]]),
}
CALLS: dict[str, Change] = {
    "by channels": lambda x: by_channels(x)[0],
    "a changed view": lambda x: (y := x * 1, y[:, 2:9].copy_(x[:, 1:8]), y[0].clamp_(0.2, 0.5))[0],
    "new memory": lambda x: (out := x.new_full((3, 60, 70), 0.5), out[:, : x.shape[1], : x.shape[2]].copy_(x))[0],
    "sums": lambda x: sum((w * y for w, y in zip((0.3, 0.7), (x, x.flip(2)), strict=True)), torch.zeros_like(x)),
    "index_select": lambda x: x.index_select(2, torch.arange(x.shape[2] - 1, -1, -1)),
    "legacy type": lambda x: x.type("torch.DoubleTensor").type(torch.FloatTensor),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2, 3, 4), mode="reflect"),
    "written": lambda x: (y := x.clone(), y[1].__setitem__(slice(2, 5), 0.25), y.__setitem__(1, y[1].mul_(2)))[0],
}


def tensors_by(name: str, *, v2: bool) -> Callable[[random.Random, bool], Change] | None:
    function = getattr(F, name, None) if name == "normalize" else getattr(_functional_tensor, name, None)
    if v2:
        modules = (_augment, _color, _geometry, _misc)
        function = next((found for m in modules if (found := getattr(m, f"{name}_image", None))), None)
    if function is None:
        return None

    def change(r: random.Random, bytes_: bool) -> Change:
        arguments = (V2.get(name) if v2 else None) or ARGUMENTS[name]
        given = arguments(r)
        if name == "erase":
            given = (*given[:4], torch.full((1, 1, 1), 7, dtype=torch.uint8 if bytes_ else torch.float32))
        if name == "solarize" and bytes_:
            given = (int(255 * given[0]),)
        return lambda x: function(x, *given)

    return change


TENSORS = {
    f"{'v2' if v2 else 'v1'} {name}": change
    for v2, names in ((False, {**_TENSORS, **_OF_V1}), (True, {**_TENSORS, **_OF_V2}))
    for name in names
    if (change := tensors_by(name, v2=v2)) is not None
}


def loaded(k: int) -> Image.Image:
    return Image.open(io.BytesIO(jpeg(k, HEIGHT + 2 * k, WIDTH - k)))


def of_images(changes: list[Change]) -> list[Tensor]:
    return [F.to_tensor(change(loaded(k).convert("RGB"))) for k, change in enumerate(changes)]


def of_tensors(changes: list[Change], *, bytes_: bool) -> list[Tensor]:
    begin = F.pil_to_tensor if bytes_ else F.to_tensor
    return [change(begin(loaded(k))) for k, change in enumerate(changes)]


def checked(script: Callable[[], list[Tensor]], *, within: float = 0.0) -> None:
    """Assert that all results wait, that the reference makes what the library does, and DALI keeps the promises."""
    with switched(False):
        library = script()
    with switched(True):
        waiting: list[Any] = script()
        assert list(map(waits, waiting)) == [True] * len(waiting)
        recipe = recipe_of(x for x in waiting if isinstance(x, WaitingTensor))
    assert recipe is not None and len(recipe.results) == len(library)
    exact = [recipe.by_reference(k) for k in range(len(recipe.jobs))]
    for made, want in zip(results_of(recipe, [x.clone() for x in exact]), library, strict=True):
        assert made.dtype == want.dtype and made.shape == want.shape
        torch.testing.assert_close(made, want, atol=within, rtol=0)
    keeps_promises(recipe, exact)


def keeps_promises(recipe: Recipe, exact: list[Tensor]) -> None:
    maker = OnCpu(2, BatchPool(keep=2))
    try:
        made = maker.start(recipe).result()
    finally:
        maker.close()
    for job, x, want in zip(recipe.jobs, made, exact, strict=True):
        promised = tolerance("dali/torch", job.ops)
        if promised is None:
            # A resize may differ by one level. Calls amplify differences, so images are exact before them.
            level = 0.0 if any(isinstance(op, Replay) for op in job.ops) else 1.01
            scale = 1 if x.dtype == torch.uint8 else 255
            torch.testing.assert_close(x.float(), want.float(), atol=level / scale, rtol=0)
            continue
        assert broken(promised, difference(x, want, job.ops, recipe.sizes[job.sources])) == []


@pytest.mark.parametrize("name", IMAGES)
def test_rows_of_images(name: str) -> None:
    r = random.Random(f"{name}{SEED}")
    changes = [IMAGES[name](r) for _ in range(3)]
    checked(lambda: of_images(changes))


@pytest.mark.parametrize("name", TENSORS)
def test_rows_of_tensors(name: str) -> None:
    r, last = random.Random(f"{name}{SEED}"), name.split()[1]
    for bytes_ in (True, False):
        if not {name, last} & (FLOATS if bytes_ else BYTES):
            changes = [TENSORS[name](r, bytes_) for _ in range(2)]
            within = 1e-6 if name in IN_OTHER_ORDER and not bytes_ else 0.0
            checked(lambda: of_tensors(changes, bytes_=bytes_), within=within)  # noqa: B023


@pytest.mark.parametrize("name", sorted(FLOATS & TENSORS.keys()))
def test_v1_rounds_bytes_itself(name: str) -> None:
    with switched(True):
        made = TENSORS[name](random.Random(SEED), True)(F.pil_to_tensor(loaded(0)))
    assert not waits(made)


@pytest.mark.parametrize("name", [*ARITHMETIC, *CALLS])
def test_calls(name: str) -> None:
    checked(lambda: of_tensors([{**ARITHMETIC, **CALLS}[name]] * 2, bytes_=False))


def test_views_of_whole_batches() -> None:
    """They lie on the memory of the batch that they are written to."""
    checked(lambda: [torch.stack([F.resize(F.to_tensor(loaded(k)), [12, 12]).transpose(1, 2) for k in (1, 2)])])


def test_arithmetic_of_bytes() -> None:
    checked(lambda: of_tensors([lambda x: x / 255, lambda x: x.div(127.5) - 1], bytes_=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_both_conversions(dtype: torch.dtype) -> None:
    """v1 divides by 255, and v2 multiplies by its inverse."""
    both = [lambda x: F.convert_image_dtype(x, dtype), lambda x: _misc.to_dtype_image(x, dtype, scale=True)]
    checked(lambda: of_tensors(both, bytes_=True))


@pytest.mark.parametrize("seed", range(6))
def test_sequences_of_rows(seed: int) -> None:
    """Images of a batch go through different functions in different orders."""
    r = random.Random(f"{seed} {SEED}")

    def sequence() -> Change:
        steps = [IMAGES[name](r) for name in r.sample(sorted(IMAGES), r.randint(1, 4))]

        def change(im: Image.Image) -> Image.Image:
            for step in steps:
                im = step(im)
            return im.resize((20, 16))

        return change

    changes = [sequence() for _ in range(5)]
    checked(lambda: of_images(changes))


def test_large_images_do_not_travel() -> None:
    large = Image.new("RGB", (400, 300))
    large.paste("red", (0, 0, 9, 9))
    with switched(True):
        canvas, small = loaded(1).resize(large.size), loaded(1)
        canvas.paste(large)
        small.paste(large.crop((0, 0, 20, 20)))
        assert not waits(canvas)
        assert waits(small)


def test_every_row_of_tensors_is_tried() -> None:
    assert {name.split()[1] for name in TENSORS} == _TENSORS.keys() | _OF_V1.keys() | _OF_V2.keys()
