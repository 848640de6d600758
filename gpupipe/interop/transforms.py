"""Translation of torchvision's transforms, of v1 and v2. Calls the translations of other libraries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from .. import transforms as ours
from ..datasets.sample_form import View, kept, leaves, mapped, view_of
from ..errors import GpupipeError, TranslationError
from ..reasons import Reason
from ..transforms import Compose, Lambda, Transform
from ..transforms.albumentations import ToArray
from ..transforms.ops.returned import Returned
from . import albumentations
from .classes import changed_methods, class_name, exact_name, known_class, shown
from .handwritten import PipelinePosition, recognized
from .image_state import ImageState, as_array, as_it_is
from .own_windows import is_own, own_window
from .recording import StandIn, arranged
from .replaced import replaced
from .same_names import UnsupportedError, same_names
from .timm import TIMM
from .torchvision_rules import RULES, fill
from .user_functions import Chain, Failed, given, returned

_CHOICES = (
    'Alternatives: gpupipe\'s own transforms (gpupipe.transforms), or DataLoader(..., engine="torch"), '
    "which runs the original dataset as it is."
)


_CHOICES_OWN = (
    "Alternatives: gpupipe's own transforms (gpupipe.transforms), or torchvision's dataset with these transforms, "
    "which torch's own loader can run."
)
_OTHER_VIEWS = "and gpupipe's own datasets return several views as a list"
_ARRAY = "  the pipeline ends with an array; end it with ToTensorV2()"


def translate_transform(t: Any, *, channels: int = 3) -> Compose:
    """Return a pipeline that does what ``t`` does.

    Args:
        t: a torchvision transform (v1 or v2), a ``Compose`` or ``nn.Sequential`` of them, nested to any depth and with
        gpupipe transforms among them; a gpupipe ``Compose``, which is returned as it is; or ``None``.

    Raises:
        TranslationError: some transforms cannot be translated; lists all of them and the alternatives.
    """
    return translation(t, channels=channels).pipeline


def pipeline_of(t: Any) -> Compose:
    """Return a pipeline that does what ``t`` does, for a dataset of gpupipe's own.

    Raises:
        TranslationError: as for :func:`translate_transform`, or a dataset of gpupipe's own returns views in another
            structure.
    """
    found = translation(t, for_own_dataset=True)
    if found.tree is not None:
        shape, *views = [found.tree, *leaves(found.tree)]
        if not isinstance(shape, (list, tuple)) or list(shape) != [View(i) for i in range(len(views))]:
            raise TranslationError(f"{shown(t)} ({class_name(t)}) returns {shape!r}, {_OTHER_VIEWS}. {_CHOICES_OWN}")
    return found.pipeline


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

    @property
    def nested(self) -> Any:
        """How several views are nested in what the transforms return; ``None`` for one image."""
        count = len(self.pipeline.outputs)
        # FiveCrop and its like return a plain tuple of views. Only user code nests them in other ways.
        return tuple(map(View, range(count))) if self.tree is None and count > 1 else self.tree

    @property
    def views(self) -> Any:
        """Positions of the images in a sample; see :class:`~gpupipe.datasets.sample_form.SampleForm`."""
        # A batch of plain tensors is a tuple of views as well, without positions.
        nested = self.tree if self.kind == "tensor" else self.nested
        return kept(lambda view: view_of(view.number, self.kind), View(0) if nested is None else nested)


class TranslatedStep(NamedTuple):
    """One of the script's transforms."""

    item: Any
    """The transform; ``None`` for the conversion of gray images, which only gpupipe has."""
    kind: str
    """Kind of the image that it gets, as in :attr:`Translated.kind`."""
    became: int
    """Number of gpupipe's transforms in its place."""


