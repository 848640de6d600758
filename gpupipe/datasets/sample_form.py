"""Structure of samples and batches: where images and other values are in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any


@dataclass(frozen=True)
class View:
    """Position of what is made from a sample's image: an image, or a tuple of several views."""


@dataclass(frozen=True)
class Rest:
    """Position of anything else: a label, a name, or a tensor."""

    path: tuple[Any, ...] = ()
    """Keys that lead to the value in the collated target; empty for the whole target."""


@dataclass(frozen=True)
class SampleForm:
    """Structure of samples, and of batches as torch's ``default_collate`` makes them from these.

    >>> SampleForm({"image": View(), "label": Rest(("y",))}).batch("images", {"y": "labels"})
    {'image': 'images', 'label': 'labels'}

    Args:
        tree: a tuple or a dictionary with :class:`View` and :class:`Rest` as values.
    """

    tree: tuple[View | Rest, ...] | dict[str, View | Rest] | View

    def batch(self, images: Any, target: Any) -> Any:
        """Build a batch of images and the collated rest."""
        made = self.sample(images, target)
        return list(made) if isinstance(self.tree, tuple) else made

    def sample(self, image: Any, target: Any) -> Any:
        """Build one sample of its image, or a tuple of views, and the rest."""

        def value(leaf: View | Rest) -> Any:
            return image if isinstance(leaf, View) else reduce(lambda found, key: found[key], leaf.path, target)

        if isinstance(self.tree, dict):
            return {name: value(leaf) for name, leaf in self.tree.items()}
        return tuple(map(value, self.tree)) if isinstance(self.tree, tuple) else image


def form_of(columns: Sequence[str], *, labeled: bool, return_dict: bool) -> SampleForm:
    """Return the form of image, label and further columns: a tuple, or a dictionary by name.

    >>> form_of(["weight"], labeled=True, return_dict=False).batch("images", {"label": [3], "weight": [0.5]})
    ['images', [3], [0.5]]
    """
    names = ["label", *columns] if labeled else [*columns]
    # Without further columns, the labels themselves are the target.
    parts = {name: Rest((name,) if columns else ()) for name in names}
    return SampleForm({"image": View(), **parts} if return_dict else (View(), *parts.values()))
