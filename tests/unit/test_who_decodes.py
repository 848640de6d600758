"""Who decodes what: DALI plain JPEG files, Pillow all else, in threads and as pixels; and what is said about it."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.codecs.coding import Coding

pytest.importorskip("nvidia.dali")

from odd_files import DAMAGED, JPEG, PICTURES, encode, picture
from support import images_of, setup_of

from gpupipe import DataLoader, SampleError, transforms as T
from gpupipe.codecs.decode import decode
from gpupipe.codecs.files import Place
from gpupipe.codecs.jpeg_structure import ODD
from gpupipe.codecs.probe import Probe, probe, probe_bytes
from gpupipe.datasets import ImageList, Subset
from gpupipe.datasets.index import probe_pool as pool
from gpupipe.engines.dali.codings import SAFE, by_pillow, is_safe
from gpupipe.engines.dali.engine import DaliEngine
from gpupipe.reading.choose import feed_of
from gpupipe.reading.reader import Loaded

WHOLE = T.Compose([T.PILToTensor()])
CROP = T.Compose([T.RandomCrop((20, 24)), T.PILToTensor()])
ALL = frozenset({"paths", "encoded", "pixels"})
MIXED = ("rgb.jpg", "gray.jpg", "p.gif", "rgb.png", "animated.png", "junk.jpg", "rgb.jp2", "two.mpo", "cmyk.jpg")


def write(folder: Path, names: Any = MIXED) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(PICTURES[name])
    return [folder / name for name in names]


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[Loaded]:
    """All that DALI was fed."""
    seen: list[Loaded] = []
    real = DaliEngine.schedule

    def schedule(self: DaliEngine, ready: Loaded) -> Any:
        seen.append(ready)
        return real(self, ready)

    monkeypatch.setattr(DaliEngine, "schedule", schedule)
    return seen


def safe_names(names: Any = MIXED) -> set[str]:
    return {name for name in names if is_safe(probe_bytes(PICTURES[name]).coding)}


# ---- the rule


def test_dali_alone_makes_pillows_pixels_of_every_safe_coding(fed: list[Loaded], tmp_path: Path) -> None:
    """The list is measured, not believed."""
    names = sorted(name for name in PICTURES if is_safe(probe_bytes(PICTURES[name]).coding))
    assert {probe_bytes(PICTURES[name]).coding for name in names} == SAFE and len(names) >= 10
    paths = write(tmp_path / "files", names)
    with DataLoader(ImageList(paths, transform=WHOLE), batch_size=1, engine="dali", device="cpu") as loader:
        for path, images in zip(paths, loader, strict=True):
            assert np.array_equal(images[0].permute(1, 2, 0).numpy(), decode(str(path))), path.name
    assert all(ready.pixels is None for ready in fed)  # Pillow had no part in it


def test_dali_is_given_plain_jpeg_files_and_nothing_else(fed: list[Loaded], tmp_path: Path) -> None:
    paths = write(tmp_path / "files", PICTURES)
    images = ImageList(paths, transform=CROP)
    with DataLoader(images, batch_size=8, engine="dali", device="cpu", num_workers=2) as loader:
        assert sum(len(images_of(batch)) for batch in loader) == len(paths)
    given = set()
    for ready in fed:
        for row, index in enumerate(ready.plan.indices.tolist()):
            media = ready.media[row].tobytes().rstrip(b"\0")
            assert ready.pixels is not None and bool(media) != bool(len(ready.pixels[row]))
            if media:
                given.add(paths[index].name)
            else:  # no more of it than the crop takes
                assert ready.pixels[row].shape == (20, 24, 3)
    assert given == safe_names(PICTURES) and len(given) > 5


@pytest.mark.part(of=3)
@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [CROP, WHOLE, T.Compose([T.Resize((30, 30)), T.PILToTensor()])], ids=str)
def test_pixels_of_both_arrive_in_their_places(pipeline: Any, tmp_path: Path) -> None:
    paths = write(tmp_path / "files")
    size = 1 if pipeline is WHOLE else 4
    given: dict[str, Any] = {"batch_size": size, "device": "cpu", "seed": 1, "shuffle": True, "num_workers": 2}
    with (
        DataLoader(ImageList(paths, transform=pipeline), engine="dali", **given) as ours,
        DataLoader(ImageList(paths, transform=pipeline), engine="torch", **given) as reference,
    ):
        for _ in range(2):
            for a, b in zip(ours, reference, strict=True):
                exact = "Resize" not in repr(pipeline)
                a, b = images_of(a).int(), images_of(b).int()
                assert (a == b).all() if exact else (a - b).abs()[..., 3:-3, 3:-3].max() <= 2


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
def test_what_was_handed_out_does_not_change_later(memory_format: Any, tmp_path: Path) -> None:
    """Pillow decodes into memory that is used again, and what DALI only passes through points into it."""
    paths = write(tmp_path / "files", ["p.gif", "rgb.png", "rgba.png", "p.png", "gray.gif"])
    dataset = ImageList(paths * 4, transform=T.Compose([T.PILToTensor()], memory_format=memory_format))
    with DataLoader(dataset, batch_size=1, engine="dali", device="cpu") as loader:
        batches = list(loader)
    for path, images in zip(paths * 4, batches, strict=True):
        assert np.array_equal(images[0].permute(1, 2, 0).numpy(), decode(str(path)))


def test_only_jpeg_files_are_read_by_dali_itself(tmp_path: Path) -> None:
    paths = write(tmp_path / "files")
    plain = feed_of(setup_of(ImageList(paths[:2])), ALL, is_safe)
    assert (plain.form, plain.handed, plain.turned) == ("paths", False, False)
    mixed = feed_of(setup_of(ImageList(paths)), ALL, is_safe)
    assert (mixed.form, mixed.handed) == ("paths", True)
    assert feed_of(setup_of(ImageList(paths[2:4])), ALL, is_safe).form == "pixels"


def test_more_codings_than_a_byte_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no name is Pillow's."""
    count = itertools.count()
    monkeypatch.setattr(pool, "probe", lambda *it: Probe(0, 1, 1, Coding("FORMAT", str(next(count)))))
    paths = [tmp_path / f"{i}.jpg" for i in range(300)]
    for path in paths:
        path.write_bytes(JPEG)
    dataset = ImageList(paths)
    codes, names = dataset.codings
    assert len(names) == 255 and codes.max() == 255 and (codes == 255).sum() == 300 - 254
    assert feed_of(setup_of(dataset), ALL, lambda coding: True).handed
    assert by_pillow(dataset).startswith("Pillow decodes 300 of 300 images")


