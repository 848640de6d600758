"""The ring never hands out a slot whose copy is under way, and the uploader orders its work as CUDA needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from gpupipe.copy_stream import CopyStream
from gpupipe.engines.staging import Ring, Uploader


class LateCopy:
    """A copy that reads its source only when somebody waits for it: what a GPU may do at worst."""

    def __init__(self, source: Tensor):
        self.source = source
        self.result: Tensor | None = None

    def query(self) -> bool:
        return self.result is not None

    def synchronize(self) -> None:
        if self.result is None:
            self.result = self.source.clone()


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_slot_is_not_written_before_the_copy_out_of_it_has_finished(slots: int) -> None:
    ring = Ring(slots, pinned=False)
    copies = []
    for n in range(10):
        slot = ring.acquire(8)
        slot.buffer[:8] = n
        copies.append(LateCopy(slot.buffer[:8]))
        ring.release(slot, copies[-1])
    ring.close()
    for n, copy in enumerate(copies):
        assert copy.result is not None and copy.result.tolist() == [n] * 8


def test_slots_take_turns_and_only_the_oldest_is_waited_for() -> None:
    ring = Ring(2, pinned=False)
    a, b = ring.acquire(4), ring.acquire(4)
    assert a is not b
    copies = LateCopy(a.buffer), LateCopy(b.buffer)
    ring.release(a, copies[0])
    ring.release(b, copies[1])
    assert ring.acquire(4) is a
    assert copies[0].result is not None and copies[1].result is None


def test_a_copy_that_has_finished_is_not_waited_for() -> None:
    class Finished:
        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            raise AssertionError("the host waited")

    ring = Ring(1, pinned=False)
    for _ in range(3):
        ring.release(ring.acquire(4), Finished())


def test_slots_grow_once_and_are_freed() -> None:
    ring = Ring(2, pinned=False)
    assert ring.nbytes == 0
    for _ in range(4):
        assert ring.acquire(100).buffer.numel() == 100
    assert ring.nbytes == 200
    before = ring.acquire(60).buffer.data_ptr(), ring.acquire(60).buffer.data_ptr()  # the short last batch
    assert ring.nbytes == 200
    assert before == (ring.acquire(100).buffer.data_ptr(), ring.acquire(100).buffer.data_ptr())
    ring.acquire(150)
    assert ring.nbytes == 250
    ring.close()
    ring.close()
    assert ring.nbytes == 0 and ring.acquire(10).buffer.numel() == 10


class Journal:
    """CUDA's part, on the CPU, written down."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.inside = False

    @contextmanager
    def copying(self) -> Iterator[None]:
        self.inside = True
        yield
        self.inside = False

    def record(self) -> Any:
        assert self.inside
        self.lines.append("record")
        journal = self

        class Fired:
            def query(self) -> bool:
                return False

            def synchronize(self) -> None:
                journal.lines.append("synchronize")

        return Fired()

    def hand_over(self, tensors: list[Tensor]) -> None:
        assert not self.inside  # else the copy stream would wait for itself
        self.lines.append(f"hand over {len(tensors)}")

    def pin(self, tensor: Tensor) -> Tensor:
        self.lines.append("pin")
        return tensor.clone()


def test_upload_through_the_ring() -> None:
    journal = Journal()
    upload = Uploader(journal, torch.device("cpu"), Ring(2, pinned=False))

    def finish(x: Tensor) -> Tensor:
        assert journal.inside
        journal.lines.append("finish")
        return x * 2.0

    for n in range(3):
        journal.lines.clear()
        images, target = upload(torch.full((2, 3, 4, 3), float(n)), torch.tensor([n, n]), finish)
        assert torch.equal(images, torch.full((2, 3, 4, 3), 2.0 * n)) and target.tolist() == [n, n]
        wait = ["synchronize"] if n == 2 else []
        # The slot is free after the copy, not after the work that follows it.
        assert journal.lines == ["pin", *wait, "record", "finish", "hand over 2"]
    assert upload.nbytes == 2 * 2 * 3 * 4 * 3 * 4
    upload.close()
    assert upload.nbytes == 0


def test_views_share_a_slot() -> None:
    journal = Journal()
    upload = Uploader(journal, torch.device("cpu"), Ring(1, pinned=False))
    views = torch.arange(2 * 5 * 3, dtype=torch.uint8).view(2, 5, 3), torch.arange(8, dtype=torch.float32).view(2, 4)
    for _ in range(2):
        journal.lines.clear()
        (a, b), _target = upload(views, torch.zeros(2), lambda x: tuple(view.clone() for view in x))
        assert torch.equal(a, views[0]) and torch.equal(b, views[1]) and b.dtype == torch.float32
        # One place of the ring, and not a pinned tensor for each view.
        assert [line for line in journal.lines if line != "synchronize"] == ["pin", "record", "hand over 3"]
    assert upload.nbytes == 32 + 32  # the second view begins where any type can be read


def test_upload_of_structures_and_without_a_ring() -> None:
    for ring in (None, Ring(2, pinned=False)):
        journal = Journal()
        upload = Uploader(journal, torch.device("cpu"), ring)
        images = {"a": torch.ones(2), "names": ["x", "y"]}
        got, target = upload(images, (torch.zeros(2), None), lambda x: x)
        assert got["a"].tolist() == [1, 1] and got["names"] == ["x", "y"] and target[1] is None
        assert journal.lines == ["pin", "pin", "hand over 2"] and upload.nbytes == 0


@pytest.mark.gpu
@pytest.mark.parametrize("use_ring", [True, False])
def test_upload_on_a_gpu(use_ring: bool) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    upload = Uploader(CopyStream(device), device, Ring(2, pinned=True) if use_ring else None)
    consumer = torch.cuda.Stream(device)
    sums = []
    with torch.cuda.stream(consumer):
        for n in range(20):
            images = torch.full((64, 224, 224, 3), n, dtype=torch.uint8)
            got, target = upload(images, torch.tensor([n]), lambda x: x.float().add_(1))
            torch.cuda._sleep(2_000_000)  # the consumer is late: what it has not read yet must not be reused
            sums.append((got.mean(), target))
            del got, images
    torch.cuda.synchronize()
    assert [float(mean) for mean, _ in sums] == [n + 1 for n in range(20)]
    assert [int(t) for _, t in sums] == list(range(20))
    upload.close()