def translation(
    t: Any,
    *,
    channels: int = 3,
    size: tuple[int, int] | None = None,
    joint: bool = False,
    for_own_dataset: bool = False,
) -> Translated:
    """Translate transforms.

    Args:
        t: as for :func:`translate_transform`.
        channels: of the images.
        size: (height, width) of all images, on which functions are tried; ``None`` if it varies.
        joint: whether the script may call them with more than an image, such as boxes.
        for_own_dataset: whether a dataset of gpupipe's own takes the pipeline, which may then choose frames and change
            boxes.
    """
    if t is None:
        t = Compose([])
    if isinstance(t, Compose) and channels == 3:
        return Translated(t, None, "tensor" if len(t) else "pil")
    flat = list(_flatten(t, ""))
    place = ImageState(channels, size, joint=joint, for_own_dataset=for_own_dataset)
    choices = _CHOICES_OWN if for_own_dataset else _CHOICES
    # These two define the color of a gray image themselves, so a conversion to gray first is not needed.
    if channels == 1 and not (flat and type(flat[0][1]).__name__ in ("Grayscale", "RGB")):
        place.steps.append((as_it_is, "pil", [ours.Grayscale(1)]))
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
            "\n".join([f"{len(problems)} of {len(flat)} transforms cannot be translated:", *problems, choices]),
            reasons,
        )
    try:
        layout = t.memory_format if isinstance(t, Compose) else "contiguous_format"
        pipeline = Compose([t for *_, made in place.steps for t in made], memory_format=layout)
        steps = (
            TranslatedStep(None if item is as_it_is else item, kind, len(made)) for item, kind, made in place.steps
        )
        return Translated(pipeline, place.tree, place.kind, tuple(steps))
    except GpupipeError as e:
        raise TranslationError(
            f"the transforms do not fit together. {e}. {choices}", [Reason(str(e), "transform-order")]
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


def leaves_of(t: Any) -> list[Any]:
    """Return the transforms in containers of any depth that apply one after another."""
    return [item for _, item in _flatten(t, "")]


def _hooked(t: Any) -> bool:
    return any(vars(t).get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))


def _check_replaced(t: Any) -> None:
    """Raise :class:`UnsupportedError` if a script has replaced code of the library."""
    if name := replaced(t):
        raise UnsupportedError(f"{name} is no longer the library's own", "replaced-function")


def _translate(t: Any, place: ImageState) -> list[Transform]:
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
    given: dict[str, Any] = {"fill": fill(t, place)} if isinstance(getattr(t, "fill", None), dict) else {}
    if name in _CONTAINERS:
        given["transforms"] = [_inner(part, place) for part in t.transforms]
    made = same_names(t, cls, _OURS[name], **given)
    if made.temporal and not place.for_own_dataset:
        raise UnsupportedError(
            "it chooses frames, but the dataset has images; use gpupipe.datasets.VideoFolder", "transform-order"
        )
    if made.on_objects:
        raise UnsupportedError("it changes boxes, which images alone do not have", "unknown-transform")
    return [made]


def _changed(t: Any, cls: type, changed: list[str], place: ImageState) -> list[Transform]:
    """Translate a transform of a subclass with methods of its own."""
    if not is_own(t) or _hooked(t):
        raise UnsupportedError(f"it is a subclass of {cls.__name__} with its own {', '.join(changed)}", "own-methods")
    floats = (ours.ConvertImageDtype, Lambda, ours.Normalize, ours.ToDtype, ours.ToTensor)
    if place.kind not in ("pil", "image") or any(isinstance(m, floats) for *_, made in place.steps for m in made):
        raise UnsupportedError("gpupipe supports it for uint8 images only; put it before ToDtype", "own-methods")
    return [own_window(t, "pil" if place.kind == "pil" else "tensor", place.channels)]


def _of_timm(t: Any, cls: type, place: ImageState) -> list[Transform]:
    if changed := changed_methods(t, cls):
        raise UnsupportedError(f"it is a subclass of {cls.__name__} with its own {', '.join(changed)}", "own-methods")
    if cls.__name__ not in TIMM:
        raise UnsupportedError("gpupipe has no such transform of timm", "unknown-transform")
    if cls.__name__ == "MaybeToTensor" and place.kind != "pil":
        return []
    return TIMM[cls.__name__](t)


def _of_albumentations(t: Any, cls: type, place: ImageState) -> list[Transform]:
    if place.kind != "array" or place.channels != 3:
        raise UnsupportedError(
            "gpupipe supports it for arrays [H, W, 3] only; put np.array() before it",
            "transform-order",
        )
    return albumentations.of_albumentations(t, cls)


_LIBRARIES: dict[str, Callable[[Any, type, ImageState], list[Transform]]] = {
    "timm": _of_timm,  # some are subclasses of torchvision's
    albumentations.MODULE: _of_albumentations,
}
"""Translations by module, for libraries other than torchvision."""


def _inner(t: Any, place: ImageState) -> Any:
    """Return the content of a container: one transform, or a pipeline of several."""
    found: list[Transform] = []
    for _, item in _flatten(t, ""):
        found += _translate(item, place)
    return found[0] if len(found) == 1 else Compose(found)


