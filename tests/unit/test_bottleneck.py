"""Where a loader's time goes: stages, the bottleneck that statistics name, and ranges in torch's profiler."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from gpupipe import DataLoader, datasets, stages as accounts, system, transforms as T
from gpupipe.loader.bottleneck import Measured, Work, bottleneck
from gpupipe.stages import DECODING, NAMES, TRANSFORMS, USER_CODE, add, spent

WORK = Work(workers=2, batch_size=64, cores=2, dali=True)


def named(measured: Measured, work: float = 0.0, of: Work = WORK) -> tuple[str, str]:
    found = bottleneck(replace(measured, wait=10.0, work=work), of)
    assert found is not None and 0 < found.share <= 1 and found.why
    return found.stage, found.next_step


def measured(own: float = 0.1, **seconds: float) -> Measured:
    found = Measured(own=own)
    found.stages |= {name.replace("_", " "): value for name, value in seconds.items()}
    return found


@pytest.mark.parametrize(
    ("found", "work", "of", "stage", "word"),
    [
        (measured(), 200.0, WORK, "model", "model"),
        (measured(graph=9.8), 0.0, WORK, "decoding", "decode on a GPU"),
        (measured(graph=9.8, transforms=8.0), 0.0, WORK, "decoding", "cache"),
        (measured(graph=9.8), 0.0, replace(WORK, shrink=9.0), "decoding", "--resize"),
        (measured(decoding=18.0), 0.0, WORK, "decoding", "JPEG"),
        (measured(decoding=18.0), 0.0, replace(WORK, shrink=9.0, dali=False), "decoding", "scaled=True"),
        (measured(graph=9.8), 0.0, replace(WORK, workers=1, cores=4), "decoding", "num_workers=4"),
        (measured(storage=15.0, graph=1.0), 0.0, WORK, "storage", "pack"),
        (measured(storage=9.0), 0.0, replace(WORK, remote=True), "storage", "local disk"),
        (measured(transforms=18.0), 0.0, WORK, "transforms", "leave some transforms out"),
        (measured(user_code=18.0), 0.0, WORK, "user code", "__getitem__"),
        (measured(user_code=18.0), 0.0, replace(WORK, plain=True), "user code", "gpupipe why"),
        (measured(own=9.0), 0.0, replace(WORK, plain=True, workers=0), "user code", "num_workers=2"),
        (measured(own=8.0, decoding=9.0), 0.0, WORK, "hand-over", "larger batch_size"),
        (measured(own=4.5, transforms=9.0), 0.0, replace(WORK, batch_size=2), "hand-over", "2 samples"),
        (measured(own=8.0, user_code=9.0), 0.0, replace(WORK, collates=True), "hand-over", "objects"),
        (measured(own=8.0, user_code=9.0), 0.0, replace(WORK, plain=True), "hand-over", "objects"),
        (measured(), 0.0, WORK, "hand-over", "larger batch_size"),
        (measured(decoding=9.0, transforms=8.0, user_code=7.0), 0.0, WORK, "nothing", "longer"),
    ],
)
def test_the_bottleneck_follows_from_the_times(found: Measured, work: float, of: Work, stage: str, word: str) -> None:
    assert bottleneck(Measured(), of) is None
    assert bottleneck(Measured(wait=0.009), of) is None  # the end of an epoch
    got, step = named(found, work, of)
    assert got == stage and word in step


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, 3),
        ("0::/a\n", {"a/cpu.max": "20000 100000"}, 1),
        ("0::/hidden\n", {"cpu.max": "400000 100000"}, 4),
        (
            "3:cpuset:/\n2:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "200000", "cpu/x/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("3:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, 64),
        ("", {}, 64),
    ],
)
def test_cores_are_limited_by_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(system, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(system, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))
    for name, text in {"proc/self/cgroup": groups, **{f"groups/{name}": text for name, text in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert system.cores() == cores


def test_a_forked_worker_counts_its_own_time_alone() -> None:
    with DECODING:
        time.sleep(0.01)
    read, write = os.pipe()
    if not (pid := os.fork()):
        os.write(write, b"%d" % (max(spent()) > 0))
        os._exit(0)
    os.waitpid(pid, 0)
    assert spent()[DECODING.number] > 0 and os.read(read, 1) == b"0"


def test_stages_exclude_those_within_and_count_threads_and_processes() -> None:
    def work() -> None:
        with DECODING:
            time.sleep(0.02)
            with TRANSFORMS:
                time.sleep(0.03)

    before = spent()
    thread = Thread(target=work)
    thread.start()
    thread.join()
    here = spent().since(before)
    add(here)
    both = spent().since(before)
    for stage, least in ((DECODING, 0.02), (TRANSFORMS, 0.03)):
        assert least <= here[stage.number] < least + 0.02 + here[USER_CODE.number] + 0.2
        assert both[stage.number] == pytest.approx(2 * here[stage.number])
    work = TRANSFORMS(work)  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError), USER_CODE:
        _ = 1 / 0
    after = spent()
    time.sleep(0.02)
    assert spent() == after  # nothing goes on


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return torch.zeros(3, 8, 8), index


def test_statistics_name_user_code_and_the_model() -> None:
    with DataLoader(Slow(), 4, device="cpu") as loader:
        assert loader.stats()["bottleneck"] is None
        list(loader)
        assert loader.stats()["bottleneck"]["stage"] == "user code"
        for _ in loader:
            time.sleep(0.05)
        stats = loader.stats()
        assert stats["work_seconds"] > 0.15
    images = datasets.Arrays(np.zeros((12, 8, 8, 3), np.uint8), transform=T.Compose([T.ToTensor()]))
    with DataLoader(images, 4, device="cpu") as loader:
        for _ in loader:
            time.sleep(0.1)
        stats = loader.stats()
    assert stats["bottleneck"]["stage"] == "model" and stats["bottleneck"]["share"] > 0.5
    assert list(stats["stages"]) == NAMES and stats["stages"]["storage"] == 0
    json.dumps(stats)


def test_worker_processes_send_their_times(photos: Path) -> None:
    steps = T.Compose([T.Resize((32, 32)), T.ToTensor()])
    with DataLoader(datasets.ImageFolder(photos, steps), 6, device="cpu", engine="torch", num_workers=1) as loader:
        list(loader)
        stages = loader.stats()["stages"]
    assert stages["decoding"] > 0 and stages["transforms"] > 0


def test_seconds_are_added_one_after_another() -> None:
    """A thread that begins also adds: the seconds of threads that have ended."""
    before = spent()
    thread = Thread(target=add, args=(accounts.Spent((2.0, *[0.0] * (len(NAMES) - 1))),))
    with accounts._adding:
        thread.start()
        thread.join(0.1)
        assert spent()[0] - before[0] < 1
    thread.join()
    assert spent()[0] - before[0] > 1.9  # sums of floats are rounded


def test_stages_are_ranges_while_a_profiler_is_active() -> None:
    images = datasets.Arrays(np.zeros((8, 8, 8, 3), np.uint8), transform=T.Compose([T.ToTensor()]))
    try:
        everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # older releases record the calling thread only
        everywhere = None
    with DataLoader(images, 4, device="cpu", collate_fn=list) as loader:
        list(loader)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, experimental_config=everywhere) as profile:
            list(loader)
        counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("gpupipe: ")}
        with torch.profiler.profile(activities=activities) as off:
            pass
        list(loader)
    assert counts["gpupipe: next batch"] == 3
    if everywhere is not None:
        assert counts["gpupipe: user code"] == 2 and "gpupipe: transforms" in counts
    assert not [event for event in off.key_averages() if event.key.startswith("gpupipe")]


def test_stages_are_nvtx_ranges_under_emit_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    """``emit_nvtx`` makes NVTX ranges of ``record_function``; what needs CUDA in it is left out here."""
    profiler, seen = torch.autograd.profiler, []

    class Range:
        def __init__(self, name: str):
            self.name = name

        def __enter__(self) -> None:
            seen.append(f"push {self.name}")

        def __exit__(self, *exc: object) -> None:
            seen.append(f"pop {self.name}")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name in ("_enable_profiler", "_disable_profiler"):
        monkeypatch.setattr(profiler, name, lambda *args: None)
    monkeypatch.setattr(profiler, "record_function", Range)
    with profiler.emit_nvtx(), DECODING, TRANSFORMS:
        pass
    with DECODING:
        pass
    assert seen == [f"{what} gpupipe: {stage}" for what, stage in (
        ("push", "decoding"), ("push", "transforms"), ("pop", "transforms"), ("pop", "decoding"),
    )]  # fmt: skip
