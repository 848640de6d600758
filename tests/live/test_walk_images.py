"""Walks all of Pillow: whatever is called on an image that waits comes to what it comes to on a real one."""

from __future__ import annotations

import inspect
import io
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageMath, ImageOps, ImageSequence, ImageStat
from PIL.JpegImagePlugin import JpegImageFile

from .beside import jpeg, outcome, twice

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def opened(seed: int = 1, mode: str = "RGB") -> Image.Image:
    return Image.open(io.BytesIO(jpeg(seed, mode=mode)))


def a_file() -> list[Image.Image]:
    """An image, and its relatives, which must not change with it."""
    im = opened()
    return [im, im.copy(), im.convert("RGB"), im.crop((1, 2, 9, 8))]


def a_result() -> list[Image.Image]:
    parent = opened()
    im = parent.resize((24, 20)).convert("RGB")
    return [im, parent, im.copy(), im.crop((0, 0, 24, 20)), im.transpose(Image.Transpose.ROTATE_90)]


def a_gray() -> list[Image.Image]:
    parent = opened()
    im = parent.convert("L")
    return [im, parent, im.convert("RGB"), im.crop(BOX)]


def a_gray_file() -> list[Image.Image]:
    im = opened(mode="L")
    return [im, im.convert("L"), im.convert("RGB")]


FAMILIES = [a_file, a_result, a_gray, a_gray_file]

BOX = (2, 3, 14, 11)
VALUES: dict[str, list[Callable[[], Any]]] = {
    "alpha": [lambda: 0.3, lambda: opened(2, "L")],
    "angle": [lambda: 0, lambda: 90, lambda: 17.5],
    "band": [lambda: 0],
    "bbox": [lambda: BOX, lambda: (0, 0, 24, 20)],
    "bitmap": [lambda: opened(2, "L")],
    "bits": [lambda: 3],
    "black": [lambda: "black"],
    "border": [lambda: 2, lambda: (1, 2), lambda: (1, 2, 3, 4), lambda: (-2, 2, 0, 0), lambda: -1],
    "bounding_circle": [lambda: (9, 9, 5)],
    "box": [lambda: BOX, lambda: (-2, -3, 10, 8), lambda: (0, 0, 24, 20), lambda: (2.4, 3.5, 9.5, 9.9), lambda: None],
    "center": [lambda: (3, 4)],
    "centering": [lambda: (0.2, 0.9)],
    "channel": [lambda: "G", lambda: 0],
    "color": [lambda: "red", lambda: 9],
    "colors": [lambda: 5],
    "cutoff": [lambda: 0, lambda: 5, lambda: (2, 10)],
    "data": [
        lambda: bytes(range(240)) * 6,
        lambda: (1.1, 0.1, -2, 0.05, 0.9, 1),
        lambda: list(range(480)),
        lambda: bytes(range(256)) * 3,
    ],
    "deformer": [lambda: _Deformer()],
    "dest": [lambda: (1, 2)],
    "expand": [lambda: True],
    "extrema": [lambda: (3, 99)],
    "factor": [lambda: 2, lambda: (2, 3), lambda: 0.5, lambda: 1.5],
    "fill": [lambda: 7, lambda: (9, 8, 7), lambda: "red"],
    "fillcolor": [lambda: (9, 8, 7), lambda: 5],
    "filter": [
        lambda: ImageFilter.GaussianBlur(1.5),
        lambda: ImageFilter.GaussianBlur,
        lambda: ImageFilter.FIND_EDGES,
        lambda: ImageFilter.MedianFilter(3),
    ],
    "format": [lambda: "PNG", lambda: "JPEG"],
    "fp": [lambda: io.BytesIO()],
    "frame": [lambda: 0, lambda: 1],
    "gamma": [lambda: 0.5],
    "ignore": [lambda: 255],
    "im": [lambda: opened(2), lambda: 5],
    "image": [lambda: opened(2)],
    "image1": [lambda: opened(3)],
    "image2": [lambda: opened(2), lambda: opened(2).convert("L")],
    "in_place": [lambda: True],
    "keepRGB": [lambda: True],
    "lut": [lambda: lambda v: 255 - v, lambda: list(range(255, -1, -1)) * 3],
    "mask": [lambda: opened(4, "L"), lambda: opened(4).convert("1"), lambda: None],
    "matrix": [lambda: (0.5, 0.2, 0.1, 0)],
    "method": [*(lambda m=m: m for m in Image.Transpose), lambda: 0, lambda: Image.Transform.AFFINE, lambda: 99],
    "mid": [lambda: "blue"],
    "mode": [lambda m=m: m for m in ("L", "RGB", "1", "P", "CMYK", "HSV", "RGBA", "F", "nonsense")],
    "n_sides": [lambda: 5],
    "offset": [lambda: 3],
    "optimize": [lambda: True],
    "palette": [lambda: list(range(256)) * 3, lambda: Image.Palette.ADAPTIVE],
    "preserve_tone": [lambda: True],
    "radius": [lambda: 2],
    "rawmode": [lambda: "RGB"],
    "reducing_gap": [lambda: 2.0],
    "resample": [lambda r=r: r for r in (*Image.Resampling, 17)],
    "rgb2_to_rgb": [lambda: None],
    "scale": [lambda: 0.7, lambda: 2],
    "size": [lambda: (16, 12), lambda: (24, 20), lambda: (0, 3), lambda: (48, 31), lambda: [9, 9]],
    "source": [lambda: BOX],
    "text": [lambda: "hi"],
    "threshold": [lambda: 60, lambda: 300],
    "translate": [lambda: (2, -1)],
    "value": [lambda: 9, lambda: (1, 2, 3)],
    "white": [lambda: "yellow"],
    "xoffset": [lambda: 3],
    "xy": [lambda: (3, 4), lambda: [(1, 2), (9, 8)], lambda: (-1, -1), lambda: 99, lambda: [(1, 1), (9, 3), (4, 9)]],
    "yoffset": [lambda: -2],
    **{name: [lambda: opened(2)] for name in ("obj", "other")},
}


