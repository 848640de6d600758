"""Arrays and tensors that user code makes of image files and passes on without looking at their pixels.

``np.array(Image.open(path))`` and ``cv2.imread(path)`` decode a file at once. Within :func:`unread_arrays` they return
an :class:`UnreadArray`, which knows its shape. Any other use raises an exception, and the caller reads the real array.
It is not a numpy array, so compiled code rejects it and never reads pixels that do not exist.

Arithmetic with numbers makes a :class:`ComputedArray`.
``torch.from_numpy`` makes a pending tensor of either. ``decode_image`` of torchvision and torchcodec returns a pending
tensor for JPEG files in RGB or gray. Other files decode at once: PNG files are often masks, whose values are needed
now, and other modes of JPEG are converted in other ways by Pillow. Their operators are replaced instead of the
functions that scripts import, so it does not matter how a script imported them.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..codecs.decode import Pixels, peek_size
from ..codecs.files import Undecodable
from ..codecs.limits import Limits
from ..codecs.pillow import orientation_of
from ..codecs.unread import close_with, is_unread, sendable
from .noting import unread_tensor
from .pending import PendingImage, PendingTensor
from .steps import current_call
from .swapping import Maker, Swapped

_JPEG = b"\xff\xd8\xff"
_COLOR, _COLOR_RGB = 1, 256
"""OpenCV's ``IMREAD_COLOR`` and ``IMREAD_COLOR_RGB``."""
_SWAP = 4
"""OpenCV's ``COLOR_BGR2RGB``, which equals ``COLOR_RGB2BGR``."""


class LookedAtArray(Exception):
    """Code asked an array for more than its shape."""


class ImageRead:
    """One read of an image: an undecoded PIL image in RGB, or in gray for a tensor; or the bytes of a JPEG file, which
    OpenCV turns upright."""

    def __init__(self, image: Any):
        self.image = image
        self.looked = False
        self.is_new = True
        """Whether the call that made it is still running. Afterwards it behaves like any other array."""


