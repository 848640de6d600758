"""DALI on the CPU against the reference, on the same plans, judged by the one table of tolerances: as it is, and with
the whole graph of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity_cases import CASES
from parity_measure import hostile
from PIL import Image
from support import SEED, N, images_of, pictures, plans_of, write_photos

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Arrays, Dataset, ImageFolder, ImageList
from gpupipe.engines import Dali
from gpupipe.engines.torch.reference import reference
from gpupipe.parity import tolerances
from gpupipe.parity.difference import Difference, difference
from gpupipe.parity.tolerances import check
from gpupipe.pipelines import imagenet
from gpupipe.planning.epoch import resolve_plan
from gpupipe.testing.photos import photograph

HOSTILE = hostile()
NORMALIZE = T.Normalize(imagenet.MEAN, imagenet.STD)
TENSOR = [T.ToTensor(), NORMALIZE]


def compose(*transforms: Any) -> T.Compose:
    return T.Compose(list(transforms))


PIPELINES: dict[str, T.Compose] = {
    "imagenet train": imagenet.train(56),
    "imagenet val": imagenet.val(48, 56),
    "train bicubic": imagenet.train(56, interpolation="bicubic"),
    "train uint8": imagenet.train(56, dtype="uint8"),
    "train float16": imagenet.train(56, dtype="float16"),
    "train bfloat16": imagenet.train(56, dtype="bfloat16"),
    "train channels_last": imagenet.train(56, memory_format="channels_last"),
    "val uint8 channels_last": imagenet.val(48, 56, dtype="uint8", memory_format="channels_last"),
    "random crop with padding": compose(
        T.RandomCrop(60, padding=20, pad_if_needed=True, fill=(124, 116, 104)), *TENSOR
    ),
    "center of smaller images": compose(T.CenterCrop(100), *TENSOR),
    "pad": compose(T.CenterCrop(40), T.Pad((3, 5), fill=9), *TENSOR),
    "gray 1": compose(T.CenterCrop(48), T.Grayscale(1), T.PILToTensor()),
    "gray 3": compose(T.CenterCrop(48), T.Grayscale(3), *TENSOR),
    "random gray": compose(T.CenterCrop(48), T.RandomGrayscale(0.5), *TENSOR),
    "gray of tensors": compose(T.ToImage(), T.CenterCrop(48), T.Grayscale(3)),
    "flips": compose(T.CenterCrop(48), T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.PILToTensor()),
    "bilinear, fixed size": compose(T.Resize((40, 52)), T.PILToTensor()),
    "bilinear, larger": compose(T.Resize((130, 140)), T.PILToTensor()),
    "bilinear of tensors": compose(T.ToImage(), T.Resize((40, 52)), T.ToDtype("float32", scale=True)),
    "bilinear of floats": compose(T.ToTensor(), T.Resize((40, 52)), NORMALIZE),
    "bicubic": compose(T.Resize((40, 52), interpolation="bicubic"), T.PILToTensor()),
    "lanczos": compose(T.Resize((40, 52), interpolation="lanczos"), T.PILToTensor()),
    "nearest": compose(T.Resize((40, 52), interpolation="nearest"), T.PILToTensor()),
    "without antialias": compose(T.ToImage(), T.Resize((40, 52), antialias=False), T.ToDtype("float32", scale=True)),
    "one pixel after a step of the host": compose(T.ColorJitter(hue=0.1), T.Resize((1, 1)), *TENSOR),
    "one pixel of a tensor": compose(T.ToImage(), T.ColorJitter(hue=0.1), T.Resize((1, 1)), T.ToDtype("float32", True)),
    "resize twice": compose(T.Resize(60), T.RandomCrop(40), T.Resize((24, 24)), *TENSOR),
}


GRAPHS: dict[str, Any] = {"cpu": "dali", "graph": Dali(graph="whole")}
"""As tolerances name them."""


@pytest.fixture(params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def compare(
    dataset: Dataset, epochs: int = 1, batch_size: int = 8, sizes: Any = None, graph: str = "cpu"
) -> Difference:
    """DALI's batches against the reference's, over whole epochs.

    ``sizes``: i32[N, 2] where the dataset does not know them.
    """
    known = dataset.sizes if sizes is None else sizes
    assert known is not None
    found = Difference()
    with DataLoader(
        dataset, batch_size=batch_size, shuffle=True, num_workers=2, seed=SEED, engine=GRAPHS[graph], device="cpu"
    ) as loader:
        for epoch in range(epochs):
            for plan, batch in zip(plans_of(dataset, epoch, batch_size=batch_size), loader, strict=True):
                plan = plan if plan.ops is not None else resolve_plan(plan, dataset.transform, known[plan.indices])
                assert plan.ops is not None
                want = reference(dataset, plan, dataset.transform)
                found += difference(images_of(batch), want, plan.ops, known[plan.indices])
    return found


def judge(dataset: Dataset, found: Difference, graph: Any = "cpu") -> None:
    promised = tolerances.tolerance("dali/torch", dataset.transform, graph)
    assert promised is not None, "nothing is promised, so nothing was tested"
    broken = check("dali/torch", dataset.transform, found, graph)
    assert not broken, "\n".join([*broken, f"promised: {promised}", f"found: {found.to_dict()}"])


@pytest.fixture(scope="module")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("parity"))


@pytest.mark.part("name", "graph")
@pytest.mark.parametrize("name", PIPELINES)
def test_generated_photographs(name: str, graph: str, photo_folder: Path) -> None:
    dataset = ImageFolder(photo_folder, PIPELINES[name])
    found = compare(dataset, epochs=2, graph=graph)
    assert found.images == 2 * N
    judge(dataset, found, graph)


@pytest.mark.parametrize("name", PIPELINES)
def test_arrays(name: str, graph: str) -> None:
    dataset = Arrays(pictures(12, 70, 90), transform=PIPELINES[name])
    judge(dataset, compare(dataset, graph=graph), graph)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("resize") or "tensor" in name])
def test_every_single_hostile_picture_keeps_the_promises(name: str, kind: str, graph: str) -> None:
    for picture in HOSTILE[kind]:
        dataset = Arrays(picture[None], transform=CASES[name]())
        judge(dataset, compare(dataset, batch_size=1, graph=graph), graph)


@pytest.mark.parametrize(
    ("name", "graph"),
    [
        ("imagenet train", "graph"),
        ("imagenet val", "graph"),
        ("flips", "graph"),
        ("bicubic", "graph"),
        ("random crop with padding", "graph"),
        ("imagenet train", "cpu"),
        ("random crop with padding", "cpu"),
    ],
)
def test_real_photographs(name: str, graph: str, shared_data: Path) -> None:
    """Full sizes: several megapixels, gray ones, one with an orientation that is not applied.

    A graph that ends early only decodes, windows or whole images: what comes after it is the reference's own.
    """
    dataset = ImageFolder(shared_data / "images", PIPELINES[name])
    found = compare(dataset, batch_size=16, graph=graph)
    assert found.images == len(dataset) > 100
    judge(dataset, found, graph)


def formats(root: Path, transform: T.Compose, exif: bool = False) -> ImageList:
    files = sorted(p for p in root.rglob("*.*") if p.is_file())
    return ImageList([str(p) for p in files], list(range(len(files))), transform=transform, exif=exif)


WHOLE = compose(T.CenterCrop((150, 150)), T.PILToTensor())
"""Nothing but decoding, and black around it."""


def test_formats_decode_alike(mixed_images: Path) -> None:
    """JPEG of all kinds, PNG, WebP and BMP; gray ones become three equal channels, transparency goes."""
    dataset = formats(mixed_images, WHOLE)
    found = compare(dataset)
    assert found.images == 15 and found.equal == 1
    judge(dataset, found)


def test_formats_through_the_training_pipeline(mixed_images: Path) -> None:
    dataset = formats(mixed_images, imagenet.train(48))
    judge(dataset, compare(dataset, epochs=2))


@pytest.mark.parametrize("exif", [False, True])
def test_orientation_is_applied_where_asked(mixed_images: Path, exif: bool) -> None:
    dataset = formats(mixed_images / "jpeg", WHOLE, exif=exif)
    at = next(i for i in range(len(dataset)) if dataset.describe(i).endswith("exif6.jpg"))
    assert dataset.sizes[at].tolist() == ([150, 100] if exif else [100, 150])
    judge(dataset, compare(dataset))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation(orientation: int, tmp_path: Path) -> None:
    """Windows are cut out of the upright image, also where the decoder does both at once."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    for i in range(6):
        Image.fromarray(photograph(60, 90, i)).save(tmp_path / f"{i}.jpg", quality=92, exif=exif)
    for transforms in ([T.CenterCrop((90, 90))], [T.RandomCrop(40)], [T.RandomCrop(40), T.RandomHorizontalFlip()]):
        dataset = formats(tmp_path, compose(*transforms, T.PILToTensor()), exif=True)
        found = compare(dataset)
        assert found.equal == 1, (transforms, found.to_dict())


