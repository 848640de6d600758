"""Images decoded in other processes: the same batches, whatever these processes do."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support import EVAL, TRAIN, N, write_tars

from gpupipe import DataLoader, SampleError, engines, transforms as T
from gpupipe.codecs import nvimgcodec
from gpupipe.codecs.files import Undecodable
from gpupipe.datasets import Arrays, Columns, ImageFolder, Subset, WebDataset
from gpupipe.errors import ConfigError
from gpupipe.reading.decoder import Whole
from gpupipe.reading.elsewhere import Answer, Decoders, Hello, Request
from gpupipe.reading.regions import Regions
from gpupipe.reading.worker import Worker
from gpupipe.testing.photos import photograph

VERSIONS = "gpupipe 1.0, Pillow 2.0"
BIG = T.Compose([T.RandomResizedCrop(8), T.ToTensor()])


class Threads(Decoders):
    """Decoders that are threads of this process, and fail as a test wants.

    ``fault`` is called with (number of the decoder, number of its request) before each answer; it may raise, wait, or
    return an answer.
    """

    def __init__(self, count: int = 2, patience: float = 30.0, fault: Callable[[int, int], Any] | None = None):
        super().__init__(count, patience, VERSIONS)
        self.fault = fault or (lambda number, request: None)
        self.hello = Hello(VERSIONS, "here")
        self.starts: list[int] = []
        self.answered = [0] * count
        self._pools = [ThreadPoolExecutor(1) for _ in range(count)]
        self.workers = [Worker(threads=1 + k % 2) for k in range(count)]

    def start(self, number: int) -> Future[Hello]:
        self.starts.append(number)
        self.workers[number] = Worker(threads=1 + number % 2)
        return self._pools[number].submit(lambda: self.hello)

    def submit(self, number: int, request: Request) -> Future[Answer]:
        return self._pools[number].submit(self._answer, number, request)

    def stop(self, number: int) -> None:
        self._pools[number].shutdown(wait=False, cancel_futures=True)

    def _answer(self, number: int, request: Request) -> Answer:
        self.answered[number] += 1
        given = self.fault(number, self.answered[number])
        if given is not None:
            return given
        worker = self.workers[number]
        if not worker.knows(request.key):
            worker.learn(request.key, request.work)
        answer = worker.answer(request.key, request.plan)
        answer.pixels.setflags(write=False)  # as what lies in memory that processes share
        return answer


@pytest.fixture
def decoders() -> Iterator[Callable[..., Threads]]:
    made: list[Threads] = []

    def make(*args: Any, **arguments: Any) -> Threads:
        made.append(Threads(*args, **arguments))
        made[-1].wait(30)
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def root(tmp_path: Path, numbered: Path) -> Path:
    """Photographs that a test may change."""
    return Path(shutil.copytree(numbered, tmp_path / "photos"))


MAKERS = {
    "threads": {"engine": "dali"},
    "graph": {"engine": engines.Dali(graph="whole")},
    "torch": {"engine": "torch", "num_workers": 0},
}
PIPELINES = {
    "train": TRAIN,
    "eval": EVAL,
    "no crop first": T.Compose([T.ColorJitter(0.4, 0.4), T.RandomCrop(32), T.RandomHorizontalFlip(), T.PILToTensor()]),
    "padded": T.Compose([T.RandomCrop(40, padding=8), T.PILToTensor()]),
    "views": T.Compose([T.MultiView([TRAIN, EVAL])]),
    "function": T.Compose([T.Lambda(lambda image: image), TRAIN]),
}


QUICK = [("threads", "train"), ("graph", "train"), ("torch", "train"), ("threads", "eval"), ("threads", "views")]
MORE = [("torch", "eval"), ("threads", "no crop first"), ("graph", "padded"), ("threads", "function")]


def loader_of(dataset: Any, **arguments: Any) -> DataLoader:
    common = {"batch_size": 20, "shuffle": True, "seed": 3, "device": "cpu", "num_workers": 2}
    return DataLoader(dataset, **common | arguments)


def flat(batches: list[Any]) -> list[Any]:
    return [[*(images if isinstance(images, (list, tuple)) else [images]), target] for images, target in batches]


def equal(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) > 1 and all(
        len(a) == len(b) and all(bool((x == y).all()) for x, y in zip(a, b, strict=True))
        for a, b in zip(flat(one), flat(two), strict=True)
    )


@pytest.mark.parametrize(
    ("engine", "pipeline"),
    [*QUICK, *(pytest.param(*pair, marks=pytest.mark.thorough) for pair in MORE)],
)
def test_the_same_batches(engine: str, pipeline: str, decoders: Callable[..., Threads], numbered: Path) -> None:
    dataset, made = ImageFolder(numbered, PIPELINES[pipeline]), decoders()
    with loader_of(dataset, **MAKERS[engine]) as plain, loader_of(dataset, decoders=made, **MAKERS[engine]) as loader:
        for _ in range(2):
            assert equal(list(loader), list(plain))
    assert made.stats()["images"] >= 2 * N and made.stats()["here"] == 0  # more where epochs are begun ahead
    assert min(made.answered) > 0


def test_other_datasets(decoders: Callable[..., Threads], numbered: Path) -> None:
    """Parts of shards, views of datasets, and values beside them, also such as cannot be sent."""
    folder = ImageFolder(numbered, TRAIN)
    named = Columns(folder, {"name": [f"photo {i}" for i in range(N)]})
    named.unsendable = threading.Lock()  # type: ignore[attr-defined]
    for dataset in (
        WebDataset(write_tars(numbered), TRAIN),
        Subset(folder, [*range(0, N, 2)] * 2),
        ImageFolder(numbered, TRAIN, exif=True),
    ):
        made = decoders()
        with loader_of(dataset) as plain, loader_of(dataset, decoders=made) as loader:
            assert equal(list(loader), list(plain))
        assert made.stats()["images"] >= len(dataset) and not made.stats()["here"]
    made = decoders()
    with pytest.raises(ConfigError, match=r"decoders= cannot send Columns.*cannot pickle '_thread.lock' object"):
        list(loader_of(named, decoders=made))


@pytest.mark.parametrize(("engine", "windows"), [("threads", True), ("torch", False)])
def test_windows_of_photographs_are_decoded_as_by_the_engine(
    engine: str, windows: bool, decoders: Callable[..., Threads], root: Path, monkeypatch: Any
) -> None:
    """Damage below a window is invisible to DALI, and an error for the reference."""
    photo = root / "class004" / "photo.jpg"
    Image.fromarray(photograph(200, 200, 1)).save(photo, progressive=False)
    dataset = ImageFolder(root, T.Compose([T.RandomResizedCrop(8, scale=(0.05, 0.1)), T.PILToTensor()]))
    data = photo.read_bytes()
    photo.write_bytes(data[:-200] + bytes(200))  # the last rows
    whole, real = list[int](), Whole.__call__

    def call(self: Whole, wanted: Any) -> Any:
        whole.append(wanted.index)
        return real(self, wanted)

    monkeypatch.setattr(Whole, "__call__", call)
    found = []
    for options in ({}, {"decoders": decoders()}):
        whole.clear()
        with loader_of(dataset, on_error="replace", **MAKERS[engine], **options) as loader:
            batches = list(loader)
            found.append((loader.report().samples, batches))
    assert found[0][0] == found[1][0] and bool(found[0][0]) is not windows
    assert equal(found[0][1], found[1][1])
    assert (whole == []) is windows


def test_without_nvimgcodec(decoders: Callable[..., Threads], numbered: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(nvimgcodec, "_library", lambda: None)
    dataset, made = ImageFolder(numbered, TRAIN), decoders()
    with loader_of(dataset) as plain, loader_of(dataset, decoders=made) as loader:
        assert equal(list(loader), list(plain))
    assert made.stats()["images"] >= N and made.stats()["here"] == 0


def test_images_decoded_smaller(decoders: Callable[..., Threads], numbered: Path) -> None:
    """The decoder also resizes, so less is sent."""
    made, whole = decoders(), decoders()
    dataset = ImageFolder(numbered, BIG)
    with loader_of(dataset, scaled=True) as plain, loader_of(dataset, scaled=True, decoders=made) as loader:
        assert equal(list(loader), list(plain))
    list(loader_of(dataset, decoders=whole, shuffle=False))
    each = [one.stats()["nbytes"] / one.stats()["images"] for one in (made, whole)]
    assert each[0] < each[1] / 3


def fails(number: int, request: int) -> None:
    if number == 0 and request == 2:
        raise RuntimeError("died")


def hangs(number: int, request: int) -> None:
    if number == 0 and request == 2:
        time.sleep(0.8)


def wrong_twice(number: int, request: int) -> None:
    if request % 3 == 0:
        raise ConnectionError("lost")


@pytest.mark.parametrize("fault", [fails, hangs, wrong_twice])
def test_faults_cost_no_sample(
    fault: Any, decoders: Callable[..., Threads], numbered: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset, made = ImageFolder(numbered, TRAIN), decoders(fault=fault, patience=0.2)
    with loader_of(dataset, batch_size=4) as plain, loader_of(dataset, batch_size=4, decoders=made) as loader:
        for _ in range(4):
            assert equal(list(loader), list(plain))
    stats = made.stats()
    assert stats["failed"] > 0 and stats["here"] > 0 and stats["images"] > 0
    if fault is hangs:
        assert "decoder 0 on here has not answered for 0.2 s" in caplog.text
    else:
        assert "decoder 0 failed and is started again" in caplog.text
        assert made.wait(30) == 2 and made.starts.count(0) > 1, "it was not started again"


def test_all_decoders_share_a_batch() -> None:
    few, many = Threads(3), Threads(40)
    assert [few.images_per_request(n) for n in (1, 48, 100, 1000)] == [16, 16, 34, 64]
    assert [many.images_per_request(n) for n in (64, 1000, 5000)] == [16, 25, 64]
    for made in (few, many):
        made.close()


def test_batches_of_several_large_requests(decoders: Callable[..., Threads], numbered: Path) -> None:
    dataset, made = Subset(ImageFolder(numbered, TRAIN), [*range(N)] * 5), decoders()
    with loader_of(dataset, batch_size=51) as plain, loader_of(dataset, batch_size=51, decoders=made) as loader:
        assert equal(list(loader), list(plain))
    assert made.stats()["here"] == 0 and made.stats()["images"] // made.stats()["requests"] > 16


def test_requests_are_bounded(decoders: Callable[..., Threads], numbered: Path) -> None:
    """However slow the script is: those of the batches in flight, two for each batch of 20."""
    made, most = decoders(), list[int]()
    real = made.submit

    def submit(number: int, request: Request) -> Future[Answer]:
        most.append(made.stats()["requests"] - answered[0])
        return real(number, request)

    answered = [0]
    made.submit = submit  # type: ignore[method-assign]
    with loader_of(ImageFolder(numbered, TRAIN), decoders=made, prefetch_factor=3, infinite=True) as loader:
        for step, _ in enumerate(loader):
            answered[0] = 2 * (step + 1)
            if step == 6:
                break
            time.sleep(0.02)
    assert 4 <= max(most) <= 2 * (3 + 2)


def test_without_any_decoder(decoders: Callable[..., Threads], numbered: Path, caplog: Any, monkeypatch: Any) -> None:
    from gpupipe.reading import elsewhere

    def refuse(number: int) -> Future[Hello]:
        raise OSError("no machine")

    monkeypatch.setattr(elsewhere, "_STARTING", 0.0)
    made = Threads()
    made.start = refuse  # type: ignore[method-assign]
    dataset = ImageFolder(numbered, TRAIN)
    with loader_of(dataset) as plain, loader_of(dataset, decoders=made) as loader:
        assert equal(list(loader), list(plain))
        assert "decoders: 0 of 2 ready; they decoded 0 images" in repr(loader)
    assert "none of 2 decoders has been ready" in caplog.text and "OSError: no machine" in caplog.text
    made.close()


def test_a_decoder_that_fails_for_days_is_still_started_again(decoders: Callable[..., Threads]) -> None:
    made = decoders(1)
    (one,) = made._decoders
    for failures in range(1100):
        made._failed(one, OSError("no machine"))
        pause = one.pause_until - time.monotonic()
        assert one.failures == failures + 1 and 0 < pause <= 30 and (failures < 7 or pause > 29)
    one.pause_until = 0.0
    assert made.wait(30) == 1


def test_other_versions_are_not_used(decoders: Callable[..., Threads], numbered: Path, caplog: Any) -> None:
    made = Threads()
    made.hello = Hello("gpupipe 0.0.1, Pillow 1.0", "old-machine")
    assert made.wait(0.3) == 0
    dataset = ImageFolder(numbered, TRAIN)
    with loader_of(dataset) as plain, loader_of(dataset, decoders=made) as loader:
        assert equal(list(loader), list(plain))
    assert (
        "a decoder on old-machine has gpupipe 0.0.1, Pillow 1.0, and this process gpupipe 1.0, Pillow 2.0"
        in caplog.text
    )
    assert made.starts == [0, 1]
    made.close()


@pytest.mark.parametrize("engine", ["threads", "torch"])
def test_bad_samples_are_reported_as_without_decoders(
    engine: str, decoders: Callable[..., Threads], root: Path
) -> None:
    dataset = ImageFolder(root, EVAL)
    photo = root / "class004" / "photo.jpg"
    data = photo.read_bytes()
    start = data.rindex(b"\xff\xda")
    photo.write_bytes(data[: start + 14 + (len(data) - start) // 20])  # the index has not noticed
    (root / "class007" / "photo.jpg").unlink()
    reports = []
    for options in ({}, {"decoders": decoders()}):
        with loader_of(dataset, on_error="replace", **MAKERS[engine], **options) as loader:
            batches = list(loader)
            reports.append((loader.report().samples, batches))
        with pytest.raises(SampleError, match=r"truncated|missing"):
            list(loader_of(dataset, **MAKERS[engine], **options))
    assert {bad.kind for bad in reports[0][0]} == {"truncated", "missing"}
    assert reports[0][0] == reports[1][0]
    assert equal(reports[0][1], reports[1][1])


def test_what_only_a_decoder_cannot_read(
    decoders: Callable[..., Threads], numbered: Path, monkeypatch: Any, caplog: Any
) -> None:
    made, real = decoders(), ImageFolder.fetch

    def fetch(self: ImageFolder, index: int) -> Any:
        if threading.current_thread() in threads:
            raise Undecodable("missing", "No such file or directory")
        return real(self, index)

    threads = {pool.submit(threading.current_thread).result() for pool in made._pools}
    made._pools[1].shutdown()
    made._decoders[1].refused, made._decoders[1].ready = True, False
    monkeypatch.setattr(ImageFolder, "fetch", fetch)
    dataset = ImageFolder(numbered, TRAIN)
    with loader_of(dataset) as plain, loader_of(dataset, decoders=made) as loader:
        assert equal(list(loader), list(plain))
    assert made.stats()["here"] >= N and made.stats()["images"] == 0
    assert caplog.text.count("a decoder cannot read") == 1
    assert "missing: No such file or directory" in caplog.text and "same paths on all machines" in caplog.text


def test_several_loaders_share_decoders_and_their_cache(
    decoders: Callable[..., Threads], root: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Other seeds and transforms take other windows of images that were decoded once."""
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    made, decoded, real = decoders(count=1), list[int](), Regions.__call__

    def call(self: Regions, wanted: Any) -> Any:
        decoded.append(wanted.index)
        return real(self, wanted)

    made.workers[0] = Worker(1, "disk", 10_000_000)
    monkeypatch.setattr(Regions, "__call__", call)
    datasets = {3: ImageFolder(root, TRAIN), 9: ImageFolder(root, EVAL)}
    found = {seed: list(loader_of(dataset, decoders=made, seed=seed)) for seed, dataset in datasets.items()}
    assert sorted(decoded) == [*range(N)]
    monkeypatch.undo()
    for seed, dataset in datasets.items():
        assert equal(found[seed], list(loader_of(dataset, seed=seed)))


