"""How the images and the rest of a sample stand in it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from ..errors import ConfigError

__all__ = [
    "Arranged", "AsImage", "Original", "Rest", "SampleForm", "View", "form_of", "kept", "leaves", "mapped", "rebuilt",
    "with_values",
]  # fmt: skip


@dataclass(frozen=True)
class View:
    """The place of one of the images that are made of a sample's image. The same one may stand in several places."""

    number: int


@dataclass(frozen=True)
class AsImage:
    """The place of such an image as a PIL image, for collate functions that take these."""

    view: View


@dataclass(frozen=True)
class Arranged:
    """The place of what torch makes of several images, or of one, such as ``torch.stack``.

    Args:
        name: in :data:`~gpupipe.datasets.arrangements.ARRANGEMENTS`.
        parts: each a :class:`View` or another of these.
        arguments: the function's others.
    """

    name: str
    parts: tuple[Any, ...]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Original:
    """The place of the image itself, before its transforms. It is in no batch, and in samples nobody may look at it."""


class _Undecoded:
    """What stands there in a sample."""

    def __getattribute__(self, name: str) -> Any:
        return _refuse(self, name)

    def _refuse(self, *_: Any) -> Any:
        raise ConfigError(
            "a collate function looks at the image of a sample as it was before its transforms, which is not decoded "
            'here: let it take what the transforms made of it, or use engine="torch"'
        )

    __len__ = __iter__ = __getitem__ = __repr__ = __str__ = _refuse


_refuse = _Undecoded.__dict__["_refuse"]


@dataclass(frozen=True)
class Rest:
    """The place of something else: a label, a name, or a container without any image."""

    path: tuple[Any, ...] = ()
    """Keys and indices that lead to it in the collated target; none if that is all of it."""
    tensor: bool = False
    """Whether numbers of single samples are tensors, and not Python's; of a dataset's columns."""


@dataclass(frozen=True)
class SampleForm:
    """What torch's ``default_collate`` makes of samples is put together from the engine's images and targets.

    >>> SampleForm({"image": View(0), "label": Rest(("y",))}).batch("images", {"y": "labels"})
    {'image': 'images', 'label': 'labels'}

    Args:
        tree: containers as in the sample, with :class:`View`, :class:`AsImage`, :class:`Arranged`, :class:`Rest` and
            :class:`Original` in their places.
    """

    tree: Any

    @property
    def _has_views(self) -> bool:
        return len({view.number for leaf in leaves(self.tree) for view in _views(leaf)}) > 1

    @property
    def has_images(self) -> bool:
        """Whether PIL images are in the samples."""
        return any(isinstance(leaf, AsImage) for leaf in leaves(self.tree))

    @property
    def has_originals(self) -> bool:
        return any(isinstance(leaf, Original) for leaf in leaves(self.tree))

    def batch(self, images: Any, target: Any) -> Any:
        """A batch.

        Args:
            images: of every view, or if there is one only it.
            target: the collated rest.
        """
        views = images if self._has_views else (images,)
        given: set[int] = set()

        def place(leaf: Any) -> Any:
            if isinstance(leaf, View) and leaf.number in given:
                return views[leaf.number].clone()  # a script may write to the one and not to the other
            given.update(view.number for view in _views(leaf))
            return _at(leaf, views, target, "batch")

        return mapped(place, self.tree)

    def sample(self, views: tuple[Any, ...], target: Any) -> Any:
        """One sample as the dataset would have returned it.

        Args:
            views: its images.
            target: the rest of it, not collated.
        """
        parts = views if self._has_views or len(views) == 1 else (views,)
        return kept(lambda leaf: _at(leaf, parts, target, "sample"), self.tree)


def form_of(columns: Sequence[str], *, labelled: bool, return_dict: bool) -> SampleForm:
    """Of a dataset's image, label and further columns: a tuple of them, or a dictionary by name.

    >>> form_of(["weight"], labelled=True, return_dict=False).batch("images", {"label": [3], "weight": [0.5]})
    ['images', [3], [0.5]]
    """
    names = ["label", *columns] if labelled else [*columns]
    # Labels that are all that there is are the target itself.
    parts = {name: Rest((name,) if columns else ()) for name in names}
    return SampleForm({"image": View(0), **parts} if return_dict else (View(0), *parts.values()))


def _views(leaf: Any) -> Iterator[View]:
    """The images that stand in one place."""
    if isinstance(leaf, View):
        yield leaf
    elif isinstance(leaf, AsImage):
        yield leaf.view
    elif isinstance(leaf, Arranged):
        for part in leaf.parts:
            yield from _views(part)


def _at(leaf: Any, views: tuple[Any, ...], target: Any, what: str) -> Any:
    """``what``: whether of a ``"sample"`` or of a ``"batch"``."""
    if isinstance(leaf, View):
        return views[leaf.number]
    if isinstance(leaf, AsImage):
        return _pil(views[leaf.view.number])
    if isinstance(leaf, Arranged):
        from .arrangements import ARRANGEMENTS  # which loads torch

        function = getattr(ARRANGEMENTS[leaf.name], what)
        return function([_at(part, views, target, what) for part in leaf.parts], *leaf.arguments)
    if isinstance(leaf, Original):
        return _Undecoded()
    for key in leaf.path:
        target = target[key]
    return target


def _pil(image: Any) -> Image.Image:
    """Of a tensor uint8[C, H, W]."""
    pixels = image.permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def leaves(tree: Any) -> Iterator[Any]:
    """What stands in containers of containers, in order."""
    if isinstance(tree, (list, tuple)):
        for part in tree:
            yield from leaves(part)
    elif type(tree) not in _LEAVES and isinstance(tree, Mapping):
        for part in tree.values():
            yield from leaves(part)
    else:
        yield tree


_LEAVES = (int, float, str, bool, type(None))


def kept(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same containers with other leaves."""
    if isinstance(tree, Mapping):
        made = {key: kept(change, part) for key, part in tree.items()}
        return with_values(tree, made)
    if isinstance(tree, (list, tuple)):
        return rebuilt(tree, [kept(change, part) for part in tree])
    return change(tree)


def with_values(tree: Mapping[Any, Any], made: dict[Any, Any]) -> Mapping[Any, Any]:
    """A mapping of the same type with other values of the same keys."""
    if type(tree) is dict:
        return made
    if isinstance(tree, MutableMapping):
        other = copy.copy(tree)  # a constructor may take something else, as that of a defaultdict
        other.update(made)
        return other
    return type(tree)(made)  # type: ignore[call-arg]


def rebuilt(tree: Any, parts: list[Any]) -> Any:
    """A list, tuple or named tuple with other parts."""
    if hasattr(tree, "_fields"):
        return type(tree)(*parts)
    return tuple(parts) if isinstance(tree, tuple) else parts


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Containers as ``default_collate`` makes them: mappings and named tuples stay, other tuples become lists."""
    if isinstance(tree, Mapping):
        made = {key: mapped(change, part) for key, part in tree.items()}
        return with_values(tree, made)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(change, part) for part in tree))
    if isinstance(tree, (list, tuple)):
        return [mapped(change, part) for part in tree]
    return change(tree)
