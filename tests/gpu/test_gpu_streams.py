"""A batch is ready on the consumer's stream, the host does not wait, and its memory is left alone while it is read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_tools import DEVICE, delay, finish
from support import SEED, images_of, pictures
from torch import Tensor

from gpupipe import DataLoader, transforms as T
from gpupipe.copy_stream import CopyStream, copy_stream, upload
from gpupipe.datasets import Arrays, ImageFolder
from gpupipe.engines import Dali, Torch
from gpupipe.engines.dali.runner import Runner
from gpupipe.engines.delivery import KeepAlive
from gpupipe.engines.staging import Ring
from gpupipe.pipelines import imagenet

CROP = T.Compose([T.RandomCrop(160), T.RandomHorizontalFlip(), T.PILToTensor()])
"""Exact on every device, so that one byte that changed is one byte that was overwritten."""


@pytest.fixture(scope="module")
def pixels() -> Any:
    return np.ascontiguousarray(np.tile(pictures(32, 64, 64), (4, 3, 3, 1)))


@pytest.fixture(scope="module")
def arrays(pixels: Any) -> Arrays:
    return Arrays(pixels, np.arange(len(pixels)), transform=CROP)


def load(dataset: Any, engine: Any = "dali", **arguments: Any) -> DataLoader:
    given = {"batch_size": 16, "shuffle": True, "num_workers": 2, "device": DEVICE, "seed": SEED, **arguments}
    return DataLoader(dataset, engine=engine, **given)


def expected(dataset: Any, engine: Any = "dali", epochs: int = 2) -> list[Tensor]:
    """The batches, waited for one by one."""
    out = []
    with load(dataset, engine) as loader:
        for _ in range(epochs):
            for batch in loader:
                finish()
                out.append(images_of(batch).cpu())
                finish()
    return out


def read_late(loader: DataLoader, epochs: int = 2, keep: int = 0) -> list[Tensor]:
    """The batches, each read by a kernel that starts long after its Python object is gone."""
    copies, kept = [], []
    with loader:
        for _ in range(epochs):
            for batch in loader:
                images = images_of(batch)
                delay(12)
                copies.append(images.clone())  # queued behind the sleep
                kept.append(images)
                del batch, images
                while len(kept) > keep:
                    kept.pop(0)
        finish()
    return [c.cpu() for c in copies]


def overwritten(got: list[Tensor], want: list[Tensor]) -> int:
    assert len(got) == len(want)
    return sum(not torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("engine", ["dali", "torch"])
@pytest.mark.parametrize("keep", [0, 1, 3])
def test_memory_is_not_reused_while_a_queued_kernel_reads_it(
    arrays: Arrays, engine: str, keep: int, measured: Callable[..., None]
) -> None:
    got = read_late(load(arrays, engine), keep=keep)
    wrong = overwritten(got, expected(arrays, engine))
    measured(f"streams: {engine}, {keep} batches kept", overwritten=wrong, of=len(got))
    assert wrong == 0


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_memory_is_not_reused_under_a_side_stream(arrays: Arrays, engine: str) -> None:
    """The consumer's stream is the one that is current when it asks. Fails where the default stream is taken for it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    want = expected(arrays, engine)
    finish()
    with torch.cuda.stream(stream):
        got = read_late(load(arrays, engine))
    assert overwritten(got, want) == 0


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_a_batch_is_ready_on_the_stream_that_asks_for_it(arrays: Arrays, engine: str) -> None:
    """Another stream for every batch, while the default stream is busy. Fails where a batch is handed out before it is
    there, or where all wait for the default stream."""
    want = [int(w.long().sum()) for w in expected(arrays, engine)]
    streams = [torch.cuda.Stream() for _ in range(3)]  # type: ignore[no-untyped-call]
    sums, kept = [], []
    with load(arrays, engine) as loader:
        for _ in range(2):
            iterator = iter(loader)
            for number in range(len(loader)):
                delay(3)
                with torch.cuda.stream(streams[number % 3]):
                    images = images_of(next(iterator))
                    sums.append(images.sum(dtype=torch.int64))
                    kept.append(images)  # what one stream has read, another may be given
            assert next(iterator, None) is None
    finish()
    assert [int(s) for s in sums] == want


def unleased(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeepAlive, "take", lambda self, owner: None)


def unbound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Runner, "_stream", lambda self: {})


def unrecorded(patch: pytest.MonkeyPatch) -> None:
    def hand_over(self: CopyStream, tensors: list[Tensor]) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    patch.setattr(CopyStream, "hand_over", hand_over)


PROTECTIONS: dict[str, tuple[str, list[Callable[[pytest.MonkeyPatch], None]]]] = {
    "dali, no lease": ("dali", [unleased]),
    "dali, not bound to the stream": ("dali", [unbound]),
    "dali, neither": ("dali", [unleased, unbound]),
    "torch, record_stream left out": ("torch", [unrecorded]),
}


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("without", PROTECTIONS)
def test_without_its_protection_memory_is_overwritten(
    without: str, keep: int, arrays: Arrays, monkeypatch: pytest.MonkeyPatch, measured: Callable[..., None]
) -> None:
    """The counter-proof of the tests above. It is a race: where no byte changes, this machine proves nothing, and that
    is said as a skip; and where one of DALI's two protections is enough, the other one stands."""
    engine, removed = PROTECTIONS[without]
    want = expected(arrays, engine)
    with monkeypatch.context() as patch:
        for remove in removed:
            remove(patch)
        wrong = overwritten(read_late(load(arrays, engine), keep=keep), want)
    measured(f"streams: {without}, {keep} kept", overwritten=wrong, of=len(want))
    assert overwritten(read_late(load(arrays, engine), keep=keep), want) == 0
    if not wrong:
        pytest.skip(f"not provable on this machine: {without}, and no byte changed")


