"""State of an image between transforms, while they are translated."""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import transforms as ours
from ..transforms import Transform


@dataclass
class ImageState:
    """State of the image between two transforms: a PIL image, torchvision's ``Image`` or a plain tensor."""

    channels: int = 3
    for_own_dataset: bool = False
    """Whether a dataset of gpupipe takes the pipeline, so that boxes follow its ops."""
    kind: str = "pil"
    made: list[list[Transform]] = field(default_factory=list)
    """What each earlier transform became."""

    def follow(self, made: list[Transform]) -> None:
        """Update the state after a transform that became ``made``."""
        self.made.append(made)
        for t in made:
            if (kind := _BECOMES.get(type(t))) is not None:
                self.kind = kind
            elif isinstance(t, ours.Grayscale):
                self.channels = t.num_output_channels

    def undo_to_tensor(self) -> bool:
        """Remove the last step and return ``True`` if it was ``ToTensor()``."""
        if not self.made or not any(type(t) is ours.ToTensor for t in self.made[-1]):
            return False
        self.made[-1], self.kind = [], "pil"
        return True


_BECOMES: dict[type[Transform], str] = {ours.PILToTensor: "tensor", ours.ToImage: "image", ours.ToTensor: "tensor"}
"""Kind of the image after these transforms."""
