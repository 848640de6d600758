"""Draw strip.webp, the pictures at the top of the README: what a network sees of generated photographs.

    python docs/site/strip.py

Every tile is a sample of a batch that gpupipe's loader made.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont

from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.parity.drawing import with_targets
from gpupipe.parity.targets import Targets
from gpupipe.testing.photos import photograph

Pixels = npt.NDArray[np.uint8]

FILE = Path(__file__).with_name("strip.webp")
SIDE, GAP, TEXT = 200, 8, 34
HEIGHT, WIDTH = 360, 480
GRAY = (128, 134, 144, 255)
"""Readable on a light and on a dark page."""
SEED = 12
COLORS = ((235, 120, 40), (60, 160, 90), (240, 210, 80))


def scene(seed: int) -> tuple[Pixels, Pixels]:
    """Return a photograph u8[H, W, 3], and the ids of the objects in it u8[H, W]."""
    rng = np.random.default_rng(seed)
    pixels, ids = photograph(HEIGHT, WIDTH, seed, kind=1), np.zeros((HEIGHT, WIDTH), np.uint8)
    rows, columns = np.indices(ids.shape)
    for number, (x, y) in enumerate(((120, 210), (250, 120), (370, 230)), 1):
        radius = int(rng.integers(62, 86))
        v, u = rows - y, columns - x
        inside = np.hypot(u, v) < radius if number != 2 else np.maximum(abs(u) * 1.6 + v * 0.8, -v * 1.2) < radius
        ids[inside] = number
        light = (photograph(HEIGHT, WIDTH, seed, kind=0).mean(2, keepdims=True) / 255 + 0.6) * (1 - (u + v) / 400)[
            ..., None
        ]
        pixels[inside] = (light * COLORS[number - 1]).clip(0, 255)[inside]
    return pixels, ids


def write(root: Path) -> None:
    """Write the scene as a file of a class, with a mask, with boxes, and as a video."""
    import av

    for name in ("photos/a", "masks", "videos/a"):
        (root / name).mkdir(parents=True)
    pixels, ids = scene(SEED)
    Image.fromarray(pixels).save(root / "photos/a/0.jpg", quality=92)
    Image.fromarray(ids).save(root / "masks/0.png")
    objects = []
    for number in (1, 2, 3):
        rows, columns = np.nonzero(ids == number)
        x, y, right, bottom = (int(it) for it in (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
        box = [x, y, right - x, bottom - y]
        one = {"id": number, "image_id": 0, "category_id": number, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        objects.append(one)
    found: dict[str, Any] = {"images": [{"id": 0, "file_name": "0.jpg", "height": HEIGHT, "width": WIDTH}]}
    found |= {"annotations": objects, "categories": [{"id": k, "name": str(k)} for k in (1, 2, 3)]}
    (root / "boxes.json").write_text(json.dumps(found))
    with av.open(str(root / "videos/a/0.mp4"), "w") as out:
        stream: Any = out.add_stream("libx264", rate=25, options={"crf": "18"})
        stream.width, stream.height, stream.pix_fmt = WIDTH - 160, HEIGHT, "yuv420p"
        for k in range(16):
            frame = np.ascontiguousarray(pixels[:, 10 * k : 10 * k + WIDTH - 160])
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(stream.encode(None))


def batch(dataset: Any, seed: int, **options: Any) -> Any:
    with DataLoader(dataset, 1, seed=seed, device="cpu", **options) as loader:
        return next(iter(loader))


def pixels_of(image: torch.Tensor) -> Pixels:
    """Return f32[3, H, W] in [0, 1] as u8[H, W, 3]."""
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()


def tiles(root: Path) -> Iterator[tuple[str, Pixels]]:
    """Yield each tile with its caption."""
    to_tensor = T.ToTensor()

    def photo(*steps: Any, seed: int = 0) -> Pixels:
        images, _ = batch(datasets.ImageFolder(root / "photos", steps), seed)
        return pixels_of(images[0])

    whole, crop = [T.Resize(SIDE), T.CenterCrop(SIDE)], T.RandomResizedCrop(SIDE, scale=(0.2, 0.6))
    yield "a file", photo(*whole, to_tensor)
    yield "crop", photo(crop, T.RandomHorizontalFlip(1.0), to_tensor, seed=4)
    yield "color", photo(*whole, T.ColorJitter(0.4, 0.4, 0.6, 0.3), to_tensor, seed=2)
    yield "RandAugment", photo(crop, T.RandAugment(3, 14), to_tensor, seed=9)
    yield "erasing", photo(*whole, to_tensor, T.RandomErasing(1.0, scale=(0.1, 0.2), value="random"), seed=1)

    turned = [T.RandomAffine(25, (0.1, 0.1), (0.9, 1.1), interpolation="bilinear"), *whole, to_tensor]
    images, masks = batch(datasets.SegmentationFolder(root / "photos/a", root / "masks", turned), 3)
    yield "mask", with_targets(pixels_of(images[0]), Targets(masks=(masks[0].numpy(),)))

    coco = datasets.CocoDetection(
        root / "photos/a", root / "boxes.json", [T.RandomIoUCrop(), T.Resize((SIDE, SIDE)), to_tensor]
    )
    found = batch(coco, 6)
    yield "boxes", with_targets(pixels_of(found["image"][0]), Targets(boxes=found["boxes"][0].numpy()))

    clip_steps = [T.RandomResizedCrop(SIDE // 2, scale=(0.4, 0.8)), to_tensor]
    clips, _ = batch(datasets.VideoFolder(root / "videos", frames=4, stride=4, transform=clip_steps), 1)
    a, b, c, d = (pixels_of(frame) for frame in clips[0].permute(1, 0, 2, 3))
    yield "clip", np.vstack([np.hstack([a, b]), np.hstack([c, d])])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        shown = list(tiles(Path(folder)))
    image = Image.new("RGBA", (len(shown) * (SIDE + GAP) - GAP, SIDE + TEXT))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(24)
    for k, (caption, pixels) in enumerate(shown):
        x = k * (SIDE + GAP)
        image.paste(Image.fromarray(pixels), (x, 0))
        draw.text((x + SIDE // 2, SIDE + 4), caption, GRAY, font, anchor="ma")
    image.save(FILE, quality=82, method=6)
    print(f"{FILE}: {FILE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
