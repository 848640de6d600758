"""More than one device, stream or loader; and what needs more GPUs than one is left out by name."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import EVAL, SEED, N, all_seen, images_of, seen

from gpupipe import DataLoader, memory
from gpupipe.datasets import ImageFolder
from gpupipe.engines.dali import pools
from gpupipe.pipelines import imagenet

MIB = 1 << 20
TESTS = Path(__file__).resolve().parents[1]
two_gpus = pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs: the second one by its number")


def load(root: Path, engine: str = "dali", pipeline: Any = EVAL, **arguments: Any) -> DataLoader:
    given = {"batch_size": 5, "shuffle": True, "num_workers": 2, "device": "cuda", "seed": SEED, **arguments}
    return DataLoader(ImageFolder(root, pipeline), engine=engine, **given)


@two_gpus
@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_the_second_gpu_while_the_first_is_current(engine: str, numbered: Path) -> None:
    """Fails where a stream, an event or a tensor of the current device is taken for the loader's."""
    with load(numbered, engine) as first, load(numbered, engine, device="cuda:1") as second:
        for a, b in zip(first, second, strict=True):
            assert str(b[0].device) == str(b[1].device) == "cuda:1" and torch.cuda.current_device() == 0
            torch.cuda._sleep(5_000_000)  # type: ignore[no-untyped-call]
            assert seen(a) == seen(b) and (images_of(a).cpu().int() - images_of(b).cpu().int()).abs().float().mean() < 1


@pytest.mark.skip(reason="DDP over NCCL needs a GPU for each rank; tests/distributed runs ranks over gloo")
def test_ddp_over_nccl() -> None: ...


@pytest.mark.parametrize("name", ["cuda", "cuda:0", 0, torch.device("cuda", 0)], ids=str)
def test_names_of_the_device(name: Any, numbered: Path) -> None:
    with load(numbered, device=name) as loader:
        assert next(iter(loader))[0].device == torch.device("cuda", 0)


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_with_a_default_device(engine: str, numbered: Path) -> None:
    """Fails where a buffer that must be on the host is made on the default device."""
    with load(numbered, engine) as loader:
        want = [images_of(b).cpu() for b in loader]
    torch.set_default_device("cuda")
    try:
        with load(numbered, engine) as loader:
            got = [images_of(b).cpu() for b in loader]
    finally:
        torch.set_default_device(None)
    assert all((a.int() - b.int()).abs().max() <= 3 for a, b in zip(got, want, strict=True))


def test_three_loaders_at_once(numbered: Path) -> None:
    """Training, validation, and the reference: none sees another's batches. Fails where they share state."""
    alone = {e: [images_of(b).cpu() for b in load(numbered, e)] for e in ("dali", "torch")}
    with load(numbered) as one, load(numbered, "torch") as two, load(numbered, pipeline=imagenet.train(64)) as train:
        for i, (a, b, c) in enumerate(zip(one, two, train, strict=True)):
            assert seen(a) == seen(b) == seen(c)
            assert (images_of(a).cpu().int() - alone["dali"][i].int()).abs().max() <= 3
            assert torch.equal(images_of(b).cpu(), alone["torch"][i])


def test_loaders_of_two_threads(numbered: Path) -> None:
    """Each thread with a stream of its own. Fails where the stream of one is taken for the other's."""
    from concurrent.futures import ThreadPoolExecutor

    def work(engine: str) -> list[int]:
        with torch.cuda.stream(torch.cuda.Stream()), load(numbered, engine) as loader:  # type: ignore[no-untyped-call]
            out = [int(images_of(b).sum(dtype=torch.int64)) for _ in range(5) for b in loader]
            torch.cuda.current_stream().synchronize()
            return out

    alone = {e: work(e) for e in ("dali", "torch")}
    with ThreadPoolExecutor(4) as pool:
        for engine, got in zip(("dali", "torch") * 2, pool.map(work, ("dali", "torch") * 2), strict=True):
            near = [abs(a - b) / b for a, b in zip(got, [*alone[engine]], strict=True)]
            assert max(near) < (1e-3 if engine == "dali" else 1e-12)


def test_closing_gives_back_what_dali_keeps(
    large: Path, monkeypatch: pytest.MonkeyPatch, measured: Callable[..., None]
) -> None:
    """Fails where ``close()`` leaves DALI's pool as it was; without the release it must be larger."""

    def other() -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    def epoch() -> None:
        loader = load(large, pipeline=imagenet.train(448), batch_size=32)
        for batch in loader:
            del batch
        loader.close()

    epoch()
    memory.release()
    before = other()
    with monkeypatch.context() as patch:
        patch.setattr(pools, "release", lambda: None)
        epoch()
        kept = other() - before
    epoch()
    after = other() - before
    measured("close", kept_without_release_mib=kept / MIB, kept_mib=after / MIB)
    assert after < 64 * MIB
    if kept < 32 * MIB:
        pytest.skip("not provable on this machine: DALI keeps nothing by itself")
    assert after < kept / 2


def test_a_process_that_ends_without_closing(numbered: Path) -> None:
    """Fails where it hangs or crashes at its end: threads, streams and pools are still alive then."""
    code = f"""
        import sys
        sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
        import conftest
        from support import EVAL
        from gpupipe import DataLoader
        from gpupipe.datasets import ImageFolder
        for engine in ("dali", "torch"):
            loader = DataLoader(ImageFolder({str(numbered)!r}, EVAL), batch_size=5, num_workers=2, engine=engine,
                                device="cuda")
            iterator = iter(loader)
            kept = next(iterator)
        print("end")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_the_end_of_a_loop_leaves_the_device_usable(numbered: Path) -> None:
    """``break``, exceptions and garbage. Fails where the next loader or torch itself meets an error of CUDA's."""
    for _ in range(3):
        loader = load(numbered)
        for batch in loader:
            kept = images_of(batch)
            break
        del loader, batch
        assert torch.isfinite(kept.float().sum())
    with load(numbered) as loader:
        assert sorted(all_seen(loader)) == list(range(N))
