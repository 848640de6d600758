"""``gpupipe.augment``: every image of a batch with numbers of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from gpupipe import augment, transforms as T
from gpupipe.errors import ConfigError, PipelineError, TranslationError
from gpupipe.kernels.each import apply_each
from gpupipe.loader import augment as module
from gpupipe.rng import uniforms
from gpupipe.transforms import ops
from gpupipe.transforms.ops import Op

B, SIZE = 6, (40, 52)
BYTES = torch.randint(256, (B, 3, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
FLOATS = torch.rand(B, 3, *SIZE, generator=torch.Generator().manual_seed(1))
END = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
SEEN: dict[str, list[Any]] = {
    "crop and flip": [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()],
    "padded crop": [v2.RandomCrop(32, padding=8), v2.RandomVerticalFlip()],
    "sizes": [v2.Resize((30, 44), interpolation=v2.InterpolationMode.BICUBIC), v2.CenterCrop(36)],
    "colors": [v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomGrayscale(0.5)],
    "levels": [v2.RandomInvert(0.5), v2.RandomAutocontrast(0.5), v2.RandomAdjustSharpness(2, 0.5)],
    "blur": [v2.GaussianBlur(5), v2.RandomErasing(0.7)],
}
"""Pipelines whose ops torchvision has functions for."""
OTHERS: dict[str, list[Any]] = {
    "warps": [v2.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10), v2.RandomPerspective(0.5)],
    "elastic": [v2.ElasticTransform()],
    "policy": [v2.RandAugment()],
    "choice": [v2.RandomChoice([v2.RandomHorizontalFlip(1.0), v2.RandomResizedCrop(SIZE)]), v2.RandomEqualize(0.5)],
    "sizes that differ": [v2.RandomApply([v2.RandomCrop((30, 34))]), v2.RandomGrayscale(0.5), v2.Resize((24, 24))],
    "several views": [v2.FiveCrop(20)],
    "a channel": [v2.Grayscale(1), v2.RandomRotation(30)],
}


def by_torchvision(op: Op, x: torch.Tensor, i: int) -> torch.Tensor:
    """Row ``i`` of an op, on [C, H, W]."""
    if op.passes(i):
        return x
    number = {name: values[i] for name, values in op.numbers().items()}
    if isinstance(op, ops.Crop):
        return F.crop(x, *(int(number[name]) for name in ("top", "left", "height", "width")))
    if isinstance(op, ops.Resize):
        size = [int(number["height"]), int(number["width"])]
        return F.resize(x, size, v2.InterpolationMode(op.interpolation), antialias=op.antialias)
    if isinstance(op, ops.Erase):
        assert op.value is not None
        window = (int(number[name]) for name in ("top", "left", "height", "width"))
        return F.erase(x, *window, v=torch.tensor(op.value).to(x.dtype).view(-1, 1, 1))
    if isinstance(op, ops.Blur):
        return F.gaussian_blur(x, list(op.kernel_size), [float(number["sigma"])] * 2)
    factor = float(number.get("factor", 0))
    functions: dict[type[Op], Any] = {
        ops.Flip: lambda: (F.horizontal_flip if getattr(op, "axis", "") == "horizontal" else F.vertical_flip)(x),
        ops.Brightness: lambda: F.adjust_brightness(x, factor),
        ops.Contrast: lambda: F.adjust_contrast(x, factor),
        ops.Saturation: lambda: F.adjust_saturation(x, factor),
        ops.Hue: lambda: F.adjust_hue(x, factor),
        ops.Sharpness: lambda: F.adjust_sharpness(x, factor),
        ops.Gray: lambda: F.rgb_to_grayscale(x, 3),
        ops.Invert: lambda: F.invert(x),
        ops.AutoContrast: lambda: F.autocontrast(x),
        ops.ToDtype: lambda: F.to_dtype(x, torch.float32, scale=True),
        ops.Normalize: lambda: F.normalize(x, [*getattr(op, "mean", ())], [*getattr(op, "std", ())]),
    }
    made: torch.Tensor = functions[type(op)]()
    return made


def ops_of(transforms: Any, x: torch.Tensor, seed: int = 3, step: int = 5) -> tuple[Op, ...]:
    pipeline, begun = module._pipeline(transforms, x.shape[1], x.dtype)
    sizes = np.tile(SIZE, (len(x), 1))
    return pipeline.resolve_with(lambda key, n: uniforms(seed, step, key, np.arange(len(x)), n), sizes).ops[begun:]


def same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
        return
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", ["bytes", "floats", "bytes to floats"])
@pytest.mark.parametrize("name", SEEN)
def test_bits_are_torchvisions(name: str, kind: str, layout: torch.memory_format) -> None:
    x = (FLOATS if kind == "floats" else BYTES).contiguous(memory_format=layout)
    before = x.clone(memory_format=layout)
    transforms = v2.Compose([*SEEN[name], *(END if kind == "bytes to floats" else [])])
    made = augment(x, transforms, seed=3, step=5)
    assert torch.equal(x, before) and made.is_contiguous(memory_format=layout)
    for i, image in enumerate(x):
        for op in ops_of(transforms, x):
            image = by_torchvision(op, image, i)
        same(made[i], image)
    drawn = augment(torch.cat([x[:1]] * B), transforms, seed=3, step=5)
    assert name == "sizes" or not torch.equal(drawn[0], drawn[1])  # no draw for all


@pytest.mark.parametrize("name", SEEN | OTHERS)
def test_a_device_gives_the_same(name: str) -> None:
    """What a GPU does, on the CPU; and each image alone."""
    for x in (BYTES, FLOATS):
        if x is FLOATS and name == "policy":
            continue
        transforms = v2.Compose((SEEN | OTHERS)[name])
        made = augment(x, transforms, seed=3, step=5)
        on_device = apply_each(x, ops_of(transforms, x))
        for ours, theirs in zip(*(y if isinstance(y, tuple) else (y,) for y in (on_device, made)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 if x is FLOATS else 0)
        alone = augment(x[4:5], transforms, seed=3, step=5, index=torch.tensor([4]))
        same(alone, tuple(y[4:5] for y in made) if isinstance(made, tuple) else made[4:5])


def test_numbers_follow_seed_step_and_index() -> None:
    transforms = [v2.RandomResizedCrop(24)]

    def made(**changed: Any) -> torch.Tensor:
        found: torch.Tensor = augment(BYTES, transforms, **{"seed": 0, "step": 0, **changed})
        return found

    assert torch.equal(made(), made()) and torch.equal(made(), made(index=[0, 1, 2, 3, 4, 5]))
    assert not any(torch.equal(made(), made(**other)) for other in ({"seed": 1}, {"step": 1}, {"index": range(1, 7)}))
    state = torch.get_rng_state()
    augment(BYTES, [T.ColorJitter(0.5)], seed=0, step=0)
    assert torch.equal(state, torch.get_rng_state())


def test_changed_transforms_take_effect() -> None:
    transforms = v2.Compose([v2.RandomCrop(24)])
    assert augment(BYTES, transforms, seed=0, step=0).shape[2:] == (24, 24)
    transforms.transforms[0].size = (20, 28)
    assert augment(BYTES, transforms, seed=0, step=0).shape[2:] == (20, 28)
    scale = 2.0
    recognized = v2.Compose([END[0], v2.Lambda(lambda x: x * scale - 1)])
    first = augment(BYTES, recognized, seed=0, step=0)
    scale = 4.0
    floats = F.to_dtype(BYTES, torch.float32, scale=True)
    assert torch.equal(first, floats * 2 - 1)
    assert torch.equal(augment(BYTES, recognized, seed=0, step=0), floats * 4 - 1)


def test_targets_move_with_their_images() -> None:
    rows, columns = torch.meshgrid(torch.arange(SIZE[0]), torch.arange(SIZE[1]), indexing="ij")
    x = torch.stack([rows, columns, rows]).to(torch.uint8).repeat(B, 1, 1, 1)
    boxes = torch.tensor([[4.0, 6, 30, 20], [0, 0, 52, 40]])
    targets = [
        {"boxes": tv_tensors.BoundingBoxes(boxes[: i % 3], format="XYXY", canvas_size=SIZE), "labels": torch.tensor(i)}  # type: ignore[call-arg]
        for i in range(B)
    ]
    batch = {"image": tv_tensors.Image(x), "mask": tv_tensors.Mask(x[:, 0]), "targets": targets, "names": ("a", "b")}
    transforms = v2.Compose([v2.RandomCrop(24), v2.RandomHorizontalFlip(), *END[:1]])
    made = augment(batch, transforms, seed=2, step=0)
    assert list(made) == list(batch) and type(made["image"]) is tv_tensors.Image and made["names"] == ("a", "b")
    assert type(made["mask"]) is tv_tensors.Mask
    assert torch.equal(made["mask"], made["image"][:, 0].mul(255).round().byte())
    crop, flip, _ = ops_of(transforms, x, 2, 0)
    for i, target in enumerate(made["targets"]):
        want = F.crop(targets[i]["boxes"], int(crop.top[i]), int(crop.left[i]), 24, 24)  # type: ignore[attr-defined]
        want = F.horizontal_flip(want) if flip.mask[i] else want  # type: ignore[attr-defined]
        assert torch.equal(target["boxes"], want) and target["boxes"].canvas_size == (24, 24) and target["labels"] == i
    if not hasattr(tv_tensors, "KeyPoints"):  # torchvision before 0.23
        return
    points = [tv_tensors.KeyPoints([[3.0, 4]], canvas_size=SIZE) for _ in range(B)]  # type: ignore[call-arg]
    images, moved = augment((x, points), v2.RandomHorizontalFlip(1.0), seed=0, step=0)
    assert torch.equal(images, x.flip(-1)) and all(torch.equal(point, F.horizontal_flip(points[0])) for point in moved)


def test_masks_have_values_and_types_of_their_own() -> None:
    masks = tv_tensors.Mask(BYTES[:, :1])
    transforms = v2.Compose(
        [
            v2.RandomCrop(60, padding=20, fill={tv_tensors.Mask: 255, "others": 0}),
            v2.ToDtype({torch.Tensor: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
        ]
    )
    images, moved = augment((BYTES, masks), transforms, seed=0, step=0)
    inside = torch.from_numpy(np.asarray(moved) != 255).expand_as(images) & (images > 0)
    assert moved.dtype == torch.int64 and bool((moved == 255).any()) and type(moved) is tv_tensors.Mask
    assert torch.equal(
        images[:, :1].mul(255).round().long()[inside[:, :1]], moved.as_subclass(torch.Tensor)[inside[:, :1]]
    )
    images, moved = augment((BYTES, masks), v2.Pad(2, fill=7), seed=0, step=0)
    assert torch.equal(images[:, :1], moved) and int(moved[0, 0, 0, 0]) == 7


@pytest.mark.parametrize(
    ("batch", "transforms", "error", "why"),
    [
        ("images", [], ConfigError, "must be a tensor uint8 or float32"),
        (BYTES[0], [], ConfigError, r"must be \[B, 1 or 3, H, W\] with at least one image, not uint8\[3, 40, 52\]"),
        (BYTES[:0], [], ConfigError, "with at least one image"),
        (BYTES.double(), [], ConfigError, "must be uint8 or float32, not float64"),
        (FLOATS, [v2.MixUp(num_classes=3)], ConfigError, "in the training loop"),
        (BYTES, [v2.RandomPhotometricDistort(), v2.SanitizeBoundingBoxes()], TranslationError, "SanitizeBoundingBoxes"),
        (BYTES, [v2.RandomApply([v2.CenterCrop(20)])], ValueError, "different sizes"),
        ((BYTES, tv_tensors.Image(BYTES)), [], ConfigError, "only the first tensor is augmented"),
        ((BYTES, tv_tensors.Mask(BYTES[0])), [], ConfigError, "give a list with one for each"),
        ((BYTES, [tv_tensors.Mask(BYTES[0, :, :9])] * B), [], PipelineError, "does not fit its image"),
        (
            (BYTES, tv_tensors.Mask(BYTES[:, 0])),
            [v2.Pad(2, fill={"others": 3}), v2.CenterCrop(9)],
            ConfigError,
            "one value",
        ),
        ((BYTES, tv_tensors.Mask(BYTES[:, 0])), [v2.Pad(2, fill=[1, 2, 3])], ConfigError, "a value for each channel"),
        ((FLOATS, None), [v2.ToDtype({"others": torch.float32})], ConfigError, "convert these later"),
        ((BYTES, tv_tensors.Mask(BYTES[:, 0])), [v2.FiveCrop(20)], ConfigError, "several views"),
    ],
)
def test_what_is_wrong_is_said(batch: Any, transforms: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        augment(batch, transforms, seed=0, step=0)


def test_an_index_has_a_number_for_each_image() -> None:
    for index in ([0, 1], torch.rand(B), "abc"):
        with pytest.raises(ConfigError, match="index must be 6 integers"):
            augment(BYTES, [], seed=0, step=0, index=index)


def test_functions_of_images_need_the_host() -> None:
    with pytest.raises(PipelineError, match="cannot be applied to a batch on cpu"):
        apply_each(BYTES, ops_of([v2.Lambda(lambda x: x // 3)], BYTES))
