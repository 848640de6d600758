"""Translation of torchvision's transforms, of v1 and v2. Calls the translations of other libraries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import transforms as ours
from ..datasets.sample_form import View, leaves, mapped, tv_image
from ..errors import GpupipeError, TranslationError
from ..reasons import Reason
from ..transforms import Compose, Lambda, Transform
from ..transforms.albumentations import ToArray, ToTensorV2
from ..transforms.ops.returned import Returned
from . import albumentations
from .classes import changed_methods, class_name, exact_name, known_class, shown
from .handwritten import PipelinePosition, recognized
from .own_windows import is_own, own_window
from .recording import StandIn, arranged
from .replaced import replaced
from .same_names import CONVERTERS, UnsupportedError, interpolation, same_names
from .timm import TIMM
from .user_functions import Chain, Failed, given, returned

_CHOICES = (
    'Alternatives: gpupipe\'s own transforms (gpupipe.transforms), or DataLoader(..., engine="torch"), '
    "which runs the original dataset as it is."
)


_ARRAY = "  the pipeline ends with an array; end it with ToTensorV2()"


class _ImageState:
    """State of the image between two transforms of the script: a PIL image, torchvision's ``Image``, a plain tensor or
    an array."""

    def __init__(self, channels: int, size: tuple[int, int] | None, *, joint: bool = False):
        self.kind = "pil"
        self.joint = joint
        """Whether more than an image may come in, such as boxes."""
        self.channels = channels
        self.decoded = channels, size
        """(channels, size) of the dataset's images. The size is ``None`` if it varies."""
        self.steps: list[tuple[Any, str, list[Transform]]] = []
        """(transform of the script, kind of its input, its translation) of each earlier transform."""
        self.views = False
        self.tree: Any = None
        """How user code nests views in what it returns; see :class:`~gpupipe.datasets.sample_form.SampleForm`."""


def translate_transform(t: Any, *, channels: int = 3) -> Compose:
    """Return a pipeline that does what ``t`` does.

    Args:
        t: a torchvision transform (v1 or v2), a ``Compose`` or ``nn.Sequential`` of them, nested to any depth and with
        gpupipe transforms among them; a gpupipe ``Compose``, which is returned as it is; or ``None``.

    Raises:
        TranslationError: some transforms cannot be translated; lists all of them and the alternatives.
    """
    return translated(t, channels=channels)[0]


def translated(t: Any, *, channels: int = 3, size: tuple[int, int] | None = None) -> tuple[Compose, Any]:
    """Return the pipeline of :func:`translate_transform`, and how user code nests several views in what it returns
    (``None`` without such views).

    Functions are tried on images of ``size``, (height, width), if all images have this size.
    """
    found = translation(t, channels=channels, size=size)
    return found.pipeline, found.tree


class Translated(NamedTuple):
    """Translation of a script's transforms."""

    pipeline: Compose
    tree: Any
    """How user code nests several views in what it returns; ``None`` without such views."""
    kind: str
    """What the script's transforms return for a PIL image: ``"pil"``, ``"tensor"``, or ``"image"`` for torchvision's
    ``Image``."""
    steps: tuple[TranslatedStep, ...] = ()
    """The script's transforms, one by one; empty for a gpupipe ``Compose``."""


class TranslatedStep(NamedTuple):
    """One of the script's transforms."""

    item: Any
    """The transform; ``None`` for the conversion of gray images, which only gpupipe has."""
    kind: str
    """Kind of the image that it gets, as in :attr:`Translated.kind`."""
    became: int
    """Number of gpupipe's transforms in its place."""