class _Deformer:
    def getmesh(self, image: Image.Image) -> list[Any]:
        width, height = image.size
        return [((0, 0, width, height), (0, 0, 0, height, width - 3, height, width, 2))]


def argument_lists(function: Callable[..., Any], *, skip: int = 0) -> Iterator[dict[str, Callable[[], Any]]]:
    """Yield arguments by name: for each parameter all values that suit it, beside the first ones that are needed."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except (TypeError, ValueError):
        parameters = []
    needed = {p.name: VALUES.get(p.name, [lambda: 1])[0] for p in parameters if p.default is p.empty and p.kind < 2}
    yield needed
    for p in parameters:
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            for value in VALUES.get(p.name, [])[p.default is p.empty :]:
                yield {**needed, p.name: value}


def told(family: Callable[[], list[Image.Image]], call: Callable[[Image.Image], Any]) -> list[Any]:
    """Return all that can be told after a call on an image: of the result, the image and its relatives, and again
    after the results were painted on."""
    im, *relatives = family()
    result = None

    def called() -> Any:
        nonlocal result
        result = call(im)
        return result

    seen = [outcome(called), *(outcome(lambda x=x: x) for x in (im, *relatives))]
    for x in (result, im):
        if isinstance(x, Image.Image):
            seen.append(outcome(x.paste, 7, (0, 0, 3, 3)))
            seen += [outcome(lambda y=y: y) for y in (result, im, *relatives)]
    return seen


def compared(family: Any, call: Callable[[Image.Image], Any]) -> tuple[bool, bool]:
    """Return whether the call comes to the same on images that wait, and whether a real one can be called so."""
    ours, theirs = twice(lambda: told(family, call))
    equal = ours == theirs or theirs != twice(lambda: told(family, call))[1]  # Pillow reads memory that nobody wrote
    return equal, theirs[0][0] != "raises"


def walked(calls: dict[str, Iterator[Callable[[Image.Image], Any]]]) -> tuple[list[str], list[str]]:
    """Return what differs, and the names that no image can be called with."""
    wrong: Counter[str] = Counter()
    worked: Counter[str] = Counter()
    for name, several in calls.items():
        worked[name] = 0
        for number, call in enumerate(several):
            for family in FAMILIES:
                equal, works = compared(family, call)
                worked[name] += works
                wrong[f"{name}, call {number}, {family.__name__}"] += not equal
    return sorted(name for name, count in wrong.items() if count), sorted(n for n, count in worked.items() if not count)


DUNDERS = [
    "__array_interface__", "__arrow_c_array__", "__arrow_c_schema__", "__copy__", "__enter__", "__eq__", "__getstate__",
    "__hash__", "__reduce_ex__", "__sizeof__",
]  # fmt: skip
NOT_CALLED = {"show", "_dump", "_getexif", "_exif", "_open", "load_read"}
"""Start a viewer, write to a folder, or are Pillow's own, for reading a file."""
KNOWN = {
    "load": "returns another object for access to pixels; libraries call it so that the file is read",
    "fp": "a file that waits has its bytes", "tile": "and says how they will be decoded",
    "_gpupipe": "", "_gpupipe_tile": "", "_im": "", "_exclusive_fp": "",
}  # fmt: skip
"""Names that show that an image waits."""


def attribute(im: Image.Image, name: str) -> Any:
    value = getattr(im, name)
    return (value.mode, value.size, value.getpixel((2, 3))) if name == "im" else value


def calls_of_method(name: str) -> Iterator[Callable[[Image.Image], Any]]:
    function = inspect.getattr_static(JpegImageFile, name, None)
    if not inspect.isfunction(function):  # a property or an attribute
        yield lambda im: attribute(im, name)
        return
    for arguments in argument_lists(function, skip=1):
        if name == "point" and "mode" in arguments:  # Pillow reads memory that nobody has written then
            continue

        def call(im: Image.Image, arguments: Any = arguments) -> Any:
            given = {key: value() for key, value in arguments.items()}
            result = getattr(im, name)(**given)
            written = [v.getvalue() for v in given.values() if isinstance(v, io.BytesIO)]
            return (result, written, list(given.values())) if name not in ("__hash__", "__reduce_ex__") else None

        yield call


