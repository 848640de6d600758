"""What every test may ask for: pictures, devices, a cache of its own. GPU tests do not pass by skipping:
``GPUPIPE_REQUIRE_CUDA=1`` is for machines that should have a GPU, and there a missing device is a failure.
``GPUPIPE_TEST_SECONDS`` ends a run in good order after so many seconds, and ``GPUPIPE_TEST_SHARD=2/8`` is the second of
eight parts of it.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import itertools
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from interpreter import Interpreter
from PIL import Image
from torchvision_ops import define_missing_operators

from gpupipe import script_warnings
from gpupipe.testing.photos import make_photos, photograph


def alias_pipelines(package: str = "gpupipe", folder: Path | None = None) -> None:
    """Make ``gpupipe.pipelines`` the folder ``pipelines/`` of the checkout, where gpupipe runs without being installed.

    Only installing maps the one to the other.
    """
    name = f"{package}.pipelines"
    folder = Path(__file__).resolve().parents[1] / "pipelines" if folder is None else folder
    if importlib.util.find_spec(name) is not None or not (folder / "__init__.py").is_file():
        return
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    setattr(importlib.import_module(package), "pipelines", module)  # noqa: B010


alias_pipelines()


define_missing_operators()


def pytest_configure(config: pytest.Config) -> None:
    # Python 3.12 and later: worker processes are forked, as torch does by default, while DALI's threads run.
    message = "This process .* is multi-threaded, use of fork"
    config.addinivalue_line("filterwarnings", f"ignore:{message}:DeprecationWarning")


SHARES = {"contract": (3, 4, 10), "gpu": (3, 6, 9), "live": (2, 3, 4), "parity": (1, 2, 4), "unit": (1, 1, 2)}
"""By folder: of a test's 2 to 4, 5 to 9, and 10 or more variants ``make test`` runs one in so many."""
FIRST = ("frameworks", "distributed", "contributing", "cli", "scripts", "fooled", "live", "contract", "gpu", "parity")
"""Folders of tests that take long come first. A long file at the end would run alone."""
WEEK = int(time.time()) // (7 * 86_400)
"""Every week ``make test`` runs other variants."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    variants: defaultdict[Any, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if {"warm", "frameworks"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        if isinstance(item, pytest.Function):
            variants[item.path, item.function].append(item)
    for same in variants.values():
        part = same[0].get_closest_marker("part")
        if part is not None and part.args:
            others = _off_the_board(same, part.args, part.kwargs.get("of", 2))
        else:
            share = _share(same[0].path.parent.name, len(same)) if part is None else part.kwargs["of"]
            same.sort(key=lambda item: crc32(f"{WEEK} {item.name}".encode()))
            others = same[ceil(len(same) / share) :]
        for item in others:
            item.add_marker(pytest.mark.thorough)
    if shard := os.environ.get("GPUPIPE_TEST_SHARD"):
        number, count = map(int, shard.split("/"))
        mine = [item for item in items if crc32(item.nodeid.encode()) % count == number % count]
        config.hook.pytest_deselected(items=[*{*items} - {*mine}])
        items[:] = mine
    items.sort(key=lambda item: FIRST.index(folder) if (folder := item.path.parent.name) in FIRST else len(FIRST))


def _share(folder: str, variants: int) -> int:
    few, some, many = SHARES.get(folder, (1, 1, 1))
    return few if variants < 5 else some if variants < 10 else many


def _off_the_board(items: list[pytest.Function], axes: tuple[str, ...], colors: int) -> list[pytest.Function]:
    """Return all that do not have the week's color of a chessboard, where each value of an axis meets one in ``colors``
    of the values of every other axis."""
    numbers: defaultdict[str, dict[int, int]] = defaultdict(dict)  # of the values of each axis
    found = []
    for item in items:
        values = [(axis, id(item.callspec.params[axis])) for axis in axes]
        found.append(sum(numbers[axis].setdefault(value, len(numbers[axis])) for axis, value in values) % colors)
    some = sorted(set(found))  # a small board lacks some colors
    return [item for item, color in zip(items, found, strict=True) if color != some[WEEK % len(some)]]


def pytest_collection_finish() -> None:
    # A million objects of modules will live to the end. Tests that collect need not look at each of them every time.
    gc.collect()
    gc.freeze()


# Test processes share few cores. In each of them torch's threads would wait for each other in loops, and take more time
# for that than for their work.
TORCH_THREADS = max(torch.get_num_threads(), 2)
torch.set_num_threads(1)


@pytest.fixture
def many_torch_threads() -> Iterator[None]:
    """As many as scripts have, for tests of threads and processes: pools of torch's are in the way of a fork."""
    torch.set_num_threads(TORCH_THREADS)
    yield
    torch.set_num_threads(1)


CUDA = torch.cuda.is_available()
REQUIRED = os.environ.get("GPUPIPE_REQUIRE_CUDA") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None or CUDA:
        return
    if REQUIRED:
        pytest.fail("needs a CUDA device, and GPUPIPE_REQUIRE_CUDA=1 says there is one", pytrace=False)
    pytest.skip("needs a CUDA device")


