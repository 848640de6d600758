"""Pillow opens more with plugins of a script, also in the index and in other processes."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import PIL
import pytest
from command_line import gpupipe
from index_files import age, png
from PIL import Image, ImageFile

from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.codecs import openers
from gpupipe.codecs.probe import probe
from gpupipe.datasets.index import probe_pool

_HEAD = struct.Struct("<4sHH")


class Mine(ImageFile.ImageFile):
    """A format of this file: a magic, width and height, and plain pixels."""

    format = "MINE"

    def _open(self) -> None:
        assert self.fp is not None
        magic, width, height = _HEAD.unpack(self.fp.read(_HEAD.size))
        if magic != b"MINE":
            raise SyntaxError("another format")
        self._size, self._mode = (width, height), "RGB"
        self.tile = [ImageFile._Tile("raw", (0, 0, width, height), _HEAD.size, ("RGB", 0, 1))]


class Larger(ImageFile.ImageFile):
    """Reads every PNG as an image of another size."""

    format = "PNG"

    def _open(self) -> None:
        self._size, self._mode = (31, 13), "RGB"


def accept(prefix: bytes) -> bool:
    return prefix[:4] == b"MINE"


Register = Callable[..., None]


@pytest.fixture
def register() -> Iterator[Register]:
    """Registers a plugin until the test ends."""
    Image.preinit()
    order, known = Image.ID.copy(), Image.OPEN.copy()

    def add(name: str, factory: Any, accepts: Any = None) -> None:
        Image.register_open(name, factory, accepts)

    yield add
    Image.ID[:] = order
    Image.OPEN.clear()
    Image.OPEN.update(known)


def pixels(k: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(k).integers(0, 256, (5 + k % 3, 9, 3), np.uint8)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """20 files of the format, and 20 that Pillow reads by itself."""
    root = tmp_path / "tree"
    for k in range(20):
        png(root / "a" / f"{k}.png")
        height, width, _ = pixels(k).shape
        # The suffix is one that folders are searched for.
        (root / "a" / f"mine{k}.tiff").write_bytes(_HEAD.pack(b"MINE", width, height) + pixels(k).tobytes())
    age(root)
    return root


@pytest.fixture(params=["here", "in processes"])
def probed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_pool.PictureProber, "pool_from", 1 if request.param == "in processes" else 10**9)


def bad(root: Path, **options: Any) -> int:
    found = datasets.ImageFolder(root, **options)
    return len(found.bad(np.arange(len(found))))


@pytest.mark.slow
@pytest.mark.usefixtures("probed")
@pytest.mark.parametrize("accepts", [accept, None, lambda prefix: "not of this format"[: 99 * (prefix[:4] != b"MINE")]])
def test_a_plugin_reads_what_worker_processes_cannot(tree: Path, register: Register, accepts: Any) -> None:
    if accepts is None or accepts is accept:
        register("MINE", Mine, accepts)
    else:
        # A text is a refusal, so this one accepts nothing; the next plugin does.
        register("REFUSING", Mine, accepts)
        register("MINE", type("Local", (Mine,), {}), accept)
    found = datasets.ImageFolder(tree)
    assert not found.bad(np.arange(len(found)))
    sizes = dict(zip(map(found.sample_name, range(len(found))), found.sizes.tolist(), strict=True))
    assert sizes["a/mine1.tiff"] == [6, 9] and sizes["a/1.png"] == [5, 7]


@pytest.mark.usefixtures("probed")
def test_a_plugin_may_come_before_pillows_own(tree: Path, register: Register) -> None:
    register("PNG", Larger, lambda prefix: prefix[:4] == b"\x89PNG")
    found = datasets.ImageFolder(tree)
    sizes = [found.sizes[i].tolist() for i in range(len(found)) if found.sample_name(i).endswith(".png")]
    assert sizes == [[13, 31]] * 20


@pytest.mark.usefixtures("probed")
def test_an_index_from_before_the_plugin_is_not_used_with_it(tree: Path, register: Register) -> None:
    assert bad(tree) == 20
    register("MINE", Mine, accept)
    assert bad(tree) == 0
    Image.ID.remove("MINE")
    assert bad(tree) == 20


def test_another_version_of_a_plugin_judges_again(
    tree: Path, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("a_plugin")
    monkeypatch.setitem(sys.modules, "a_plugin", module)

    class Old(Mine):
        __module__ = "a_plugin"

        def _open(self) -> None:
            raise SyntaxError("not yet")

    class New(Mine):
        __module__, __qualname__ = "a_plugin", Old.__qualname__

    module.__version__ = "1.0"  # type: ignore[attr-defined]
    register("MINE", Old, accept)
    assert bad(tree) == 20
    module.__version__ = "1.1"  # type: ignore[attr-defined]
    register("MINE", New, accept)
    assert bad(tree) == 0


def test_a_newer_pillow_judges_again_what_was_bad(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bad(tree) == 20
    monkeypatch.setattr(PIL, "__version__", "99.0")
    looked: list[Any] = []
    monkeypatch.setattr(probe_pool.PictureProber, "here", lambda self, place: looked.append(place) or probe(place))
    assert bad(tree) == 20 and len(looked) == 20
    assert all(place.path.endswith(b".tiff") for place in looked)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_have_the_plugins_of_the_script(tree: Path, register: Register, method: str) -> None:
    register("MINE", Mine, accept)
    found = datasets.ImageFolder(tree, T.Resize((4, 4)))
    with DataLoader(found, 8, engine="torch", num_workers=1, device="cpu", multiprocessing_context=method) as loader:
        assert sum(len(images) for images, _ in loader) == 40


def test_plugins_that_cannot_be_sent_are_none(register: Register) -> None:
    assert openers.pickled() is not None
    register("MINE", type("Local", (Mine,), {}), accept)
    assert openers.pickled() is None


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("local", [False, True], ids=["a module", "here only"])
def test_packing_has_the_plugins_of_the_script(tree: Path, register: Register, tmp_path: Path, local: bool) -> None:
    register("MINE", type("Local", (Mine,), {}) if local else Mine, accept)
    gpupipe("pack", tree, tmp_path / "out", "--shards", 4, "--resize", 1, "--num-workers", 2)
    assert len(datasets.WebDataset(tmp_path / "out" / "*.tar")) == 40


@pytest.mark.parametrize(
    ("head", "advice"),
    [
        (b"\0\0\0\x18ftypheic", "a HEIF image: pip install pillow-heif"),
        (b"\0\0\0\x18ftypmif1", "pillow_heif.register_heif_opener"),
        (b"\xff\x0a\x01", "pip install pillow-jxl-plugin"),
        (b"PAR1", r'a Parquet file, .*: gpupipe.datasets.HuggingFace\(datasets.load_dataset\("parquet", data_files='),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file, .*; a Dataset of your own opens it with h5py"),
        (bytes(128) + b"DICM", "a DICOM image"),
        (b'<?xml version="1.0"?><svg', "an SVG drawing"),
        (b"hello", "not an image in any format that Pillow reads"),
    ],
)
def test_a_file_that_needs_more_says_what(tmp_path: Path, head: bytes, advice: str) -> None:
    root = tmp_path / "photos"
    png(root / "a" / "good.png")
    (root / "a" / "strange.jpg").write_bytes(head + bytes(400))
    found = datasets.ImageFolder(root)
    (sample,) = found.bad(np.arange(2))
    assert sample.kind == "undecodable" and re.search(advice, sample.reason), sample.reason
