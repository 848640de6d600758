"""Every format behind a network is what it is on this machine; and a store that fails, cuts, refuses or changes loses
nothing, repeats nothing, and is named."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_cases import CASES, Case, write_tar
from store import BUCKET, PAGE, SECRET, Asked, Fault, Store
from support import TRAIN, N, all_seen, cpu_loader as loader, same

from gpupipe.codecs.files import Undecodable
from gpupipe.datasets import ImageFolder, Manifest, Remote, WebDataset
from gpupipe.errors import ConfigError, DatasetError
from gpupipe.sources.remote import clients
from gpupipe.sources.remote.block_cache import BlockCache
from gpupipe.sources.remote.files import _connections

pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")

REMOTE = [name for name, it in CASES.items() if "remote" in inspect.signature(it.format).parameters]
ENGINES = ("torch", "dali")
FETCHES = ("blocks", "samples")


@pytest.fixture(scope="module")
def folder_batches(numbered: Path) -> dict[str, list[Any]]:
    found = {}
    for engine in ENGINES:
        with loader(ImageFolder(numbered, TRAIN), engine) as it:
            found[engine] = list(it)
    return found


def upload(s3: Store, folder: Path, below: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            s3.objects[f"{below}/{path.relative_to(folder)}"] = path.read_bytes()


def tars(s3: Store, images: list[bytes], folder: Path) -> str:
    """The images in two tar files of the bucket; what WebDataset takes."""
    folder.mkdir(exist_ok=True)
    write_tar(images, folder)
    upload(s3, folder, f"{BUCKET}/data")
    return f"s3://{BUCKET}/data/{{000..001}}.tar"


def cache_of(dataset: Any) -> BlockCache:
    return _connections(dataset.source.storage._options).cache


def spoil(dataset: Any, s3: Store) -> None:
    """The pixels of a sample were damaged before the blocks that they are in got their sums."""
    cache, place = cache_of(dataset), dataset.place(3)
    data = bytearray(s3.objects[os.fsdecode(place.path).removeprefix("s3://")])
    data[place.offset : place.offset + place.length] = bytes(place.length)
    for k in range(place.offset // 4096, -(-(place.offset + place.length) // 4096)):
        cache.put(place.path, place.version, k, data[k * 4096 : (k + 1) * 4096])


def everything(dataset: Any) -> list[bytes]:
    return [dataset.fetch(i)[0] for i in range(len(dataset))]


def open_at(format: Case, given: Any, folder: Path, url: str, remote: Remote) -> Any:
    """What was written to ``folder`` on this machine, and lies below ``url`` now."""
    if format.kind == "Manifest":
        return Manifest(given, TRAIN, root=url, remote=remote)
    where = str(given).replace(str(folder), url)
    if Path(given).is_dir():
        where = f"{where}/"
    return format.open(where, TRAIN, remote=remote)


@pytest.mark.part("fetch", "name", of=5)
@pytest.mark.parametrize("fetch", FETCHES)
@pytest.mark.parametrize("name", REMOTE)
def test_a_format_behind_s3_is_the_folder(
    name: str, fetch: Any, s3: Store, images: list[bytes], tmp_path: Path, folder_batches: dict[str, list[Any]]
) -> None:
    format, folder = CASES[name], tmp_path / "data"
    folder.mkdir()
    given = format.write(images, folder)
    upload(s3, folder, f"{BUCKET}/data")
    if name != "manifest":
        for path in folder.rglob("*"):
            path.is_file() and path.unlink()
    remote = Remote(fetch=fetch, cache_folder=tmp_path / "blocks", block_bytes=4096)
    dataset = open_at(format, given, folder, f"s3://{BUCKET}/data", remote)
    assert everything(dataset) == images
    assert np.array_equal(dataset.labels, np.arange(N))
    assert dataset.index_summary().bad == ()
    assert dataset.describe(3).startswith(f"s3://{BUCKET}/data/")
    for engine in ENGINES:
        with loader(dataset, engine) as it:
            assert same(list(it), folder_batches[engine])


@pytest.mark.parametrize("engine", ENGINES)
def test_http_is_read_by_ranges(
    engine: str, s3: Store, images: list[bytes], tmp_path: Path, folder_batches: dict[str, list[Any]]
) -> None:
    write_tar(images, tmp_path)
    upload(s3, tmp_path, "public")
    dataset = WebDataset(
        f"{s3.url}/public/{{000..001}}.tar", TRAIN, remote=Remote(fetch="samples", cache_folder=tmp_path)
    )
    s3.asked.clear()
    with loader(dataset, engine, shuffle=False, persistent_workers=False) as it:  # nothing of the next epoch
        assert all_seen(it) == list(range(N))
    assert s3.counts()["GET"] < N  # neighbors come together
    assert s3.bytes_asked() < 2 * sum(map(len, images))


@pytest.mark.parametrize("lacks", ["ranges", "versions"])
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_store_that_lacks_ranges_or_versions_is_refused(
    kind: str, lacks: str, s3: Store, images: list[bytes], tmp_path: Path, remote: Remote
) -> None:
    given = tars(s3, images, tmp_path / "data")
    upload(s3, tmp_path / "data", "public")
    if lacks == "ranges":
        s3.ranges = False
    else:
        s3.etags = s3.dates = False
    said = "the store ignores ranges" if lacks == "ranges" else "the store sends neither ETag nor Last-Modified"
    with pytest.raises(DatasetError, match=f"{said}.*copy"):
        WebDataset(given if kind == "s3" else f"{s3.url}/public/{{000..001}}.tar", remote=remote)


class TestNames:
    @pytest.fixture
    def shards(self, s3: Store, images: list[bytes], tmp_path: Path) -> list[str]:
        """More than one answer to a question for names holds."""
        write_tar(images, tmp_path)
        content = (tmp_path / "000.tar").read_bytes()
        names = [f"data/train-{k:03d}.tar" for k in range(16)]
        for name in names:
            s3.objects[f"{BUCKET}/{name}"] = content
        s3.objects |= {f"{BUCKET}/data/other.txt": b"", f"{BUCKET}/data/deeper/train-000.tar": content}
        return names

    @pytest.mark.parametrize("given", ["data/train-{000..015}.tar", "data/train-*.tar", "data/"])
    def test_braces_patterns_and_folders(self, shards: list[str], s3: Store, given: str, remote: Remote) -> None:
        dataset = WebDataset(f"s3://{BUCKET}/{given}", remote=remote)
        each = len(dataset) // 16
        assert [dataset.describe(k * each).partition(":0")[0] for k in range(16)] == [
            f"s3://{BUCKET}/{name}" for name in shards
        ]

    @pytest.mark.parametrize(
        "given", ["data/train-*.tar", "data/train-00*.tar", "data/train-000.tar*", "data/*rain-*.tar"]
    )
    def test_a_pattern_asks_for_names_that_begin_so(
        self, shards: list[str], s3: Store, given: str, remote: Remote
    ) -> None:
        s3.objects |= {f"{BUCKET}/data/{letter}{k:03d}.txt": b"" for letter in "az" for k in range(200)}
        s3.asked.clear()
        dataset = WebDataset(f"s3://{BUCKET}/{given}", remote=remote)
        expected = {"data/train-*.tar": 16, "data/train-00*.tar": 10, "data/train-000.tar*": 1, "data/*rain-*.tar": 16}
        assert dataset._index.containers == expected[given]
        lists = sum(asked.path.strip("/") == BUCKET for asked in s3.asked)
        assert lists > 400 / PAGE if given == "data/*rain-*.tar" else lists < 40

    @pytest.mark.parametrize(("given", "deep"), [("data/", False), ("data/*.tar", False), ("*/train-*.tar", True)])
    def test_folders_below_are_listed_if_they_are_asked_for(
        self, shards: list[str], s3: Store, given: str, deep: bool, remote: Remote
    ) -> None:
        s3.objects |= {f"{BUCKET}/data/deeper/{k:03d}.txt": b"" for k in range(400)}
        s3.asked.clear()
        assert WebDataset(f"s3://{BUCKET}/{given}", remote=remote)._index.containers == 16
        lists = sum(asked.path.strip("/") == BUCKET for asked in s3.asked)
        assert (lists > 400 / PAGE) == deep

    @pytest.mark.parametrize("given", ["data/none-*.tar", "nothing/"])
    def test_what_matches_nothing(self, shards: list[str], given: str, remote: Remote) -> None:
        with pytest.raises(DatasetError, match="no file"):
            WebDataset(f"s3://{BUCKET}/{given}", remote=remote)

    def test_what_is_missing(self, shards: list[str], remote: Remote) -> None:
        with pytest.raises(DatasetError, match=r"train-099.tar cannot be used: No such file"):
            WebDataset(f"s3://{BUCKET}/data/train-099.tar", remote=remote)

    def test_files_and_urls_do_not_mix(self, s3: Store, tmp_path: Path, remote: Remote) -> None:
        with pytest.raises(DatasetError, match="make two datasets"):
            WebDataset([f"s3://{BUCKET}/a.tar", str(tmp_path / "b.tar")], remote=remote)

    @pytest.mark.parametrize("url", ["s3://key:secret@bucket/a.tar", "https://host/a.tar?X-Amz-Signature=5ec"])
    def test_a_password_in_a_url_is_refused_and_not_repeated(self, url: str) -> None:
        with pytest.raises(DatasetError, match="credentials") as caught:
            WebDataset(url)
        assert "secret" not in str(caught.value)
        assert "5ec" not in str(caught.value)


def now_and_then(kinds: tuple[Fault, ...], share: float, seed: int = 3) -> Callable[[Asked], Fault]:
    chance = random.Random(seed)
    return lambda asked: chance.choice(kinds) if chance.random() < share else "none"


@pytest.mark.parametrize("fetch", FETCHES)
@pytest.mark.parametrize("engine", ENGINES)
def test_requests_that_fail_lose_nothing_and_repeat_nothing(
    engine: str, fetch: Any, s3: Store, images: list[bytes], tmp_path: Path, folder_batches: dict[str, list[Any]]
) -> None:
    s3.fault = now_and_then(("500", "503", "cut", "reset"), share=0.2)
    remote = Remote(fetch=fetch, cache_folder=tmp_path / "blocks", block_bytes=4096)
    dataset = WebDataset(tars(s3, images, tmp_path / "data"), TRAIN, remote=remote)
    with loader(dataset, engine) as it:
        assert same(list(it), folder_batches[engine])
        assert it.report().samples == []


def test_a_store_that_is_slow_is_asked_many_at_a_time(s3: Store, images: list[bytes], tmp_path: Path) -> None:
    remote = Remote(fetch="samples", cache_folder=tmp_path / "blocks", connections=4)
    dataset = WebDataset(tars(s3, images, tmp_path / "data"), TRAIN, remote=remote)
    s3.delay, s3.most_at_once = 0.02, 0
    with loader(dataset, "dali") as it:
        assert sorted(all_seen(it)) == list(range(N))
    assert 1 < s3.most_at_once <= 4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("fault", "kind", "says"), [("404", "missing", "No such file"), ("403", "unreadable", "access")]
)
def test_what_stays_wrong_makes_bad_samples_with_names(
    fault: Fault, kind: str, says: str, engine: str, s3: Store, images: list[bytes], tmp_path: Path, remote: Remote
) -> None:
    dataset = WebDataset(tars(s3, images, tmp_path / "data"), TRAIN, remote=remote)
    for path in (tmp_path / "blocks").rglob("*.block"):
        path.unlink()
    s3.fault = lambda asked: fault if asked.path.endswith("000.tar") else "none"
    with loader(dataset, engine, on_error="skip") as it:
        labels = all_seen(it)
        bad = it.report().samples
    assert sorted(labels) == list(range(11, N))
    assert sorted(b.index for b in bad) == list(range(11))
    assert {b.kind for b in bad} == {kind}
    assert all(says in b.reason and b.path == dataset.describe(b.index) for b in bad)


def test_an_object_that_changes_is_read_anew(s3: Store, images: list[bytes], tmp_path: Path, remote: Remote) -> None:
    given = tars(s3, images, tmp_path / "data")
    first = WebDataset(given, remote=remote)
    assert everything(first) == images
    assert not WebDataset(given, remote=remote)._index.built
    tars(s3, images[::-1], tmp_path / "data")
    second = WebDataset(given, remote=remote)
    assert second._index.built
    assert everything(second) == images[::-1]


@pytest.mark.parametrize("fetch", FETCHES)
@pytest.mark.parametrize(("etags", "dates"), [(True, True), (True, False), (False, True)])
class TestReplacedByOneOfTheSameSize:
    """With another order of images of equal length, so that only headers or bytes show it."""

    @pytest.fixture
    def images(self, images: list[bytes]) -> list[bytes]:
        longest = max(map(len, images))
        return [image.ljust(longest, b"\0") for image in images]

    @pytest.fixture
    def url(self, s3: Store, images: list[bytes], tmp_path: Path, etags: bool, dates: bool) -> str:
        s3.etags, s3.dates = etags, dates
        folder = tmp_path / "data"
        folder.mkdir()
        write_tar(images, folder)
        upload(s3, folder, "public")
        return f"{s3.url}/public/{{000..001}}.tar"

    def replace(self, s3: Store, images: list[bytes], folder: Path) -> None:
        old = dict(s3.objects)
        write_tar(images[::-1], folder)
        upload(s3, folder, "public")
        assert {name: len(data) for name, data in old.items()} == {n: len(d) for n, d in s3.objects.items()}
        s3.modified = dict.fromkeys(old, 5)

    def test_between_two_runs(self, url: str, s3: Store, images: list[bytes], tmp_path: Path, fetch: Any) -> None:
        remote = Remote(fetch=fetch, cache_folder=tmp_path / "blocks", block_bytes=4096)
        assert everything(WebDataset(url, remote=remote)) == images
        self.replace(s3, images, tmp_path / "data")
        second = WebDataset(url, remote=remote)
        assert everything(second) == images[::-1]
        assert second.index_summary().bad == ()

    def test_during_a_run(self, url: str, s3: Store, images: list[bytes], tmp_path: Path, fetch: Any) -> None:
        remote = Remote(fetch=fetch, cache_folder=tmp_path / "blocks", block_bytes=4096)
        dataset = WebDataset(url, TRAIN, remote=remote)
        for path in (tmp_path / "blocks").rglob("*.block"):
            path.unlink()
        self.replace(s3, images, tmp_path / "data")
        for i in range(N):
            with pytest.raises(Undecodable, match="has changed since it was indexed"):
                dataset.fetch(i)


@pytest.mark.parametrize("fetch", FETCHES)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_object_that_becomes_shorter_makes_bad_samples(
    engine: str, fetch: Any, s3: Store, images: list[bytes], tmp_path: Path
) -> None:
    remote = Remote(fetch=fetch, cache_folder=tmp_path / "blocks", block_bytes=4096)
    dataset: Any = WebDataset(tars(s3, images, tmp_path / "data"), TRAIN, remote=remote)
    for path in (tmp_path / "blocks").rglob("*.block"):
        path.unlink()
    cut = dataset.place(17).offset
    s3.objects[f"{BUCKET}/data/001.tar"] = s3.objects[f"{BUCKET}/data/001.tar"][:cut]
    with loader(dataset, engine, on_error="skip") as it:
        labels, bad = all_seen(it), it.report().samples
    assert sorted(labels) == list(range(11))
    assert sorted((b.index, b.kind) for b in bad) == [(i, "unreadable") for i in range(11, N)]
    assert all("has changed since it was indexed" in b.reason for b in bad)


class TestBlocks:
    def test_an_epoch_asks_for_each_byte_once_and_the_next_one_for_none(
        self, s3: Store, images: list[bytes], tmp_path: Path, remote: Remote
    ) -> None:
        dataset = WebDataset(tars(s3, images, tmp_path / "data"), TRAIN, remote=remote)
        with loader(dataset, "torch") as it:
            list(it)
            total = sum(len(data) for data in s3.objects.values())
            assert s3.bytes_asked() < total + 2 * 4096
            s3.asked.clear()
            list(it)
        assert s3.counts() == {}

    def test_another_process_uses_them(self, s3: Store, images: list[bytes], tmp_path: Path, remote: Remote) -> None:
        dataset = WebDataset(tars(s3, images, tmp_path / "data"), remote=remote)
        assert everything(dataset) == images
        s3.asked.clear()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(_everything, (pickle.dumps(dataset),)) == images
        assert s3.counts()["GET"] == 0

    def test_they_are_bounded_and_nothing_else_is_removed(self, s3: Store, images: list[bytes], tmp_path: Path) -> None:
        limit = 64 * 4096
        (tmp_path / "blocks" / "ab").mkdir(parents=True)
        (tmp_path / "blocks" / "ab" / "thesis.txt").write_text("not ours")
        remote = Remote(fetch="blocks", cache_folder=tmp_path / "blocks", block_bytes=4096, cache_bytes=limit)
        many = images * 6
        dataset = WebDataset(tars(s3, many, tmp_path / "data"), remote=remote)
        assert everything(dataset) == many
        kept = [path.stat().st_size for path in (tmp_path / "blocks").rglob("*.block")]
        assert sum(map(len, many)) > 1.5 * limit
        assert limit // 2 < sum(kept) <= limit
        assert (tmp_path / "blocks" / "ab" / "thesis.txt").read_text() == "not ours"

    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_bad_sample_is_read_again_past_its_copy(
        self, engine: str, s3: Store, images: list[bytes], tmp_path: Path, remote: Remote
    ) -> None:
        """Bytes that were damaged before they had a sum."""
        dataset = WebDataset(tars(s3, images, tmp_path / "data"), TRAIN, remote=remote)
        spoil(dataset, s3)
        with loader(dataset, engine, shuffle=False) as it:
            assert all_seen(it) == list(range(N))
            assert not it.report().samples
        assert everything(dataset) == images

    def test_an_index_of_damaged_copies_is_made_from_the_store(
        self, s3: Store, images: list[bytes], tmp_path: Path, remote: Remote, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = tars(s3, images, tmp_path / "data")
        dataset = WebDataset(url, remote=remote)
        spoil(dataset, s3)
        dataset.reindex()
        assert dataset.index_summary().bad == ()

    @pytest.mark.parametrize("damage", ["flipped", "zeroed"])
    def test_damaged_blocks_are_loaded_again(
        self, s3: Store, images: list[bytes], tmp_path: Path, remote: Remote, damage: str
    ) -> None:
        dataset = WebDataset(tars(s3, images, tmp_path / "data"), remote=remote)
        blocks = {path: path.read_bytes() for path in (tmp_path / "blocks").rglob("*.block")}
        for path, data in blocks.items():
            path.write_bytes(bytes(len(data)) if damage == "zeroed" else bytes([data[0] ^ 1]) + data[1:])
        for _ in range(5):
            assert everything(dataset) == images
        s3.asked.clear()
        assert everything(dataset) == images
        assert s3.counts() == {}  # all of them are whole again

    def test_a_folder_that_cannot_be_written_costs_one_warning(
        self, s3: Store, images: list[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("")
        remote = Remote(fetch="blocks", cache_folder=tmp_path / "file" / "blocks", block_bytes=4096)
        assert everything(WebDataset(tars(s3, images, tmp_path / "data"), remote=remote)) == images
        assert len([r for r in caplog.records if "blocks cannot be kept" in r.message]) == 1


def _everything(sent: bytes) -> list[bytes]:
    return everything(pickle.loads(sent))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes(
    context: str, s3: Store, images: list[bytes], tmp_path: Path, folder_batches: dict[str, list[Any]]
) -> None:
    """After a fork the threads of a client are gone: it would wait for ever."""
    remote = Remote(fetch="samples", cache_folder=tmp_path / "blocks")
    dataset = WebDataset(tars(s3, images, tmp_path / "data"), TRAIN, remote=remote)
    assert dataset.fetch(0)[0] == images[0]
    with loader(dataset, "torch", num_workers=2, multiprocessing_context=context) as it:
        assert same(list(it), folder_batches["torch"])


def test_no_secret_is_kept(s3: Store, images: list[bytes], tmp_path: Path, remote: Remote) -> None:
    dataset = WebDataset(tars(s3, images, tmp_path / "data"), TRAIN, remote=remote)
    with loader(dataset, "torch") as it:
        next(iter(it))
        said = [repr(it), repr(dataset), repr(dataset.source), json.dumps(it.state_dict()), str(it.stats())]
    said += [pickle.dumps(dataset).decode("latin-1")]
    kept = [path.read_bytes() for path in Path(os.environ["GPUPIPE_CACHE"]).rglob("*") if path.is_file()]
    assert kept
    assert not any(SECRET in text for text in said)
    assert not any(SECRET.encode() in data for data in kept)


@pytest.mark.parametrize("given", ["a.tar", "*.tar"])
def test_a_network_error_says_so(given: str, remote: Remote, s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "REMOTE_WAITS", ())
    s3.fault = lambda asked: "reset"
    with pytest.raises(DatasetError, match=r"network error: .*; check the network and try again"):
        WebDataset(f"s3://{BUCKET}/{given}", remote=remote)


def test_a_scheme_that_is_no_store(remote: Remote) -> None:
    with pytest.raises(ConfigError, match=r"hdfs:// cannot be read; stores are abfs, .*, s3"):
        WebDataset("hdfs://a/b.tar", remote=remote)


class TestOptions:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"fetch": "all"}, "fetch must be one of auto, blocks, samples, not 'all'"),
            ({"connections": 0}, "connections must be an integer of at least 1"),
            ({"block_bytes": 1.5}, "block_bytes must be an integer"),
            ({"timeout": 0}, "timeout must be a number of seconds"),
            ({"fetch": "blocks", "cache_bytes": 10**6}, "less than 64 blocks"),
        ],
    )
    def test_a_wrong_one_is_refused(self, arguments: dict[str, Any], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            Remote(**arguments)

    def test_something_else_is_refused(self) -> None:
        with pytest.raises(DatasetError, match=r"remote must be gpupipe.datasets.Remote"):
            WebDataset("s3://a/b.tar", remote={"connections": 3})

    def test_local_files_start_no_client(self, images: list[bytes], tmp_path: Path) -> None:
        """Nor import one."""
        write_tar(images, tmp_path)
        code = (
            "import sys; from gpupipe.datasets import WebDataset; WebDataset(sys.argv[1]).fetch(0); "
            "print([m for m in ('obstore', 'fsspec', 'pyarrow', 'google_crc32c') if m in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
        )
        assert done.stdout.strip() in ("[]", "['fsspec']")  # torch imports fsspec
