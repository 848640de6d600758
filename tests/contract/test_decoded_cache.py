"""Decoded images that are kept: the same pixels, of the file as it is now, within a budget, for all processes."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreter import Interpreter, Script
from PIL import Image
from support import EVAL, SIZES, TRAIN, Case, Encoded, N, native_session, pictures, same, write_tars

from gpupipe import DataLoader, SampleError, transforms as T
from gpupipe.datasets import Arrays, ImageFolder, Subset, WebDataset, from_torch
from gpupipe.datasets.base import Dataset
from gpupipe.errors import ConfigError
from gpupipe.reading import decoded_cache
from gpupipe.sources.remote.block_cache import BlockCache

ROOM = 10_000_000
"""Bytes: more than all images here take."""
DECODED = sum(SIZES[i % len(SIZES)][0] * SIZES[i % len(SIZES)][1] * 3 for i in range(N))


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Where images are kept in a test."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(decoded_cache, "_SHM", str(tmp_path / "shm"))
    return {"disk": tmp_path / "cache" / "decoded", "ram": tmp_path / "shm" / f"gpupipe-{os.geteuid()}" / "decoded"}


@pytest.fixture
def root(tmp_path: Path, numbered: Path) -> Path:
    """Photographs that a test may change."""
    return Path(shutil.copytree(numbered, tmp_path / "photos"))


MAKERS = (("dali", 2), ("torch", 2), ("torch", 0))
"""(engine, workers)"""


@pytest.fixture(params=MAKERS, ids=str)
def make(request: pytest.FixtureRequest, device: str, root: Path) -> Iterator[Callable[..., DataLoader]]:
    engine, workers = request.param
    case = Case(engine, "folder", device, root)

    def loader(dataset: Any, **arguments: Any) -> DataLoader:
        return case.loader(dataset, num_workers=workers, **arguments)

    yield loader
    case.close()


def kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.block"))


def photo(root: Path, index: int) -> Path:
    return root / f"class{index:03d}" / "photo.jpg"


PIPELINES = {
    "train": TRAIN,
    "eval": EVAL,
    "no crop first": T.Compose([T.ColorJitter(0.4, 0.4), T.RandomCrop(32), T.RandomHorizontalFlip(), T.PILToTensor()]),
    "padded": T.Compose([T.RandomCrop(40, padding=8), T.PILToTensor()]),
}


@pytest.mark.parametrize(
    ("pipeline", "make", "kind"),
    # Every pair of two of them: what keeps images takes turns.
    [(p, m, ("ram", "disk")[(i + j) % 2]) for i, p in enumerate(PIPELINES) for j, m in enumerate(MAKERS)],
    indirect=["make"],
    ids=str,
)
def test_the_same_pixels(make: Callable[..., DataLoader], root: Path, kind: Any, pipeline: str, folders: Any) -> None:
    dataset = ImageFolder(root, PIPELINES[pipeline])
    plain, cached = make(dataset), make(dataset, cache=kind, cache_bytes=ROOM)
    for _ in range(3):
        assert same(list(cached), list(plain))
    files = kept(folders[kind])
    assert len(files) == N
    assert sum(path.stat().st_size for path in files) == DECODED
    assert not kept(folders["ram" if kind == "disk" else "disk"])


def test_in_the_second_epoch_nothing_is_decoded(
    make: Callable[..., DataLoader], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not by another loader, on another dataset of the same files."""
    wanted = list(make(ImageFolder(root, TRAIN)))
    list(make(ImageFolder(root, EVAL), cache="disk", cache_bytes=ROOM))

    def refuse(*args: Any, **arguments: Any) -> Any:
        raise AssertionError("decoded again")

    monkeypatch.setattr(Dataset, "open", refuse)
    some = Subset(ImageFolder(root, TRAIN), list(range(N)))
    assert same(list(make(some, cache="disk", cache_bytes=ROOM)), wanted)


def test_several_views(make: Callable[..., DataLoader], root: Path) -> None:
    dataset = ImageFolder(root, T.Compose([T.MultiView([TRAIN, EVAL])]))
    plain, cached = list(make(dataset)), list(make(dataset, cache="ram", cache_bytes=ROOM))
    assert len(cached) == len(plain) > 1
    for (views, target), (wanted, labels) in zip(cached, plain, strict=True):
        assert len(views) == 2 and all(torch.equal(*pair) for pair in zip(views, wanted, strict=True))
        assert torch.equal(target, labels)


