"""Decoded images that are kept: the same pixels, of the file as it is now, within a budget, for all processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import os
import re
import resource
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreter import Interpreter, Script
from PIL import Image
from rich.filesize import decimal
from support import EVAL, SIZES, TRAIN, Case, N, cut_pixels, native_session, pictures, same, write_tars
from xxhash import xxh3_64_intdigest

from gpupipe import DataLoader, SampleError, memory, system, transforms as T
from gpupipe.datasets import Arrays, ImageFolder, Subset, WebDataset
from gpupipe.datasets.dataset import Dataset
from gpupipe.errors import ConfigError
from gpupipe.reading import kept as kept_images
from gpupipe.sources.remote import block_cache
from gpupipe.sources.remote.block_cache import BlockCache, bytes_kept
from gpupipe.sources.remote.memory_cache import MemoryCache

ROOM = 10_000_000
"""Bytes: more than all images here take."""
DECODED = sum(bytes_kept(SIZES[i % len(SIZES)][0] * SIZES[i % len(SIZES)][1] * 3) for i in range(N))
"""Bytes of the files that keep them."""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Where images are kept in a test."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_images, "_SHM", str(tmp_path / "shm"))
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


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def swap(path: Path, other: Path) -> None:
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


KINDS = {False: BlockCache, True: MemoryCache}
DAMAGES = {
    "flipped": lambda files: [flip(path) for path in files],
    "zeroed": lambda files: [zero(path) for path in files],
    "cut": lambda files: [cut(path) for path in files],
    "swapped": lambda files: [swap(*pair) for pair in zip(files[::2], files[1::2], strict=True)],
}


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
    cut_pixels(photo(root, 4))
    loader = make(dataset, cache="ram", cache_bytes=ROOM, on_error="skip")
    for _ in range(2):
        assert sum(len(target) for _, target in loader) == N - 1
    photo(root, 7).unlink()
    assert sum(len(target) for _, target in loader) == N - 2
    assert [(bad.index, bad.kind) for bad in loader.report().samples] == [(4, "truncated"), (7, "missing")]
    strict = make(dataset, cache="ram", cache_bytes=ROOM)
    with pytest.raises(SampleError, match=r"truncated|missing"):
        list(strict)


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damaged_byte_is_delivered(make: Callable[..., DataLoader], root: Path, folders: Any, damage: str) -> None:
    def delivered() -> Any:  # by a loader that has read nothing ahead, and reads no more
        loader = make(ImageFolder(root, EVAL), cache="disk", cache_bytes=ROOM, shuffle=False)
        with contextlib.closing(loader):
            return list(loader)

    plain = delivered()
    before = {path: path.read_bytes() for path in kept(folders["disk"])}
    DAMAGES[damage](list(before)[: N // 2 * 2])
    assert before != {path: path.read_bytes() for path in kept(folders["disk"])}
    assert same(delivered(), plain)
    assert before == {path: path.read_bytes() for path in kept(folders["disk"])}  # they were decoded again


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("length", [1, 100, 65536, 65537, 200_000])
@pytest.mark.parametrize("in_memory", [False, True])
def test_every_part_of_a_block_is_checked(tmp_path: Path, damage: str, length: int, in_memory: bool) -> None:
    cache = KINDS[in_memory](str(tmp_path / "cache"), 10**7)
    blocks = [np.random.default_rng(i).bytes(length) for i in range(2)]
    for i, block in enumerate(blocks):
        cache.put(b"block", 1, i, block)
    files = kept(tmp_path)
    assert [path.stat().st_size for path in files] == [bytes_kept(length)] * 2
    for start, n in ((0, length), (length // 2, length - length // 2), (length - 1, 1), (0, length // 2)):
        found = cache.read(b"block", 1, 0, start, n)
        assert found is not None
        assert found.tobytes() == blocks[0][start : start + n]
    assert cache.read(b"block", 1, 0, 1, length) is None  # behind its end, which is no damage
    cache.put(b"block", 1, 0, blocks[0])
    time.sleep(0.02)  # older kernels count inode change times in ticks
    DAMAGES[damage](files)
    for i in range(2):
        assert cache.read(b"block", 1, i, 0, length) is None
    assert not kept(tmp_path)


def test_a_part_that_is_not_damaged_is_used(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path / "cache"), 10**7)
    block = np.random.default_rng(0).bytes(200_000)
    cache.put(b"block", 1, 0, block)
    flip(kept(tmp_path)[0])  # in the second part of four
    assert content(cache, b"block", 150_000) == block[150_000:150_100]
    assert content(cache, b"block", 70_000) is None


@pytest.mark.parametrize("in_memory", [False, True])
def test_blocks_in_memory_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool) -> None:
    cache = KINDS[in_memory](str(tmp_path / "cache"), 10**7)
    block = np.random.default_rng(0).bytes(200_000)
    cache.put(b"block", 1, 0, block)
    checked = list[int]()

    def counted(part: bytes, seed: int) -> int:
        checked.append(seed)
        return xxh3_64_intdigest(part, seed=seed)

    monkeypatch.setattr(block_cache, "xxh3_64_intdigest", counted)
    parts = []
    for start in (0, 65_500, 65_536, 199_900, 131_000):  # some of them in two parts
        assert content(cache, b"block", start) == block[start : start + 100]
        parts.append(len(checked))
    assert parts == ([4] * 5 if in_memory else [1, 3, 4, 5, 7])


@pytest.mark.parametrize("most_maps", [0, 8])
def test_blocks_in_memory_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_maps: int) -> None:
    monkeypatch.setattr(system, "most_maps", lambda: most_maps)
    cache = MemoryCache(str(tmp_path / "cache"), 10**7, unused=3600)
    blocks = [np.random.default_rng(i).bytes(100_000) for i in range(4)]
    for i, block in enumerate(blocks):
        cache.put(b"block", 1, i, block)
    before: dict[int, Any] = {}
    for i, block in [*enumerate(blocks)] * 2:
        found = cache.read(b"block", 1, i, 10, 90_000)
        assert found is not None and found.tobytes() == block[10:90_010]
        assert not found.flags.writeable
        if i in before:
            assert np.shares_memory(found, before[i]) == (i < most_maps // 4)
        before[i] = found
    for path in kept(tmp_path):
        os.utime(path, (0, 0))
    assert cache.read(b"block", 1, 0, 0, 1) is not None
    used = {path.name[-7]: path.stat().st_mtime > 0 for path in kept(tmp_path)}
    assert used == {"0": True, "1": False, "2": False, "3": False}
    os.truncate(next(path for path in kept(tmp_path) if path.name[-7] == "3"), 0)
    assert cache.read(b"block", 1, 3, 0, 1) is None and len(kept(tmp_path)) == 3  # removed, as a damaged one
    assert cache.forget(b"block", 1, 0)
    assert cache.read(b"block", 1, 0, 10, 90_000) is None
    assert before[0].tobytes() == blocks[0][10:90_010]  # as long as anyone has it
    cache.put(b"block", 1, 0, blocks[1])
    found = cache.read(b"block", 1, 0, 0, 100_000)
    assert found is not None and found.tobytes() == blocks[1]


def mapped(folder: Path) -> list[str]:
    """Permissions of this process's maps of files in a folder."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[1] for line in lines if str(folder) in line]


