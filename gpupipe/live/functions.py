"""Which functions of Pillow, torchvision and torch are caught, and by which row of the table engines do the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data._utils import collate as torch_collate

from ..transforms import ops
from . import (
    calls as calls,
    looks,
    pillow,
    rows,
)
from .images import opened, step_of, waiting
from .pillow import Row, by_position, known_step, on_image
from .rows import Moves
from .steps import ImageStep, Move, PixelStep, frozen
from .switch import catch
from .tensors import WAITING_CLASSES, WaitingTensor, make

_FLOATS = {torch.float16, torch.bfloat16, torch.float32}

# ---- functions that make tensors of images, or change them


def begun(step: Any, really: Callable[..., Any], moves: Moves, dtype: torch.dtype) -> WaitingTensor:
    """Return the tensor of an image that waits. ``moves`` belong to ``really``, which makes it."""
    channels = 3 if step.mode == "RGB" else 1
    if channels == 1:
        # Engines compute gray images in three equal channels.
        moves = (Move(ops.Gray, (), (("channels", 1), ("always", True), ("kind", "pil")), step.size), *moves)
    return WaitingTensor(PixelStep(step, really, moves, (channels, *step.size), dtype))


def changed(
    tensor: WaitingTensor,
    redo: Callable[[Tensor], Tensor],
    moves: Moves | None,
    dtype: torch.dtype | None = None,
    *,
    keeps_class: bool = False,
) -> Any:
    """Return the result of a function of a tensor [C, H, W] that waits; ``NotImplemented`` if engines cannot do it.

    ``keeps_class``: whether one of torchvision's images stays one.
    """
    step = tensor.step
    if moves is None or not isinstance(step, PixelStep):
        return NotImplemented
    kind = type(tensor) if keeps_class or tensor.stays_subclass() else WaitingTensor
    return kind(step.then(redo, moves, dtype))


def _to_tensor(really: Callable[..., Any], picture: Any) -> Any:
    step = known_step(picture)
    if step is None or torch.get_default_dtype() is not torch.float32 or looks.asks_for_type():
        return really(picture)
    return begun(step, really, rows.to_dtype(step.size, torch.float32, scale=True, kind="pil"), torch.float32)


def _pil_to_tensor(really: Callable[..., Any], picture: Any) -> Any:
    step = known_step(picture)
    if step is None or looks.asks_for_type():
        return really(picture)
    return begun(step, really, (), torch.uint8)


def _to_pil_image(really: Callable[..., Any], picture: Any, mode: str | None = None) -> Any:
    step = picture.step if isinstance(picture, WaitingTensor) else None
    if not isinstance(step, PixelStep) or step.shape[0] != 3 or mode not in (None, "RGB"):
        return really(picture, mode)
    made = ImageStep(really, (step, mode), {}, (), step.size, "RGB")
    if step.dtype is not torch.uint8:
        if not step.moves or step.moves[-1] != rows.to_dtype(step.size, torch.float32, scale=True, kind="pil")[0]:
            return really(picture, mode)
        made.moves = step.moves[:-1]  # back to the bytes that to_tensor() divided by 255
    return waiting(made)


def _decode_image(really: Callable[..., Any], source: Any, mode: Any = None, *more: Any, **options: Any) -> Any:
    """``torchvision.io.decode_image`` and ``read_image``, whose pixels of plain JPEG files are Pillow's"""
    given = () if mode is None else (mode,)
    turns = more[0] if more else options.get("apply_exif_orientation", False)
    wanted = {"UNCHANGED": None, "RGB": "RGB", "GRAY": "L", "None": None}.get(str(getattr(mode, "name", mode)), "?")
    image = None if turns or wanted == "?" or looks.asks_for_type() else opened(source)
    if image is None or (step := step_of(image)) is None or (wanted or step.mode) != step.mode:
        return really(source, *given, *more, **options)
    return begun(step, lambda im: _values_of(im), (), torch.uint8)


def _values_of(image: Image.Image) -> Tensor:
    """Return u8[C, H, W] as ``decode_image`` does."""
    values = torch.from_numpy(np.array(image))
    return (values if values.ndim == 3 else values[:, :, None]).permute(2, 0, 1).contiguous()


def _convert_dtype(really: Callable[..., Any], image: Any, dtype: torch.dtype = torch.float32, **scale: bool) -> Any:
    """``convert_image_dtype``, which scales, and ``to_dtype_image``"""
    step = image.step if isinstance(image, WaitingTensor) else None
    if isinstance(step, PixelStep) and step.dtype is torch.uint8 and dtype in _FLOATS:
        divides = really.__name__ == "convert_image_dtype"  # where v2 multiplies
        moves = rows.to_dtype(step.size, dtype, scale=scale.get("scale", divides), kind="pil" if divides else "tensor")
        made = changed(image, lambda x: really(x, dtype, **scale), moves, dtype)
        if made is not NotImplemented:
            return made
    return really(image, dtype, **scale)