def test_a_compressed_tiff_in_planes_has_a_coding_of_its_own(tmp_path: Path) -> None:
    """Pillow's raw mode does not tell it from others, and writes none: the tag is all there is to test."""
    path = tmp_path / "x.tif"
    path.write_bytes(encode(picture(), "TIFF", compression="tiff_lzw", tiffinfo={284: 2}))
    assert str(probe(Place(bytes(path))).coding) == "TIFF/RGB/tiff_lzw/RGB planar"


# ---- no files beside


@pytest.mark.parametrize("name", ["p.gif", "animated.png", "rgb.tif"])
def test_nothing_is_written_and_the_cache_may_vanish(name: str, tmp_path: Path, cache: Path) -> None:
    paths = write(tmp_path / "files", [name, "rgb.jpg"]) * 12
    with DataLoader(ImageList(paths, transform=CROP), batch_size=4, engine="dali", device="cpu") as loader:
        iterator = iter(loader)
        next(iterator)
        assert [entry.name for entry in cache.iterdir()] == ["index"]
        shutil.rmtree(cache)
        assert sum(len(images_of(batch)) for batch in iterator) == 20
        assert sum(len(images_of(batch)) for batch in loader) == 24
    assert not cache.exists() and loader.report().samples == []


# ---- what is bad