def translation(t: Any, *, channels: int = 3, size: tuple[int, int] | None = None, joint: bool = False) -> Translated:
    """Translate transforms; see :func:`translated` for the other arguments.

    Args:
        joint: whether the script may call them with more than an image, such as boxes.
    """
    if t is None:
        t = Compose([])
    if isinstance(t, Compose) and channels == 3:
        return Translated(t, None, "tensor" if len(t) else "pil")
    flat = list(_flatten(t, ""))
    place = _ImageState(channels, size, joint=joint)
    # These two define the color of a gray image themselves, so a conversion to gray first is not needed.
    if channels == 1 and not (flat and type(flat[0][1]).__name__ in ("Grayscale", "RGB")):
        place.steps.append((_as_it_is, "pil", [ours.Grayscale(1)]))
    elif channels == 1:
        place.channels = 3
    failed = _go_through(flat, place)
    problems = [f"  {where or 'transform'}: {shown(item)} ({class_name(item)}): {e}" for where, item, e in failed]
    reasons = [
        Reason(f"transform{where} {shown(item)}: {e}", getattr(e, "code", "transform-argument"))
        for where, item, e in failed
    ]
    if place.kind == "array" and not problems:
        problems.append(_ARRAY)
        reasons.append(Reason(_ARRAY.strip(), "transform-order"))
    if problems:
        raise TranslationError(
            "\n".join([f"{len(problems)} of {len(flat)} transforms cannot be translated:", *problems, _CHOICES]),
            reasons,
        )
    try:
        layout = t.memory_format if isinstance(t, Compose) else "contiguous_format"
        pipeline = Compose([t for *_, made in place.steps for t in made], memory_format=layout)
        steps = (
            TranslatedStep(None if item is _as_it_is else item, kind, len(made)) for item, kind, made in place.steps
        )
        return Translated(pipeline, place.tree, place.kind, tuple(steps))
    except GpupipeError as e:
        raise TranslationError(
            f"the transforms do not fit together. {e}. {_CHOICES}", [Reason(str(e), "transform-order")]
        ) from e


def parts_of(t: Any) -> list[Any] | None:
    """Return the transforms that a container applies one after another; ``None`` for anything that is not such a
    container."""
    if isinstance(t, (list, tuple, Compose)):
        return list(t)
    cls = known_class(t, "torchvision.transforms", "torch.nn.modules.container")
    if cls is None or changed_methods(t, cls) or _hooked(t) or replaced(t):
        return None
    if cls.__name__ == "Compose":
        return list(t.transforms)
    return list(t) if cls.__name__ == "Sequential" else None  # children() would leave out repetitions


