"""What DALI on a device gives beside DALI on the CPU and beside the reference, for every transform and recipe.

These are the numbers that promises for a GPU are made of: ``benchmarks/gpu_parity.py`` collects them, the tests in
``tests/gpu`` judge them, and the promises beside the ops (:mod:`gpupipe.transforms.ops.promise`) are written from them
by hand.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from .. import transforms as T
from ..datasets import Arrays, Dataset, ImageFolder
from ..engines import Dali
from ..errors import ConfigError
from ..loader.dataloader import DataLoader
from ..testing.photos import photograph
from ..transforms.ops import by_view
from . import tolerances
from .difference import Difference, difference

__all__ = [
    "CASES", "DECODERS", "INPUTS", "RECIPES", "apart", "arrays", "batches", "folder", "jpegs", "measure", "rows",
    "rows_of",
]  # fmt: skip

Make = Callable[[], T.Compose]
Kind = Literal["photographs", "noise", "blocks"]
INPUTS: tuple[Kind, ...] = ("photographs", "noise", "blocks")
"""Photographs are for means; on noise, and on black and white blocks, the largest difference shows."""

SIDE = 96
_AFFINE: dict[str, Any] = {"degrees": 40, "translate": (0.1, 0.1), "scale": (0.7, 1.2), "shear": 10}


def _pil(*steps: Callable[[], T.Transform]) -> Make:
    """Steps on PIL images of one size."""
    return lambda: T.Compose([T.CenterCrop(SIDE), *(step() for step in steps), T.PILToTensor()])


def _tensor(*steps: Callable[[], T.Transform]) -> Make:
    """Steps on uint8 tensors."""
    return lambda: T.Compose([T.CenterCrop(SIDE), T.PILToTensor(), *(step() for step in steps)])


def _float(*steps: Callable[[], T.Transform], dtype: str = "float32") -> Make:
    """Steps on floats."""

    def make() -> T.Compose:
        first = [T.CenterCrop(SIDE), T.PILToTensor(), T.ToDtype(dtype, scale=True)]
        return T.Compose([*first, *(step() for step in steps)])

    return make


def _normalize() -> T.Transform:
    return T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _recipe(module: str, function: str, *arguments: Any, **options: Any) -> Make:
    """A ready-made pipeline."""

    def make() -> T.Compose:
        made: T.Compose = getattr(importlib.import_module(f"gpupipe.pipelines.{module}"), function)(
            *arguments, **options
        )
        return made

    return make


def _resizes() -> dict[str, Make]:
    found: dict[str, Make] = {}
    for name in ("nearest", "bilinear", "bicubic", "lanczos"):
        for side in (60, 250):
            label = f"resize {name} to {side}"
            found[label] = lambda n=name, s=side: T.Compose([T.Resize((s, s + 7), n), T.PILToTensor()])  # type: ignore[misc]
            if name in ("bilinear", "bicubic"):
                found[f"{label}, floats"] = lambda n=name, s=side: T.Compose([T.ToTensor(), T.Resize((s, s + 7), n)])  # type: ignore[misc]
    found["resize bilinear, no antialias"] = lambda: T.Compose([T.PILToTensor(), T.Resize((60, 67), antialias=False)])
    found["resize bilinear, no antialias, floats"] = lambda: T.Compose(
        [T.ToTensor(), T.Resize((60, 67), antialias=False)]
    )
    return found


def _warps() -> dict[str, Make]:
    found: dict[str, Make] = {}
    for name in ("nearest", "bilinear"):
        for of, where, fill in (("pil", _pil, 7.0), ("uint8 tensor", _tensor, 7.0), ("floats", _float, 0.03)):
            found[f"rotate {name}, {of}"] = where(lambda n=name, f=fill: T.RandomRotation(60, n, fill=f))  # type: ignore[misc]
            found[f"affine {name}, {of}"] = where(lambda n=name: T.RandomAffine(**_AFFINE, interpolation=n))  # type: ignore[misc]
            found[f"perspective {name}, {of}"] = where(
                lambda n=name, f=fill: T.RandomPerspective(0.5, 1.0, n, fill=f)  # type: ignore[misc]
            )
    return found


def _colours() -> dict[str, Make]:
    steps: dict[str, Callable[[], T.Transform]] = {
        "brightness": lambda: T.ColorJitter(brightness=0.5),
        "contrast": lambda: T.ColorJitter(contrast=0.5),
        "saturation": lambda: T.ColorJitter(saturation=0.5),
        "hue": lambda: T.ColorJitter(hue=0.3),
        "colour jitter": lambda: T.ColorJitter(0.4, 0.4, 0.4, 0.1),
        "gray": lambda: T.RandomGrayscale(0.5),
        "gray, one channel": lambda: T.Grayscale(1),
        "invert": lambda: T.RandomInvert(0.5),
        "posterize": lambda: T.RandomPosterize(3, 0.5),
        "solarize": lambda: T.RandomSolarize(128, 0.5),
        "sharpness": lambda: T.RandomAdjustSharpness(2, 0.5),
        "autocontrast": lambda: T.RandomAutocontrast(0.5),
        "equalize": lambda: T.RandomEqualize(0.5),
        "blur": lambda: T.GaussianBlur(9, (0.3, 2.0)),
    }
    found: dict[str, Make] = {}
    for name, step in steps.items():
        found[f"{name}, pil"] = _pil(step)
        found[f"{name}, uint8 tensor"] = _tensor(step)
    found["blur, floats"] = _float(steps["blur"])
    return found


def _policies() -> dict[str, Make]:
    policies: dict[str, Callable[[], T.Transform]] = {
        "AutoAugment": T.AutoAugment,
        "RandAugment": T.RandAugment,
        "TrivialAugmentWide": T.TrivialAugmentWide,
        "AugMix": T.AugMix,
    }
    return {name: _pil(policy) for name, policy in policies.items()}


CASES: dict[str, Make] = {
    "crop": _pil(),
    "random crop": lambda: T.Compose([T.RandomCrop(SIDE), T.PILToTensor()]),
    "pad": _pil(lambda: T.Pad((3, 5), fill=9)),
    "flips": _pil(T.RandomHorizontalFlip, T.RandomVerticalFlip),
    **_resizes(),
    **_warps(),
    **_colours(),
    "elastic, pil": _pil(lambda: T.ElasticTransform(50.0, 5.0)),
    "noise": _float(lambda: T.GaussianNoise(0.0, 0.1)),
    "erasing": _float(lambda: T.RandomErasing(0.7)),
    "erasing with noise": _float(lambda: T.RandomErasing(0.7, value="random")),
    "zoom out": lambda: T.Compose([T.RandomZoomOut(p=0.7), T.Resize((SIDE, SIDE)), T.PILToTensor()]),
    "five crops": lambda: T.Compose([T.FiveCrop(60), T.PILToTensor()]),
    "applied at random": _pil(lambda: T.RandomApply([T.GaussianBlur(5)], p=0.5)),
    "one of several": _pil(lambda: T.RandomChoice([T.RandomRotation(10), T.RandomHorizontalFlip(1.0)])),
    **_policies(),
    **{f"normalize, {dtype}": _float(_normalize, dtype=dtype) for dtype in ("float32", "float16", "bfloat16")},
    "mixup": _float(_normalize, lambda: T.MixUp(alpha=0.4, num_classes=1000)),
    "cutmix": _float(_normalize, lambda: T.CutMix(alpha=1.0, num_classes=1000)),
}
"""One pipeline for each thing that may differ. Made when it is asked for."""

RECIPES: dict[str, Make] = {
    "imagenet.train": _recipe("imagenet", "train", SIDE),
    "imagenet.train, float16, channels last": _recipe(
        "imagenet", "train", SIDE, dtype="float16", memory_format="channels_last"
    ),
    "imagenet.train, uint8": _recipe("imagenet", "train", SIDE, dtype="uint8"),
    "imagenet.train_light": _recipe("imagenet", "train_light", SIDE),
    "imagenet.train_strong": _recipe("imagenet", "train_strong", SIDE),
    "imagenet.val": _recipe("imagenet", "val", SIDE, 112),
    "simclr.train": _recipe("simclr", "train", SIDE),
    "dino.train": _recipe("dino", "train"),
    "cifar.train": _recipe("cifar", "train"),
}

DECODERS: dict[str, dict[str, Any]] = {
    f"{'hardware' if load else 'hybrid'}, {'fancy' if fancy else 'plain'} upsampling, "
    f"{'windows' if roi else 'whole images'}": {
        "hw_decoder_load": load,
        "jpeg_fancy_upsampling": fancy,
        "roi": roi,
    }
    for load in (0.0, 1.0)
    for fancy in (True, False)
    for roi in (False, "auto")
}
"""What may decode a JPEG on a GPU; ``windows`` only where the self-test passes."""


def arrays(kind: Kind, make: Make, count: int = 24) -> Dataset:
    """Pixels u8[count, 163, 211, 3] under a pipeline: nothing is decoded. No size here is a simple multiple of another,
    which would put many places exactly between two pixels."""
    shape = (count, 163, 211, 3)
    rng = np.random.default_rng(0)
    pixels: npt.NDArray[np.uint8]
    if kind == "photographs":
        pixels = np.stack([photograph(*shape[1:3], seed) for seed in range(count)])
    elif kind == "noise":
        pixels = rng.integers(0, 256, shape, np.uint8)
    else:
        blocks = (rng.integers(0, 2, (count, 21, 27, 1), np.uint8) * np.uint8(255)).repeat(8, axis=1).repeat(8, axis=2)
        pixels = np.ascontiguousarray(np.broadcast_to(blocks[:, : shape[1], : shape[2]], shape))
    return Arrays(pixels, np.arange(count), transform=make())


def jpegs(folder: Path, count: int = 24) -> Path:
    """JPEG files of many sizes with every chroma subsampling, some gray, some progressive, under ``folder``/class/."""
    (folder / "class").mkdir(parents=True)
    for i in range(count):
        image = Image.fromarray(photograph(200 + 37 * (i % 5), 260 + 41 * (i % 4), i))
        subsampling = {} if i % 8 == 7 else {"subsampling": ("4:2:0", "4:4:4", "4:2:2")[i % 3]}
        file = folder / "class" / f"{i:03d}.jpg"
        (image.convert("L") if i % 8 == 7 else image).save(file, quality=75 + i, progressive=i % 6 == 5, **subsampling)
    return folder


def folder(root: Path, make: Make) -> Dataset:
    """The files of :func:`jpegs` under a pipeline."""
    return ImageFolder(root, make())


def batches(dataset: Dataset, engine: Any, device: str, batch_size: int = 8) -> list[tuple[Any, ...]]:
    """All batches of one epoch on the CPU: for each a tuple of [B, C, H, W], one of each view; plans with "null"."""
    found = []
    with DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=0 if engine == "torch" else 4,
        seed=7,
        engine=engine,
        device=device,
    ) as loader:
        for batch in loader:
            images = batch[0] if isinstance(batch, list) else batch
            views = images if isinstance(images, tuple) else (images,)
            found.append(tuple(x.cpu() if hasattr(x, "cpu") else x for x in views))
    return found


def apart(dataset: Dataset, one: Sequence[tuple[Any, ...]], two: Sequence[tuple[Any, ...]]) -> Difference:
    """How far two runs of :func:`batches` over the dataset are apart, all views together."""
    found = Difference()
    for (plan,), a, b in zip(batches(dataset, "null", "cpu"), one, two, strict=True):
        for ops, x, y in zip(by_view(plan.ops), a, b, strict=True):
            found += difference(x, y, ops, plan.sizes)
    return found


def measure(dataset: Dataset, device: str, **options: Any) -> dict[str, Difference]:
    """DALI on ``device`` beside the reference, and beside DALI on the CPU. ``options`` are those of
    :class:`gpupipe.engines.Dali`."""
    there = batches(dataset, Dali(**options), device)
    return {
        "reference": apart(dataset, there, batches(dataset, "torch", "cpu")),
        "cpu": apart(dataset, there, batches(dataset, "dali", "cpu")),
    }


def rows_of(make: Make) -> list[str]:
    """The rows of the table of tolerances that a pipeline comes under, decoding apart."""
    found: list[str] = []
    for ops in by_view(make().skeleton):
        try:
            found += tolerances.rows_of(ops)
        except ConfigError as e:
            found.append(str(e))
    return list(dict.fromkeys(found))


def rows(measured: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """For every row of the table what was found of it, from the case that has the fewest other rows.

    Args:
        measured: case, input, and then ``Difference.to_dict()`` against the reference.

    Returns:
        ``rows``: by row the case, what else it comes under, the largest difference of all inputs, and mean and share
        above one level of photographs; ``unmeasured``: the rows of the table without any.
    """
    exact = {"crop", "flip"}
    out: dict[str, Any] = {}
    for name, found in measured.items():
        keys = rows_of(CASES.get(name) or RECIPES[name])
        for key in keys:
            others = [k for k in keys if k not in exact | {key}]
            if key in out and (len(out[key]["others"]), -out[key]["max"]) < (len(others), 0):
                continue
            values = list(found.values())
            worst = {where: max(v[where]["max"] for v in values) for where in ("interior", "border")}
            photo = found.get("photographs", values[0])
            entry = {
                "case": name, "others": others, "max": worst["interior"], "border_max": worst["border"],
                "mean": photo["interior"]["mean"], "over_1": photo["interior"]["over_1"],
                "border_mean": photo["border"]["mean"], "border_over_1": photo["border"]["over_1"],
            }  # fmt: skip
            if key not in out or len(others) < len(out[key]["others"]) or entry["max"] > out[key]["max"]:
                out[key] = entry
    return {"rows": out, "unmeasured": [k for k in tolerances.TABLE if k not in out and k != tolerances.DECODE]}