def test_what_pillow_refuses_is_named_beside_what_dali_decodes(tmp_path: Path) -> None:
    paths = write(tmp_path / "files", ["rgb.jpg", "p.gif", "gray.jpg", "rgb.png"])
    paths[3].write_bytes(DAMAGED)
    with DataLoader(ImageList(paths, transform=CROP), batch_size=2, engine="dali", device="cpu") as loader:
        iterator = iter(loader)
        assert len(images_of(next(iterator))) == 2
        with pytest.raises(SampleError) as e:
            next(iterator)
        assert [(s.index, s.kind) for s in e.value.samples] == [(3, "undecodable")]
        assert next(iterator, None) is None
    images = ImageList(paths, transform=CROP)
    with DataLoader(images, batch_size=2, engine="dali", device="cpu", on_error="skip") as loader:
        assert [len(images_of(batch)) for batch in loader] == [2, 1]


@pytest.mark.parametrize("name", ["x.gif", "x.jpg"])
def test_another_size_than_the_index_says(name: str, tmp_path: Path) -> None:
    kind = "GIF" if name.endswith("gif") else "JPEG"
    paths = [*write(tmp_path / "files", ["rgb.jpg", "p.gif"]), tmp_path / name]
    paths[2].write_bytes(encode(picture(40, 60), kind))
    dataset = ImageList(paths, transform=CROP)
    paths[2].write_bytes(encode(picture(50, 30), kind))
    with DataLoader(dataset, batch_size=3, engine="dali", device="cpu") as loader:
        with pytest.raises(SampleError) as e:
            next(iter(loader))
        assert [(s.index, s.kind) for s in e.value.samples] == [(2, "changed")]


def test_a_pipe_in_the_place_of_a_jpeg_is_not_opened_by_dali(tmp_path: Path) -> None:
    paths = write(tmp_path / "files", ["p.gif", "rgb.jpg", "gray.jpg"])
    dataset = ImageList(paths, transform=CROP)
    paths[1].unlink()
    os.mkfifo(paths[1])
    with DataLoader(dataset, batch_size=3, engine="dali", device="cpu", on_error="skip") as loader:
        assert [len(images_of(batch)) for batch in loader] == [2]
        assert [(s.index, s.kind) for s in loader.report().samples] == [(1, "unreadable")]


# ---- what is said


def test_the_sentence_counts_and_says_why(tmp_path: Path) -> None:
    paths = [*write(tmp_path / "files"), tmp_path / "none.jpg"]
    sentence = by_pillow(ImageList([*paths, paths[2]]))
    assert sentence.startswith("Pillow decodes 7 of 11 images, because only plain JPEG files are safe in DALI: ")
    for part in ("2 GIF", "2 PNG", "1 JPEG2000", f"1 JPEG ({ODD['junk']})", "1 JPEG (CMYK)"):
        assert part in sentence, sentence
    assert by_pillow(ImageList(paths[:2])) == "" and "1 of 2 images" in by_pillow(Subset(ImageList(paths), [0, 2]))


@pytest.fixture
def loaders() -> Iterator[Any]:
    made: list[DataLoader] = []

    def loader(dataset: Any, **given: Any) -> DataLoader:
        made.append(DataLoader(dataset, batch_size=4, device="cpu", **{"engine": "dali", **given}))
        return made[-1]

    yield loader
    for one in made:
        one.close()


def test_repr_and_report_say_what_pillow_decodes(loaders: Any, tmp_path: Path) -> None:
    paths = write(tmp_path / "files")
    loader = loaders(ImageList(paths, transform=CROP), num_workers=2)
    sentence = by_pillow(loader.dataset)
    assert sentence in repr(loader) and sentence in repr(loader.report())
    assert loader.report().remarks == [sentence]
    assert "Pillow decode" not in repr(loaders(ImageList(paths[:2], transform=CROP)))
    assert "Pillow decode" not in repr(loaders(ImageList(paths, transform=CROP), engine="torch"))