class UnreadArray:
    """Stand-in for an array u8[H, W, 3], or u8[H, W, 1] within a pending tensor.

    Args:
        made: the image that was read.
        swapped: whether its channels are in the order blue, green, red.
    """

    # In arithmetic with numpy's arrays, numpy leaves the work to this class.
    __array_priority__ = 1000.0
    dtype, ndim = np.dtype(np.uint8), 3

    def __init__(self, made: ImageRead, swapped: bool = False):
        self.made, self.swapped = made, swapped

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # So isinstance(x, np.ndarray) is true.
        return np.ndarray

    def pixels(self) -> Pixels:
        """Read the array u8[H, W, C]."""
        image = self.made.image
        self.made.looked |= self.made.is_new
        if isinstance(image, bytes):
            pixels = by_opencv(image)
        else:
            image.load()  # now numpy makes a real array of it
            pixels = np.atleast_3d(np.asarray(image))
        return np.ascontiguousarray(pixels[:, :, ::-1]) if self.swapped else pixels

    @property
    def shape(self) -> tuple[int, ...]:
        image = self.made.image
        try:
            size = peek_size(image, Limits(exif=True)) if isinstance(image, bytes) else (image.height, image.width)
        except (Undecodable, OSError):
            self._look()
            return self.pixels().shape
        return (*size, 3 if isinstance(image, bytes) else len(image.getbands()))

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        return self._computed("astype", dtype, *args, **kwargs)

    def copy(self, *args: Any) -> Any:
        return self._really("copy", *args) if args else UnreadArray(self.made, self.swapped)

    def transpose(self, *axes: Any) -> Any:
        return self._computed("transpose", *axes)

    def _computed(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return what a method makes of the array, if an engine can do it, and otherwise call numpy's."""
        tensor: Any = NotImplemented
        if _within() and self.made.is_new:
            tensor = unread_tensor(UnreadArray(self.made))
        if tensor is NotImplemented:
            return self._really(name, *args, **kwargs)
        # A tensor [C, H, W] in RGB becomes an array [H, W, C] with the channels in the order of this one.
        tensor = tensor.flip(0) if self.swapped else tensor
        return getattr(ComputedArray(self.made, tensor.permute(1, 2, 0)), name)(*args, **kwargs)

    def _really(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self._look()
        return getattr(self.pixels(), name)(*args, **kwargs)

    def turned(self) -> UnreadArray:
        """Return the array with its channels in the other order."""
        return UnreadArray(self.made, not self.swapped)

    def _look(self) -> None:
        if self.made.is_new:
            self.made.looked = True
            raise LookedAtArray

    def __getattr__(self, name: str) -> Any:
        if self.made.is_new:
            self.made.looked = True
            # Code that only tests for the attribute goes on without it, and the sample is read again.
            raise AttributeError(name)
        pixels = self.pixels()
        if name == "__array_interface__":  # with strides Pillow asks for a copy; without, for a buffer
            return {**pixels.__array_interface__, "strides": pixels.strides}
        return getattr(pixels, name)

    def __getitem__(self, key: Any) -> Any:
        whole, back = slice(None), slice(None, None, -1)
        parts = key if type(key) is tuple and all(type(part) in (slice, type(...)) for part in key) else ()
        # These two turn the order of the channels around, which needs no pixels.
        if parts in ((whole, whole, back), (..., back)):
            return self.turned()
        self._look()
        return self.pixels()[key]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self._look()
        return self.pixels().__array__(*args, **kwargs)

    __hash__ = None  # type: ignore[assignment]


class ComputedArray(UnreadArray):
    """Stand-in for an array that a script computes from the pixels of an image, by arithmetic with numbers.

    Args:
        made: the image that was read.
        tensor: a pending tensor of the same values.
    """

    def __init__(self, made: ImageRead, tensor: Any):
        super().__init__(made)
        self.tensor = tensor

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        return np.dtype(str(self.tensor.dtype).removeprefix("torch."))

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return int(self.tensor.ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def copy(self, *args: Any) -> Any:
        return self._computed("copy", *args)

    def pixels(self) -> Any:
        self.made.looked |= self.made.is_new
        return self.tensor.pending.settled().numpy()

    def _computed(self, name: str, *args: Any, **kwargs: Any) -> Any:
        made = _DONE[name](self.tensor, *args, **kwargs) if name in _DONE and self.made.is_new else NotImplemented
        return self._really(name, *args, **kwargs) if made is NotImplemented else ComputedArray(self.made, made)

    def _changed(self, name: str, *args: Any) -> Any:
        """Change the values in place."""
        may_write = self.made.is_new and self.tensor.dtype.is_floating_point and not self.tensor.pending.is_shared
        made = _DONE[name](self.tensor, *args) if may_write else None
        if not isinstance(made, PendingTensor):
            # "__add__" becomes "__iadd__".
            return self._really(name.replace("__", "__i", 1), *args)
        self.tensor = made.to(self.tensor.dtype)
        return self

    def __getitem__(self, key: Any) -> Any:
        self._look()
        return self.pixels()[key]


def _cast(tensor: Any, dtype: Any) -> Any:
    wanted = _FLOATS.get(np.dtype(dtype))
    return NotImplemented if wanted is None else tensor.to(wanted).clone()


def _transposed(tensor: Any, *axes: Any) -> Any:
    order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
    return tensor.permute(*order) if len(order) == tensor.ndim else NotImplemented


def _calculated(ours: Any, theirs: Any) -> Callable[..., Any]:
    """Return arithmetic with a number or a few numbers: numpy's, calculated by torch with the data type of numpy's
    result."""

    def calculated(tensor: Any, value: Any) -> Any:
        is_known = isinstance(value, (int, float, np.number, np.ndarray, list, tuple)) and not isinstance(value, bool)
        if not is_known or isinstance(value, UnreadArray):
            return NotImplemented
        one = np.ones(1, str(tensor.dtype).removeprefix("torch."))
        wanted = _FLOATS.get(theirs(one, value).dtype)
        if wanted is None:
            return NotImplemented
        made = ours(tensor.to(wanted), torch.tensor(np.asarray(value, np.float64).tolist(), dtype=wanted))
        return made if isinstance(made, PendingTensor) else NotImplemented

    return calculated


_FLOATS = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}
_DONE: dict[str, Callable[..., Any]] = {
    "astype": _cast,
    "copy": lambda tensor: tensor.clone(),
    "transpose": _transposed,
    "__add__": _calculated(torch.add, np.add),
    "__radd__": _calculated(torch.add, np.add),
    "__sub__": _calculated(torch.sub, np.subtract),
    "__mul__": _calculated(torch.mul, np.multiply),
    "__rmul__": _calculated(torch.mul, np.multiply),
    "__truediv__": _calculated(torch.div, np.divide),
}
"""Methods of arrays that an engine does, as functions of a pending tensor."""


def _delegated(name: str) -> Callable[..., Any]:
    def method(self: UnreadArray, *args: Any) -> Any:
        return self._computed(name, *args) if name in _DONE else self._really(name, *args)

    return method


def _in_place(name: str) -> Callable[..., Any]:
    def method(self: ComputedArray, *args: Any) -> Any:
        return self._changed(name, *args)

    return method


for _name in (
    *("setitem", "len", "iter", "bool", "contains", "repr", "reduce_ex", "deepcopy"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"),
):
    setattr(UnreadArray, f"__{_name}__", _delegated(f"__{_name}__"))
for _name in ("add", "sub", "mul", "truediv"):
    setattr(ComputedArray, f"__i{_name}__", _in_place(f"__{_name}__"))


_here = threading.local()


@contextmanager
def unread_arrays() -> Iterator[list[ImageRead]]:
    """Context in which this thread gets unread arrays; the list collects the images that were read. Everything that is
    not an image opened by Pillow or OpenCV works as usual.

    Meanwhile, functions of numpy and OpenCV are replaced; in other threads the replacements call the originals.
    """
    outer, _here.made = getattr(_here, "made", None), []
    with _FUNCTIONS.within():
        try:
            yield _here.made
        finally:
            for made in _here.made:
                made.is_new = False
            _here.made = outer


def _makers() -> list[Maker]:
    makers: list[Maker] = [
        *((np, name, _array) for name in ("array", "asarray", "ascontiguousarray", "atleast_3d")),
        *((torch, name, _tensor) for name in ("from_numpy", "as_tensor")),
    ]
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and hasattr(cv2, "imread"):
        makers += [(cv2, "imread", _imread), (cv2, "cvtColor", _cvt_color)]
    if "torchvision.io.image" in sys.modules:
        makers += [(torch.ops.image, name, _decode_image) for name in ("decode_image", "decode_jpeg")]
    if (codec := sys.modules.get("torchcodec.decoders._image_decoders")) is not None:
        makers.append((codec, "_decode_jpeg", _decode_upright))
    return makers


def _within() -> bool:
    return getattr(_here, "made", None) is not None


_FUNCTIONS = Swapped(_makers, _within)


def _unread(image: Any, swapped: bool = False) -> UnreadArray:
    made = ImageRead(sendable(image))  # the script may close its own
    close_with(image)
    _here.made.append(made)
    return UnreadArray(made, swapped)


def _array(really: Any) -> Any:
    def array(*args: Any, **kwargs: Any) -> Any:
        image, *more = args or (None,)
        if isinstance(image, (Image.Image, UnreadArray)) and _within():
            given = dict(zip(("dtype",), more, strict=False)) | kwargs
            dtype, plain = given.get("dtype"), len(more) < 2 and given.keys() <= {"dtype", "copy"}
            is_cast = dtype in _FLOAT_NAMES and current_call() is not None
            if plain and given.get("copy", True) is True and (dtype in (None, np.uint8) or is_cast):
                made = _array_of(image)
                if made is not None and is_cast:
                    return made.astype(dtype)
                if made is not None and (dtype is None or made.dtype == dtype):
                    return made.copy() if type(made) is ComputedArray else made
        return really(*args, **kwargs)

    return array


def _array_of(image: Any) -> Any:
    """Return an array that is not read; ``None`` if the image must be read now."""
    if isinstance(image, UnreadArray):
        return image
    if hasattr(type(image), "as_array"):  # a stand-in for an image
        return image.as_array()
    is_open = is_unread(image) or (isinstance(image, PendingImage) and image.is_open)
    return _unread(image) if image.mode == "RGB" and is_open else None


_FLOAT_NAMES = (float, np.float32, np.float64, "float32", "float64", "float", "f")


def _tensor(really: Any) -> Any:
    def tensor(*args: Any, **kwargs: Any) -> Any:
        plain = len(args) == 1 and all(value is None for value in kwargs.values())
        if plain and _within():
            if isinstance(args[0], PendingTensor):
                return args[0]
            if type(args[0]) is ComputedArray and args[0].made.is_new:
                return args[0].tensor.detach()
            if type(args[0]) is UnreadArray and (made := unread_tensor(args[0])) is not NotImplemented:
                return made.permute(1, 2, 0)
        return really(*args, **kwargs)

    return tensor


_UNCHANGED, _GRAY, _RGB = 0, 1, 3
"""Values of ``ImageReadMode``, in torchvision and in torchcodec."""


def _decode_image(really: Any) -> Any:
    """Replace an operator of torchvision, which turns images upright if it is asked to."""

    def decode(data: Any, mode: Any = _UNCHANGED, upright: Any = False, *args: Any, **kwargs: Any) -> Any:
        made = NotImplemented if args or kwargs or not _within() else _undecoded(data, mode, upright is not False)
        return really(data, mode, upright, *args, **kwargs) if made is NotImplemented else made

    return decode


def _decode_upright(really: Any) -> Any:
    """Replace torchcodec's operator, which turns images upright."""

    def decode(data: Any, mode: Any, *args: Any, **kwargs: Any) -> Any:
        made = NotImplemented if args or kwargs or not _within() else _undecoded(data, mode, True)
        return really(data, mode, *args, **kwargs) if made is NotImplemented else made

    return decode


def _undecoded(data: Any, mode: Any, upright: bool) -> Any:
    """Return a pending tensor for a file whose bytes are ``data``; ``NotImplemented`` if it must be decoded now."""
    if type(data) is not torch.Tensor or data.dtype is not torch.uint8 or data.ndim != 1 or data.device.type != "cpu":
        return NotImplemented
    try:
        if data[:3].numpy().tobytes() != _JPEG:
            return NotImplemented
        image: Any = Image.open(io.BytesIO(data.numpy().tobytes()))
        if upright and orientation_of(image) != 1:
            return NotImplemented
    except Exception:  # the operator finds its own words for it
        return NotImplemented
    if image.mode not in ("RGB", "L") or mode not in (_UNCHANGED, _GRAY, _RGB):
        return NotImplemented
    if mode == _RGB:
        image = image.convert("RGB")
    elif mode == _GRAY and image.mode != "L":
        return NotImplemented
    return unread_tensor(_unread(image)) if is_unread(image) else NotImplemented


def _imread(really: Any) -> Any:
    def imread(filename: Any, flags: int = _COLOR, *args: Any, **kwargs: Any) -> Any:
        if _within() and not args and not kwargs and flags in (_COLOR, _COLOR_RGB):
            try:
                with open(filename, "rb") as file:
                    encoded = file.read()
            except (OSError, TypeError, ValueError):
                return really(filename, flags)
            if encoded.startswith(_JPEG):
                # IMREAD_COLOR gives blue, green, red.
                return _unread(encoded, flags == _COLOR)
        return really(filename, flags, *args, **kwargs)

    return imread


def _cvt_color(really: Any) -> Any:
    def cvt_color(src: Any, code: int, *args: Any, **kwargs: Any) -> Any:
        if type(src) is UnreadArray and code == _SWAP and not args and not kwargs:
            return src.turned()
        return really(src, code, *args, **kwargs)

    return cvt_color


def by_opencv(encoded: bytes) -> Pixels:
    """Decode to RGB u8[H, W, 3] as ``cv2.imread`` and ``cvtColor`` do. Raises :class:`Undecodable`."""
    import cv2

    pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise Undecodable("undecodable", "OpenCV cannot decode it")
    return np.ascontiguousarray(pixels[:, :, ::-1])