def test_on_a_cpu_no_graph_is_built(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would only copy the images. Functions of the script's need the engine that has one."""
    from gpupipe.engines.dali import engine

    def refuse(*args: Any, **arguments: Any) -> Any:
        raise AssertionError("a graph")

    monkeypatch.setattr(engine, "build_graph", refuse)
    case, options = Case("dali", "folder", "cpu", numbered), {"num_workers": 2, "cache": "ram", "cache_bytes": ROOM}
    batches = list(case.loader(ImageFolder(numbered, TRAIN), **options))
    assert sum(len(target) for _, target in batches) == N
    with pytest.raises(AssertionError, match="a graph"):
        list(case.loader(ImageFolder(numbered, T.Compose([T.Lambda(lambda image: image), TRAIN])), **options))
    case.close()


def test_a_file_that_changed(make: Callable[..., DataLoader], root: Path, folders: Any) -> None:
    """Whether the dataset is opened again or not, and also if it has the same size as before."""
    dataset = ImageFolder(root, EVAL)
    loader = make(dataset, cache="disk", cache_bytes=ROOM, shuffle=False)
    before = list(loader)
    with Image.open(photo(root, 3)) as image:
        image.transpose(Image.Transpose.ROTATE_180).save(photo(root, 3), quality=90)
    plain = list(make(ImageFolder(root, EVAL), shuffle=False))
    assert not same(plain, before)
    for _ in range(2):
        assert same(list(loader), plain)
    assert len(kept(folders["disk"])) == N  # nothing was kept of a file that is not as it was indexed
    again = make(ImageFolder(root, EVAL), cache="disk", cache_bytes=ROOM, shuffle=False)
    assert same(list(again), plain)
    assert len(kept(folders["disk"])) == N + 1


def test_bad_samples_are_named(make: Callable[..., DataLoader], root: Path) -> None:
    dataset = ImageFolder(root, EVAL)
    data = photo(root, 4).read_bytes()
    start = data.rindex(b"\xff\xda")
    photo(root, 4).write_bytes(data[: start + 14 + (len(data) - start) // 20])  # the index has not noticed
    loader = make(dataset, cache="ram", cache_bytes=ROOM, on_error="skip")
    for _ in range(2):
        assert sum(len(target) for _, target in loader) == N - 1
    photo(root, 7).unlink()
    assert sum(len(target) for _, target in loader) == N - 2
    assert [(bad.index, bad.kind) for bad in loader.report().samples] == [(4, "truncated"), (7, "missing")]
    strict = make(dataset, cache="ram", cache_bytes=ROOM)
    with pytest.raises(SampleError, match=r"truncated|missing"):
        list(strict)


def test_an_image_of_another_size_is_named(make: Callable[..., DataLoader], root: Path) -> None:
    dataset = ImageFolder(root, EVAL)
    loader = make(dataset, cache="ram", cache_bytes=ROOM, shuffle=False)
    list(loader)
    shutil.copyfile(photo(root, 1), photo(root, 0))
    with pytest.raises(SampleError, match="changed"):
        list(loader)


def test_upright_images_are_others(make: Callable[..., DataLoader], root: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 3  # a half turn, which keeps the size
    with Image.open(photo(root, 2)) as image:
        image.save(photo(root, 2), quality=90, exif=turned)
    for exif in (False, True, False):
        dataset = ImageFolder(root, EVAL, exif=exif)
        wanted = list(make(dataset, shuffle=False))
        assert same(list(make(dataset, shuffle=False, cache="disk", cache_bytes=ROOM)), wanted)


def test_rows_of_large_files(make: Callable[..., DataLoader], root: Path, folders: Any) -> None:
    dataset = WebDataset(write_tars(root), TRAIN)
    plain, cached = make(dataset), make(dataset, cache="disk", cache_bytes=ROOM)
    for _ in range(2):
        assert same(list(cached), list(plain))
    assert len(kept(folders["disk"])) == N


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_no_more_than_the_budget(make: Callable[..., DataLoader], root: Path, folders: Any, share: float) -> None:
    dataset, room = ImageFolder(root, TRAIN), int(DECODED * share)
    plain, cached = make(dataset), make(dataset, cache="disk", cache_bytes=room)
    before: list[Path] = []
    for _ in range(3):
        assert same(list(cached), list(plain))
        files = kept(folders["disk"])
        held = sum(path.stat().st_size for path in files)
        most = room if cached.num_workers == 0 or cached.engine == "dali" else room * 1.3  # several processes
        assert room * 0.8 < held <= most
        assert set(before) <= set(files)  # what is there stays
        before = files
    assert f"{len(before)} decoded images" in repr(cached)
    assert f"{len(before)} decoded images" in " ".join(cached.report().remarks)


def test_what_nobody_reads_makes_place(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path / "cache"), 1000, unused=3600)
    block = bytes(range(100))
    for i in range(12):
        cache.put(b"%d" % i, 1, 0, block)
    assert cache.held() == (1000, 10)
    files = sorted(kept(tmp_path), key=lambda path: path.stat().st_mtime_ns)
    for path in files[:5]:
        os.utime(path, (0, 0))
    view = np.empty(100, np.uint8)
    assert cache.read(b"0", 1, 0, 0, view)  # it is in use again
    assert view.tobytes() == block
    other = BlockCache(str(tmp_path / "cache"), 1000, unused=3600)
    other.put(b"new", 1, 0, block)
    assert other.read(b"new", 1, 0, 0, view)
    assert other.read(b"0", 1, 0, 0, view)
    assert other.held()[1] < 10


SCRIPT = """
    import json, os, sys, time
    from gpupipe import DataLoader
    from gpupipe.datasets import ImageFolder
    from gpupipe.reading import decoded_cache
    from support import EVAL
    decoded_cache._SHM = {shm!r}
    if __name__ == "__main__":
        loader = DataLoader(ImageFolder({root!r}, EVAL), batch_size=5, cache={kind!r}, cache_bytes=10_000_000,
                            device="cpu", engine={engine!r}, num_workers=2)
        total = sum(float(images.sum()) for images, _ in loader)
        print(json.dumps(total), flush=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
"""


@pytest.mark.parametrize(("kind", "engine"), [("ram", "dali"), ("disk", "torch")])
def test_other_processes_find_it_and_memory_ends_with_the_last(
    kind: str, engine: str, root: Path, tmp_path: Path, folders: Any, warm: Interpreter
) -> None:
    script = textwrap.dedent(SCRIPT).format(shm=str(tmp_path / "shm"), root=str(root), kind=kind, engine=engine)

    def start(name: str) -> Script:
        return warm.start(tmp_path / name, code=script)

    def end(name: str, process: Script) -> None:
        (tmp_path / name).touch()
        assert process.wait(60) == 0, process.stderr

    with start("first") as first, start("second") as second:
        totals = [json.loads(process.line()) for process in (first, second)]
        files = {path: path.stat().st_mtime_ns for path in kept(folders[kind])}
        assert len(files) == N
        assert totals[0] == totals[1] == plain_sum(root, engine)
        end("first", first)
        assert len(kept(folders[kind])) == N  # the second still uses it
        with start("third") as third:
            assert json.loads(third.line()) == totals[0]
            end("third", third)
        assert {path: path.stat().st_mtime_ns for path in kept(folders[kind])} == files
        end("second", second)
    assert len(kept(folders[kind])) == (0 if kind == "ram" else N)


def plain_sum(root: Path, engine: Any) -> float:
    with DataLoader(ImageFolder(root, EVAL), batch_size=5, device="cpu", engine=engine) as loader:
        return sum(float(images.sum()) for images, _ in loader)


def test_what_is_refused(root: Path, numbered: Path) -> None:
    files = [p.read_bytes() for p in sorted(numbered.rglob("*.jpg"))]
    dataset = ImageFolder(root, EVAL)
    for arguments, words in (
        ({"cache": "tape", "cache_bytes": ROOM}, 'must be "ram", "disk"'),
        ({"cache": "ram"}, "give both or neither"),
        ({"cache_bytes": ROOM}, "give both or neither"),
        ({"cache": "ram", "cache_bytes": 0}, "cache_bytes must be an integer of at least 1"),
        ({"cache": "ram", "cache_bytes": 97 * 66 * 3 - 1}, "cannot hold the largest image, which has 19206 bytes"),
        ({"cache": "ram", "cache_bytes": 1 << 60}, "take less"),
        ({"cache": "ram", "cache_bytes": ROOM, "engine": "null"}, "null engine"),
        ({"cache": "ram", "cache_bytes": ROOM, "batch_size": None, "engine": "auto"}, "leave it out|cannot do this"),
    ):
        with pytest.raises(ConfigError, match=words):
            DataLoader(dataset, device="cpu", **{"engine": "torch", **arguments})
    arrays, own = (
        Arrays(pictures(), range(N), transform=EVAL),
        from_torch(Encoded(files), media="bytes", transform=EVAL),
    )
    for other in (arrays, own):
        with pytest.raises(ConfigError, match="leave it out"):
            DataLoader(other, device="cpu", cache="ram", cache_bytes=ROOM)
    with pytest.raises(ConfigError, match="torch's own loader has no such thing"):
        DataLoader([1, 2, 3], device="cpu", cache="ram", cache_bytes=ROOM)


def test_it_is_kept_by_an_engine_that_goes_on(make: Callable[..., DataLoader], root: Path) -> None:
    loader = make(ImageFolder(root, TRAIN), cache="ram", cache_bytes=ROOM)
    list(loader)
    engine = native_session(loader).running.engine
    list(loader)
    assert native_session(loader).running.engine is engine