# ---- the tests can fail


def test_a_promise_that_is_not_kept_is_told(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ImageFolder(photo_folder, PIPELINES["imagenet train"])
    found = compare(dataset)
    judge(dataset, found)
    row = tolerances.TABLE["resize bilinear uint8 antialias"]
    strict = replace(row, tolerances={("dali", "cpu"): tolerances.Tolerance(tolerances.Bound(0.3, 0.2))})
    monkeypatch.setitem(tolerances.TABLE, "resize bilinear uint8 antialias", strict)
    with pytest.raises(AssertionError, match="the largest difference is"):
        judge(dataset, found)


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("one level everywhere", lambda x: x + 1 / 255 / 0.229),
        ("one pixel to the side", lambda x: x.roll(1, dims=-1)),
        ("mirrored", lambda x: x.flip(-1)),
        ("two colors exchanged", lambda x: x[:, [2, 1, 0]]),
        ("the batch in another order", lambda x: x.roll(1, dims=0)),
        ("another constant", lambda x: x * (0.229 / 0.225)),
    ],
)
def test_a_wrong_image_is_told(what: str, spoil: Callable[[torch.Tensor], torch.Tensor], photo_folder: Path) -> None:
    dataset = ImageFolder(photo_folder, PIPELINES["imagenet train"])
    plan = plans_of(dataset, batch_size=8)[0]
    assert plan.ops is not None and dataset.sizes is not None
    want = reference(dataset, plan, dataset.transform)
    sizes = dataset.sizes[plan.indices]
    judge(dataset, difference(want, want.clone(), plan.ops, sizes))
    with pytest.raises(AssertionError, match="promised at most"):
        judge(dataset, difference(spoil(want), want, plan.ops, sizes))


def test_another_filter_is_told(photo_folder: Path) -> None:
    """The defaults of other pipelines, such as no antialiasing, are no rounding errors."""
    dataset = ImageFolder(photo_folder, PIPELINES["imagenet train"])
    plan = plans_of(dataset, batch_size=8)[0]
    assert plan.ops is not None and dataset.sizes is not None
    want = reference(dataset, plan, dataset.transform)
    other_ops = tuple(
        replace(op, antialias=False, kind="tensor") if type(op).__name__ == "Resize" else op for op in plan.ops
    )
    other = reference(dataset, replace(plan, ops=other_ops), dataset.transform)
    with pytest.raises(AssertionError, match="promised at most"):
        judge(dataset, difference(other, want, plan.ops, dataset.sizes[plan.indices]))


def test_decoding_is_equal_in_every_byte(photo_folder: Path) -> None:
    dataset = ImageFolder(photo_folder, compose(T.RandomCrop(48), T.PILToTensor()))
    found = compare(dataset, epochs=3)
    assert found.equal == 1 and found.images == 3 * N
    assert np.isclose(found.max, 0)
