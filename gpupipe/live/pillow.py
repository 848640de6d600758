"""Functions of Pillow that are written down when they are called on images that wait.

A function that an op stands for becomes that op. Any other one is called later, where an engine has made the image.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from . import images, rows
from .images import become, step_of, waiting
from .rows import Moves
from .steps import DEEPEST, MODES, AnyImage, Called, ImageStep, frozen, mapped
from .switch import catch, switched, uncaught

Row = Callable[..., Moves | None]


def by_position(function: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...] | None]:
    """Return a function that puts the arguments of a call of ``function``, without its first one, in order; it returns
    ``None`` for others than it takes."""
    _, *parameters = inspect.signature(uncaught(function)).parameters.values()
    names = [parameter.name for parameter in parameters]
    defaults = {parameter.name: parameter.default for parameter in parameters}

    def ordered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        if not kwargs:
            return args
        rest = names[len(args) :]
        if not kwargs.keys() <= set(rest):
            return None
        last = max(rest.index(name) for name in kwargs)
        return *args, *(kwargs.get(name, defaults[name]) for name in rest[: last + 1])

    return ordered


def known_step(image: Any) -> AnyImage | None:
    """Return the step of an image that waits, and whose mode engines make."""
    step = step_of(image)
    return step if step is not None and step.mode in MODES else None


def _has_color(arguments: tuple[Any, ...]) -> bool:
    """Return whether a color is among the arguments. Functions refuse it for gray images."""
    return any(isinstance(value, (tuple, list)) and len(value) == 3 for value in arguments)


def on_image(
    function: Any, row: Row, *, mode: str | None = None, keeps_info: bool = True, keeps_size: bool = True
) -> None:
    """Catch a function whose first argument is an image.

    Args:
        row: of the table.
        mode: of the result, if it differs from the image's.
        keeps_info: whether the function copies ``info``.
        keeps_size: whether the result has the size of the image, or :func:`_later` knows it.
    """
    ordered = by_position(function)

    def instead(really: Callable[..., Any], image: Any, *args: Any, **kwargs: Any) -> Any:
        step = step_of(image)
        if step is None:
            return really(image, *args, **kwargs)
        args, kwargs = frozen(args), frozen(kwargs)
        given = ordered(args, kwargs) if step.mode in MODES else None
        moves = None
        if given is not None and not (step.mode == "L" and _has_color(given)):
            moves = rows.found(row, step.size, *given)
        if moves is None:
            later = _later(function, image, *args, **kwargs) if keeps_size else None
            return later or really(image, *args, **kwargs)
        size = moves[-1].size if moves else step.size
        made = ImageStep(function, (step, *args), kwargs, moves, size, mode or step.mode)
        return waiting(made, image if keeps_info else None)

    catch(function, instead)


# ---- functions that no op stands for

_FORMS = {"1", "L", "LA", "RGB", "RGBA", "YCbCr", "HSV", "CMYK", "I", "F"}
"""Modes of images that wait."""
_MOST = 1 << 18
"""Bytes of an image that travels with a call: sending a larger one takes as long as decoding."""
_PLAIN = (int, float, str, bytes, type(None), np.number)


def _later(function: Any, *args: Any, **kwargs: Any) -> Image.Image | None:
    """Return the result of a call, as an image that waits; ``None`` if it cannot wait. The function keeps the size, or
    turns the image, or gets the size of the result.

    The result on small images tells its mode, and errors of other arguments.
    """
    found: list[Image.Image] = []
    try:
        steps = _as_steps(args, found), _as_steps(kwargs, found)
        width, height = next(image.size for image in found if step_of(image) is not None)
        small: dict[int, Image.Image] = {}
        for number, image in enumerate(found):
            if image.size != (width, height):
                return None
            small[id(image)] = Image.new(image.mode, _SMALL)
            small[id(image)].info["number"] = number
        with switched(False):
            if function is Image.Image.resize:
                args, kwargs = _of_box(args, found[0].size), _of_box(kwargs, found[0].size)
            args, kwargs = mapped((args, kwargs), lambda part: small.get(id(part), part))
            tried = function(*args, **kwargs)
    except Exception:  # raised again with the images themselves
        return None
    if type(tried) is not Image.Image or tried.mode not in _FORMS:
        return None
    if function in _SIZED:
        height, width = tried.height, tried.width
    elif function is Image.Image.transpose and tried.size != _SMALL:
        height, width = width, height
    made, of = _step(function, *steps, (height, width), tried.mode), tried.info.get("number")
    return None if made is None else waiting(made, None if of is None else found[of])


_SMALL = (8, 6)
_SIZED = {Image.Image.crop, Image.Image.resize, Image.Image.transform}
"""Functions that get the size of their result."""


def _step(function: Any, args: Any, kwargs: Any, size: tuple[int, int], mode: str) -> ImageStep | None:
    """Return the step of a call; ``None`` if it needs several encoded images, or one that an engine cannot make."""
    parts = Called(function, args, kwargs).parts()
    if len({id(part.source) for part in parts}) != 1:
        return None
    made = ImageStep(function, args, kwargs, None, size, mode)
    return None if made.origin is None or made.depth > DEEPEST else made


def _as_steps(arguments: Any, found: list[Image.Image]) -> Any:
    """Return arguments with the steps of images that wait, and copies of what a script may change. Adds all images to
    ``found``. Raises TypeError for other objects than numbers, small images and filters."""

    def as_step(value: Any) -> Any:
        if isinstance(value, Image.Image):
            found.append(value)
            if (step := step_of(value)) is None and value.width * value.height * len(value.getbands()) > _MOST:
                raise TypeError(value.size)
            return step or value.copy()
        kind = value if isinstance(value, type) else type(value)
        if isinstance(value, _PLAIN) or kind.__module__ == ImageFilter.__name__:
            return frozen(value)
        raise TypeError(value)

    return mapped(arguments, as_step)


def _of_box(value: Any, size: tuple[int, int]) -> Any:
    """Return arguments with a box in an image of that size as one in a small image."""
    if isinstance(value, dict):
        return {name: _of_box(part, size) for name, part in value.items()}
    if not isinstance(value, (tuple, list)):
        return value
    if len(value) == 4 and not isinstance(value[0], Image.Image):
        return [edge / size[k % 2] * _SMALL[k % 2] for k, edge in enumerate(value)]
    return type(value)([_of_box(part, size) for part in value])


def _calls(function: Any) -> None:
    """Catch a function of images that no op stands for."""

    def instead(really: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return _later(function, *args, **kwargs) or really(*args, **kwargs)

    catch(function, instead)


def _copy(really: Callable[..., Any], image: Any) -> Any:
    step = step_of(image)
    if step is None:
        return really(image)
    return waiting(ImageStep(Image.Image.copy, (step,), {}, (), step.size, step.mode), image)


def _convert(really: Callable[..., Any], image: Any, mode: str | None = None, *args: Any, **kwargs: Any) -> Any:
    step = known_step(image)
    if step is None or mode not in MODES or args or kwargs:
        return _later(Image.Image.convert, image, mode, *args, **kwargs) or really(image, mode, *args, **kwargs)
    moves = rows.gray(step.size) if mode == "L" != step.mode else ()
    return waiting(ImageStep(Image.Image.convert, (step, mode), {}, moves, step.size, mode), image)


def _point(really: Callable[..., Any], image: Any, lut: Any, mode: str | None = None) -> Any:
    if known_step(image) is not None and callable(lut):
        lut = [lut(value) for value in range(256)] * len(image.getbands())
    return _later(Image.Image.point, image, lut, mode) or really(image, lut, mode)


def _split(really: Callable[..., Any], image: Any) -> Any:
    if step_of(image) is None:
        return really(image)
    bands = len(image.getbands())
    return (image.copy(),) if bands == 1 else tuple(image.getchannel(number) for number in range(bands))


_KEEP_INFO = ImageEnhance.Color, ImageEnhance.Sharpness


def _enhance(really: Callable[..., Any], enhancer: Any, factor: Any) -> Any:
    """``ImageEnhance._Enhance.enhance``"""
    kind, step = type(enhancer), known_step(enhancer.image)
    name = kind.__name__
    known = kind is getattr(ImageEnhance, name, None) and name in rows.ADJUSTED
    moves = rows.found(rows.adjusted, step.size, name, factor) if known and step is not None else None
    if moves is None or step is None:
        return really(enhancer, factor)
    made = ImageStep(_enhanced, (step, kind, factor), {}, moves, step.size, step.mode)
    return waiting(made, enhancer.image if kind in _KEEP_INFO else None)


def _enhanced(image: Image.Image, kind: Any, factor: Any) -> Image.Image:
    return kind(image).enhance(factor)  # type: ignore[no-any-return]


def _enhancer(really: Callable[..., None], enhancer: Any, image: Any) -> None:
    """``__init__`` of the classes of ``ImageEnhance``, which compute the reduced image at once."""
    step, kind = known_step(image), type(enhancer)
    if step is None or kind is ImageEnhance.Color:  # which only converts
        return really(enhancer, image)
    enhancer.image = image
    reduced = ImageStep(_reduced, (step, kind), {}, None, step.size, step.mode)
    enhancer.degenerate = waiting(reduced, image if kind in _KEEP_INFO else None)
    return None


def _reduced(image: Image.Image, kind: Any) -> Image.Image:
    return kind(image).degenerate  # type: ignore[no-any-return]


# ---- changes in place


def _paste(really: Callable[..., None], canvas: Any, im: Any, box: Any = None, mask: Any = None) -> None:
    if isinstance(box, Image.Image) and mask is None:
        box, mask = None, box
    if not any(step_of(one) is not None for one in (canvas, im, mask)):
        return really(canvas, im, box, mask)
    base, made = canvas if step_of(canvas) is not None else _color_of(canvas), None
    if base is not None and _fits(canvas, im, box, mask):
        with suppress(TypeError):
            given = _as_steps((base, im, box, mask), [])
            made = _step(_pasted, given, {}, (canvas.height, canvas.width), canvas.mode)
    if made is None:
        return really(canvas, im, box, mask)
    become(canvas, made)
    return None


def _thumbnail(really: Callable[..., None], image: Any, *args: Any, **kwargs: Any) -> None:
    """``Image.thumbnail``, which decodes files at a reduced size"""
    step, made = known_step(image), None
    if step is not None and type(image) is Image.Image:
        with suppress(Exception):  # raised again with the image itself
            given, small = _as_steps((args, kwargs), []), Image.new("1", image.size)
            small.thumbnail(*args, **kwargs)
            made = _step(_thumbnailed, (step, *given), {}, (small.height, small.width), step.mode)
    if made is None:
        return really(image, *args, **kwargs)
    image._size = made.size[::-1]
    become(image, made)
    return None


def _thumbnailed(image: Image.Image, args: Any, kwargs: Any) -> Image.Image:
    made = image.copy()
    made.thumbnail(*args, **kwargs)
    return made


def _color_of(canvas: Any) -> tuple[Any, ...] | None:
    """Return the arguments of ``Image.new`` that make an image; ``None`` if it has several colors, or if its pixels are
    also held by something that can change them."""
    if type(canvas) is not Image.Image or canvas.mode not in _FORMS or sys.getrefcount(canvas._im) > 2:
        return None
    colors = canvas.getcolors(1)
    return None if colors is None else (canvas.mode, canvas.size, colors[0][1])


def _fits(canvas: Any, im: Any, box: Any, mask: Any) -> bool:
    """Return whether an image, or a color, can be pasted there."""
    at = () if box is None else tuple(box)
    sizes = {one.size for one in (im, mask) if isinstance(one, Image.Image)}
    if len(at) == 4:
        sizes.add((at[2] - at[0], at[3] - at[1]))
    if len(sizes) != 1 or min(min(size) for size in sizes) < 0 or len(at) not in (0, 2, 4) or not rows.whole(*at):
        return False
    try:
        small = [Image.new(one.mode, (1, 1)) if isinstance(one, Image.Image) else one for one in (im, mask)]
        with switched(False):
            Image.new(canvas.mode, (1, 1)).paste(small[0], (0, 0, 1, 1), small[1])
    except Exception:  # raised again with the images themselves
        return False
    return True


def _pasted(canvas: Any, im: Any, box: Any, mask: Any) -> Image.Image:
    made: Image.Image = Image.new(*canvas) if isinstance(canvas, tuple) else canvas.copy()
    made.paste(im, box, mask)
    return made


def _draw(really: Callable[..., Any], image: Any, mode: str | None = None) -> Any:
    """``ImageDraw.Draw``"""
    step = known_step(image)
    return really(image, mode) if step is None or mode not in (None, step.mode) else _Draw(image)


class _Draw(ImageDraw.ImageDraw):
    """Draws on an image that waits."""

    im: Any
    draw: Any

    def __init__(self, image: Any):
        super().__init__(Image.new(image.mode, (1, 1)))
        del self.im, self.draw
        self._image = image

    def __getattr__(self, name: str) -> Any:
        if name not in ("im", "draw"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.im = self._image.im
        self.draw = Image.core.draw(self.im, 0)  # type: ignore[attr-defined]
        return vars(self)[name]


def _drawn(image: Image.Image, name: str, args: Any, kwargs: Any) -> Image.Image:
    made = image.copy()
    getattr(ImageDraw.ImageDraw(made), name)(*args, **kwargs)
    return made


def _shape(name: str) -> Callable[..., None]:
    """Return a method that draws a shape."""
    really = getattr(ImageDraw.ImageDraw, name)

    def draw(self: Any, *args: Any, **kwargs: Any) -> None:
        image, step, made = self._image, step_of(self._image), None
        with suppress(Exception):  # raised again with the image itself
            given = _as_steps((args, kwargs), [])
            really(ImageDraw.ImageDraw(Image.new(image.mode, (1, 1))), *args, **kwargs)
            if step is not None and not self.fill:
                made = _step(_drawn, (step, name, *given), {}, step.size, step.mode)
        if made is None:
            really(self, *args, **kwargs)
        else:
            become(image, made)

    return draw


for _name in ("arc", "chord", "ellipse", "line", "pieslice", "point", "polygon", "rectangle"):
    setattr(_Draw, _name, _shape(_name))


def install() -> None:
    """Catch Pillow's functions."""
    images.install()
    for name in ("crop", "resize", "transpose", "transform", "filter"):
        on_image(getattr(Image.Image, name), getattr(rows, name))
    on_image(ImageOps.expand, rows.expand, keeps_info=False, keeps_size=False)
    for name in ("posterize", "solarize", "invert", "autocontrast", "equalize"):
        on_image(getattr(ImageOps, name), getattr(rows, name))
    catch(Image.Image.copy, _copy)
    catch(Image.Image.convert, _convert)
    catch(Image.Image.point, _point)
    catch(Image.Image.split, _split)
    catch(ImageEnhance._Enhance.enhance, _enhance)
    for name in rows.ADJUSTED:
        catch(getattr(ImageEnhance, name).__init__, _enhancer)
    catch(Image.Image.paste, _paste)
    catch(Image.Image.thumbnail, _thumbnail)
    catch(ImageDraw.Draw, _draw)
    for function in (Image.Image.getchannel, Image.merge, Image.blend, Image.alpha_composite):
        _calls(function)
    for function in list(vars(ImageChops).values()):
        _calls(function)
