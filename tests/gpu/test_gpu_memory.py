"""Device memory: bounded, flat over epochs, and given back; and processes that share a device."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import SEED, N, all_seen, images_of, spawned

from gpupipe import DataLoader
from gpupipe.datasets import ImageFolder
from gpupipe.pipelines import imagenet

TESTS = Path(__file__).resolve().parents[1]
MIB = 1 << 20


def used() -> int:
    """Bytes of device memory in use, by whomever; what torch merely caches is given back first."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def load(root: Path, engine: str = "dali", size: int = 64, **arguments: Any) -> DataLoader:
    given = {"batch_size": 8, "shuffle": True, "num_workers": 2, "device": "cuda", "seed": SEED, **arguments}
    return DataLoader(ImageFolder(root, imagenet.train(size)), engine=engine, **given)


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_memory_is_flat_over_fifty_epochs(engine: str, numbered: Path, measured: Callable[..., None]) -> None:
    with load(numbered, engine, num_workers=2 if engine == "dali" else 0) as loader:
        marks = []
        for epoch in range(50):
            for batch in loader:
                del batch
            if epoch in (9, 29, 49):
                marks.append(used())
    measured(f"memory over epochs: {engine}", mib_at_10_30_50=[round(m / MIB, 1) for m in marks])
    assert marks[2] - marks[0] < 32 * MIB


def test_kept_batches_cost_what_they_weigh_and_are_given_back(large: Path, measured: Callable[..., None]) -> None:
    with load(large, size=224) as loader:
        list(loader)
        before = used()
        kept = [images_of(b) for _ in range(4) for b in loader]
        weight = sum(t.nbytes for t in kept)
        grown = used() - before
        del kept
        for _ in range(2):
            for batch in loader:
                del batch
        after = used() - before
    measured("kept batches", weigh_mib=weight / MIB, grown_mib=grown / MIB, left_mib=after / MIB)
    assert grown < 2 * weight + 256 * MIB


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_close_gives_the_memory_back(engine: str, large: Path, measured: Callable[..., None]) -> None:
    with load(large, engine, size=224, batch_size=32) as loader:
        list(loader)  # what libraries load for good
    before = used()
    loader = load(large, engine, size=224, batch_size=32)
    batch = next(iter(loader))
    during = used()
    del batch
    loader.close()
    after = used()
    measured(f"close: {engine}", before_mib=before / MIB, during_mib=during / MIB, after_mib=after / MIB)
    assert after - before < 64 * MIB


def test_twenty_loaders_one_after_another_leave_nothing(numbered: Path, measured: Callable[..., None]) -> None:
    marks = []
    for _ in range(20):
        with load(numbered) as loader:
            next(iter(loader))
        marks.append(used())
    measured("loaders one after another", mib=[round(m / MIB, 1) for m in marks[::5]])
    assert marks[-1] - marks[3] < 32 * MIB


def script(root: Path, engine: str, seed: int) -> list[str]:
    code = f"""
        import sys
        sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
        from support import EVAL, all_seen
        from gpupipe import DataLoader
        from gpupipe.datasets import ImageFolder
        loader = DataLoader(ImageFolder({str(root)!r}, EVAL), batch_size=5, num_workers=2, engine={engine!r},
                            device="cuda", shuffle=True, seed={seed})
        for _ in range(20):
            seen = all_seen(loader)
        loader.close()
        print(sorted(seen) == list(range(len(seen))), len(seen))
    """
    return [sys.executable, "-c", textwrap.dedent(code)]


def test_two_processes_share_a_gpu(numbered: Path) -> None:
    with spawned(script(numbered, "dali", 0)) as one, spawned(script(numbered, "dali", 1)) as other:
        with load(numbered) as loader:
            for _ in range(10):
                assert sorted(all_seen(loader)) == list(range(N))
        for process in (one, other):
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert out.strip() == f"True {N}"


def test_torch_and_dali_of_two_versions_of_cuda(numbered: Path, measured: Callable[..., None]) -> None:
    """They may bring different CUDA libraries into one process."""
    import nvidia.dali

    with load(numbered) as dali, load(numbered, "torch") as reference:
        x = torch.randn(512, 512, device="cuda")
        for a, b in zip(dali, reference, strict=True):
            assert a[1].tolist() == b[1].tolist()
            x = torch.nn.functional.conv2d(x.view(1, 1, 512, 512), torch.ones(1, 1, 3, 3, device="cuda"), padding=1)[
                0, 0
            ]
            x = (x @ x.T) / (1 + (x @ x.T).abs().max())
        assert torch.isfinite(x).all()
    maps = Path("/proc/self/maps").read_text()
    libraries = sorted(
        {line.split("/")[-1] for line in maps.splitlines() if "libcudart" in line or "libnvjpeg" in line}
    )
    measured(
        "versions",
        torch=torch.__version__, torch_cuda=torch.version.cuda, dali=nvidia.dali.__version__,
        gpu=torch.cuda.get_device_name(), libraries=libraries,
    )  # fmt: skip


def test_no_gpu_memory_before_the_first_iter(numbered: Path) -> None:
    before = used()
    loaders = [load(numbered, engine) for engine in ("dali", "torch")]
    assert abs(used() - before) < 2 * MIB
    for loader in loaders:
        repr(loader)
        loader.close()


def test_constructing_does_not_start_cuda(numbered: Path) -> None:
    code = f"""
        import sys
        sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
        import torch
        from support import EVAL
        from gpupipe import DataLoader
        from gpupipe.datasets import ImageFolder
        for engine in ("dali", "torch", "auto"):
            DataLoader(ImageFolder({str(numbered)!r}, EVAL), batch_size=5, engine=engine, device="cuda").state_dict()
        print(torch.cuda.is_initialized())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def test_python_datasets_come_through_workers_to_the_gpu(numbered: Path) -> None:
    from support import EVAL, pictures

    from gpupipe.datasets import Arrays, from_torch

    files = [p.read_bytes() for p in sorted(numbered.rglob("*.jpg"))]
    for dataset in (
        from_torch([(file, i) for i, file in enumerate(files)], media="bytes", transform=EVAL),
        from_torch(_Pixels(), media="array", transform=EVAL),
        Arrays(pictures(), np.arange(N), transform=EVAL),
    ):
        per_engine = []
        for engine in ("torch", "dali"):
            with DataLoader(dataset, batch_size=5, num_workers=2, engine=engine, device="cuda") as loader:
                batches = list(loader)
                assert all(b[0].is_cuda and b[1].is_cuda and b[1].dtype == torch.int64 for b in batches)
                assert all_seen(batches) == list(range(N))
                per_engine.append(torch.cat([b[0].float() for b in batches]))
        assert (per_engine[0] - per_engine[1]).abs().mean() < 2


class _Pixels:
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        from gpupipe.testing.photos import photograph

        return photograph(60 + i % 3, 70, i), i