def test_errors_of_the_setup_are_raised(decoders: Callable[..., Threads], numbered: Path) -> None:
    made = decoders(count=1)
    made.workers[0] = Worker(1, "disk", 10)
    with pytest.raises(ConfigError, match=r"cache_bytes=10 cannot hold the largest image"):
        list(loader_of(ImageFolder(numbered, TRAIN), decoders=made))
    worker = Worker()
    with pytest.raises(ConfigError, match=r"a decoder cannot load the dataset: ModuleNotFoundError.*same packages"):
        worker.learn("key", b"cnot_there\nx\n.")


class Here(ImageFolder):
    pass


def test_what_decoders_cannot_do(decoders: Callable[..., Threads], numbered: Path, monkeypatch: Any) -> None:
    made, folder = decoders(), ImageFolder(numbered, TRAIN)
    refused = {
        r"cache='ram' beside decoders=.*cache= of their own": (folder, {"cache": "ram"}),
        r"decoders= decodes images in files.*has pixels": (Arrays(np.zeros((4, 8, 8, 3), np.uint8), [0] * 4), {}),
        r"decoders= with num_workers=2 and the torch engine.*engine=\"dali\"": (folder, {"engine": "torch"}),
        r"the null engine needs no decoded images": (folder, {"engine": "null"}),
        r"decoders must be gpupipe.integrations.ray.Decoders\(...\) or None, not 'ray'": (folder, {"decoders": "ray"}),
    }
    for why, (dataset, options) in refused.items():
        with pytest.raises(ConfigError, match=why):
            loader_of(dataset, **{"decoders": made, **options})
    with pytest.raises(ConfigError, match=r"torch's own loader decodes in its worker processes"):
        loader_of([1, 2, 3], decoders=made, engine="auto", num_workers=0)
    with pytest.raises(ConfigError, match=r"patience must be a number of seconds above 0, not 0"):
        Threads(patience=0)
    monkeypatch.setattr(Here, "__module__", "__main__")
    with pytest.raises(ConfigError, match=r"Here is defined in the script itself, not in a module; keep"):
        list(loader_of(Here(numbered, TRAIN), decoders=made))
