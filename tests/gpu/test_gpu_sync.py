"""The host does not wait for the device: not in torch's functions, not in CUDA's, not for the consumer's stream.

Constants and slots are made once, so an epoch goes before everything that is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_tools import calls_of_torch, delay, no_synchronization, profiled
from support import SEED, pictures
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gpupipe import DataLoader, transforms as T
from gpupipe.collate import Padded, Patches, as_lists
from gpupipe.datasets import Arrays, Columns, ImageFolder
from gpupipe.engines import Torch
from gpupipe.pipelines import imagenet, simclr
from gpupipe.targets import Masks

FLOAT = [T.ToTensor(), T.Normalize(imagenet.MEAN, imagenet.STD)]


def _after(*steps: T.Transform) -> T.Compose:
    return T.Compose([T.RandomResizedCrop(96), *steps, *FLOAT])


PIPELINES: dict[str, Callable[[], T.Compose]] = {
    "train": lambda: imagenet.train(96),
    "train float16 channels_last": lambda: imagenet.train(96, dtype="float16", memory_format="channels_last"),
    "strong: policy, erasing, mixup or cutmix": lambda: imagenet.train_strong(96),
    "light": lambda: imagenet.train_light(96),
    "two views": lambda: simclr.train(96),
    "hue": lambda: _after(T.ColorJitter(hue=0.3)),
    "hue of floats": lambda: T.Compose([T.RandomResizedCrop(96), T.ToTensor(), T.ColorJitter(hue=0.3)]),
    "color": lambda: _after(T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.5)),
    "RandAugment": lambda: _after(T.RandAugment()),
    "TrivialAugmentWide": lambda: _after(T.TrivialAugmentWide()),
    "AutoAugment": lambda: _after(T.AutoAugment()),
    "AugMix": lambda: _after(T.AugMix()),
    "warp and perspective behind hue": lambda: _after(
        T.ColorJitter(hue=0.3), T.RandomAffine(30, (0.1, 0.1), fill=9), T.RandomPerspective(0.5, 0.5)
    ),
    "blur behind hue": lambda: _after(T.ColorJitter(hue=0.3), T.RandomApply([T.GaussianBlur(5)], 0.5)),
    "erasing with noise": lambda: T.Compose([*_after(), T.RandomErasing(0.8, value="random")]),
    "mixup": lambda: T.Compose([*_after(), T.MixUp(num_classes=1000)]),
    "cutmix": lambda: T.Compose([*_after(), T.CutMix(num_classes=1000)]),
}


def dataset(kind: str, pipeline: T.Compose, large: Path) -> Any:
    if kind == "folder":
        return ImageFolder(large, pipeline)
    images = Arrays(np.tile(pictures(16, 120, 140), (4, 1, 1, 1)), np.arange(64), transform=pipeline)
    return images if kind == "arrays" else Columns(images, {"mask": Masks(np.zeros((64, 120, 140), np.uint8))})


CASES = [(name, "arrays") for name in PIPELINES] + [("train", kind) for kind in ("folder", "masks")]
ENGINES = {"dali": "dali", "torch, ring": Torch(), "torch, pin_memory": Torch(staging="pin_memory")}


def load(data: Any, engine: str, batch_size: int = 8, **options: Any) -> DataLoader:
    return DataLoader(
        data,
        batch_size,
        shuffle=True,
        num_workers=2,
        device="cuda",
        seed=SEED,
        engine=ENGINES[engine],
        drop_last=True,
        **options,
    )


def views(images: Any) -> tuple[Tensor, ...]:
    return images if isinstance(images, tuple) else (images,)


def consume(loader: DataLoader) -> int:
    """A loop as a training has it: reads everything, and waits for nothing."""
    batches = 0
    for images, *targets in loader:
        for view in views(images):
            view.float().mean()
        for target in targets:
            target + 1
        batches += 1
    return batches


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_what_waits_is_noticed() -> None:
    """The counter-proof: without it the tests below might pass because nothing is watched."""
    x = torch.ones(2, device="cuda")
    with no_synchronization():
        with pytest.raises(RuntimeError, match="synchroniz"):
            x.sum().item()
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.ones(4).to("cuda")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_torch_is_asked_for_no_synchronization(engine: str, name: str, kind: str, large: Path) -> None:
    """Fails at the function of torch's that waits: a copy out of memory that is not pinned, a mask used as an index,
    ``.item()``."""
    with load(dataset(kind, PIPELINES[name](), large), engine) as loader:
        consume(loader)
        with no_synchronization():
            assert consume(loader) == len(loader)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["arrays", "folder", "bytes", "masks"])
def test_a_collate_function_gets_numbers_without_waiting(engine: str, kind: str, large: Path) -> None:
    """Fails where labels go to the GPU and come back, or what the function makes of them is copied and waited for."""
    seen: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        images, labels, *_ = zip(*samples, strict=True)
        seen.extend(labels)
        return torch.stack(images), {"y": [torch.tensor(labels)]}

    with load(dataset(kind, PIPELINES["light"](), large), engine, collate_fn=collate) as loader:
        for _ in loader:
            pass
        with no_synchronization():
            assert all(images.is_cuda and target["y"][0].is_cuda for images, target in loader)
    assert seen and all(type(label) is int for label in seen)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("collate", [as_lists, Padded(32), Patches(20)])
def test_functions_of_collate_do_not_wait(collate: Any, large: Path) -> None:
    with load(dataset("arrays", T.Compose([T.ToTensor()]), large), "dali", collate_fn=collate) as loader:
        assert len(list(loader)) == len(loader)
        with no_synchronization():
            found = list(loader)
    tensors = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
    assert tensors and all(tensor.is_cuda for tensor in tensors)


def test_the_profiler_counts_waits(tmp_path: Path) -> None:
    """The counter-proof of the test below: three waits of this thread are three."""
    x = torch.ones(2, device="cuda")
    with profiled(tmp_path / "trace.json") as found:
        torch.cuda.synchronize()
        torch.cuda.current_stream().synchronize()
        x.sum().item()
    here, _elsewhere, calls = found
    if not calls:
        pytest.skip("the profiler sees no calls of CUDA's on this machine")
    assert sum(here.values()) >= 3, here


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_no_wait_for_each_batch(
    engine: str, name: str, kind: str, large: Path, tmp_path: Path, measured: Callable[..., None]
) -> None:
    """In the consumer's thread; DALI's own threads may wait as they like. Fails where there are as many waits as
    batches. A few belong to the end of the epoch, and to a ring whose copies are late."""
    with load(dataset(kind, PIPELINES[name](), large), engine) as loader:
        consume(loader)
        consume(loader)
        torch.cuda.synchronize()
        with profiled(tmp_path / "trace.json") as found:
            batches = consume(loader)
    here, elsewhere, calls = found
    if not calls:
        pytest.skip("the profiler sees no calls of CUDA's on this machine")
    measured(f"waits: {engine}, {kind}, {name}", batches=batches, here=dict(here), in_other_threads=dict(elsewhere))
    assert sum(here.values()) < batches, here


@pytest.mark.parametrize("engine", ["dali", "torch, ring"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("train", "arrays"), ("train", "folder"), ("train", "bytes"), ("train", "masks"), ("mixup", "arrays")],
)
def test_the_host_does_not_wait_for_the_consumers_stream(engine: str, name: str, kind: str, large: Path) -> None:
    """Fails where two batches that are ready are handed out only after the consumer's kernel of a second has ended.

    The first of two rounds may wait: every batch that the consumer is behind needs pinned memory, and page-locking,
    once for each, waits for the device."""
    with load(dataset(kind, PIPELINES[name](), large), engine) as loader:
        consume(loader)
        iterator = iter(loader)
        next(iterator), next(iterator)
        for _ in range(2):
            time.sleep(1)  # the next ones are ready
            torch.cuda.synchronize()
            delay(1000)
            ended = torch.cuda.current_stream().record_event()
            next(iterator), next(iterator)
            waited = ended.query()
    assert not waited


def test_calls_are_counted() -> None:
    """The counter-proof of the test below."""
    x = torch.ones(4, 3).pin_memory()
    with calls_of_torch() as calls:
        y = x.to("cuda", non_blocking=True).view(3, 4)
        torch.cuda.Event().record()
        (y + 1).sum().item()
        torch.cuda.synchronize()
    assert calls.operators == {"_to_copy": 1, "add": 1, "sum": 1, "_local_scalar_dense": 1}
    assert calls.events == 1 and calls.waits == {"stream_synchronization": 1, "device_synchronization": 1}


@pytest.mark.parametrize("engine", ["dali", "torch, ring"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_large_batch_takes_no_more_calls(
    engine: str, name: str, kind: str, large: Path, measured: Callable[..., None]
) -> None:
    """Fails where each image of a batch has kernels of its own, or each batch waits or allocates. Of a random choice
    between ops, a large batch has more, hence the factor."""
    launches = {}
    for batch_size in (8, 32):
        with load(dataset(kind, PIPELINES[name](), large), engine, batch_size) as loader:
            consume(loader)
            consume(loader)
            torch.cuda.synchronize()
            with calls_of_torch() as calls:
                batches = sum(1 for _ in loader)
        launches[batch_size] = calls.operators.total() / batches
        assert calls.waits.total() < batches and calls.mallocs <= batches, (calls.waits, calls.mallocs)
    measured(
        f"calls: {engine}, {kind}, {name}", launches=launches, events=calls.events / batches, mallocs=calls.mallocs
    )
    assert launches[32] <= 1.5 * launches[8], calls.operators.most_common(5)
