"""The page of transforms with pictures, drawn while the site is built."""

from __future__ import annotations

import base64
import io

SIDE, DRAWS = 128, 4

GROUPS = {
    "Crops and resizes": ("RandomResizedCrop(128)", "RandomCrop(96)", "CenterCrop(96)", "Resize(48)", "Pad(16)"),
    "Flips and warps": (
        "RandomHorizontalFlip(0.5)",
        "RandomVerticalFlip(0.5)",
        "RandomRotation(30)",
        'RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10, "bilinear")',
        "RandomPerspective(p=1)",
        "Compose([RandomZoomOut(p=1), Resize((128, 128))])",
    ),
    "Colors": (
        "ColorJitter(0.4, 0.4, 0.4, 0.1)",
        "RandomGrayscale(0.5)",
        "RandomPhotometricDistort(p=1)",
        "RandomInvert(0.5)",
        "RandomPosterize(2, p=1)",
        "RandomSolarize(128, p=1)",
        "RandomAutocontrast(p=1)",
        "RandomEqualize(p=1)",
    ),
    "Filters": ("GaussianBlur(9, (0.1, 3.0))", "RandomAdjustSharpness(3, p=1)"),
    "Policies": ("RandAugment(magnitude=12)", "TrivialAugmentWide()", "AutoAugment()", "AugMix(severity=5)"),
    "After ToTensor": ("RandomErasing(p=1)",),
}

BEGINNING = """# Transforms in pictures

Each row shows four images of one batch: every image draws numbers of its own. The photograph is synthetic. The same
seed, epoch and sample always give the same picture. [How far each transform is from torchvision](transforms.md), and
[all arguments](api/transforms.md).
"""


def picture(pixels: object) -> str:
    """Return an image as a data URL."""
    import numpy as np
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def images(expression: str) -> list[object]:
    """Return u8[H, W, 3] of each draw of a transform."""
    import numpy as np
    import torch

    from gpupipe import DataLoader, datasets, transforms as T
    from gpupipe.testing.photos import photograph

    pixels = np.stack([photograph(SIDE, SIDE, 19, kind=5)] * DRAWS)
    made = eval(expression, dict(vars(T)))  # an expression of GROUPS
    steps = [T.ToTensor(), made] if expression in GROUPS["After ToTensor"] else [made, T.PILToTensor()]
    with DataLoader(datasets.Arrays(pixels, transform=steps), DRAWS, engine="torch", device="cpu", seed=3) as loader:
        (batch,) = loader
    if batch.is_floating_point():
        batch = (batch.clamp(0, 1) * 255).round().to(torch.uint8)
    return [image.permute(1, 2, 0).contiguous().numpy() for image in batch]


def pages() -> dict[str, str]:
    """Return the page by its place on the site."""
    parts = [BEGINNING]
    for title, expressions in GROUPS.items():
        parts.append(f"\n## {title}\n")
        for expression in expressions:
            shown = "".join(f'<img alt="" src="{picture(image)}">' for image in images(expression))
            parts.append(f'`{expression}`\n\n<p class="gallery">{shown}</p>\n')
    return {"gallery.md": "\n".join(parts)}
