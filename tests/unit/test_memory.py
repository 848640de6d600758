"""What is reported is what is held; what cannot fit is refused with its arithmetic, and what fits never is."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.filesize import decimal
from support import EVAL, TRAIN, Encoded, N, all_seen, native_session, pictures, spawned, write_photos, write_tars

import gpupipe
from gpupipe import DataLoader, engines, memory, system, transforms as T
from gpupipe.codecs.coding import Coding
from gpupipe.datasets import Arrays, Dataset, ImageFolder, WebDataset, from_torch
from gpupipe.engines import staging
from gpupipe.engines.dali import pools
from gpupipe.engines.torch.engine import TorchEngine
from gpupipe.errors import ConfigError, EngineError, MemoryBudgetError, MissingDependency
from gpupipe.loader import memory_limits as limits

IMAGE = 3 * 32 * 32
"""Values of one image of TRAIN and EVAL."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("numbered"))


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``room(host=..., shm=...)``: what the machine has from now on."""

    def put(*, host: int | None = None, shm: int | None = None) -> None:
        monkeypatch.setattr(gpupipe.system, "memory_limit", lambda: host)
        monkeypatch.setattr(gpupipe.system, "shm_size", lambda: shm)

    return put


def load(dataset: Any, **arguments: Any) -> DataLoader:
    return DataLoader(dataset, **{"engine": "torch", "device": "cpu", "seed": 0, "batch_size": 4, **arguments})


# ---- what a loader will hold


def test_the_arithmetic_of_the_dali_engine(folder: Path) -> None:
    found = memory.estimate(load(ImageFolder(folder, TRAIN), engine="dali", prefetch_factor=3))
    batches, decoded = found.uses
    assert batches.certain and batches.nbytes == 3 * 4 * IMAGE * 4 and not decoded.certain
    assert found.device == found.shm == found.pinned == 0 and found.host == batches.nbytes + decoded.nbytes
    text = str(found)
    assert "4 × 3 × 32 × 32 × 4 bytes × 3 (what the host makes + the delivered one) = 147.5 kB" in text
    assert "host: about" in text and "decoded images: 16 ×" in text
    whole = memory.estimate(load(ImageFolder(folder, TRAIN), engine=engines.Dali(graph="whole"), prefetch_factor=3))
    assert "4 bytes × 4 (prefetch_factor + the delivered one) in flight = 196.6 kB" in str(whole)


def test_the_arithmetic_of_bytes_that_are_read_ahead_of_dali(folder: Path) -> None:
    loader = load(WebDataset(write_tars(folder), TRAIN), engine="dali", prefetch_factor=1)
    (encoded,) = (use for use in memory.estimate(loader).uses if use.what == "encoded images")
    sizes = [path.stat().st_size for path in folder.rglob("*.jpg")]
    assert encoded.nbytes == int(3 * 4 * sum(sizes) / len(sizes)) and encoded.place == "host" and not encoded.certain
    batches = iter(loader)
    next(batches), next(batches)
    engine: Any = native_session(loader).running.engine
    held = engine.reader.buffers.nbytes
    assert 0 < held < 1.5 * encoded.nbytes
    assert f", staging {decimal(held)}" in repr(loader)


def test_the_arithmetic_of_the_torch_engine(folder: Path) -> None:
    one = memory.estimate(load(ImageFolder(folder, TRAIN)))
    assert one.shm == 0 and sum(u.nbytes for u in one.uses if u.certain) == 4 * IMAGE * 4
    several = memory.estimate(load(ImageFolder(folder, TRAIN), num_workers=2))
    assert several.shm == 2 * 2 * 4 * IMAGE  # bytes: the batch is made float by the main process
    # Without arithmetic at its end a worker's memory is handed out as it is, and counts once.
    plain = memory.estimate(load(ImageFolder(folder, EVAL), num_workers=2))
    assert [u.place for u in plain.uses if u.certain] == ["shm"] and plain.shm == 2 * 2 * 4 * IMAGE


def test_the_arithmetic_with_a_gpu(folder: Path) -> None:
    work = native_session(load(ImageFolder(folder, TRAIN))).resolved.workload
    work = replace(work, setup=replace(work.setup, device="cuda:0"))
    found = limits.estimate(engines.Torch(slots=3), work)
    assert (found.pinned, found.device) == (3 * 4 * IMAGE, 4 * IMAGE * 4)
    assert limits.estimate(engines.Torch(staging="pageable"), work).pinned == 0
    assert limits.estimate(engines.Dali(), work).held("device") > 3 * 4 * IMAGE * 4
    pixels = Arrays(pictures(height=48, width=56), transform=TRAIN)
    array = limits.estimate(engines.Dali(), replace(work, setup=replace(work.setup, dataset=pixels)))
    assert (array.pinned, array.device) == (3 * 4 * 48 * 56 * 3, 3 * 4 * IMAGE * 4)
    assert "device: 147.5 kB" in str(array) and "in flight = 96.8 kB, pinned" in str(array)


def test_an_epoch_has_no_more_batches_and_samples_than_it_has(folder: Path) -> None:
    one = memory.estimate(load(ImageFolder(folder, TRAIN), batch_size=10**9, engine="dali"))
    assert one.uses[0].nbytes == N * IMAGE * 4 and f"images: {N} ×" in str(one)
    short = memory.estimate(load(ImageFolder(folder, TRAIN), batch_size=12, engine="dali", prefetch_factor=9))
    assert short.uses[0].nbytes == 2 * 12 * IMAGE * 4
    rank = memory.estimate(load(ImageFolder(folder, TRAIN), batch_size=100, shard=gpupipe.Shard(0, 4)))
    assert rank.uses[0].nbytes == 6 * IMAGE * 4
    none = memory.estimate(load(Arrays(pictures(), transform=TRAIN), sampler=[]))
    assert none.uses == ()


def test_what_is_not_known_counts_nothing(room: Any) -> None:
    room(host=1, shm=1)
    as_it_is = load(Encoded([b"x"] * 9), num_workers=2)
    assert memory.estimate(as_it_is).uses == () and "nothing is known" in str(memory.estimate(as_it_is))
    assert memory.estimate(load(Arrays(pictures()), engine="null")).uses == ()
    load(from_torch(Encoded([b"x"] * 9), "bytes", [T.ToTensor()]), num_workers=2)  # their sizes differ, perhaps
    too_small = T.MultiView([T.Compose([]), T.Compose([T.RandomCrop(200)])])  # which the first batch will say
    with pytest.raises(MemoryBudgetError, match=r"output batches of view 2: 4 × 3 × 200 × 200"):
        load(Arrays(pictures(), transform=too_small))


def test_images_of_one_size_are_known_without_a_crop() -> None:
    [batch] = memory.estimate(load(Arrays(pictures(height=48, width=56)))).uses
    assert batch.nbytes == 4 * 3 * 48 * 56
    views = T.MultiView([T.Compose([]), T.Compose([T.Resize(24)])])
    one, other = memory.estimate(load(Arrays(pictures(height=48, width=56), transform=views))).uses
    assert (one.nbytes, other.nbytes) == (4 * 3 * 48 * 56, 4 * 3 * 24 * 28)


class Sized(Dataset):
    """A dataset that is only sizes."""

    kind = "files"

    def __init__(self, sizes: Any, transform: Any):
        self._sizes, self.transform = sizes, T.Compose(transform)

    sizes = property(lambda self: self._sizes)
    codings = property(lambda self: (np.zeros(len(self), np.uint8), [Coding("JPEG", "RGB", "jpeg", "RGB")]))
    labels = property(lambda _: None)
    fingerprint = "sized"

    def __len__(self) -> int:
        return len(self._sizes)

    def fetch(self, index: int) -> Any:
        raise AssertionError("estimates read nothing")


def test_decoded_images_are_certain_only_if_all_have_one_size_and_a_batch_is_decoded_at_once() -> None:
    def decoded(sizes: Any, config: Any = "dali", crop: Any = None) -> Any:
        return memory.estimate(load(Sized(sizes, [crop or T.Resize((8, 8)), T.PILToTensor()]), engine=config)).uses[-1]

    even, mixed = np.full((9, 2), 100, np.int32), np.array([[100, 100], [300, 100], [0, 0]], np.int32)
    assert decoded(even).certain and decoded(even).nbytes == 9 * 10_000 * 3
    assert not decoded(mixed).certain and decoded(mixed).nbytes == 3 * 40_000 // 3 * 3
    assert not decoded(even, "torch").certain and decoded(even, "torch").nbytes == 10_000 * 3
    assert not decoded(even, crop=T.RandomCrop(8)).certain  # of which windows are decoded
    assert decoded(even, engines.Dali(roi=False), T.RandomCrop(8)).certain


def test_of_a_batch_that_dali_decodes_in_pieces_some_lie_decoded_at_a_time() -> None:
    def decoded(side: int, batch: int, workers: int) -> Any:
        dataset = Sized(np.full((4096, 2), side, np.int32), [T.Resize((8, 8)), T.PILToTensor()])
        return memory.estimate(load(dataset, engine="dali", batch_size=batch, num_workers=workers)).uses[-1].nbytes

    assert decoded(2000, 256, 2) == 4 * 32 * 12_000_000  # three pieces with DALI, and one with the host
    assert decoded(2000, 256, 4) == 4 * 64 * 12_000_000
    assert decoded(2000, 8, 2) == 3 * 8 * 12_000_000  # no more batches are in flight
    assert decoded(100, 2048, 2) == 4 * ((16 << 20) // 30_000) * 30_000  # of small ones many megabytes


def test_of_a_large_index_a_sample_is_read() -> None:
    class Counting:
        rows = 0

        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, rows: Any) -> Any:
            Counting.rows += len(rows)
            return np.stack([rows % 100, rows % 100], axis=1) + 1

    assert memory.estimate(load(Sized(Counting(), [T.Resize((8, 8)), T.PILToTensor()]))).host
    assert 0 < Counting.rows <= 3 * 1024


# ---- what cannot fit


def test_what_cannot_fit_is_refused_to_the_byte_and_the_advice_is_right(folder: Path, room: Any) -> None:
    need, dataset = 3 * 4 * IMAGE * 4, ImageFolder(folder, TRAIN)
    room(host=need)
    load(dataset, engine="dali")
    room(host=need - 1)
    with pytest.raises(MemoryBudgetError) as e:
        load(dataset, engine="dali")
    text = str(e.value)
    assert isinstance(e.value, ConfigError) and "batch_size=4, prefetch_factor=2, num_workers=0" in text
    assert "4 × 3 × 32 × 32 × 4 bytes × 3 (what the host makes + the delivered one) = 147.5 kB" in text
    assert "this process may have 147.5 kB: use batch_size <= 3 or prefetch_factor <= 1" in text
    load(dataset, engine="dali", batch_size=3)
    load(dataset, engine="dali", prefetch_factor=1)


def test_the_example_of_a_million(room: Any) -> None:
    room(host=24 * 10**9)
    pixels = np.broadcast_to(np.zeros((1, 256, 256, 3), np.uint8), (10_000_000, 256, 256, 3))
    dataset = Arrays(pixels, transform=[T.RandomCrop(224), T.ToTensor()])
    with pytest.raises(MemoryBudgetError, match=r"have 24\.0 GB: use batch_size <= 13,286") as e:
        load(dataset, batch_size=1_000_000, engine="dali")
    assert "1,000,000 × 3 × 224 × 224 × 4 bytes × 3" in str(e.value) and "1.8 TB" in str(e.value)
    room(host=1000)
    with pytest.raises(MemoryBudgetError, match="use a smaller output size"):
        load(dataset, engine="dali")


def test_whole_images_that_cannot_fit_are_refused(room: Any) -> None:
    dataset = Sized(np.full((100, 2), 10_000, np.int32), [T.Resize((8, 8)), T.PILToTensor()])
    room(host=9 * 10**9)
    with pytest.raises(MemoryBudgetError, match=r"images: 100 × 100 megapixels .* = 30.0 GB\n.*batch_size <= 9"):
        load(dataset, engine="dali", batch_size=50)
    load(dataset, engine="dali", batch_size=9)
    load(dataset, engine="torch", batch_size=50)  # decodes them one after another


def test_batches_of_workers_that_cannot_fit_into_dev_shm_are_refused(folder: Path, room: Any) -> None:
    dataset, need = ImageFolder(folder, TRAIN), 2 * 3 * 2 * IMAGE
    room(shm=need)
    load(dataset, batch_size=2, num_workers=2, prefetch_factor=3)
    room(shm=need - 1)
    with pytest.raises(MemoryBudgetError, match=r"/dev/shm has 36.9 kB.* or a larger /dev/shm.*--shm-size") as e:
        load(dataset, batch_size=2, num_workers=2, prefetch_factor=3)
    assert "use batch_size <= 1 or prefetch_factor <= 2 or num_workers <= 1 or" in str(e.value)
    load(dataset, batch_size=2, num_workers=0)
    load(dataset, batch_size=2, num_workers=2, prefetch_factor=3, engine="dali")  # threads


def test_what_cannot_fit_on_the_gpu_is_refused_when_iterating_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 3 * 4 * IMAGE * 4 - 1))
    loader = load(ImageFolder(folder, TRAIN), engine="dali", device="cuda:0")
    with pytest.raises(MemoryBudgetError, match=r"of GPU memory, and cuda:0 has 147\.5 kB: use batch_size <= 3"):
        iter(loader)
    assert "not started" in repr(loader)


def test_this_machine_refuses_nothing_of_the_tests(folder: Path) -> None:
    for engine in ("dali", "torch"):
        with load(ImageFolder(folder, EVAL), engine=engine, num_workers=2) as loader:
            assert sorted(all_seen(loader)) == list(range(N))


# ---- what there is


def put(root: Path, monkeypatch: pytest.MonkeyPatch, contents: dict[str, str]) -> None:
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(system, "_PROC", root / "proc")
    monkeypatch.setattr(system, "_CGROUPS", root / "cg")


MEMINFO = "MemTotal:  2000 kB\nSwapTotal: 500 kB\nHugePages_Total: 0\n"


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({"proc/self/cgroup": "0::/\n"}, 2500 * 1024),
        ({"proc/self/cgroup": "0::/a/b\n", "cg/a/b/memory.max": "max", "cg/a/memory.max": "99"}, 99 + 500 * 1024),
        ({"proc/self/cgroup": "0::/../x\n", "cg/memory.max": "99"}, 99 + 500 * 1024),
        (
            {
                "proc/self/cgroup": "9:cpu:/j\n4:memory:/j\n0::/\n",
                "cg/memory/memory.limit_in_bytes": "9223372036854771712",
                "cg/memory/j/memory.limit_in_bytes": "70",
            },
            70 + 500 * 1024,
        ),
        (
            {  # in a container the folder is hidden, and the mounted root is the group
                "proc/self/cgroup": "4:memory:/docker/abc\n",
                "cg/memory/memory.limit_in_bytes": "70",
            },
            70 + 500 * 1024,
        ),
        ({"proc/self/cgroup": "0::/\n", "cg/memory.max": "9999999"}, 2500 * 1024),  # more than there is
        ({}, 2500 * 1024),
    ],
)
def test_limits_of_machine_and_container(
    contents: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, monkeypatch, {"proc/meminfo": MEMINFO, **contents})
    assert system.memory_limit() == expected


def test_without_linux_nothing_is_known_and_nothing_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, monkeypatch, {})
    monkeypatch.setattr(system, "_SHM", tmp_path / "shm")
    assert system.memory_limit() is system.shm_size() is None
    assert system.process() is None and system.children() == []
    load(ImageFolder(folder, TRAIN), batch_size=10**6, num_workers=2)
    assert "pinned" in str(memory.report())


def test_the_size_of_dev_shm() -> None:
    size = system.shm_size()
    assert size is not None and size > 1 << 20


# ---- what is held


@pytest.mark.slow
def test_a_report_counts_this_process_and_its_workers_apart() -> None:
    before = memory.report()
    assert before.process is not None and 0 < before.process.uss <= before.process.pss <= before.process.rss
    code = """
        import sys, gpupipe.memory as m
        held = bytearray(b"x") * 100_000_000
        r = m.report()
        print(r.process.uss, r.worker_count, "torch" in sys.modules, "nvidia.dali" in sys.modules, flush=True)
        sys.stdin.read()
        """
    command = [sys.executable, "-W", "error", "-c", "if True:" + code]
    # Two at once: neither counts what the other holds.
    with spawned(command) as one, spawned(command) as other:
        for process in (one, other):
            assert process.stdout is not None
            uss, below, *loaded = process.stdout.readline().split()
            assert 100_000_000 < int(uss) < 190_000_000 and below == "0"
            assert loaded == ["False", "False"]  # a report loads nothing
        during = memory.report()
    assert during.worker_count == before.worker_count + 2
    assert during.process is not None
    assert 200_000_000 < during.workers.uss - before.workers.uss < 380_000_000
    assert abs(during.process.uss - before.process.uss) < 50_000_000
    assert "2: " in str(during) or before.worker_count
    assert memory.report().worker_count == before.worker_count


def test_a_report_counts_pinned_rings_as_long_as_they_live(monkeypatch: pytest.MonkeyPatch) -> None:
    real = staging._buffer
    monkeypatch.setattr(staging, "_buffer", lambda nbytes, pinned: real(nbytes, False))
    gc.collect()
    before = memory.report()
    rings = [staging.Ring(2, pinned=True), staging.Ring(2, pinned=True), staging.Ring(2, pinned=False)]
    for ring in rings:
        ring.acquire(1000)
    rings[0].acquire(500)
    now = memory.report()
    assert (now.staging - before.staging, now.rings - before.rings) == (2500, 2)
    del rings, ring
    after = memory.report()
    assert (after.staging, after.rings) == (before.staging, before.rings)


def test_a_report_of_gpus_touches_only_those_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.cuda.is_initialized() or (memory.report().devices == () and memory.report().pinned_by_torch is None)

    def mem_get_info(index: int) -> tuple[int, int]:
        assert index != 2, "this would take memory of a GPU that is not in use"
        return 30, 100

    fake = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 3,
        current_device=lambda: 0,
        memory_allocated=lambda i: 10 * i % 20,
        memory_reserved=lambda i: 20 * i % 40,
        mem_get_info=mem_get_info,
        host_memory_stats=lambda: {"allocated_bytes.current": 4096},
    )
    c = SimpleNamespace(_cuda_hasPrimaryContext=lambda i: i == 0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake, _C=c))
    found = memory.report()
    assert found.devices == (memory.DeviceMemory(0, 0, 0, 30, 100), memory.DeviceMemory(1, 10, 20, 30, 100))
    assert [d.other for d in found.devices] == [70, 50] and found.pinned_by_torch == 4096
    assert "cuda:1   10 bytes in tensors, 20 bytes in torch's pool, 50 bytes other" in str(found)


# ---- taking and giving back


class Backend:
    """``nvidia.dali.backend`` of a machine with GPUs."""

    def __init__(self, gpus: int = 2):
        self.calls: list[tuple[Any, ...]] = []
        self.GetCUDADeviceCount = lambda: gpus
        self.ReleaseUnusedMemory = lambda: self.calls.append(("release",))
        self.PreallocatePinnedMemory = lambda *a: self.calls.append(("pinned", *a))

    def PreallocateDeviceMemory(self, nbytes: int, device: int) -> None:
        if nbytes > 1000:
            raise RuntimeError("CUDA driver API error\nout of memory")
        self.calls.append(("device", nbytes, device))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    fake = Backend()
    monkeypatch.setitem(sys.modules, "nvidia.dali.backend", fake)  # type: ignore[arg-type]
    return fake


def test_preallocate(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    memory.preallocate(device_bytes=100, pinned_bytes=7)
    memory.preallocate(device_bytes=5, device="cuda:0")
    assert backend.calls == [("device", 100, 1), ("pinned", 7), ("device", 5, 0)]
    with pytest.raises(EngineError, match=r"cannot preallocate 2,000 bytes on cuda:0: CUDA driver API error; ask for"):
        memory.preallocate(device_bytes=2000, device="cuda:0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give a size"),
        ({"device_bytes": -1}, "device_bytes must be a number of bytes, 0 or more, not -1"),
        ({"pinned_bytes": 1e9}, "pinned_bytes must be a number of bytes"),
        ({"pinned_bytes": True}, "pinned_bytes must be a number of bytes"),
        ({"device_bytes": 1, "device": "cpu"}, "is not a GPU"),
        ({"device_bytes": 1, "device": "gpu"}, "device='gpu'"),
    ],
)
def test_preallocate_refuses(arguments: dict[str, Any], message: str, backend: Backend) -> None:
    with pytest.raises(ConfigError, match=message):
        memory.preallocate(**arguments)
    assert backend.calls == []


def test_preallocate_needs_dali_and_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali.backend", Backend(gpus=0))  # type: ignore[arg-type]
    for arguments in ({"pinned_bytes": 1}, {"device_bytes": 1}):
        with pytest.raises(ConfigError, match="no GPU here"):
            memory.preallocate(**arguments)
    monkeypatch.setattr(pools, "installed", lambda: False)
    with pytest.raises(MissingDependency, match="pip install nvidia-dali"):
        memory.preallocate(pinned_bytes=1)


def test_release_gives_back_of_every_pool(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = backend.calls
    monkeypatch.setattr(system, "trim", lambda: calls.append(("trim",)))
    cuda = SimpleNamespace(empty_cache=lambda: calls.append(("cache",)))
    monkeypatch.setattr(memory.held, "_cuda", lambda: cuda)
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: calls.append(("host cache",)), raising=False)
    marker = object()
    monkeypatch.setattr(memory.held, "report", lambda: marker)
    assert memory.release() is marker
    assert calls == [("release",), ("cache",), ("host cache",), ("trim",)]


@pytest.mark.slow
def test_release_without_dali_and_cuda_loads_neither() -> None:
    code = "import sys, gpupipe.memory as m; m.release(); print('torch' in sys.modules, 'nvidia.dali' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


_HOLES = """
import ctypes
from gpupipe import system

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
blocks = [libc.malloc(60_000) for _ in range(2_000)]  # too small to be mapped by themselves
for block in blocks:
    ctypes.memset(block, 1, 60_000)