# ---- the torch engine's pinned ring


def test_a_pinned_slot_is_not_overwritten_while_it_is_copied(
    arrays: Arrays, monkeypatch: pytest.MonkeyPatch, measured: Callable[..., None]
) -> None:
    """Copies are held back on their own stream, so that the host is far ahead of them."""
    want = expected(arrays, Torch(staging="pageable"))
    plain = CopyStream.copying

    @contextmanager
    def slow(self: CopyStream) -> Any:
        with plain(self):
            delay(12)
            yield

    def run() -> int:
        copies = []
        with load(arrays, Torch(staging="ring")) as loader:
            for _ in range(2):
                copies += [images_of(batch) for batch in loader]
            finish()
        return overwritten([c.cpu() for c in copies], want)

    monkeypatch.setattr(CopyStream, "copying", slow)
    protected = run()
    monkeypatch.setattr(Ring, "release", lambda self, slot, event: None)
    unprotected = run()
    measured("ring", overwritten=protected, without_events=unprotected, of=len(want))
    assert protected == 0
    assert unprotected > 0, "the test would not have noticed"


def test_a_copy_does_not_wait_for_the_consumers_kernels() -> None:
    """Fails where labels are copied on the consumer's stream: their pinned memory is then in use until all that is
    queued there has run, and every batch needs more."""
    device, target, other = torch.device(DEVICE), torch.arange(1000), torch.cuda.Stream()
    upload([torch.zeros_like(target)], device)
    torch.cuda.synchronize()
    delay(500)
    ended = torch.cuda.current_stream().record_event()
    (copy,) = upload([target], device)
    copy_stream(device).record().synchronize()
    with torch.cuda.stream(other):
        assert torch.equal(copy.cpu(), target)
    assert not ended.query(), "it waited for the consumer's kernel"
    doubled = copy * 2  # on the consumer's stream
    del copy
    upload([torch.zeros_like(target)], device)  # may take its memory only behind the kernel
    assert torch.equal(doubled.cpu(), target * 2)


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_every_staging_gives_the_same_bytes(pixels: Any, dtype: str, memory_format: str) -> None:
    dataset = Arrays(
        pixels, np.arange(len(pixels)), transform=imagenet.train(96, dtype=dtype, memory_format=memory_format)
    )
    ways = [expected(dataset, Torch(staging=s), epochs=1) for s in ("pageable", "pin_memory", "ring")]
    for a, b, c in zip(*ways, strict=True):
        assert torch.equal(a, b) and torch.equal(b, c)
    on_cpu = DataLoader(dataset, batch_size=16, shuffle=True, seed=SEED, engine="torch", device="cpu")
    for a, batch in zip(ways[0], on_cpu, strict=True):
        assert a.dtype == images_of(batch).dtype
        bits = {"uint8": 0, "float16": 2e-3, "float32": 1e-6}[dtype]
        assert (a.float() - images_of(batch).float()).abs().max() <= bits * 4


# ---- beside a training step


def test_a_graph_of_a_training_step_is_captured_beside_the_running_loader(large: Path) -> None:
    """DALI allocates in threads of its own; capture in ``thread_local`` mode does not mind."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(4)
    )
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss_of = torch.nn.CrossEntropyLoss()
    with load(ImageFolder(large, imagenet.train(64)), batch_size=16, drop_last=True) as loader:
        iterator = iter(loader)
        images, target = next(iterator)
        static_images, static_target = images.clone(), target.clone()

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss: Tensor = loss_of(model(static_images), static_target)
            loss.backward()
            optimizer.step()
            return loss

        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loss = step()
        losses = []
        for images, target in iterator:
            static_images.copy_(images)
            static_target.copy_(target)
            graph.replay()
            losses.append(float(loss.detach()))
        assert len(losses) == 3 and all(np.isfinite(losses))


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("engine", [Dali(), Torch()], ids=["dali", "torch"])
def test_a_compiled_step_is_compiled_once(engine: Any, memory_format: Any, large: Path, where: str) -> None:
    """Fails where batches differ in what torch.compile guards, such as strides, or lie where kernels need a copy."""
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend)  # type: ignore[untyped-decorator]
    def step(images: Tensor, target: Tensor) -> Tensor:
        return images.mean() + target.float().mean()

    pipeline = imagenet.train(64, memory_format=memory_format)
    with load(ImageFolder(large, pipeline), engine, batch_size=16, drop_last=True, device=where) as loader:
        for _ in range(2):
            for images, target in loader:
                step(images, target)
                assert images.data_ptr() % 16 == target.data_ptr() % 16 == 0
    assert len(graphs) == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("where")
def test_training_and_validation_loaders_run_side_by_side(large: Path) -> None:
    train = load(ImageFolder(large, imagenet.train(64)), batch_size=16)
    val = load(ImageFolder(large, imagenet.val(64, 72)), batch_size=16, shuffle=False)
    alone = [images_of(b).cpu() for b in val]
    with train, val:
        for _ in range(2):
            right = iter(val)
            for i, _ in enumerate(train):
                assert (images_of(next(right)).cpu() - alone[i]).abs().max() < 0.2


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("engine", [Dali(), Torch()], ids=["dali", "torch"])
def test_the_next_kernel_sees_the_whole_batch(engine: Any, arrays: Arrays) -> None:
    """Without any synchronization by the consumer, many times over."""
    want = [int(w.long().sum()) for w in expected(arrays, engine)]
    with load(arrays, engine) as loader:
        sums = [images_of(b).sum(dtype=torch.int64) for _ in range(2) for b in loader]
        assert [int(s) for s in sums] == want
