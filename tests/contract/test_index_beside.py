"""An index that was left beside the data saves other machines from reading it, and is believed only as long as it is
right."""

from __future__ import annotations

import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from command_line import error, gpupipe
from format_cases import write_tar
from store import BUCKET, KEY, SECRET, Store

from gpupipe.datasets import ImageFolder, WebDataset
from gpupipe.errors import DatasetError
from gpupipe.sources.remote import files

SHARDS = f"s3://{BUCKET}/data/{{000..001}}.tar"


@pytest.fixture
def images(numbered: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(numbered.rglob("*.jpg"))]


@pytest.fixture
def filled(s3: Store, images: list[bytes], tmp_path: Path) -> Store:
    (tmp_path / "tars").mkdir()
    write_tar(images, tmp_path / "tars")
    for path in sorted((tmp_path / "tars").iterdir()):
        s3.objects[f"{BUCKET}/data/{path.name}"] = path.read_bytes()
    return s3


@pytest.fixture
def left(filled: Store, another: Any) -> str:
    """The name of an index beside the data; from now on this is another machine."""
    shown = gpupipe("index", SHARDS, "--beside").stdout
    (name,) = (name for name in filled.objects if name.endswith(".gpupipe-index"))
    assert f"s3://{name}" in shown.replace("\n", "")
    another()
    return name


@pytest.fixture
def another(filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Become a machine that has nothing in its caches."""
    number = iter(range(100))

    def become() -> None:
        monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / f"machine{next(number)}"))
        monkeypatch.setattr(files, "_shared", {})
        filled.asked.clear()

    return become


def asked_for_shards(s3: Store) -> Counter[str]:
    return Counter(asked.method for asked in s3.asked if asked.path.endswith(".tar"))


def samples(dataset: WebDataset) -> list[Any]:
    return [dataset.fetch(i) for i in range(len(dataset))]


def test_no_shard_is_read_where_an_index_lies_beside_them(filled: Store, left: str, images: list[bytes]) -> None:
    dataset = WebDataset(SHARDS)
    summary = dataset.index_summary()
    assert not summary.built
    assert asked_for_shards(filled) == {"HEAD": 2}
    assert samples(dataset) == [(image, i) for i, image in enumerate(images)]
    filled.asked.clear()
    assert not WebDataset(SHARDS).index_summary().built
    assert not [asked for asked in filled.asked if asked.path == left]  # from now on it is in the cache


def test_a_copy_of_the_folder_has_its_index(filled: Store, left: str, images: list[bytes]) -> None:
    for name, content in list(filled.objects.items()):
        filled.objects[name.replace("data/", "copy/deeper/")] = content
    dataset = WebDataset(SHARDS.replace("data/", "copy/deeper/"))
    assert not dataset.index_summary().built
    assert samples(dataset)[5] == (images[5], 5)


def test_other_arguments_have_an_index_of_their_own(filled: Store, left: str) -> None:
    assert WebDataset(SHARDS, image="jpg").index_summary().built
    assert WebDataset(SHARDS, max_pixels=100_000).index_summary().built


def test_shards_that_changed_are_read(filled: Store, left: str, images: list[bytes]) -> None:
    name = f"{BUCKET}/data/001.tar"
    at = filled.objects[name].index(images[-1])
    filled.objects[name] = filled.objects[name][:at] + images[0][:512] + filled.objects[name][at + 512 :]
    dataset = WebDataset(SHARDS)
    summary = dataset.index_summary()
    assert summary.built and 0 < summary.reused < len(dataset)  # of the shard that is what it was
    assert samples(dataset)[-1][0][:512] == images[0][:512]


def test_one_that_is_damaged_is_not_used(
    filled: Store, left: str, another: Any, images: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    whole, chance = filled.objects[left], random.Random(5)
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2], b"x" * 5000, *(None for _ in range(8))):
        content = bytearray(whole if damaged is None else damaged)
        if damaged is None:
            content[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        filled.objects[left] = bytes(content)
        another()
        with caplog.at_level(logging.WARNING):
            dataset = WebDataset(SHARDS)
        assert "beside the data is not used" in caplog.text
        assert dataset.index_summary().built
        assert samples(dataset) == [(image, i) for i, image in enumerate(images)]
        caplog.clear()


def test_there_is_nothing_secret_in_it(filled: Store, left: str) -> None:
    for secret in (SECRET, KEY):
        assert secret.encode() not in filled.objects[left]


def test_a_store_that_refuses_is_named(filled: Store) -> None:
    filled.fault = lambda asked: "403" if asked.method == "PUT" else "none"
    message = error("index", SHARDS, "--beside")
    assert "cannot be written: the store refuses access" in message and SECRET not in message
    filled.fault = lambda asked: "403" if asked.path.endswith("index") else "none"  # no right to list: 403 for 404
    WebDataset(SHARDS).reindex()


def test_data_on_this_machine_needs_none(numbered: Path) -> None:
    assert "is on this machine" in error("index", numbered, "--beside")
    with pytest.raises(DatasetError, match="is on this machine"):
        ImageFolder(numbered).leave_index()
