"""Recording what user code does with the transforms that it holds, by running it once with stand-ins.

``TwoCropsTransform``, a preset of several pipelines, or the ``__getitem__`` of a Dataset only arrange transforms: they
decide which image goes through which transform, and where the results go. So the transforms are replaced by marks and
the image by a stand-in that rejects every look at it. What the code returns shows the arrangement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from ..datasets.sample_form import leaves
from ..global_rng import drawn, lent, seed_all
from ..reasons import failure
from ..transforms.albumentations import ToArray
from . import albumentations
from .classes import known_class
from .isolation import Isolated
from .marks import marked_function
from .same_names import UnsupportedError
from .unread_arrays import UnreadArray, unread_arrays


class InspectionError(Exception):
    """User code looked at an image, and so may do anything with it."""

    last: ClassVar[InspectionError | None] = None
    """The latest exception of this kind in each thread, in case user code catches it."""

    def __init__(self, what: str):
        super().__init__(what)
        InspectionError.last = self


class StandIn(Image.Image):
    """Stand-in for an image, before and after transforms."""

    def __init__(self, image: Any, steps: tuple[Any, ...] = ()):
        self.image = image
        """The image that the first transform got."""
        self.steps = steps
        """The transforms that were applied."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("image", "steps", "then", "as_array", "__class__", "__dict__"):
            return object.__getattribute__(self, name)
        raise InspectionError(f"it looks at the image itself ({name})")

    def then(self, step: Any) -> StandIn:
        return StandIn(self.image, (*self.steps, step))

    def as_array(self) -> StandIn:
        """Return the stand-in for the array that ``np.array()`` makes of the image."""
        return self.then(_TO_ARRAY)

    def __len__(self) -> int:
        raise InspectionError("it looks at the image itself (len)")

    def __getitem__(self, _: Any) -> Any:
        raise InspectionError("it looks at the image itself ([])")

    def __iter__(self) -> Any:
        raise InspectionError("it looks at the image itself (iter)")

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def _looked(self, *_: Any) -> Any:
        raise InspectionError("it computes with the image itself")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _looked
    __bool__ = __float__ = __int__ = __lt__ = __gt__ = __le__ = __ge__ = _looked


_TO_ARRAY = ToArray()


class Mark:
    """Stand-in for a transform. It records that it was applied to an image, and does nothing."""

    def __init__(self, transform: Any):
        self._transform = transform

    def __call__(self, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named:
            if isinstance(given[0], StandIn):
                return given[0].then(self._transform)
            if isinstance(given[0], Image.Image):
                return StandIn(given[0], (self._transform,))
        if known_class(self._transform, albumentations.MODULE) is not None:
            return self._of_array(given, named)
        return self._transform(*given, **named)

    def _of_array(self, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if given or named.keys() != {"image"}:
            raise UnsupportedError(
                f"it gives {', '.join(named) or 'something unnamed'} to albumentations, and not one image", "own-pixels"
            )
        image = named["image"]
        if isinstance(image, StandIn):
            return {"image": image.then(self._transform)}
        is_image = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,)
        if type(image) is not UnreadArray and not is_image:
            raise UnsupportedError("it gives albumentations something other than an image uint8[H, W, 3]", "own-pixels")
        return {"image": StandIn(image, (_TO_ARRAY, self._transform))}

    def __getattr__(self, name: str) -> Any:
        # copy and pickle must not get special methods of the transform.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._transform, name)


def watched(other: Callable[[Any], Any], given: Any, who: str, *, seed: int) -> Any:
    """Return what ``other``, user code with marks, makes of stand-ins. Raise :class:`UnsupportedError`, with the name
    ``who``, if the code looks at an image or draws random numbers itself."""
    with lent():
        seed_all(seed)
        before, InspectionError.last = drawn(), None
        try:
            with unread_arrays():
                made = other(given)
            if InspectionError.last is not None:
                raise InspectionError.last
        except UnsupportedError:
            raise
        except InspectionError as e:
            raise UnsupportedError(
                f"{who} does more than arrange the transforms that it holds: {e}", "own-view"
            ) from None
        except Exception as e:
            raise UnsupportedError(
                f"{who} does more than arrange the transforms that it holds ({failure(e)})", "own-view"
            ) from None
        if drawn() != before:
            raise UnsupportedError(f"{who} draws random numbers itself", "own-seeds")
    return made


# ---- user code that only arranges transforms, such as several views of an image, a preset or a wrapper


def arranged(t: Any) -> Any:
    """Return what ``t`` makes of an image: a :class:`StandIn` with the transforms that were applied, or containers of
    several. Return ``None`` if ``t`` holds no transforms and therefore is a function of the image.

    Raises :class:`UnsupportedError` if ``t`` holds transforms and also does something else.
    """
    if not marked_function(t, Mark)[1]:
        return None
    with Isolated(t) as isolated:
        other, _ = marked_function(isolated.made[0], Mark)
        first = _called(other)
        # A first call may build or open something; a further one must change nothing.
        isolated.begin()
        second = _called(other)
        isolated.check()
    if _shape(first) != _shape(second):
        raise UnsupportedError("it does not always treat the transforms that it holds alike", "own-view")
    parts = list(leaves(first))
    if not parts or not all(isinstance(part, StandIn) for part in parts):
        raise UnsupportedError("it returns something other than images", "own-view")
    return first


def _called(other: Any) -> Any:
    before = dict(getattr(other, "__dict__", {}))
    made = watched(other, StandIn(None), "it", seed=1)
    now = getattr(other, "__dict__", {})
    if before.keys() != now.keys() or any(before[name] is not now[name] for name in before):
        raise UnsupportedError("it changes when it is called", "changes-itself")
    return made


def _shape(tree: Any) -> list[tuple[int, ...]]:
    return [tuple(map(id, part.steps)) if isinstance(part, StandIn) else () for part in leaves(tree)]
