"""What is reported is what is held, and it can be given back."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import EVAL, TRAIN, N, all_seen, native_session, spawned

from gpupipe import DataLoader, engines, memory, system
from gpupipe.datasets import ImageFolder
from gpupipe.engines import staging
from gpupipe.engines.dali import pools
from gpupipe.engines.torch.engine import TorchEngine
from gpupipe.errors import ConfigError, EngineError, MemoryBudgetError, MissingDependency


def load(dataset: Any, **arguments: Any) -> DataLoader:
    return DataLoader(dataset, **{"engine": "torch", "device": "cpu", "seed": 0, "batch_size": 4, **arguments})


# ---- /dev/shm


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_does_not_fit_into_dev_shm_is_refused(
    numbered: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Before it is written, because that would end the worker by a signal."""
    need = 4 * 3 * 32 * 32
    with load(ImageFolder(numbered, EVAL), num_workers=workers) as loader:
        monkeypatch.setattr(system, "shm_free", lambda: need - workers)
        if not workers:
            assert sorted(all_seen(loader)) == list(range(N))
            return
        with pytest.raises(MemoryBudgetError, match=r"12\.3 kB does not fit into /dev/shm, .* --shm-size"):
            next(iter(loader))
    monkeypatch.setattr(system, "shm_free", lambda: need)
    with load(ImageFolder(numbered, EVAL), num_workers=workers) as loader:
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
            {  # in a container the numbered is hidden, and the mounted root is the group
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


def test_without_linux_nothing_is_known(numbered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, monkeypatch, {})
    monkeypatch.setattr(system, "_SHM", tmp_path / "shm")
    assert system.memory_limit() is system.shm_size() is system.shm_free() is None
    assert system.process() is None and system.children() == []
    with load(ImageFolder(numbered, TRAIN), num_workers=1) as loader:
        next(iter(loader))
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
    monkeypatch.setattr(memory, "_cuda", lambda: cuda)
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: calls.append(("host cache",)), raising=False)
    marker = object()
    monkeypatch.setattr(memory, "report", lambda: marker)
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


def test_closing_the_dali_engine_gives_back_freed_memory(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(system, "trim", lambda: calls.append("trim"))
    with load(ImageFolder(numbered, TRAIN), engine="dali") as loader:
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


def test_slots_are_in_the_facts(numbered: Path) -> None:
    setup = native_session(load(ImageFolder(numbered, TRAIN))).resolved.setup
    assert "staging" not in engines.Torch(slots=3).build(setup).facts()  # none on the CPU
    ring = engines.Torch(slots=3).build(replace(setup, device="cuda:0"))
    assert isinstance(ring, TorchEngine) and ring.facts()["staging"] == "ring of 3 slots"
    ring._uploader = SimpleNamespace(nbytes=3_000_000)  # type: ignore[assignment]
    assert ring.facts()["staging"] == "ring of 3 slots, 3.0 MB"
    pinned = engines.Torch(staging="pin_memory").build(replace(setup, device="cuda:0")).facts()
    assert pinned["staging"] == "pin_memory"