_END = time.monotonic() + float(os.environ.get("GPUPIPE_TEST_SECONDS", "inf"))


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if time.monotonic() > _END:
        item.session.shouldstop = "the time that GPUPIPE_TEST_SECONDS gives is up"


@pytest.fixture(params=["cpu", *([pytest.param("cuda", marks=pytest.mark.gpu)] if CUDA or REQUIRED else [])])
def device(request: pytest.FixtureRequest) -> str:
    """``"cpu"``, then ``"cuda"`` if there is a GPU, or one is required."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _control_c() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def _session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # For fixtures that outlive one test: nothing may reach the cache of the person who runs the tests.
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("session-cache")
        patch.setenv("GPUPIPE_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def _unsaid() -> None:
    """What a process says once it says in every test."""
    script_warnings._SAID.clear()


@pytest.fixture(scope="session")
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of caches. ``mktemp`` would look through the thousands that are there for every one more."""
    root = tmp_path_factory.mktemp("caches")
    return (root / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def cache(_caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for this test alone."""
    folder = next(_caches)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("GPUPIPE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def warm() -> Iterator[Interpreter]:
    """An interpreter that has imported what engines and training need: every optimizer takes ``torch._dynamo``."""
    # CUDA does not survive a fork, and whether importing DALI starts it depends on DALI.
    dali = [] if CUDA else ["gpupipe.engines.dali.engine"]
    with Interpreter("torch._dynamo", *dali, "gpupipe.engines.torch", "av", "support") as it:
        yield it


@pytest.fixture
def rng_untouched() -> Iterator[None]:
    """Fails the test if it advanced a global generator of Python, numpy or torch."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    yield
    assert random.getstate() == before[0], "Python's global generator was advanced"
    now = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(before[1], now, strict=True)), "numpy's generator was advanced"
    assert torch.equal(torch.get_rng_state(), before[2]), "torch's global generator was advanced"


@pytest.fixture
def torchvision_draws() -> Iterator[None]:
    """torchvision draws from the global generator; give it back as it was."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(state)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 3 classes with 12 small JPEG photographs each. Read only: all tests share it."""
    sizes = ((120, 160), (160, 120), (150, 200), (96, 128), (128, 128), (111, 149))
    return make_photos(tmp_path_factory.mktemp("photos"), classes=3, per_class=12, sizes=sizes)


@pytest.fixture(scope="session")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small photographs; the label of each is its index. Read only."""
    from support import write_photos

    return write_photos(tmp_path_factory.mktemp("numbered"))


@pytest.fixture(scope="session")
def images(numbered: Path) -> list[bytes]:
    """The files of ``numbered``."""
    return [path.read_bytes() for path in sorted(numbered.rglob("*.jpg"))]


@pytest.fixture(scope="session")
def videos() -> dict[str, Path]:
    """Small videos by name; see ``videos.py``. Read only: all tests share them."""
    pytest.importorskip("av")
    from videos import recorded

    return recorded()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real photographs and odd files beside the checkout; skips where there are none."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the folder {folder}")
    return folder


@pytest.fixture(scope="session")
def mixed_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of files of many formats. Read only: all tests share it.

    ``jpeg/``: 444, 420, gray, cmyk, progressive, exif6 (stored 150x100, upright 100x150), odd (71x53), tiny (1x1).
    ``other/``: rgb.png, rgba.png, palette.png, gray.png, lossy.webp, lossless.webp, small.bmp.
    """
    root = tmp_path_factory.mktemp("mixed")
    for name in ("jpeg", "other"):
        (root / name).mkdir()
    image = [Image.fromarray(photograph(100, 150, seed)) for seed in range(12)]

    jpeg = root / "jpeg"
    image[0].save(jpeg / "444.jpg", quality=92, subsampling="4:4:4")
    image[1].save(jpeg / "420.jpg", quality=85, subsampling="4:2:0")
    image[2].convert("L").save(jpeg / "gray.jpg", quality=90)
    image[3].convert("CMYK").save(jpeg / "cmyk.jpg", quality=90)
    image[4].save(jpeg / "progressive.jpg", quality=85, progressive=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise by 90 degrees to look at it
    image[5].save(jpeg / "exif6.jpg", quality=90, exif=exif)
    Image.fromarray(photograph(71, 53, 6)).save(jpeg / "odd.jpg", quality=88)
    Image.fromarray(photograph(1, 1, 7)).save(jpeg / "tiny.jpg", quality=90)

    other = root / "other"
    image[6].save(other / "rgb.png")
    alpha = image[7].copy()
    alpha.putalpha(Image.fromarray(photograph(100, 150, 20)[..., 0]))
    alpha.save(other / "rgba.png")
    image[8].quantize(64).save(other / "palette.png")
    image[9].convert("L").save(other / "gray.png")
    image[10].save(other / "lossy.webp", quality=85)
    image[11].save(other / "lossless.webp", lossless=True)
    Image.fromarray(photograph(31, 47, 21)).save(other / "small.bmp")
    return root