def test_maps_cost_neither_open_files_nor_memory_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = [MemoryCache(str(tmp_path / "cache"), limit) for limit in (10**7, 10**8)]
    for i in range(8):
        caches[0].put(b"block", 1, i, bytes(10_000))
    before = len(os.listdir("/proc/self/fd"))
    for cache in caches:
        for i in range(8):
            cache.read(b"block", 1, i, 0, 1)
    assert len(os.listdir("/proc/self/fd")) == before
    assert mapped(tmp_path) == ["r--s"] * 8  # once, although two loaders have other limits
    for path in kept(tmp_path)[::2]:
        path.unlink()
    caches[1]._trim()
    assert len(mapped(tmp_path)) == 4
    view = caches[1].read(b"block", 1, next(i for i in range(8) if caches[1].has(b"block", 1, i)), 0, 1)
    memory.release()
    assert len(mapped(tmp_path)) == 1
    assert view is not None and view.tolist() == [0]
    del view
    gc.collect()
    assert not mapped(tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (10**12, 10**12))
    assert [caches[0].has(b"block", 1, i) for i in range(8)] == [
        caches[0].read(b"block", 1, i, 0, 1) is not None for i in range(8)
    ]
    gc.collect()
    assert not mapped(tmp_path)


def test_blocks_are_on_the_disk_before_they_have_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (calls.append(name), real(*a)))
    BlockCache(str(tmp_path / "cache"), 10**6).put(b"block", 1, 0, b"bytes")
    assert calls == ["fsync", "replace"]


