"""Translation of torchvision's transforms, of v1 and v2. Calls the translation of timm's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .. import transforms as ours
from ..errors import GpupipeError, TranslationError
from ..transforms import Compose, Lambda, Transform
from .classes import class_name, exact_name, shown
from .image_state import ImageState
from .replaced import replaced
from .same_names import UnsupportedError, same_names
from .timm import TIMM
from .torchvision_rules import RULES, fill

_CHOICES = (
    "Alternatives: gpupipe's own transforms (gpupipe.transforms), or torchvision's dataset with these transforms, "
    "which run as they are."
)


class Translated(NamedTuple):
    """Translation of transforms."""

    pipeline: Compose
    kind: str
    """What the transforms return for a PIL image: ``"pil"``, ``"tensor"``, or ``"image"`` for torchvision's
    ``Image``."""


def pipeline_of(t: Any) -> Compose:
    """Return a pipeline that does what ``t`` does, for a dataset of gpupipe's own.

    Args:
        t: a torchvision or timm transform, a ``Compose`` or ``nn.Sequential`` of them, nested to any depth and with
            gpupipe's transforms and functions among them; a gpupipe ``Compose``, which is returned as it is; or
            ``None``.

    Raises:
        TranslationError: some transforms cannot be translated; lists all of them and the alternatives.
    """
    return translation(t, for_own_dataset=True).pipeline


def translation(t: Any, *, channels: int = 3, for_own_dataset: bool = False) -> Translated:
    """Translate transforms.

    Args:
        t: as for :func:`pipeline_of`.
        channels: of the images.
        for_own_dataset: whether a dataset of gpupipe's own takes the pipeline, which may then change boxes.

    Raises:
        TranslationError: as for :func:`pipeline_of`.
    """
    if t is None:
        t = Compose([])
    if isinstance(t, Compose) and channels == 3:
        return Translated(t, "tensor" if len(t) else "pil")
    flat = list(_flatten(t, ""))
    place = ImageState(channels, for_own_dataset)
    # These two define the color of a gray image themselves, so a conversion to gray first is not needed.
    if channels == 1 and not (flat and type(flat[0][1]).__name__ in ("Grayscale", "RGB")):
        place.follow([ours.Grayscale(1)])
    elif channels == 1:
        place.channels = 3
    problems = []
    for where, item in flat:
        try:
            place.follow(_translate(item, place))
        except (UnsupportedError, GpupipeError, TypeError, ValueError, AttributeError) as e:
            problems.append(f"  {where or 'transform'}: {shown(item)} ({class_name(item)}): {e}")
    if problems:
        count = f"{len(problems)} of {len(flat)} transforms cannot be translated:"
        raise TranslationError("\n".join([count, *problems, _CHOICES]))
    layout = t.memory_format if isinstance(t, Compose) else "contiguous_format"
    try:
        pipeline = Compose([one for made in place.made for one in made], memory_format=layout)
    except GpupipeError as e:
        raise TranslationError(f"the transforms do not fit together. {e}. {_CHOICES}") from e
    return Translated(pipeline, place.kind)


def parts_of(t: Any) -> list[Any] | None:
    """Return the transforms that a container applies one after another; ``None`` for anything that is not such a
    container."""
    if isinstance(t, (list, tuple, Compose)):
        return list(t)
    name = exact_name(t, "torchvision.transforms", "torch.nn.modules.container")
    if name not in ("Compose", "Sequential") or _hooked(t) or replaced(t):
        return None
    return list(t.transforms) if name == "Compose" else list(t)  # children() would leave out repetitions


def _flatten(t: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Iterate over (place, transform) of every transform that is not a container."""
    inner = parts_of(t)
    if inner is None:
        yield where, t
        return
    for i, item in enumerate(inner):
        yield from _flatten(item, f"{where}[{i}]")


def _hooked(t: Any) -> bool:
    return any(vars(t).get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))


def _translate(t: Any, place: ImageState) -> list[Transform]:
    if isinstance(t, Transform):
        return [t]
    if type(t) is torch.nn.Identity:
        return []
    name, of_timm = exact_name(t, "torchvision.transforms"), exact_name(t, "timm")
    if not name and not of_timm:
        return [_function(t)]
    if _hooked(t):
        raise UnsupportedError("it has forward hooks")
    if changed := replaced(t):
        raise UnsupportedError(f"{changed} is no longer the library's own")
    if of_timm:
        return _of_timm(t, of_timm, place)
    if name == "Lambda":
        if getattr(t, "types", (object,)) != (object,):  # only v2 has them
            raise UnsupportedError("it is for images of some types only")
        return [_function(t.lambd)]
    if name in RULES:
        return RULES[name](t, place)
    if name not in _OURS:
        raise UnsupportedError("gpupipe has no such transform")
    given: dict[str, Any] = {"fill": fill(t, place)} if isinstance(getattr(t, "fill", None), dict) else {}
    if name in _CONTAINERS:
        given["transforms"] = [_inner(part, place) for part in t.transforms]
    made = same_names(t, type(t), _OURS[name], **given)
    if made.on_objects:
        raise UnsupportedError("it changes boxes, which images alone do not have")
    return [made]


def _function(function: Any) -> Lambda:
    if not callable(function):
        raise UnsupportedError("it cannot be called")
    libraries = {cls.__module__.partition(".")[0] for cls in type(function).__mro__}
    if libraries & {"torchvision", "timm"}:
        raise UnsupportedError("it is a subclass; wrap it in gpupipe.transforms.Lambda to call it as a function")
    return Lambda(function)


def _of_timm(t: Any, name: str, place: ImageState) -> list[Transform]:
    if name not in TIMM:
        raise UnsupportedError("gpupipe has no such transform of timm")
    if name == "MaybeToTensor" and place.kind != "pil":
        return []
    return TIMM[name](t)


def _inner(t: Any, place: ImageState) -> Any:
    """Return the content of a container: one transform, or a pipeline of several."""
    found: list[Transform] = []
    for _, item in _flatten(t, ""):
        found += _translate(item, place)
    return found[0] if len(found) == 1 else Compose(found)


_OURS = {
    name: cls
    for name, cls in ((name, getattr(ours, name)) for name in ours.__all__)
    if issubclass(cls, Transform) and cls is not Transform
}
_CONTAINERS = ("RandomApply", "RandomChoice")
"""Containers, whose transforms are translated first."""
