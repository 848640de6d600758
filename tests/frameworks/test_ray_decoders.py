"""Ray actors that decode, on a real cluster. ``tests/contract/test_decoders.py`` has everything that needs no Ray."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpupipe import DataLoader, SampleError, transforms as T
from gpupipe.datasets import ImageFolder
from gpupipe.errors import ConfigError
from gpupipe.integrations.ray import Decoders
from gpupipe.testing.photos import make_photos

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(200),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray"),
    pytest.mark.filterwarnings("ignore"),
]

N = 96
TRAIN = T.Compose([T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.ToTensor()])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"), classes=N, per_class=1, sizes=((120, 160), (160, 120)))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two machines; this process is on the first one, which decodes nothing."""
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "4")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
    made.others = [made.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def loader_of(root: Path, **arguments: Any) -> DataLoader:
    common = {"batch_size": 12, "shuffle": True, "seed": 3, "device": "cpu", "num_workers": 2, "prefetch_factor": 3}
    return DataLoader(ImageFolder(root, TRAIN), **common | arguments)


def equal(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) > 1 and all(
        torch.equal(a, b) and torch.equal(x, y) for (a, x), (b, y) in zip(one, two, strict=True)
    )


def test_batches_are_equal_whatever_happens_to_actors(cluster: Any, root: Path) -> None:
    import ray

    decoders = Decoders(2)
    with decoders, loader_of(root, decoders=decoders) as loader, loader_of(root) as plain:
        assert decoders.wait(60) == 2
        assert equal(list(loader), list(plain))
        assert decoders.stats()["images"] >= N and not decoders.stats()["here"]
        assert "decoders: 2 of 2 ready on 1 machine; they decoded" in repr(loader)
        found = []
        pids = [ray.get(actor.__ray_call__.remote(lambda self: os.getpid())) for actor in decoders._actors.values()]
        for step, batch in enumerate(loader):
            found.append(batch)
            if step == 2:
                os.kill(pids[0], signal.SIGKILL)
        assert equal(found, list(plain))
        assert decoders.stats()["failed"] > 0
        assert decoders.wait(60) == 2
        found, began = [], time.monotonic()
        for step, batch in enumerate(loader):
            found.append(batch)
            if step == 2:
                cluster.remove_node(cluster.others[0], allow_graceful=False)
        assert equal(found, list(plain))
        assert time.monotonic() - began < 30
        assert equal(list(loader), list(plain))
        print(decoders.stats())


def test_bad_samples_and_caches(cluster: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    mine = Path(shutil.copytree(root, tmp_path / "photos"))
    dataset = ImageFolder(mine, TRAIN)
    lost = next(mine.rglob("*.jpg"))
    common: dict[str, Any] = {"batch_size": 12, "shuffle": True, "seed": 3, "device": "cpu", "num_workers": 2}
    lost.unlink()
    with Decoders(1, cache="disk", cache_bytes=50 << 20) as decoders:
        decoders.wait(60)
        for seed in (3, 4):
            options = {**common, "seed": seed, "on_error": "replace"}
            with DataLoader(dataset, **options, decoders=decoders) as loader, DataLoader(dataset, **options) as plain:
                assert equal(list(loader), list(plain))
                assert loader.report().samples == plain.report().samples
                assert [bad.kind for bad in loader.report().samples] == ["missing"]
        with pytest.raises(SampleError, match="missing"):
            list(DataLoader(dataset, **common, decoders=decoders))
    with Decoders(1, cache="disk", cache_bytes=5) as decoders:
        decoders.wait(60)
        with pytest.raises(ConfigError, match="cache_bytes=5 cannot hold the largest image"):
            list(DataLoader(dataset, **common, decoders=decoders))


def test_without_a_cluster() -> None:
    with pytest.raises(ConfigError, match=r"not connected to Ray; call ray.init\(\) first"):
        Decoders(2)