def _flatten(t: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Iterate over (place, transform) of every transform that is not a container."""
    inner = parts_of(t)
    inner = albumentations.parts(t) if inner is None else inner
    if inner is None:
        yield where, t
        return
    for i, item in enumerate(inner):
        yield from _flatten(item, f"{where}[{i}]")


def _hooked(t: Any) -> bool:
    return any(vars(t).get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))


def _check_replaced(t: Any) -> None:
    """Raise :class:`UnsupportedError` if a script has replaced code of the library."""
    if name := replaced(t):
        raise UnsupportedError(f"{name} is no longer the library's own", "replaced-function")


def _translate(t: Any, place: _ImageState) -> list[Transform]:
    if isinstance(t, Transform):
        return [t]
    if exact_name(t, "torch.nn.modules.linear") == "Identity":
        return []
    for module, translate in _LIBRARIES.items():
        if (theirs := known_class(t, module)) is not None:
            _check_replaced(t)
            return translate(t, theirs, place)
    if place.kind == "array" and exact_name(t, "torchvision.transforms") not in _OF_ARRAYS:
        raise UnsupportedError(
            "it gets an array, which only albumentations' transforms take; put ToTensorV2() before it",
            "transform-order",
        )
    cls = known_class(t, "torchvision.transforms")
    if cls is None:
        return _user_code(t, place)
    if changed := changed_methods(t, cls):
        return _changed(t, cls, changed, place)
    if _hooked(t):
        raise UnsupportedError(f"it is a {cls.__name__} with forward hooks", "own-methods")
    _check_replaced(t)
    name = cls.__name__
    if name in _RULES:
        return _RULES[name](t, place)
    if name not in _OURS:
        raise UnsupportedError("gpupipe has no such transform", "unknown-transform")
    given: dict[str, Any] = {"fill": _fill(t, place)} if isinstance(getattr(t, "fill", None), dict) else {}
    if name in _CONTAINERS:
        given["transforms"] = [_inner(part, place) for part in t.transforms]
    made = same_names(t, cls, _OURS[name], **given)
    if made.temporal:
        raise UnsupportedError(
            "it chooses frames, but the dataset has images; use gpupipe.datasets.VideoFolder", "transform-order"
        )
    if made.on_objects:
        raise UnsupportedError("it changes boxes, which images alone do not have", "unknown-transform")
    return [made]


def _changed(t: Any, cls: type, changed: list[str], place: _ImageState) -> list[Transform]:
    """Translate a transform of a subclass with methods of its own."""
    if not is_own(t) or _hooked(t):
        raise UnsupportedError(f"it is a subclass of {cls.__name__} with its own {', '.join(changed)}", "own-methods")
    floats = (ours.ConvertImageDtype, Lambda, ours.Normalize, ours.ToDtype, ours.ToTensor)
    if place.kind not in ("pil", "image") or any(isinstance(m, floats) for *_, made in place.steps for m in made):
        raise UnsupportedError("gpupipe supports it for uint8 images only; put it before ToDtype", "own-methods")
    return [own_window(t, "pil" if place.kind == "pil" else "tensor", place.channels)]


def _of_timm(t: Any, cls: type, place: _ImageState) -> list[Transform]:
    if changed := changed_methods(t, cls):
        raise UnsupportedError(f"it is a subclass of {cls.__name__} with its own {', '.join(changed)}", "own-methods")
    if cls.__name__ not in TIMM:
        raise UnsupportedError("gpupipe has no such transform of timm", "unknown-transform")
    if cls.__name__ == "MaybeToTensor" and place.kind != "pil":
        return []
    return TIMM[cls.__name__](t)


def _of_albumentations(t: Any, cls: type, place: _ImageState) -> list[Transform]:
    if place.kind != "array" or place.channels != 3:
        raise UnsupportedError(
            "gpupipe supports it for arrays [H, W, 3] only; put np.array() before it",
            "transform-order",
        )
    return albumentations.of_albumentations(t, cls)


_LIBRARIES: dict[str, Callable[[Any, type, _ImageState], list[Transform]]] = {
    "timm": _of_timm,  # some are subclasses of torchvision's
    albumentations.MODULE: _of_albumentations,
}
"""Translations by module, for libraries other than torchvision."""


def _inner(t: Any, place: _ImageState) -> Any:
    """Return the content of a container: one transform, or a pipeline of several."""
    found: list[Transform] = []
    for _, item in _flatten(t, ""):
        found += _translate(item, place)
    return found[0] if len(found) == 1 else Compose(found)


def _user_code(t: Any, place: _ImageState) -> list[Transform]:
    """Take apart code that only arranges transforms. A function that keeps size and type of the image is called as it
    is."""
    if not callable(t):
        raise UnsupportedError("it cannot be called", "unknown-transform")
    try:
        tree = arranged(t)
    except UnsupportedError as e:
        try:
            return _function(t, place)
        except UnsupportedError:
            raise e from None
    if tree is None:
        return _function(t, place)
    if isinstance(tree, StandIn):
        return _steps(tree.steps, place)
    if place.views:
        raise UnsupportedError("it makes several views of each of several views", "views")
    chains: list[Compose] = []
    views: dict[int, View] = {}

    def view(leaf: StandIn) -> View:
        if id(leaf) not in views:  # otherwise the same result occurs several times
            chains.append(Compose(_steps(leaf.steps, branch := copy.copy(place))))
            if branch.views:
                raise UnsupportedError("it makes several views of each of several views", "views")
            views[id(leaf)] = View(len(chains) - 1)
        return views[id(leaf)]

    place.tree, place.views = mapped(view, tree), True
    # Compare identities: functions of user code look equal if they differ only in what they hold.
    steps = [tuple(map(id, leaf.steps)) for leaf in {id(leaf): leaf for leaf in leaves(tree)}.values()]
    same = all(one == steps[0] for one in steps)
    if len(chains) == 1:
        place.views = False
        return list(chains[0].transforms)
    return [ours.MultiView(chains[0], len(chains)) if same else ours.MultiView(chains)]


def _steps(steps: tuple[Any, ...], place: _ImageState) -> list[Transform]:
    outside, place.steps = place.steps, list(place.steps)
    for _, item, e in _go_through([found for step in steps for found in _flatten(step, "")], place):
        raise UnsupportedError(f"{shown(item)}: {e}", getattr(e, "code", "transform-argument")) from None
    inside, place.steps = place.steps[len(outside) :], outside
    return [t for *_, made in inside for t in made]


_CANNOT = (UnsupportedError, GpupipeError, TypeError, ValueError, AttributeError)
"""Errors that the translation of a transform raises."""


def _go_through(flat: list[tuple[str, Any]], place: _ImageState) -> list[tuple[str, Any, Exception]]:
    """Translate (place, transform) one after another. Return those that could not be translated, with the reason.

    A transform that gpupipe does not have is a function, which runs as it is. If no engine accepts what it returns,
    such as an array or an image whose size depends on the input, the function is joined with the transforms that
    follow.
    """
    failed: list[tuple[str, Any, Exception]] = []
    joined: list[Any] = []
    for where, item in flat:
        if not joined:
            try:
                _follow(item, _translate(item, place), place)
                continue
            except _CANNOT as e:
                failed.append((where, item, e))
        joined.append(item)
        try:
            made = _joined(joined, place)
        except (Failed, UnsupportedError):
            joined = []  # the first one has the reason
            continue
        if made is not None:
            failed.pop()
            _follow(made.lambd, [made], place)
            joined = []
    return failed


def _joined(items: list[Any], place: _ImageState) -> Lambda | None:
    """Join transforms into one function; ``None`` if no engine accepts what it returns.

    Raises:
        Failed: the function raised when it was tried.
        UnsupportedError: the function cannot be tried.
    """
    if place.views or any(isinstance(item, Transform) for item in items):
        raise UnsupportedError("", "own-function")
    if place.kind == "array" and _undone(place, ToArray):
        items.insert(0, _as_array)
    function = items[0] if len(items) == 1 else Chain(tuple(items))
    try:
        return Lambda(function, returns=_returned(function, place))
    except UnsupportedError as e:
        if e.code != "varying-size":
            raise
        return None


def _function(function: Any, place: _ImageState) -> list[Transform]:
    if place.views:
        return _function_of_views(function, place)
    if (found := _recognized(function, place)) is not None:
        return found
    try:
        return [ours.Lambda(function, returns=_returned(function, place))]
    except Failed:
        return [ours.Lambda(function)]  # it may work on the dataset's own images; otherwise an error will name it


def _recognized(function: Any, place: _ImageState) -> list[Transform] | None:
    steps = [step for step, *_ in place.steps]
    if place.channels not in (1, 3) or (place.kind != "pil" and given(steps, *place.decoded) != "float32"):
        return None

    def translate(held: Any) -> list[Transform]:
        return [made for _, item in _flatten(held, "") for made in _translate(item, copy.copy(place))]

    return recognized(function, PipelinePosition(place.kind == "pil", place.channels, translate))


def _returned(function: Any, place: _ImageState) -> Returned | None:
    return returned(function, [step for step, *_ in place.steps], *place.decoded)


def _function_of_views(function: Any, place: _ImageState) -> list[Transform]:
    """Join a function of all views, such as one that stacks ten crops, with the transforms from the crops on."""
    at = next((n for n, (*_, made) in enumerate(place.steps) if any(isinstance(t, ours.FiveCrop) for t in made)), None)
    if at is not None:
        chain = Chain((*(step for step, *_ in place.steps[at:]), function))
        branch = copy.copy(place)
        branch.steps = place.steps[:at]
        with suppress(Failed):
            returns = _returned(chain, branch)
            place.kind, place.views = place.steps[at][1], False
            del place.steps[at:]
            return [ours.Lambda(chain, returns=returns)]
    raise UnsupportedError(
        "it is a function of all views at once; the batch is a tuple of views, so stack them in the training loop",
        "own-function",
    )


def _as_it_is(image: Any) -> Any:
    return image


def _as_array(image: Any) -> Any:
    return np.array(image)


def _as_tensor(image: Any) -> Any:
    return torch.from_numpy(np.atleast_3d(np.array(image))).permute(2, 0, 1)


def _as_tv_image(image: Any) -> Any:
    return tv_image()(image if isinstance(image, torch.Tensor) else _as_tensor(image))


_CALLED: dict[type, Callable[[Any], Any]] = {
    ToArray: _as_array,
    ours.PILToTensor: _as_tensor,
    ours.ToImage: _as_tv_image,
}
"""Functions that do to a script's image what these transforms stand for."""


def _follow(item: Any, made: list[Transform], place: _ImageState) -> None:
    """Update ``place`` after a transform of the script and its translation."""
    place.steps.append((_CALLED.get(type(item), item), place.kind, made))
    for t in made:
        if (kind := _BECOMES.get(type(t))) is not None:
            place.kind = kind
        elif isinstance(t, ours.Grayscale):
            place.channels = t.num_output_channels
        elif isinstance(t, ours.FiveCrop):
            place.views = True
        elif isinstance(t, ours.Lambda) and t.returns is not None:
            place.kind, place.channels = t.returns.kind, t.returns.channels


_BECOMES: dict[type[Transform], str] = {
    ToArray: "array",
    ToTensorV2: "tensor",
    ours.PILToTensor: "tensor",
    ours.ToImage: "image",
    ours.ToTensor: "tensor",
}
"""Kind of the image after these transforms."""


# ---- parameters


def _known(t: Any) -> type:
    cls = known_class(t, "torchvision.transforms")
    assert cls is not None
    return cls


def _second_generation(t: Any) -> bool:
    return _known(t).__module__.startswith("torchvision.transforms.v2")


def _random_crop(t: Any, place: _ImageState) -> list[Transform]:
    padding = t.padding
    if padding is not None and _second_generation(t):
        left, right, top, bottom = padding  # v2 stores it in this order
        padding = (left, top, right, bottom)
    if padding is not None and t.pad_if_needed and t.padding_mode in ("reflect", "symmetric"):
        raise UnsupportedError(
            f"it mirrors twice: padding and pad_if_needed with padding_mode={t.padding_mode!r}", "transform-argument"
        )
    given = {"fill": _fill(t, place)} if isinstance(t.fill, dict) else {}
    return [same_names(t, _known(t), ours.RandomCrop, padding=padding, **given)]


def _convert_image_dtype(t: Any, place: _ImageState) -> list[Transform]:
    """Translate both versions: v2's is its ToDtype, and v1's divides, which rounds differently."""
    return [ours.ToDtype(t.dtype, scale=True) if _second_generation(t) else ours.ConvertImageDtype(t.dtype)]


def _lambda(t: Any, place: _ImageState) -> list[Transform]:
    if getattr(t, "types", (object,)) != (object,):
        raise UnsupportedError(
            "it is a Lambda for some types only; leave types out, because only images pass here", "transform-argument"
        )
    return _user_code(t.lambd, place)


def _mixing(t: Any, place: _ImageState) -> list[Transform]:
    if t._labels_getter.__name__ != "_find_labels_default_heuristic":
        raise UnsupportedError(
            "it has its own labels_getter; the dataset provides the targets, so leave it out", "own-methods"
        )
    return [(ours.MixUp if _known(t).__name__ == "MixUp" else ours.CutMix)(alpha=t.alpha, num_classes=t.num_classes)]


def _of_type(values: dict[Any, Any], place: _ImageState) -> tuple[bool, Any]:
    """Look up the image at this place in values by type, such as ``{tv_tensors.Image: ..., "others": ...}``.

    Returns whether there is a value, and the value.
    """
    module, name = _TYPES[place.kind]
    for key, value in values.items():
        if isinstance(key, type) and key.__module__.startswith(module) and key.__name__ == name:
            return True, value
    return "others" in values, values.get("others")


_TYPES = {"pil": ("PIL.", "Image"), "image": ("torchvision.", "Image"), "tensor": ("torch", "Tensor")}


def _dtype(t: Any, place: _ImageState) -> Any:
    """Return the data type that ``v2.ToDtype`` would convert to here; ``None`` for no conversion."""
    if not isinstance(t.dtype, dict):
        return t.dtype
    known, dtype = _of_type(t.dtype, place)
    if not known:
        name = _TYPES[place.kind][1]
        raise UnsupportedError(
            f"it names no data type for {name}, the type of the image at this place", "transform-argument"
        )
    return dtype


def _fill(t: Any, place: _ImageState) -> Any:
    """Return the value for the image at this place, of ``fill`` by type."""
    if any(isinstance(key, type) and key.__module__.startswith("PIL.") for key in t.fill):
        raise UnsupportedError(
            f"fill={t.fill!r} names a class of Pillow; use 'others' for images", "transform-argument"
        )
    return CONVERTERS["fill"](_of_type(t.fill, place)[1])


def _to_dtype(t: Any, place: _ImageState) -> list[Transform]:
    dtype = _dtype(t, place)
    return [] if dtype is None else [ours.ToDtype(dtype, bool(t.scale))]


def _rgb(t: Any, place: _ImageState) -> list[Transform]:
    if place.channels == 1:
        raise UnsupportedError(
            "the image has one channel here; use Grayscale(num_output_channels=3) before it instead", "transform-order"
        )
    return []  # the engines decode to RGB


def _to_pure_tensor(t: Any, place: _ImageState) -> list[Transform]:
    place.kind = "tensor" if place.kind == "image" else place.kind
    return []


def _of_targets(t: Any, place: _ImageState) -> list[Transform]:
    """Translate a transform of boxes or keypoints, which does not change images."""
    if not place.joint:
        raise UnsupportedError("it needs bounding boxes or keypoints, but gets only an image", "transform-order")
    return []


def _iou_crop(t: Any, place: _ImageState) -> list[Transform]:
    _of_targets(t, place)
    limits = t.min_scale, t.max_scale, t.min_aspect_ratio, t.max_aspect_ratio
    return [ours.RandomIoUCrop(*limits, sampler_options=tuple(t.options), trials=t.trials)]


def _classification_preset(t: Any, place: _ImageState) -> list[Transform]:
    """Translate what ``weights.transforms()`` of torchvision's models returns."""
    return [
        ours.Resize(t.resize_size, interpolation(t.interpolation), antialias=bool(t.antialias)),
        ours.CenterCrop(t.crop_size),
        ours.PILToTensor() if place.kind == "pil" else ours.ToImage(),
        ours.ConvertImageDtype("float32"),
        ours.Normalize(t.mean, t.std),
    ]


def _to_pil_image(t: Any, place: _ImageState) -> list[Transform]:
    """Undo ToTensor(), or leave an array as it is, which already is an image."""
    if t.mode is not None or not _undone(place, ours.ToTensor if place.kind == "tensor" else ToArray):
        raise UnsupportedError("gpupipe supports it only for arrays and directly after ToTensor()", "transform-order")
    return []


def _to_tensor(t: Any, place: _ImageState) -> list[Transform]:
    if place.kind == "array" and not _undone(place, ToArray):
        raise UnsupportedError("it gets an array from albumentations; use ToTensorV2()", "transform-order")
    return [ours.ToTensor()]


def _undone(place: _ImageState, last: type[Transform]) -> bool:
    """Remove the last step and return ``True`` if it was a transform of this class."""
    if not place.steps or not any(type(made) is last for made in place.steps[-1][2]):
        return False
    item, place.kind, _ = place.steps.pop()
    place.steps.append((item, place.kind, []))
    return True


_OF_ARRAYS = ("ToImage", "ToPILImage", "ToTensor")
"""Transforms that take arrays uint8[H, W, C] as well as PIL images."""


_RULES: dict[str, Callable[[Any, _ImageState], list[Transform]]] = {
    "ClampBoundingBoxes": _of_targets,
    "ClampKeyPoints": _of_targets,
    "ConvertBoundingBoxFormat": _of_targets,
    "ConvertImageDtype": _convert_image_dtype,
    "CutMix": _mixing,
    "Identity": lambda t, place: [],
    "ImageClassification": _classification_preset,
    "Lambda": _lambda,
    "MixUp": _mixing,
    "RGB": _rgb,
    "RandomCrop": _random_crop,
    # In place or not makes no difference here, and fingerprints of pipelines do not contain it.
    "RandomErasing": lambda t, place: [same_names(t, _known(t), ours.RandomErasing, inplace=False)],
    "RandomIoUCrop": _iou_crop,
    "SanitizeBoundingBoxes": _of_targets,
    "SanitizeKeyPoints": _of_targets,
    "SetClampingMode": _of_targets,
    "ToDtype": _to_dtype,
    "ToPILImage": _to_pil_image,
    "ToTensor": _to_tensor,
    "ToPureTensor": _to_pure_tensor,
}
"""Translations by class name, for transforms that :func:`same_names` does not reproduce."""

_OURS = {
    name: cls
    for name, cls in ((name, getattr(ours, name)) for name in ours.__all__)
    if issubclass(cls, Transform) and cls is not Transform
}
_CONTAINERS = ("RandomApply", "RandomChoice", "RandomOrder")
"""Containers, whose transforms are translated first."""
