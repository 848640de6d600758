"""Memory reports and DALI's pools on a GPU, also where two processes share it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import spawned

from gpupipe import DataLoader, engines, memory
from gpupipe.datasets import ImageFolder
from gpupipe.errors import ConfigError, EngineError
from gpupipe.pipelines import imagenet

MIB = 1 << 20


def here() -> memory.DeviceMemory:
    """The current GPU as the report has it."""
    torch.cuda.synchronize()
    return next(d for d in memory.report().devices if d.index == torch.cuda.current_device())


def fresh(code: str) -> str:
    """What a new process prints."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_report_does_not_start_cuda() -> None:
    said = fresh(
        """
        import torch
        from gpupipe import memory
        print(memory.report().devices, memory.release().devices, torch.cuda.is_initialized())
        """
    )
    assert said.split() == ["()", "()", "False"]


def test_tensors_are_counted_to_the_byte() -> None:
    before = here()
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    during = here()
    del x
    held = here()
    memory.release()
    after = here()
    assert during.allocated - before.allocated == 64 * MIB and during.reserved >= before.reserved
    assert held.allocated == before.allocated and held.reserved == during.reserved
    assert after.reserved <= held.reserved - 32 * MIB
    assert during.allocated <= during.reserved <= during.total - during.free


def test_preallocated_memory_is_held_and_released(measured: Callable[..., None]) -> None:
    memory.release()
    before = here()
    memory.preallocate(device_bytes=512 * MIB, device="cuda")
    during = here()
    memory.release()
    after = here()
    measured(
        "preallocate 512 MiB",
        taken_mib=(during.other - before.other) / MIB,
        left_mib=(after.other - before.other) / MIB,
    )
    assert during.other - before.other >= 384 * MIB  # what DALI's pool had free before counts too
    assert after.other - before.other < 128 * MIB


def test_preallocate_pinned(measured: Callable[..., None]) -> None:
    before = memory.report().process
    memory.preallocate(pinned_bytes=256 * MIB)
    during = memory.report().process
    memory.release()
    assert before is not None and during is not None
    measured("preallocate 256 MiB pinned", resident_mib=(during.rss - before.rss) / MIB)


def test_preallocate_what_there_is_not() -> None:
    with pytest.raises(EngineError, match="cannot preallocate"):
        memory.preallocate(device_bytes=1 << 50)
    with pytest.raises(ConfigError, match="is not a GPU"):
        memory.preallocate(device_bytes=1, device="cpu")


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_staging_is_reported_while_it_is_held(slots: int, large: Path) -> None:
    before = memory.report()
    loader = DataLoader(ImageFolder(large, imagenet.train(224)), 8, engine=engines.Torch(slots=slots), device="cuda")
    for batch in loader:
        del batch
    during = memory.report()
    assert during.staging - before.staging == slots * 8 * 224 * 224 * 3
    assert during.rings == before.rings + 1
    assert during.pinned_by_torch is None or during.pinned_by_torch >= during.staging
    loader.close()
    assert memory.report().staging == before.staging


def test_two_processes_on_one_gpu_report_their_own() -> None:
    """The other one's memory is in ``other`` and in ``free``, not in what is counted as ours."""
    code = f"""
        import sys, torch
        from gpupipe import memory
        x = torch.empty(256 * {MIB}, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        [d] = memory.report().devices
        print(d.allocated, flush=True)
        sys.stdin.read()
    """
    torch.empty(1, device="cuda")
    before, children = here(), memory.report().worker_count
    with spawned([sys.executable, "-c", textwrap.dedent(code)]) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        during = here()
        assert memory.report().worker_count == children + 1
    after = here()
    assert theirs == 256 * MIB
    assert during.allocated == before.allocated and during.reserved == before.reserved
    assert during.other - before.other >= 256 * MIB
    assert after.other - before.other < 64 * MIB