def test_too_many_open_files_stop_no_later_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlockCache(str(tmp_path / "cache"), 1000, unused=3600)
    cache.put(b"first", 1, 0, bytes(100))

    def no_more(*arguments: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_more)
        for i in range(20):
            cache.put(b"%d" % i, 1, 0, bytes(100))
    cache.put(b"last", 1, 0, bytes(100))
    assert cache.held()[1] == 2


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EWOULDBLOCK])
def test_without_locks_the_budget_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    cache = BlockCache(str(tmp_path / "cache"), 10 * bytes_kept(100))
    for i in range(30):
        cache.put(b"%d" % i, 1, 0, bytes(100))
    # With a lock of another process, that process removes the blocks.
    assert (cache.held()[1] <= 10) == (code != errno.EWOULDBLOCK)


def test_a_file_with_the_size_and_time_of_another(make: Callable[..., DataLoader], root: Path) -> None:
    dataset = ImageFolder(root, EVAL)
    loader = make(dataset, cache="disk", cache_bytes=ROOM, shuffle=False)
    before, then = list(loader), photo(root, 2).stat()
    with Image.open(photo(root, 2)) as image:
        image.transpose(Image.Transpose.ROTATE_180).save(photo(root, 2), quality=1)
    with photo(root, 2).open("ab") as file:
        file.write(bytes(then.st_size - photo(root, 2).stat().st_size))
    os.utime(photo(root, 2), ns=(then.st_atime_ns, then.st_mtime_ns))
    after = list(loader)
    assert not same(after, before)
    assert same(after, list(make(dataset, shuffle=False)))


