"""DALI on the GPU against DALI on the CPU and against the reference: measured, and judged where something is promised.

Bounds that are written here are those of sanity: a wrong channel, a shifted window or another filter breaks them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import SEED, Case, identical, images_of, pictures, plans_of, seen

from gpupipe import DataLoader, SampleError, transforms as T
from gpupipe.bench.difference import Difference, difference
from gpupipe.bench.tolerances import check
from gpupipe.datasets import Arrays, Dataset, ImageFolder, ImageList
from gpupipe.engines import Dali
from gpupipe.engines.torch.apply import reference
from gpupipe.pipelines import imagenet

TENSOR = [T.ToTensor(), T.Normalize(imagenet.MEAN, imagenet.STD)]


def compose(*transforms: Any) -> T.Compose:
    return T.Compose(list(transforms))


PIPELINES: dict[str, T.Compose] = {
    "decode": compose(T.CenterCrop(160), T.PILToTensor()),
    "window": compose(T.RandomCrop(60), T.PILToTensor()),
    "flips": compose(T.CenterCrop(60), T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.PILToTensor()),
    "pad": compose(T.CenterCrop(60), T.Pad((3, 5), fill=9), *TENSOR),
    "bilinear": compose(T.Resize((56, 56)), T.PILToTensor()),
    "bilinear, larger": compose(T.Resize((400, 500)), T.PILToTensor()),
    "bicubic": compose(T.Resize((56, 56), interpolation="bicubic"), T.PILToTensor()),
    "lanczos": compose(T.Resize((56, 56), interpolation="lanczos"), T.PILToTensor()),
    "nearest": compose(T.Resize((56, 56), interpolation="nearest"), T.PILToTensor()),
    "bilinear of floats": compose(T.ToTensor(), T.Resize((56, 56))),
    "gray 1": compose(T.CenterCrop(60), T.Grayscale(1), T.PILToTensor()),
    "gray 3": compose(T.CenterCrop(60), T.Grayscale(3), *TENSOR),
    "random gray": compose(T.CenterCrop(60), T.RandomGrayscale(0.5), *TENSOR),
    "train": imagenet.train(112),
    "train float16 channels_last": imagenet.train(112, dtype="float16", memory_format="channels_last"),
    "train bfloat16": imagenet.train(112, dtype="bfloat16"),
    "train uint8": imagenet.train(112, dtype="uint8"),
    "val": imagenet.val(96, 112),
}


def batches(dataset: Dataset, engine: Any, device: str) -> list[torch.Tensor]:
    with DataLoader(
        dataset, batch_size=16, shuffle=True, num_workers=4, seed=SEED, engine=engine, device=device
    ) as loader:
        return [images_of(b).cpu() for b in loader]


def apart(a: list[torch.Tensor], b: list[torch.Tensor], dataset: Dataset) -> Difference:
    found = Difference()
    for one, two, plan in zip(a, b, plans_of(dataset, batch_size=16), strict=True):
        assert plan.ops is not None and dataset.sizes is not None
        found += difference(one, two, plan.ops, dataset.sizes[plan.indices])
    return found


def references(dataset: Dataset) -> list[torch.Tensor]:
    return [reference(dataset, plan, dataset.transform) for plan in plans_of(dataset, batch_size=16)]


def note(measured: Callable[..., None], name: str, found: Difference) -> None:
    measured(
        name, max=found.max, mean=found.mean, over_1=found.over_1, equal=found.equal,
        interior_max=found.interior.max, border_max=found.border.max,
    )  # fmt: skip


def judge(dataset: Dataset, found: Difference) -> None:
    broken = check("dali/torch", dataset.transform, found, "cuda")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("name", PIPELINES)
def test_every_transform_on_jpegs(name: str, large: Path, measured: Callable[..., None]) -> None:
    dataset = ImageFolder(large, PIPELINES[name])
    gpu = batches(dataset, "dali", "cuda")
    found = apart(gpu, references(dataset), dataset)
    note(measured, f"gpu/reference, jpeg: {name}", found)
    note(measured, f"gpu/cpu, jpeg: {name}", apart(gpu, batches(dataset, "dali", "cpu"), dataset))
    judge(dataset, found)
    assert found.mean < (8 if name == "nearest" else 3)


@pytest.mark.parametrize("name", [n for n in PIPELINES if n != "window"])
def test_every_transform_on_arrays(name: str, measured: Callable[..., None]) -> None:
    """Without decoding: what is left is the arithmetic of the operators."""
    dataset = Arrays(pictures(24, 130, 170), transform=PIPELINES[name])
    gpu = batches(dataset, "dali", "cuda")
    found = apart(gpu, references(dataset), dataset)
    note(measured, f"gpu/reference, arrays: {name}", found)
    note(measured, f"gpu/cpu, arrays: {name}", apart(gpu, batches(dataset, "dali", "cpu"), dataset))
    judge(dataset, found)
    if name in ("decode", "flips"):
        assert found.equal == 1
    assert found.mean < (8 if name == "nearest" else 1.5)


@pytest.mark.parametrize("hardware", [0.0, 1.0])
@pytest.mark.parametrize("fancy", [True, False])
@pytest.mark.parametrize("roi", [False, "auto"])
def test_decoder_settings(roi: Any, fancy: bool, hardware: float, large: Path, measured: Callable[..., None]) -> None:
    engine = Dali(roi=roi, jpeg_fancy_upsampling=fancy, hw_decoder_load=hardware)
    for name in ("decode", "window", "train"):
        dataset = ImageFolder(large, PIPELINES[name])
        found = apart(batches(dataset, engine, "cuda"), references(dataset), dataset)
        note(measured, f"decoder roi={roi}, fancy={fancy}, hardware={hardware}: {name}", found)
        assert found.mean < 4


def test_fancy_upsampling_is_nearer_to_pillow(large: Path, measured: Callable[..., None]) -> None:
    dataset = ImageFolder(large, PIPELINES["decode"])
    want = references(dataset)
    means = [apart(batches(dataset, Dali(jpeg_fancy_upsampling=f), "cuda"), want, dataset).mean for f in (True, False)]
    measured("chroma upsampling", fancy_mean=means[0], plain_mean=means[1])
    assert means[0] <= means[1]


def test_formats_that_the_gpu_does_not_decode(mixed_images: Path, measured: Callable[..., None]) -> None:
    """PNG, WebP, BMP, CMYK, progressive and one-pixel files come all the same, by way of the CPU where need be."""
    files = sorted(str(p) for p in mixed_images.rglob("*.*"))
    for file in files:
        dataset = ImageList([file], [0], transform=compose(T.CenterCrop(150), T.PILToTensor()))
        try:
            found = apart(batches(dataset, "dali", "cuda"), references(dataset), dataset)
        except SampleError as e:
            measured(f"format {Path(file).name}", error=str(e))
            raise
        note(measured, f"format {Path(file).name}", found)
        assert found.mean < 3, file


@pytest.mark.parametrize("exif", [False, True])
def test_orientation(mixed_images: Path, exif: bool) -> None:
    file = str(mixed_images / "jpeg" / "exif6.jpg")
    dataset = ImageList([file], [0], transform=compose(T.CenterCrop(150), T.PILToTensor()), exif=exif)
    assert apart(batches(dataset, "dali", "cuda"), references(dataset), dataset).mean < 3


def test_the_same_plans_give_the_same_bits_again(large: Path, measured: Callable[..., None]) -> None:
    dataset = ImageFolder(large, imagenet.train(112))
    one, two = (batches(dataset, "dali", "cuda") for _ in range(2))
    found = apart(one, two, dataset)
    note(measured, "gpu/gpu, the same batches", found)
    assert found.max <= 3


def test_neighbours_in_the_batch(large: Path, measured: Callable[..., None]) -> None:
    """The hardware decoder takes a share of each batch, so who decodes an image depends on the others."""
    dataset = ImageFolder(large, PIPELINES["decode"])
    small = torch.cat(batches(dataset, "dali", "cuda"))
    with DataLoader(
        dataset, batch_size=5, shuffle=True, num_workers=4, seed=SEED, engine="dali", device="cuda"
    ) as loader:
        other = torch.cat([images_of(b).cpu() for b in loader])
    difference_ = (small.int() - other.int()).abs()
    measured("gpu/gpu, other batches", max=int(difference_.max()), mean=float(difference_.float().mean()))
    assert difference_.float().mean() < 1.5


@pytest.mark.parametrize("how", ["truncated", "missing", "empty", "text"])
def test_recovery_of_the_mixed_decoder(how: str, large: Path, tmp_path: Path, measured: Callable[..., None]) -> None:
    """The other batches come, the bad one is named or, where the decoder fills a truncated image up, told apart."""
    files = [p.read_bytes() for p in sorted(large.rglob("*.jpg"))[:24]]
    for i, data in enumerate(files):
        (tmp_path / f"{i:02d}.jpg").write_bytes(data)
    paths = [str(tmp_path / f"{i:02d}.jpg") for i in range(24)]
    dataset = ImageList(paths, list(range(24)), transform=imagenet.val(64, 72))
    clean = batches_in_order(dataset)
    bad = tmp_path / "09.jpg"
    spoiled = {"truncated": files[9][: len(files[9]) // 3], "empty": b"", "text": b"no picture at all" * 20}
    bad.unlink() if how == "missing" else bad.write_bytes(spoiled[how])
    got, errors = [], []
    with DataLoader(dataset, batch_size=4, num_workers=4, engine="dali", device="cuda") as loader:
        for _ in range(2):
            iterator = iter(loader)
            while True:
                try:
                    got.append(next(iterator))
                except StopIteration:
                    break
                except SampleError as e:
                    errors.append(e)
    measured(f"recovery: {how}", errors=[str(e) for e in errors], batches=len(got))
    good = [b for b in clean if 9 not in seen(b)]
    delivered = [b for b in got if 9 not in seen(b)]
    assert [seen(b) for b in delivered] == [seen(b) for b in good] * 2
    assert all((images_of(a) - images_of(b)).abs().max() < 0.2 for a, b in zip(delivered, good * 2, strict=True))
    if how != "truncated":
        assert [[s.index for s in e.samples] for e in errors] == [[9], [9]]


def batches_in_order(dataset: Dataset) -> list[Any]:
    with DataLoader(dataset, batch_size=4, num_workers=4, engine="dali", device="cuda") as loader:
        return list(loader)


def test_resume_gives_the_same_bits(numbered: Path, measured: Callable[..., None]) -> None:
    case = Case("dali", "folder", "cuda", numbered)
    loader = case.loader()
    iterator = iter(loader)
    next(iterator), next(iterator)
    state, rest = loader.state_dict(), list(iterator)
    other = case.loader()
    other.load_state_dict(state)
    again = list(other)
    case.close()
    assert [seen(b) for b in again] == [seen(b) for b in rest]
    same = [identical(a, b) for a, b in zip(again, rest, strict=True)]
    measured("resume on the GPU", bit_identical=f"{sum(same)} of {len(same)}")
    assert np.mean([float((images_of(a) - images_of(b)).abs().mean()) for a, b in zip(again, rest, strict=True)]) < 0.02
