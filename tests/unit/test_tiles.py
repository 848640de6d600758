"""Sliceable files in loaders: the pixels of whole files, of less bytes."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jpegs import KINDS, jpeg, pillow_jpeg, sliceable_jpeg, sliceable_pillow_jpeg
from odd_files import exif
from PIL import Image
from support import setup_of, spoil_second_batch
from torch import Tensor

from gpupipe import DataLoader, SampleError, transforms as T
from gpupipe.codecs.jpeg import tiles
from gpupipe.codecs.jpeg.tiles import Cut
from gpupipe.datasets import Dataset, ImageFolder, Subset, WebDataset
from gpupipe.engines.dali.codings import is_safe
from gpupipe.engines.dali.graph import ACCEPTS
from gpupipe.engines.null import Null
from gpupipe.reading import tiles as reading_tiles
from gpupipe.reading.choose import feed_of, reader_for
from gpupipe.reading.files import FileReader
from gpupipe.reading.reader import Loaded
from gpupipe.reading.tiles import Cuts
from gpupipe.testing.photos import photograph
from gpupipe.transforms.ops import Crop
from gpupipe.types import Plan

CROPS = T.Compose([T.RandomResizedCrop(24, scale=(0.01, 0.9)), T.RandomHorizontalFlip(), T.PILToTensor()])
SEED, BATCH = 5, 16


def _files(own: Callable[..., bytes], by_pillow: Callable[..., bytes]) -> dict[str, bytes]:
    """Name to JPEG, of every sampling; wide enough for tiles."""
    found = {}
    for seed, kind in enumerate(KINDS.values()):
        pixels = photograph(70 + seed, 200 + 8 * seed, seed)
        found[f"{seed:02d}"] = own(pixels[:, :, 1] if len(kind.sampling) == 1 else pixels, kind)
    for seed, subsampling in enumerate(("4:4:4", "4:2:2", "4:2:0") * 4):
        found[f"p{seed:02d}"] = by_pillow(110 + seed, 400, seed, subsampling=subsampling, progressive=seed % 4 == 3)
    found |= {f"turned {turn}": by_pillow(90 + turn, 192, turn, exif=exif(turn)) for turn in range(2, 9)}
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(files as they came, the same of which all JPEGs but three are sliceable)"""
    plain, packed = (tmp_path_factory.mktemp("data") / name / "only" for name in ("plain", "packed"))
    written = {plain: _files(jpeg, pillow_jpeg), packed: _files(sliceable_jpeg, sliceable_pillow_jpeg)}
    for folder, files in written.items():
        folder.mkdir(parents=True)
        for name, data in files.items():
            (folder / f"{name}.jpg").write_bytes(data)
        (folder / "as it came.jpg").write_bytes(pillow_jpeg(80, 160, 8))
        image = Image.fromarray(photograph(60, 90, 9))
        image.save(folder / "picture.png")
        image.convert("CMYK").save(folder / "cmyk.jpg")
        for path in (*folder.iterdir(), folder):
            os.utime(path, (1_600_000_000, 1_600_000_000))
    return plain.parent, packed.parent


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(bytes of the cut, pixels of it) of each that is made in this process."""
    made: list[tuple[int, int]] = []
    of = tiles.cut

    def cut(*args: Any) -> Cut | None:
        found = of(*args)
        if found is not None:
            made.append((len(found.data), found.height * found.width))
        return found

    monkeypatch.setattr(reading_tiles, "cut_out", cut)
    return made


def batches(dataset: Dataset, engine: str, epochs: int, **options: Any) -> list[Tensor]:
    options = {"num_workers": 2 if engine == "dali" else 0, "device": "cpu", **options}
    with DataLoader(dataset, BATCH, shuffle=True, seed=SEED, engine=engine, **options) as loader:
        return [images for _ in range(epochs) for images, *_ in loader]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.part(of=2)
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "epochs"), [("dali", 20), ("torch", 10)])
def test_pixels_are_those_of_the_whole_files(
    engine: str, epochs: int, folders: tuple[Path, Path], counted: list[tuple[int, int]]
) -> None:
    plain, packed = (ImageFolder(folder, CROPS) for folder in folders)
    sliceable = len(plain) - 3
    assert epochs * sliceable > 200
    assert same(batches(plain, engine, epochs), batches(packed, engine, epochs))
    # The plans of a batch or two that nobody asked for may have been cut as well.
    assert epochs * sliceable <= len(counted) <= epochs * sliceable + 4 * BATCH
    assert plain.file_sizes is not None and plain.sizes is not None
    read, decoded = np.mean(counted, axis=0)
    assert read < 0.6 * plain.file_sizes.mean() and decoded < 0.6 * plain.sizes.prod(axis=1).mean()


def test_worker_processes_cut_as_well(folders: tuple[Path, Path]) -> None:
    plain, packed = (ImageFolder(folder, CROPS) for folder in folders)
    assert same(batches(plain, "torch", 2), batches(packed, "torch", 2, num_workers=2))
    made = pickle.loads(pickle.dumps(Cuts.of(packed)))
    assert made is not None and made.codes.tolist() == Cuts.of(packed).codes.tolist()


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_parts_of_large_files_and_subsets(
    engine: str, folders: tuple[Path, Path], tmp_path: Path, counted: list[tuple[int, int]]
) -> None:
    found = []
    for folder in folders:
        with tarfile.open(tmp_path / f"{folder.name}.tar", "w") as tar:
            for i, path in enumerate(sorted(folder.glob("only/*"))):
                tar.add(path, f"{i:03d}{path.suffix}")
        dataset = WebDataset(str(tmp_path / f"{folder.name}.tar"), transform=CROPS)
        assert not dataset.whole_files
        found.append(batches(dataset, engine, 4))
        found.append(batches(Subset(dataset, range(len(dataset) - 1, 3, -2)), engine, 4))
    assert same(found[0], found[2]) and same(found[1], found[3]) and len(counted) > 4 * 25


# ---------------------------------------------------------------------- what an engine is given


def loaded(dataset: Dataset, **options: Any) -> Iterator[Loaded]:
    """What the DALI engine is given of one epoch."""
    reader = reader_for(setup_of(dataset, **options), ACCEPTS, decodes=is_safe)
    with DataLoader(dataset, BATCH, shuffle=True, seed=SEED, engine=Null()) as plans:
        yield from reader.run(plan for plan, *_ in plans)
    reader.close()


@pytest.mark.parametrize(
    ("threads", "ahead", "parts"),
    [(2, 2, [10]), (3, 2, [10]), (4, 2, [5, 5]), (8, 3, [5, 5]), (9, 1, [2] * 5), (99, 2, [1] * 10)],
)
def test_every_thread_has_a_part(
    threads: int, ahead: int, parts: list[int], folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ImageFolder(folders[1], CROPS)
    dataset = Subset(whole, [i for i in range(len(whole)) if Path(whole.describe(i)).name.startswith("p0")])
    read: list[int] = []
    of = FileReader._read

    def counting(self: FileReader, plan: Plan, rows: Any, *args: Any) -> Any:
        read.append(len(rows))
        return of(self, plan, rows, *args)

    monkeypatch.setattr(FileReader, "_read", counting)
    list(loaded(dataset, num_workers=threads, prefetch_factor=ahead))
    assert sorted(read) == parts


def test_ops_and_sizes_are_those_of_what_is_given(folders: tuple[Path, Path]) -> None:
    dataset = ImageFolder(folders[1], CROPS)
    names = Counter[str]()
    for ready in loaded(dataset):
        assert ready.ops is not None and ready.sizes is not None and isinstance(ready.plan, Plan)
        assert ready.plan.ops is not None and ready.plan.sizes is not None
        for row, media in enumerate(ready.media):
            if not len(media):  # Pillow decodes it
                continue
            name = Path(dataset.describe(int(ready.plan.indices[row]))).name
            image = Image.open(io.BytesIO(media.tobytes()))
            assert (image.height, image.width) == tuple(ready.sizes[row]), name
            before, after = ready.plan.ops[0].take([row]), ready.ops[0].take([row])
            assert isinstance(before, Crop) and isinstance(after, Crop)
            assert 0 <= after.top <= before.top and 0 <= after.left <= before.left, name
            assert after.top + after.height <= image.height and after.left + after.width <= image.width, name
            smaller = image.height * image.width < ready.plan.sizes[row].prod()
            names[name] += smaller
            assert not smaller or name not in ("as it came.jpg", "picture.png", "cmyk.jpg")
        assert ready.ops[1:] == ready.plan.ops[1:]
    assert sum(names.values()) > 20


@pytest.mark.parametrize(
    "pipeline",
    [
        T.Compose([T.Resize(40), T.CenterCrop(32), T.PILToTensor()]),
        T.Compose([T.RandomHorizontalFlip(), T.RandomResizedCrop(24), T.PILToTensor()]),
        T.Compose([T.RandomCrop(300, padding=120, pad_if_needed=True), T.PILToTensor()]),
        T.Compose([]),
    ],
    ids=["resized first", "flipped first", "padded", "nothing"],
)
def test_whole_files_are_read_if_no_window_comes_first(pipeline: T.Compose, folders: tuple[Path, Path]) -> None:
    dataset = ImageFolder(folders[1], pipeline)
    assert Cuts.of(dataset) is None
    assert feed_of(setup_of(dataset), ACCEPTS, is_safe).form == "paths"


def test_whole_files_are_read_if_none_is_sliceable(folders: tuple[Path, Path]) -> None:
    plain, packed = (ImageFolder(folder, CROPS) for folder in folders)
    assert Cuts.of(plain) is None and feed_of(setup_of(plain), ACCEPTS, is_safe).form == "paths"
    assert Cuts.of(packed) is not None and feed_of(setup_of(packed), ACCEPTS, is_safe).form == "encoded"
    assert packed.codings is not None
    codes, names = packed.codings
    assert sum(names[code].sliceable for code in codes) == len(packed) - 3
    assert packed.index_summary().formats == plain.index_summary().formats


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_images_that_are_turned_upright(engine: str, folders: tuple[Path, Path]) -> None:
    plain, packed = (ImageFolder(folder, CROPS, exif=True) for folder in folders)
    assert same(batches(plain, engine, 3), batches(packed, engine, 3))


@pytest.mark.parametrize("exif", [False, True])
def test_a_batch_that_dali_fails_on(exif: bool, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow decodes what was cut out."""
    expected = batches(ImageFolder(folders[0], CROPS, exif=exif), "torch", 1)
    spoil_second_batch(monkeypatch)
    found = batches(ImageFolder(folders[1], CROPS, exif=exif), "dali", 1)
    assert torch.equal(found[1], expected[1]) and len(found) == len(expected)