def _tensor(function: Any, row: Callable[..., Moves | None]) -> None:
    """Catch a function whose first argument is a tensor, and whose result has the same type. Its row gets a step."""
    if function is None:  # another release of torchvision
        return
    ordered = by_position(function)
    keeps_class = function.__name__ in ("erase", "erase_image")  # they change a clone

    def instead(really: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, WaitingTensor) and isinstance(tensor.step, PixelStep):
            args, kwargs = frozen(args), frozen(kwargs)
            given = ordered(args, kwargs)
            moves = None if given is None else rows.found(row, tensor.step, *given)
            made = changed(tensor, lambda x: really(x, *args, **kwargs), moves, keeps_class=keeps_class)
            if made is not NotImplemented:
                return made
        return really(tensor, *args, **kwargs)

    catch(function, instead)


def _sized(row: Row, *first: Any, **more: Any) -> Callable[..., Moves | None]:
    """Return a row that gets a size as one that gets a step."""
    return lambda step, *args: row(step.size, *first, *args, **more)


def _normalized(step: PixelStep, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> Moves | None:
    known = step.dtype.is_floating_point and not inplace and {len(mean), len(std)} <= {1, step.shape[0]}
    return rows.normalize(step.size, mean, std) if known else None


def _grayed(step: PixelStep, num_output_channels: int = 1, *more: Any) -> Moves | None:
    return rows.gray(step.size, "tensor") if num_output_channels == 3 == step.shape[0] else None


def _erased(step: PixelStep, i: Any, j: Any, h: Any, w: Any, v: Any, inplace: bool = False) -> Moves | None:
    known = not isinstance(v, Tensor) or v.dtype is step.dtype
    return rows.erase(step.size, i, j, h, w, v, inplace) if known else None


def _most(step: PixelStep) -> int:
    """Return the largest value of an image."""
    return 1 if step.dtype.is_floating_point else 255


def _of_floats(row: Callable[..., Moves | None]) -> Callable[..., Moves | None]:
    """Return a row for images of floats. v1 rounds those of bytes in its own way."""
    return lambda step, *args: row(step, *args) if step.dtype.is_floating_point else None


def _of_three(row: Callable[..., Moves | None]) -> Callable[..., Moves | None]:
    """Return a row for images of three channels."""
    return lambda step, *args: row(step, *args) if step.shape[0] == 3 else None


_TENSORS: dict[str, Callable[..., Moves | None]] = {
    "adjust_brightness": _sized(rows.adjusted, "Brightness", kind="tensor"),
    "adjust_contrast": _of_three(_sized(rows.adjusted, "Contrast", kind="tensor")),
    "adjust_hue": _of_three(_sized(rows.adjust_hue, kind="tensor")),
    "adjust_saturation": _of_three(_sized(rows.adjusted, "Color", kind="tensor")),
    "adjust_sharpness": _sized(rows.adjusted, "Sharpness", kind="tensor"),
    "autocontrast": _sized(rows.autocontrast, kind="tensor"),
    "equalize": _sized(rows.equalize, kind="tensor"),
    "erase": _erased,
    "gaussian_blur": _sized(rows.gaussian_blur, kind="tensor"),
    "invert": _sized(rows.invert),
    "normalize": _normalized,
    "pad": lambda step, *args: rows.pad(step.size, *args, floats=step.dtype.is_floating_point),
    "permute_channels": _of_three(_sized(rows.permuted)),
    "posterize": _sized(rows.posterize),
    "resize": _sized(rows.resize_image),
    "rgb_to_grayscale": _grayed,
    "solarize": lambda step, threshold: rows.solarize(step.size, threshold) if threshold <= _most(step) else None,
}
"""Rows of functions that torchvision has for tensors, by their names in v1 and, without ``_image``, in v2."""

_ROUNDED = ("adjust_hue", "adjust_saturation", "adjust_sharpness", "autocontrast", "resize")
_OF_V1 = {
    "pad": lambda step, padding, fill=0, *more: (
        None if isinstance(fill, (tuple, list)) else _TENSORS["pad"](step, padding, fill, *more)
    ),
    "affine": _sized(rows.affine),
    "perspective": _sized(rows.perspective),
    "resize": lambda step, to, how="bilinear", antialias=True: rows.resize_image(step.size, to, how, None, antialias),
}
_OF_V2 = {
    "affine": _sized(rows.affine_image),
    "perspective": _sized(rows.perspective_image),
    "rotate": _sized(rows.rotate_image),
}


def _catch_torchvision() -> None:
    """Catch torchvision's functions: where its transforms, of both versions, call each other."""
    from torchvision import tv_tensors
    from torchvision.io import image as tv_image
    from torchvision.transforms import _functional_pil, _functional_tensor, functional
    from torchvision.transforms.v2.functional import _augment, _color, _geometry, _misc

    WAITING_CLASSES.setdefault(tv_tensors.Image, _image_class(tv_tensors.Image))
    catch(functional.to_tensor, _to_tensor)
    catch(functional.to_pil_image, _to_pil_image)
    catch(tv_image.decode_image, _decode_image)
    catch(tv_image.read_image, _decode_image)
    catch(functional.pil_to_tensor, _pil_to_tensor)
    on_image(_functional_pil.adjust_hue, rows.adjust_hue, keeps_info=False)
    on_image(_functional_pil.to_grayscale, rows.to_grayscale, mode="RGB", keeps_info=False)
    on_image(_functional_pil.pad, rows.pad, keeps_info=False, keeps_size=False)
    for blur in (functional.gaussian_blur, _misc._gaussian_blur_image_pil):
        on_image(blur, rows.gaussian_blur, keeps_info=False)
    for convert in (functional.convert_image_dtype, _functional_tensor.convert_image_dtype, _misc.to_dtype_image):
        catch(convert, _convert_dtype)
    _tensor(functional.normalize, _normalized)
    for name, row in {**_TENSORS, **_OF_V1}.items():
        _tensor(getattr(_functional_tensor, name, None), _of_floats(row) if name in _ROUNDED else row)
    for module in (_augment, _color, _geometry, _misc):
        for name, row in {**_TENSORS, **_OF_V2}.items():
            _tensor(getattr(module, f"{name}_image", None), row)


def _image_class(tv_image: Any) -> type[WaitingTensor]:
    """Return the class of torchvision's images that wait. Its transforms look for subclasses of their image."""
    from torchvision.tv_tensors import _torch_function_helpers as rules

    class Image(WaitingTensor, tv_image):  # type: ignore[misc]
        stands_for = tv_image
        stays_subclass = staticmethod(rules._must_return_subclass)

        @classmethod
        def wrap(cls, tensor: Tensor, like: Any, **kwargs: Any) -> Any:
            return tensor.as_subclass(tv_image)

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = super().__torch_function__(func, types, args, kwargs)
            of_this = bool(args) and type(args[0]) is cls and func in rules._FORCE_TORCHFUNCTION_SUBCLASS
            if of_this or cls.stays_subclass():
                return _wrapped(made, cls)
            # Functions that change it in place return a plain tensor.
            return made.as_subclass(Tensor) if type(made) is cls else made

    Image.__module__, Image.__qualname__ = tv_image.__module__, tv_image.__qualname__
    return Image


def _wrapped(made: Any, kind: type[WaitingTensor]) -> Any:
    """Return tensors that wait as those of a class."""
    if isinstance(made, (tuple, list)):
        return type(made)(_wrapped(part, kind) for part in made)
    if type(made) is not WaitingTensor:
        return made
    return kind(made.step) if made.family is None else made.as_subclass(kind.stands_for)


# ---- collating


def _collate_tensors(really: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's collate function for tensors, which writes to memory that it shares"""
    if any(isinstance(tensor, WaitingTensor) for tensor in batch):
        return torch.stack(list(batch))
    return really(batch, *args, **kwargs)


def _parameter(really: Callable[..., Any], kind: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
    """``Parameter.__new__``, which asks for the class of a tensor"""
    return really(kind, make(data) if isinstance(data, WaitingTensor) else data, *args, **kwargs)


def _fast_collate(really: Callable[..., Any], batch: Any) -> Any:
    """timm's collate function, which writes images of bytes to one tensor"""
    first = batch[0][0]
    if isinstance(first, WaitingTensor) and first.dtype is torch.uint8 and {len(sample) for sample in batch} == {2}:
        images = [image for image, _ in batch]
        if {tuple(image.shape) for image in images} == {tuple(first.shape)}:
            return torch.stack(images), torch.tensor([target for _, target in batch], dtype=torch.int64)
    return really(batch)


def _catch_torch() -> None:
    pillow.install()
    catch(torch_collate.collate_tensor_fn, _collate_tensors)
    catch(torch.nn.Parameter.__new__, _parameter)


def _catch_timm() -> None:
    catch(sys.modules["timm.data.loader"].fast_collate, _fast_collate)


_NOT_YET = {"torch": _catch_torch, "torchvision": _catch_torchvision, "timm.data.loader": _catch_timm}
"""What catches the functions of a library, by its module."""


def install() -> None:
    """Catch the functions of all libraries that are imported. Repeated for libraries that were imported since."""
    for name in [name for name in _NOT_YET if name in sys.modules]:
        _NOT_YET[name]()
        _NOT_YET.pop(name, None)  # another thread may have done the same