def _user_code(t: Any, place: ImageState) -> list[Transform]:
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
    kinds = set[str]()

    def view(leaf: StandIn) -> View:
        if id(leaf) not in views:  # otherwise the same result occurs several times
            # Each view has a state of its own from here on.
            chains.append(Compose(_steps(leaf.steps, branch := copy.copy(place))))
            if branch.views:
                raise UnsupportedError("it makes several views of each of several views", "views")
            views[id(leaf)] = View(len(chains) - 1)
            kinds.add(branch.kind)
        return views[id(leaf)]

    place.tree, place.views = mapped(view, tree), True
    if len(kinds) > 1:
        raise UnsupportedError("some of its views are PIL images, and some are tensors", "views")
    (place.kind,) = kinds
    # Compare identities: functions of user code look equal if they differ only in what they hold.
    steps = [tuple(map(id, leaf.steps)) for leaf in {id(leaf): leaf for leaf in leaves(tree)}.values()]
    same = all(one == steps[0] for one in steps)
    if len(chains) == 1:
        place.views = False
        return list(chains[0].transforms)
    return [ours.MultiView(chains[0], len(chains)) if same else ours.MultiView(chains)]


def _steps(steps: tuple[Any, ...], place: ImageState) -> list[Transform]:
    # Steps inside are tried after those outside, but only they are returned.
    outside, place.steps = place.steps, list(place.steps)
    for _, item, e in _go_through([found for step in steps for found in _flatten(step, "")], place):
        raise UnsupportedError(f"{shown(item)}: {e}", getattr(e, "code", "transform-argument")) from None
    inside, place.steps = place.steps[len(outside) :], outside
    return [t for *_, made in inside for t in made]


_CANNOT = (UnsupportedError, GpupipeError, TypeError, ValueError, AttributeError)
"""Errors that the translation of a transform raises."""


def _go_through(flat: list[tuple[str, Any]], place: ImageState) -> list[tuple[str, Any, Exception]]:
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
                place.follow(item, _translate(item, place))
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
            # The joined function replaces the transform that failed alone.
            failed.pop()
            place.follow(made.lambd, [made])
            joined = []
    return failed


def _joined(items: list[Any], place: ImageState) -> Lambda | None:
    """Join transforms into one function; ``None`` if no engine accepts what it returns.

    Raises:
        Failed: the function raised when it was tried.
        UnsupportedError: the function cannot be tried.
    """
    if place.views or any(isinstance(item, Transform) for item in items):
        raise UnsupportedError("", "own-function")
    if place.kind == "array" and place.undo(ToArray):
        # Engines have no arrays, so the conversion becomes part of the function.
        items.insert(0, as_array)
    function = items[0] if len(items) == 1 else Chain(tuple(items))
    try:
        return Lambda(function, returns=_returned(function, place))
    except UnsupportedError as e:
        if e.code != "varying-size":
            raise
        return None


def _function(function: Any, place: ImageState) -> list[Transform]:
    if place.views:
        return _function_of_views(function, place)
    if (found := _recognized(function, place)) is not None:
        return found
    try:
        return [ours.Lambda(function, returns=_returned(function, place))]
    except Failed:
        return [ours.Lambda(function)]  # it may work on the dataset's own images; otherwise an error will name it


def _recognized(function: Any, place: ImageState) -> list[Transform] | None:
    steps = [step for step, *_ in place.steps]
    if place.channels not in (1, 3) or (place.kind != "pil" and given(steps, *place.decoded) != "float32"):
        return None

    def translate(held: Any) -> list[Transform]:
        return [made for _, item in _flatten(held, "") for made in _translate(item, copy.copy(place))]

    return recognized(function, PipelinePosition(place.kind == "pil", place.channels, translate))


def _returned(function: Any, place: ImageState) -> Returned | None:
    return returned(function, [step for step, *_ in place.steps], *place.decoded)


def _function_of_views(function: Any, place: ImageState) -> list[Transform]:
    """Join a function of all views, such as one that stacks ten crops, with the transforms from the crops on."""
    at = next((n for n, (*_, made) in enumerate(place.steps) if any(isinstance(t, ours.FiveCrop) for t in made)), None)
    if at is not None:
        # As one function from the crops on, it takes one image, and no engine sees the views.
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


def _lambda(t: Any, place: ImageState) -> list[Transform]:
    if getattr(t, "types", (object,)) != (object,):
        raise UnsupportedError(
            "it is a Lambda for some types only; leave types out, because only images pass here", "transform-argument"
        )
    return _user_code(t.lambd, place)


_OF_ARRAYS = ("ToImage", "ToPILImage", "ToTensor")
"""Transforms that take arrays uint8[H, W, C] as well as PIL images."""

_RULES: dict[str, Callable[[Any, ImageState], list[Transform]]] = {**RULES, "Lambda": _lambda}
"""Translations by class name, for transforms that :func:`same_names` does not reproduce."""

_OURS = {
    name: cls
    for name, cls in ((name, getattr(ours, name)) for name in ours.__all__)
    if issubclass(cls, Transform) and cls is not Transform
}
_CONTAINERS = ("RandomApply", "RandomChoice", "RandomOrder")
"""Containers, whose transforms are translated first."""