# ---------------------------------------------------------------------- files that changed


@pytest.fixture
def copied(folders: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders[1], tmp_path / "copied"))


def _mtime(path: Path) -> None:
    os.utime(path, (1_600_000_000, 1_600_000_000))


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_a_file_that_another_program_wrote_again_is_read_as_a_whole(
    engine: str, folders: tuple[Path, Path], copied: Path, counted: list[tuple[int, int]]
) -> None:
    """Every segment stays, but the places of the tiles are no longer right."""
    dataset = ImageFolder(copied, CROPS)
    for path in copied.glob("only/*.jpg"):
        data = path.read_bytes()
        path.write_bytes(data[:2] + b"\xff\xfe\0\x05new" + data[2:])
    expected = batches(ImageFolder(folders[0], CROPS), engine, 2)
    assert same(batches(dataset, engine, 2), expected) and not counted


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_a_file_of_another_size_is_named(engine: str, copied: Path) -> None:
    dataset = ImageFolder(copied, CROPS)
    (copied / "only" / "p05.jpg").write_bytes(sliceable_pillow_jpeg(300, 640, 3))
    with pytest.raises(SampleError) as caught:
        batches(dataset, engine, 1)
    (bad,) = caught.value.samples
    assert bad.path.endswith("p05.jpg") and bad.kind == "changed" and "has 300x640" in bad.reason


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_a_file_that_ends_too_early_is_named(engine: str, copied: Path) -> None:
    dataset = ImageFolder(copied, CROPS)
    path = copied / "only" / "p05.jpg"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(SampleError) as caught:
        batches(dataset, engine, 1)
    (bad,) = caught.value.samples
    assert bad.path.endswith("p05.jpg") and bad.kind == "truncated"
    path.unlink()
    with pytest.raises(SampleError) as caught:
        batches(dataset, engine, 1)
    assert caught.value.samples[0].kind == "missing"