held = system.process().rss
for i, block in enumerate(blocks[:-1]):
    if i % 20:
        libc.free(block)
full = system.process().rss
system.trim()
print(held - full, full - system.process().rss)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_trim_gives_back_what_lies_in_holes() -> None:
    """In a process of its own, whose heap nothing has filled with holes before."""
    done = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True)
    freed, given_back = map(int, done.stdout.split())
    assert freed < 20_000_000  # malloc keeps it
    assert given_back > 90_000_000


def test_closing_the_dali_engine_gives_back_freed_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(system, "trim", lambda: calls.append("trim"))
    with load(ImageFolder(folder, TRAIN), engine="dali") as loader:
        iter(loader)
        loader.close()
        assert calls == []  # nothing was made yet
        next(iter(loader))
    assert calls == ["trim"]


# ---- the size of the staging


def test_slots_of_the_ring_are_an_option() -> None:
    assert engines.Torch().slots == 2
    for bad in (0, -1, 1.0, True, "2"):
        with pytest.raises(ConfigError, match="slots must be an integer of at least 1"):
            engines.Torch(slots=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="slots=3 is for staging='ring', not 'pageable'"):
        engines.Torch(staging="pageable", slots=3)


def test_slots_are_in_the_facts(folder: Path) -> None:
    setup = native_session(load(ImageFolder(folder, TRAIN))).resolved.setup
    assert "staging" not in engines.Torch(slots=3).build(setup).facts()  # none on the CPU
    ring = engines.Torch(slots=3).build(replace(setup, device="cuda:0"))
    assert isinstance(ring, TorchEngine) and ring.facts()["staging"] == "ring of 3 slots"
    ring._uploader = SimpleNamespace(nbytes=3_000_000)  # type: ignore[assignment]
    assert ring.facts()["staging"] == "ring of 3 slots, 3.0 MB"
    pinned = engines.Torch(staging="pin_memory").build(replace(setup, device="cuda:0")).facts()
    assert pinned["staging"] == "pin_memory"
