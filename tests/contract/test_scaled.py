"""Images that are decoded smaller: the same in every engine, and close to those that are decoded in full."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jpegs import KINDS, jpeg, pillow_jpeg
from odd_files import exif
from PIL import Image
from support import EVAL, SEED, Case, native_session, pictures, setup_of, spoil_second_batch, write_tars
from torch import Tensor

from gpupipe import DataLoader, SampleError, engines, transforms as T
from gpupipe.codecs.decode import open_smaller
from gpupipe.codecs.limits import Limits
from gpupipe.datasets import Arrays, ImageFolder, Subset, WebDataset, dataset as dataset_module
from gpupipe.datasets.dataset import Dataset
from gpupipe.engines.dali.graph import ACCEPTS
from gpupipe.engines.torch.reference import reference
from gpupipe.errors import ConfigError
from gpupipe.parity.difference import difference
from gpupipe.parity.tolerances import check
from gpupipe.reading import kept
from gpupipe.reading.choose import feed_of
from gpupipe.reading.smaller import Smaller
from gpupipe.testing.photos import photograph
from gpupipe.types import Plan

FLIP: list[Any] = [T.RandomHorizontalFlip(), T.PILToTensor()]
PIPELINES = {
    "train": T.Compose([T.RandomResizedCrop(12), *FLIP]),
    "train, bicubic": T.Compose([T.RandomResizedCrop((10, 15), interpolation="bicubic"), *FLIP]),
    "eval": T.Compose([T.Resize(14), T.CenterCrop(12), T.PILToTensor()]),
    "tensors": T.Compose([T.ToImage(), T.RandomResizedCrop(12), T.ToDtype("float32", scale=True)]),
    "own function": T.Compose([T.RandomResizedCrop(12), T.Lambda(lambda image: image), *FLIP]),
}
ENGINES = [("dali", 2), ("torch", 0)]


def _files() -> dict[str, bytes]:
    """Name to file: all samplings, scans and colors, sides of every remainder by 8, and all ways to be turned."""
    found = {f"kind {i:02d}.jpg": jpeg(_pixels(100 + i, 203 + 3 * i, i, kind), kind) for i, kind in enumerate(_KINDS)}
    for i, subsampling in enumerate(("4:4:4", "4:2:2", "4:2:0") * 2):
        options: dict[str, Any] = {"subsampling": subsampling, "quality": 90, "progressive": i >= 3}
        found[f"photo {i}.jpg"] = pillow_jpeg(301 + i, 460 - 3 * i, i, **options)
    for turn in range(1, 9):
        found[f"turned {turn}.jpg"] = pillow_jpeg(200 + turn, 243 + 3 * turn, turn, exif=exif(turn))
    found["gray.jpg"] = pillow_jpeg(399, 245, 5, "L")
    found["cmyk.jpg"] = pillow_jpeg(399, 245, 6, "CMYK")
    found["tiny.jpg"] = pillow_jpeg(3, 5, 7)
    found["line.jpg"] = pillow_jpeg(1, 300, 8)
    return found


def _pixels(height: int, width: int, seed: int, kind: Any) -> Any:
    pixels = photograph(height, width, seed)
    return pixels[:, :, 1] if len(kind.sampling) == 1 else pixels


_KINDS = list(KINDS.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large and small files."""
    root = tmp_path_factory.mktemp("plain")
    (root / "only").mkdir()
    for file, data in _files().items():
        (root / "only" / file).write_bytes(data)
    Image.fromarray(photograph(300, 290, 9)).save(root / "only" / "picture.png")
    for path in (*root.glob("only/*"), root / "only"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return root


@pytest.fixture(params=ENGINES, ids=str)
def make(request: pytest.FixtureRequest, folder: Path) -> Iterator[Callable[..., DataLoader]]:
    engine, workers = request.param
    case = Case(engine, "folder", "cpu", folder)

    def loader(dataset: Any, **arguments: Any) -> DataLoader:
        return case.loader(dataset, **{"num_workers": workers, "scaled": True, **arguments})

    yield loader
    case.close()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The factor of each image that is decoded smaller in this process."""
    found: list[int] = []
    real = open_smaller

    def counted(media: Any, factor: int, *limits: Limits) -> Any:
        found.append(factor)
        return real(media, factor, *limits)

    monkeypatch.setattr(dataset_module, "open_smaller", counted)
    return found


def plans_of(dataset: Dataset, epochs: int = 1) -> list[Plan]:
    with DataLoader(dataset, 5, shuffle=True, seed=SEED, engine="null", device="cpu") as loader:
        return [plan for _ in range(epochs) for plan, *_ in loader]


def images_of(batches: Any) -> list[Tensor]:
    return [images for images, *_ in batches]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def of_loader(dataset: Dataset, engine: str, **options: Any) -> list[Tensor]:
    given = {"num_workers": 2 if engine == "dali" else 0, "device": "cpu", **options}
    with DataLoader(dataset, 5, shuffle=True, seed=SEED, engine=engine, **given) as loader:
        return images_of(loader)


# ---------------------------------------------------------------------- engines


@pytest.mark.parametrize(
    ("pipeline", "upright"), [*zip(PIPELINES, (True, False, True, False, False), strict=True), ("train", False)]
)
def test_engines_and_reference_give_the_same(
    make: Callable[..., DataLoader], pipeline: str, upright: bool, folder: Path
) -> None:
    dataset = ImageFolder(folder, PIPELINES[pipeline], exif=upright)
    scaled, seen = Smaller.of(dataset, dataset.transform), set()
    assert scaled is not None
    loader = make(dataset)
    for plan, images in zip(plans_of(dataset), images_of(loader), strict=True):
        expected = reference(dataset, plan, dataset.transform, scaled=True)
        factors = scaled.factors(plan)
        smaller = torch.from_numpy(factors > 1)
        assert torch.equal(images[smaller], expected[smaller])
        assert plan.ops is not None and plan.sizes is not None
        if pipeline != "own function":  # of which nothing is promised
            assert not check("dali/torch", plan.ops, difference(images, expected, plan.ops, plan.sizes))
        seen |= set(factors.tolist())
    assert seen >= {1, 2, 4}


def test_worker_processes_give_the_same(folder: Path) -> None:
    dataset = ImageFolder(folder, PIPELINES["train"])
    alone, workers = (of_loader(dataset, "torch", num_workers=n, scaled=True) for n in (0, 2))
    assert same(alone, workers)


def test_images_are_decoded_smaller(folder: Path, decoded: list[int]) -> None:
    dataset = ImageFolder(folder, PIPELINES["eval"])
    factors = np.concatenate([Smaller.of(dataset, dataset.transform).factors(p) for p in plans_of(dataset)])  # type: ignore[union-attr]
    for engine in ("dali", "torch"):
        decoded.clear()
        # With persistent_workers=None the next epoch would be begun.
        of_loader(dataset, engine, persistent_workers=False, scaled=True)
        assert sorted(decoded) == sorted(factors[factors > 1].tolist())


def test_what_is_not_a_plain_jpeg_is_decoded_in_full(folder: Path) -> None:
    dataset = ImageFolder(folder, T.Compose([T.Resize((9, 9)), T.PILToTensor()]))
    whole = next(iter(DataLoader(dataset, len(dataset), engine="null", device="cpu")))[0]
    factors = Smaller.of(dataset, dataset.transform).factors(whole)  # type: ignore[union-attr]
    by_name = {Path(dataset.describe(i)).name: int(factors[i]) for i in range(len(dataset))}
    assert by_name["photo 0.jpg"] == 8 and by_name["gray.jpg"] == 8
    assert {by_name[name] for name in ("picture.png", "cmyk.jpg", "tiny.jpg", "line.jpg")} == {1}


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_smaller_images_are_kept(
    engine: str, folder: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``cache`` and ``scaled`` compose: every size of an image is decoded once, and no pixel changes."""
    monkeypatch.setattr(kept, "_SHM", str(tmp_path / "shm"))
    (tmp_path / "shm").mkdir()
    dataset = ImageFolder(folder, PIPELINES["train"], exif=True)
    given: dict[str, Any] = {"shuffle": True, "seed": SEED, "engine": engine, "device": "cpu", "scaled": True}
    given["persistent_workers"] = False  # nothing is read ahead for the next epoch
    with DataLoader(dataset, 5, **given) as plain, DataLoader(dataset, 5, **given, cache="ram") as keeping:
        for _ in range(3):
            assert same(images_of(plain), images_of(keeping))
        assert decoded
        decoded.clear()
        keeping.set_epoch(1)
        images_of(keeping)
        assert not decoded


def test_parts_of_large_files_and_subsets(make: Callable[..., DataLoader], folder: Path) -> None:
    dataset = ImageFolder(folder, PIPELINES["train"])
    tars = WebDataset([str(path) for path in write_tars(folder)], PIPELINES["train"])
    jpegs = [i for i in range(len(dataset)) if dataset.describe(i).endswith(".jpg")]
    assert not tars.whole_files and len(tars) == len(jpegs)
    assert same(images_of(make(tars)), images_of(make(Subset(dataset, jpegs))))


# ---------------------------------------------------------------------- what else a loader does


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_bad_samples(make: Callable[..., DataLoader], on_error: str, tmp_path: Path) -> None:
    """Cut off, changed in size, no JPEG any more, gone: after the index was made."""
    (tmp_path / "only").mkdir()
    for i in range(12):
        (tmp_path / "only" / f"{i:02d}.jpg").write_bytes(pillow_jpeg(300, 420, i))
    dataset = ImageFolder(tmp_path, PIPELINES["train"])
    files = sorted(tmp_path.glob("only/*.jpg"))
    files[1].write_bytes(files[1].read_bytes()[:2000])
    files[4].write_bytes(pillow_jpeg(301, 420, 4))
    Image.fromarray(photograph(300, 420, 6)).save(files[6], "PNG")
    files[9].unlink()
    kinds = {}
    for i in (1, 4, 6, 9):
        with pytest.raises(SampleError) as caught:
            list(make(Subset(dataset, [i]), shuffle=False))
        (bad,) = caught.value.samples
        kinds[i] = bad.kind
    assert kinds == {1: "truncated", 4: "changed", 6: "changed", 9: "missing"}
    loader = make(dataset, on_error=on_error)
    delivered = images_of(loader)
    assert len(loader.report().samples) == 4
    assert sum(map(len, delivered)) == (8 if on_error == "skip" else 12)


def test_a_batch_that_dali_fails_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ImageFolder(folder, PIPELINES["train"], exif=True)
    expected = of_loader(dataset, "torch", scaled=True)
    spoil_second_batch(monkeypatch)
    assert torch.equal(of_loader(dataset, "dali", scaled=True)[1], expected[1])


UNSCALED = {
    "small crops": T.Compose([T.RandomResizedCrop(256), T.PILToTensor()]),
    "flipped first": T.Compose([T.RandomHorizontalFlip(), T.RandomResizedCrop(24), T.PILToTensor()]),
    "nearest": T.Compose([T.RandomResizedCrop(24, interpolation="nearest"), T.PILToTensor()]),
    "no antialias": T.Compose([T.ToImage(), T.Resize((24, 24), antialias=False)]),
    "padded": T.Compose([T.RandomCrop(300, padding=150, pad_if_needed=True), T.Resize(20), T.PILToTensor()]),
    "lanczos": T.Compose([T.Resize((24, 24), "lanczos"), T.PILToTensor()]),
}


@pytest.mark.parametrize("pipeline", UNSCALED)
def test_what_cannot_be_decoded_smaller_is_as_ever(
    make: Callable[..., DataLoader], pipeline: str, folder: Path
) -> None:
    dataset = ImageFolder(folder, UNSCALED[pipeline])
    loader = make(dataset)
    assert same(images_of(loader), images_of(make(dataset, scaled=False)))
    said = [line for line in loader.report().remarks if line.startswith("scaled: ")]
    assert len(said) == (pipeline != "small crops") and all("decoded in full, because" in line for line in said)


def test_dali_is_given_paths_if_nothing_is_decoded_smaller(folder: Path) -> None:
    for pipeline, kind in (("nearest", False), ("small crops", True)):
        dataset = ImageFolder(folder, UNSCALED[pipeline])
        able = Smaller.of(dataset, dataset.transform) is not None
        assert able == kind
        setup = setup_of(dataset, scaled=True)
        assert feed_of(setup, ACCEPTS, lambda coding: True).handed == kind


def test_it_is_told_and_kept(folder: Path) -> None:
    dataset = ImageFolder(folder, PIPELINES["eval"])
    with DataLoader(dataset, 5, engine="dali", num_workers=2, device="cpu", scaled=True) as loader:
        assert "scaled: " not in repr(loader)
        list(loader)
        assert "decodes by Pillow at 1/2, 1/4 or 1/8 what is large enough" in repr(loader)
        assert copy.copy(loader).scaled and vars(loader)["scaled"] is True
        engine = native_session(loader).running.engine
        list(loader)
        assert native_session(loader).running.engine is engine
    with DataLoader(dataset, 5, engine="torch", device="cpu") as loader:
        assert not loader.scaled and "scaled: " not in repr(loader)


def test_single_samples_are_decoded_in_full(folder: Path, decoded: list[int]) -> None:
    dataset = ImageFolder(folder, PIPELINES["eval"])
    with DataLoader(dataset, 5, engine="torch", device="cpu", scaled=True):
        assert dataset[3][0].shape == (3, 12, 12) and not decoded


def test_what_is_refused(numbered: Path) -> None:
    dataset = ImageFolder(numbered, EVAL)
    for arguments, words in (
        ({"scaled": 1}, "scaled must be True or False, not 1"),
        ({"engine": "null"}, "the null engine decodes nothing"),
        ({"engine": engines.Dali(graph="whole")}, 'graph="whole" resizes images'),
    ):
        with pytest.raises(ConfigError, match=words):
            DataLoader(dataset, **{"engine": "torch", "device": "cpu", "scaled": True, **arguments})
    with pytest.raises(ConfigError, match="scaled=True needs images in files"):
        DataLoader(Arrays(pictures(), transform=EVAL), device="cpu", scaled=True)


@pytest.mark.parametrize("engine", ["auto", "dali"])
def test_a_gpus_decoder_has_no_such_thing(engine: Any, numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(
        ConfigError, match='nvJPEG, which cannot decode at a smaller size; leave it out, or use engine="torch"'
    ):
        DataLoader(ImageFolder(numbered, EVAL), device="cuda", engine=engine, scaled=True)
