"""Structure of samples and batches: where images and other values are in them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image


@dataclass(frozen=True)
class View:
    """Position of one of the images made from a sample's image. It may occur several times."""

    number: int


@dataclass(frozen=True)
class TVView(View):
    """Position of such an image as torchvision's ``tv_tensors.Image``. In batches it is a plain tensor, as
    ``torch.stack`` makes it."""


@dataclass(frozen=True)
class AsImage:
    """Position of such an image as a PIL image, for collate functions that need these. In batches it is a tensor."""

    view: View


@dataclass(frozen=True)
class Arranged:
    """Position of the result of a torch function such as ``torch.stack`` on one or more images.

    Args:
        name: key of :data:`~gpupipe.datasets.arrangements.ARRANGEMENTS`.
        parts: the images, each a :class:`View` or another :class:`Arranged`.
        arguments: other arguments of the function.
    """

    name: str
    parts: tuple[Any, ...]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Rest:
    """Position of anything else: a label, a name, or a container without images."""

    path: tuple[Any, ...] = ()
    """Keys and indices that lead to the value in the collated target; empty for the whole target."""
    tensor: bool = False
    """Whether single samples have tensors instead of Python numbers, for columns of a dataset."""


@dataclass(frozen=True)
class SampleForm:
    """Structure of batches as torch's ``default_collate`` makes them, filled with an engine's images and targets.

    >>> SampleForm({"image": View(0), "label": Rest(("y",))}).batch("images", {"y": "labels"})
    {'image': 'images', 'label': 'labels'}

    Args:
        tree: containers as in a sample, with :class:`View`, :class:`AsImage`, :class:`Arranged` and :class:`Rest` as
            leaves.
    """

    tree: Any

    @property
    def on_host(self) -> set[int]:
        """Numbers of the views that samples have as PIL images."""
        return {leaf.view.number for leaf in leaves(self.tree) if isinstance(leaf, AsImage)}

    @property
    def _has_views(self) -> bool:
        return len({view.number for leaf in leaves(self.tree) for view in _views(leaf)}) > 1

    def batch(self, images: Any, target: Any) -> Any:
        """Build a batch.

        Args:
            images: of every view, or of the only one.
            target: the collated rest.
        """
        views = images if self._has_views else (images,)
        given: set[int] = set()

        def place(leaf: Any) -> Any:
            if isinstance(leaf, View) and leaf.number in given:
                return views[leaf.number].clone()  # a script may write to one of them only
            given.update(view.number for view in _views(leaf))
            made = _at(leaf, views, target, "batch")
            # torch.stack makes a batch contiguous, even if permute has moved the axes of its samples.
            return made.contiguous() if isinstance(leaf, Arranged) else made

        return mapped(place, self.tree)

    def sample(self, views: tuple[Any, ...], target: Any) -> Any:
        """Build one sample as the dataset would have returned it.

        Args:
            views: its images.
            target: the rest, not collated.
        """
        parts = views if self._has_views or len(views) == 1 else (views,)
        return kept(lambda leaf: _at(leaf, parts, target, "sample"), self.tree)


def view_of(number: int, kind: str) -> View | AsImage:
    """Return the position of an image of a kind: ``"pil"``, ``"tensor"``, or ``"image"`` for torchvision's."""
    return AsImage(View(number)) if kind == "pil" else TVView(number) if kind == "image" else View(number)


def form_of(columns: Sequence[str], *, labeled: bool, return_dict: bool) -> SampleForm:
    """Return the form of image, label and further columns: a tuple, or a dictionary by name.

    >>> form_of(["weight"], labeled=True, return_dict=False).batch("images", {"label": [3], "weight": [0.5]})
    ['images', [3], [0.5]]
    """
    names = ["label", *columns] if labeled else [*columns]
    # Without further columns, the labels themselves are the target.
    parts = {name: Rest((name,) if columns else ()) for name in names}
    return SampleForm({"image": View(0), **parts} if return_dict else (View(0), *parts.values()))


def _views(leaf: Any) -> Iterator[View]:
    """Yield the images at one position."""
    if isinstance(leaf, View):
        yield leaf
    elif isinstance(leaf, AsImage):
        yield leaf.view
    elif isinstance(leaf, Arranged):
        for part in leaf.parts:
            yield from _views(part)


def _at(leaf: Any, views: tuple[Any, ...], target: Any, what: str) -> Any:
    """Return the value of a leaf. ``what`` is ``"sample"`` or ``"batch"``."""
    if isinstance(leaf, TVView) and what == "sample":
        return tv_image()(views[leaf.number])
    if isinstance(leaf, View):
        return views[leaf.number]
    if isinstance(leaf, AsImage):
        image = views[leaf.view.number]
        return _pil(image) if what == "sample" else image
    if isinstance(leaf, Arranged):
        from .arrangements import ARRANGEMENTS  # which loads torch

        function = getattr(ARRANGEMENTS[leaf.name], what)
        return function([_at(part, views, target, what) for part in leaf.parts], *leaf.arguments)
    for key in leaf.path:
        target = target[key]
    return target


def _pil(image: Any) -> Image.Image:
    """Convert a tensor uint8[C, H, W] to a PIL image."""
    pixels = image.permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def tv_image() -> Any:
    """Return torchvision's class ``tv_tensors.Image``, which whoever has such images has imported."""
    return sys.modules["torchvision.tv_tensors"].Image


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested containers, in order."""
    found = list[Any]()
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Any]) -> None:
    if isinstance(tree, (list, tuple)):
        for part in tree:
            _collect(part, found)
    elif type(tree) not in _LEAVES and isinstance(tree, Mapping):
        for part in tree.values():
            _collect(part, found)
    else:
        found.append(tree)


_LEAVES = (int, float, str, bool, type(None))


def kept(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same containers with changed leaves."""
    if isinstance(tree, Mapping):
        made = {key: kept(change, part) for key, part in tree.items()}
        return with_values(tree, made)
    if isinstance(tree, (list, tuple)):
        return rebuilt(tree, [kept(change, part) for part in tree])
    return change(tree)


def with_values(tree: Mapping[Any, Any], made: dict[Any, Any]) -> Mapping[Any, Any]:
    """Return a mapping of the same type with other values for the same keys."""
    if type(tree) is dict:
        return made
    if isinstance(tree, MutableMapping):
        other = copy.copy(tree)  # constructors may take other arguments, like defaultdict's
        other.update(made)
        return other
    return type(tree)(made)  # type: ignore[call-arg]


def rebuilt(tree: Any, parts: list[Any]) -> Any:
    """Return a list, tuple or named tuple with other items."""
    if hasattr(tree, "_fields"):
        return type(tree)(*parts)
    return tuple(parts) if isinstance(tree, tuple) else parts


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Change leaves in containers as ``default_collate`` does: mappings and named tuples stay, other tuples become
    lists."""
    if isinstance(tree, Mapping):
        made = {key: mapped(change, part) for key, part in tree.items()}
        return with_values(tree, made)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(change, part) for part in tree))
    if isinstance(tree, (list, tuple)):
        return [mapped(change, part) for part in tree]
    return change(tree)
