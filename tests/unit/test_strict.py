"""``strict=True``: JPEG data that libjpeg repairs with a warning, and Pillow delivers as if they were good."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_files import PICTURES, encode, picture
from support import Encoded, images_of

from gpupipe import DataLoader, transforms as T
from gpupipe.codecs import damage
from gpupipe.codecs.damage import refuse_damaged
from gpupipe.codecs.decode import decode, open_rgb, peek
from gpupipe.codecs.files import Undecodable
from gpupipe.codecs.limits import Limits
from gpupipe.datasets import ImageFolder, ImageList, Subset, WebDataset, from_torch
from gpupipe.datasets.index import probe_pool
from gpupipe.datasets.index.open_index import index_path
from gpupipe.errors import ConfigError, MissingDependency

pytest.importorskip("simplejpeg")

GOOD = encode(picture())
WHOLE = T.Compose([T.PILToTensor()])
LIBJPEG_WARNS = {"junk.jpg"}
"""Of the pictures: good to look at, and yet libjpeg has to leave something out."""


def damaged(content: bytes) -> bytes:
    """With a code in the middle of its pixels that no table has, and no reader of headers sees."""
    start = content.index(b"\xff\xda") + 14
    place = start + (len(content) - start) // 2
    return content[:place] + b"\xfe" * 40 + content[place + 40 :]


DAMAGED = damaged(GOOD)


def kinds(dataset: Any, engine: str) -> dict[int, str]:
    """Of each bad sample; all good ones must come."""
    with DataLoader(dataset, batch_size=1, engine=engine, device="cpu", on_error="skip") as loader:
        came = sum(len(images_of(batch)) for batch in loader)
        found = {sample.index: sample.kind for sample in loader.report().samples}
        assert came == len(dataset) - len(found)
        return found


def make(kind: str, folder: Path, strict: bool) -> Any:
    """A good file, a damaged one, a progressive damaged one, and a PNG."""
    progressive = damaged(encode(picture(), progressive=True))
    contents = [GOOD, DAMAGED, progressive, PICTURES["rgb.png"]]
    (folder / "c").mkdir(parents=True, exist_ok=True)
    paths = [folder / "c" / f"{i}.jpg" for i in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    if kind == "folder":
        return ImageFolder(folder, WHOLE, strict=strict)
    if kind == "list":
        return ImageList(paths, transform=WHOLE, strict=strict)
    if kind == "subset":
        return Subset(ImageList(paths * 2, transform=WHOLE, strict=strict), range(4, 8))
    if kind == "tar":
        with tarfile.open(folder / "a.tar", "w") as tar:
            for path in paths:
                tar.add(path, path.name)
        return WebDataset(folder / "a.tar", WHOLE, strict=strict)
    items: list[Any] = [str(path) for path in paths] if kind == "path" else contents
    return from_torch(Encoded(items), kind, WHOLE, strict=strict)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize("kind", ["folder", "list", "subset", "tar", "path", "bytes"])
def test_what_libjpeg_repairs_is_named_if_strict(kind: str, engine: str, tmp_path: Path) -> None:
    assert kinds(make(kind, tmp_path, True), engine) == {1: "damaged", 2: "damaged"}
    assert kinds(make(kind, tmp_path, False), engine) == {}  # as Pillow has it, and torchvision


def test_the_index_says_why(tmp_path: Path) -> None:
    dataset = make("list", tmp_path, True)
    one, _ = dataset.bad(np.arange(4))
    assert one.kind == "damaged" and one.reason.startswith("libjpeg repairs it: ") and dataset.limits.strict
    assert Subset(dataset, [0]).limits.strict and not make("list", tmp_path, False).limits.strict


def test_both_settings_have_indexes_of_their_own(tmp_path: Path) -> None:
    dataset = make("list", tmp_path, True)
    assert index_path(dataset._source) != index_path(dataset._source, Limits(strict=True))


def test_probing_processes_are_strict_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_pool.PictureProber, "pool_from", 1)
    assert kinds(make("list", tmp_path, True), "torch") == {1: "damaged", 2: "damaged"}


@pytest.mark.parametrize("name", [name for name in PICTURES if name.endswith((".jpg", ".mpo"))])
def test_good_files_pass(name: str) -> None:
    content = PICTURES[name]
    if name in LIBJPEG_WARNS:
        with pytest.raises(Undecodable, match="extraneous bytes"):
            peek(content, Limits(strict=True))
    else:
        assert peek(content, Limits(strict=True)) == peek(content)


def test_real_photographs_pass(shared_data: Path) -> None:
    for path in sorted((shared_data / "images").rglob("*.*")):
        refuse_damaged(path.read_bytes())


def test_only_what_breaks_the_syntax_is_found() -> None:
    assert decode(DAMAGED).shape == decode(GOOD).shape  # Pillow does not mind
    with pytest.raises(Undecodable, match="damaged: libjpeg repairs it"):
        refuse_damaged(DAMAGED)
    with pytest.raises(Undecodable, match="damaged"):
        open_rgb(DAMAGED, Limits(strict=True))
    table = GOOD.index(b"\xff\xdb") + 10
    other = GOOD[:table] + bytes([GOOD[table] ^ 7]) + GOOD[table + 1 :]
    refuse_damaged(other)
    assert not np.array_equal(decode(other), decode(GOOD))


@pytest.mark.parametrize("value", [1, "yes", None])
def test_strict_is_checked(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="strict must be True or False"):
        ImageList([], strict=value)
    with pytest.raises(ConfigError, match="strict must be True or False"):
        from_torch(Encoded([b""]), "bytes", strict=value)


def test_without_simplejpeg_it_is_refused_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "installed", lambda: False)
    with pytest.raises(MissingDependency, match=r"pip install 'gpupipe-loader\[strict\]'"):
        from_torch(Encoded([GOOD]), "bytes", strict=True)
    with pytest.raises(MissingDependency, match=r"pip install 'gpupipe-loader\[strict\]'"):
        ImageList([], strict=True)
    from_torch(Encoded([GOOD]), "bytes", strict=False)