def test_methods_of_images() -> None:
    every = {name for name in {*dir(opened()), *dir(Image.Image)} if not name.startswith("__")} - NOT_CALLED
    differ, never = walked({name: calls_of_method(name) for name in sorted(every - KNOWN.keys()) + DUNDERS})
    assert differ == []
    assert never == [  # with RGB and gray images
        "_attach_default_encoderinfo", "_new", "_repr_pretty_", "_seek_check", "alpha_composite", "load_djpeg",
        "remap_palette", "tobitmap", "toqimage", "toqpixmap",
    ]  # fmt: skip


def functions_of(module: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def calls_of_function(function: Any) -> Iterator[Callable[[Image.Image], Any]]:
    """Yield calls with the image at each place where the function takes one."""
    parameters = inspect.signature(function).parameters
    images = [name for name in parameters if name in ("im", "image", "image1", "image2", "mask")]
    for place in images:
        for arguments in argument_lists(function):

            def call(im: Image.Image, arguments: Any = arguments, place: str = place) -> Any:
                given = {key: value() for key, value in arguments.items()} | {place: im}
                return function(**given), list(given.values())

            yield call


@pytest.mark.parametrize("module", [ImageOps, ImageChops], ids=["ImageOps", "ImageChops"])
def test_functions_of_modules(module: Any) -> None:
    differ, never = walked({name: calls_of_function(function) for name, function in functions_of(module).items()})
    assert differ == []
    assert never == (["logical_and", "logical_or", "logical_xor"] if module is ImageChops else [])


def drawn(name: str, arguments: dict[str, Callable[[], Any]]) -> Callable[[Image.Image], Any]:
    def call(im: Image.Image) -> Any:
        pen = ImageDraw.Draw(im)
        given = {key: value() for key, value in arguments.items()}
        return getattr(pen, name)(**given), im

    return call


def test_drawing() -> None:
    pen = vars(ImageDraw.ImageDraw).items()
    methods = {name: value for name, value in pen if inspect.isfunction(value) and not name.startswith("_")}
    calls = {name: iter([drawn(name, a) for a in argument_lists(f, skip=1)]) for name, f in methods.items()}
    calls["floodfill"] = iter([lambda im, v=v: ImageDraw.floodfill(im, (3, 4), v, thresh=30) for v in (7, (1, 2, 3))])
    differ, never = walked(calls)
    assert differ == []
    assert never == ["shape"]


def test_filters_and_enhancers() -> None:
    filters = {n: f for n, f in vars(ImageFilter).items() if inspect.isclass(f) and issubclass(f, ImageFilter.Filter)}
    lut = ImageFilter.Color3DLUT.generate(3, lambda r, g, b: (b, r, g))
    more = [ImageFilter.Kernel((3, 3), range(9)), ImageFilter.RankFilter(3, 2), lut, ImageFilter.GaussianBlur((1, 3))]
    calls = {name: iter([lambda im, f=f: im.filter(f())]) for name, f in filters.items()}
    calls["more"] = iter([lambda im, f=f: im.filter(f) for f in more])
    for name, kind in vars(ImageEnhance).items():
        if inspect.isclass(kind) and issubclass(kind, ImageEnhance._Enhance) and kind is not ImageEnhance._Enhance:
            calls[name] = iter([lambda im, k=kind, f=f: enhanced(k(im), f) for f in (0, 0.4, 1, 1.7, -1)])
    differ, never = walked(calls)
    assert differ == []
    # Abstract ones, and those with arguments, which "more" has.
    abstract = ["BuiltinFilter", "Filter", "Kernel", "MultibandFilter"]
    assert never == sorted([*abstract, "BoxBlur", "Color3DLUT", "RankFilter"])


def enhanced(enhancer: Any, factor: float) -> Any:
    return enhancer.enhance(factor), enhancer.image, enhancer.degenerate


def test_other_modules() -> None:
    calls: dict[str, list[Callable[[Image.Image], Any]]] = {
        "ImageStat": [lambda im: vars(ImageStat.Stat(im)), lambda im: ImageStat.Stat(im).stddev],
        "ImageMath": [lambda im: ImageMath.lambda_eval(lambda a: a["convert"](a["x"] + 1, "I"), x=im.convert("L"))],
        "ImageSequence": [lambda im: list(ImageSequence.Iterator(im))],
        "Image": [
            lambda im: Image.blend(im, im.rotate(9), 0.5),
            lambda im: Image.composite(im, im.rotate(90), im.convert("L")),
            lambda im: Image.merge("RGB", [im.convert("L"), im.getchannel(0), im.convert("L").rotate(180)]),
            lambda im: Image.alpha_composite(im.convert("RGBA"), im.convert("RGBA")),
            lambda im: Image.eval(im, lambda v: 255 - v),
            lambda im: Image.fromarray(np.asarray(im)[::2]),
            lambda im: Image.frombuffer(im.mode, im.size, im.tobytes()),
        ],
        "ImagePath": [lambda im: im.getprojection()],
    }
    differ, _ = walked({name: iter(several) for name, several in calls.items()})
    assert differ == []