@pytest.mark.parametrize("below", ["", "decoded"])
@pytest.mark.parametrize("wrong", ["a file", "a link", "open to others", "another user's"])
def test_a_folder_in_memory_that_is_not_ours(
    wrong: str, below: str, root: Path, folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = folders["ram"].parent
    path = base / below
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if wrong == "a file":
        path.write_text("")
    elif wrong == "a link":
        path.symlink_to(root)
    else:
        path.mkdir()
        path.chmod(0o777 if wrong == "open to others" else 0o700)
    words = {"a file": "not a folder", "a link": "is a link", "open to others": "others may write"}
    if wrong == "another user's":
        real = os.lstat
        odd = lambda p: os.stat_result((*real(p)[:4], 12345, *real(p)[5:])) if str(p) == str(path) else real(p)  # noqa: E731
        monkeypatch.setattr(os, "lstat", odd)
    with pytest.raises(ConfigError, match=words.get(wrong, "belongs to user 12345")):
        DataLoader(ImageFolder(root, EVAL), device="cpu", engine="torch", cache="ram", cache_bytes=ROOM)


def test_memory_is_chosen(root: Path, folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen() -> str:
        kept_images._chosen_budget.cache_clear()
        with DataLoader(ImageFolder(root, EVAL), batch_size=5, device="cpu", engine="torch", cache="ram") as loader:
            list(loader)
            return repr(loader)

    monkeypatch.setattr(system, "shm_free", lambda: 2_000_000)
    assert f"{decimal(DECODED)} of 1.0 MB in memory" in chosen()
    monkeypatch.setattr(system, "shm_free", lambda: 100_000)
    shutil.rmtree(folders["ram"])
    assert "of 50.0 kB in memory" in chosen()


def test_a_smaller_dataset_is_kept_beside_a_larger_one(root: Path, folders: Any, tmp_path: Path) -> None:
    file = photo(root, 0)
    few = tmp_path / "few" / "a"
    few.mkdir(parents=True)
    shutil.copyfile(file, few / file.name)
    with (
        DataLoader(ImageFolder(few.parent, EVAL), device="cpu", engine="torch", cache="ram") as one,
        DataLoader(ImageFolder(root, EVAL), batch_size=5, device="cpu", engine="torch", cache="ram") as many,
    ):
        list(many)
        before = re.findall(r"cache: (\d+) decoded images", repr(many))
        list(one)
        assert re.findall(r"cache: (\d+) decoded images", repr(one)) == [str(int(before[0]) + 1)]


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


def content(cache: BlockCache, url: bytes, start: int = 0, length: int = 100) -> bytes | None:
    found = cache.read(url, 1, 0, start, length)
    return None if found is None else found.tobytes()


def test_what_nobody_reads_makes_place(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path / "cache"), 10 * bytes_kept(100), unused=3600)
    block = bytes(range(100))
    for i in range(12):
        cache.put(b"%d" % i, 1, 0, block)
    assert cache.held() == (10 * bytes_kept(100), 10)
    files = sorted(kept(tmp_path), key=lambda path: path.stat().st_mtime_ns)
    for path in files[:5]:
        os.utime(path, (0, 0))
    assert content(cache, b"0") == block  # it is in use again
    other = BlockCache(str(tmp_path / "cache"), 10 * bytes_kept(100), unused=3600)
    other.put(b"new", 1, 0, block)
    assert content(other, b"new") == block
    assert content(other, b"0") == block
    assert other.held()[1] < 10


SCRIPT = """
    import json, os, sys, time
    from gpupipe import DataLoader
    from gpupipe.datasets import ImageFolder
    from gpupipe.reading import kept as kept_images
    from support import EVAL
    kept_images._SHM = {shm!r}
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


def test_what_is_refused(root: Path) -> None:
    dataset = ImageFolder(root, EVAL)
    for arguments, words in (
        ({"cache": "tape", "cache_bytes": ROOM}, 'must be "ram", "disk"'),
        ({"cache": "disk"}, "the number of bytes"),
        ({"cache_bytes": ROOM}, "which says where"),
        ({"cache": "ram", "cache_bytes": 0}, "cache_bytes must be an integer of at least 1"),
        ({"cache": "ram", "cache_bytes": 97 * 66 * 3 + 7}, "cannot hold the largest image, which has 19214 bytes"),
        ({"cache": "ram", "cache_bytes": 1 << 60}, "take less"),
        ({"cache": "ram", "cache_bytes": ROOM, "engine": "null"}, "null engine"),
        ({"cache": "ram", "cache_bytes": ROOM, "batch_size": None, "engine": "auto"}, "leave it out|cannot do this"),
    ):
        with pytest.raises(ConfigError, match=words):
            DataLoader(dataset, device="cpu", **{"engine": "torch", **arguments})
    with pytest.raises(ConfigError, match="leave it out"):
        DataLoader(Arrays(pictures(), range(N), transform=EVAL), device="cpu", cache="ram", cache_bytes=ROOM)


def test_it_is_kept_by_an_engine_that_goes_on(make: Callable[..., DataLoader], root: Path) -> None:
    loader = make(ImageFolder(root, TRAIN), cache="ram", cache_bytes=ROOM)
    list(loader)
    engine = native_session(loader).running.engine
    list(loader)
    assert native_session(loader).running.engine is engine
