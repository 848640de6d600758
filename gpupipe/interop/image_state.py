"""State of an image between the transforms of a script, while they are translated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .. import transforms as ours
from ..datasets.sample_form import tv_image
from ..transforms import Transform
from ..transforms.albumentations import ToArray, ToTensorV2


class ImageState:
    """State of the image between two transforms of the script: a PIL image, torchvision's ``Image``, a plain tensor or
    an array."""

    def __init__(
        self, channels: int, size: tuple[int, int] | None, *, joint: bool = False, for_own_dataset: bool = False
    ):
        self.kind: str = "pil"
        self.joint = joint
        """Whether more than an image may come in, such as boxes."""
        self.for_own_dataset = for_own_dataset
        """Whether a dataset of gpupipe takes the pipeline, so that boxes follow its ops and clips are possible."""
        self.channels = channels
        self.decoded = channels, size
        """(channels, size) of the dataset's images. The size is ``None`` if it varies."""
        self.steps: list[tuple[Any, str, list[Transform]]] = []
        """(transform of the script, kind of its input, its translation) of each earlier transform."""
        self.views = False
        self.tree: Any = None
        """How user code nests views in what it returns; see :class:`~gpupipe.datasets.sample_form.SampleForm`."""

    def follow(self, item: Any, made: list[Transform]) -> None:
        """Update the state after a transform of the script and its translation."""
        # Functions are tried after the earlier steps, so these must be callable, and gpupipe's own are not.
        self.steps.append((_CALLED.get(type(item), item), self.kind, made))
        for t in made:
            if (kind := _BECOMES.get(type(t))) is not None:
                self.kind = kind
            elif isinstance(t, ours.Grayscale):
                self.channels = t.num_output_channels
            elif isinstance(t, ours.FiveCrop):
                self.views = True
            elif isinstance(t, ours.Lambda) and t.returns is not None:
                self.kind, self.channels = t.returns.kind, t.returns.channels

    def undo(self, last: type[Transform]) -> bool:
        """Remove the last step and return ``True`` if it was a transform of this class."""
        if not self.steps or not any(type(made) is last for made in self.steps[-1][2]):
            return False
        item, self.kind, _ = self.steps.pop()
        # The step stays without transforms, because functions that follow are still tried after it.
        self.steps.append((item, self.kind, []))
        return True


def as_it_is(image: Any) -> Any:
    return image


def as_array(image: Any) -> Any:
    return np.array(image)


def _as_tensor(image: Any) -> Any:
    return torch.from_numpy(np.atleast_3d(np.array(image))).permute(2, 0, 1)


def _as_tv_image(image: Any) -> Any:
    return tv_image()(image if isinstance(image, torch.Tensor) else _as_tensor(image))


_CALLED: dict[type, Callable[[Any], Any]] = {
    ToArray: as_array,
    ours.PILToTensor: _as_tensor,
    ours.ToImage: _as_tv_image,
}
"""Functions that do to a script's image what these transforms stand for."""

_BECOMES: dict[type[Transform], str] = {
    ToArray: "array",
    ToTensorV2: "tensor",
    ours.PILToTensor: "tensor",
    ours.ToImage: "image",
    ours.ToTensor: "tensor",
}
"""Kind of the image after these transforms."""
