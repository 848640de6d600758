"""The lease on memory that is not torch's, and what closing a DALI engine on a GPU does, with CUDA's part played."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpupipe.engines.base import Engine, Run
from gpupipe.engines.delivery import KeepAlive
from gpupipe.loader.plan_stream import PlanStream
from gpupipe.loader.running import Lease, Running
from gpupipe.types import Batch, Plan

CUDA = torch.device("cuda", 0)


class Device:
    """A GPU whose work ends when somebody says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.recorded: list[Any] = []
        self.streams: list[str] = []
        """On which each event was recorded."""
        self.current = "the consumer's stream"
        self.finished = 0
        self.waited = 0
        self.held: list[int] = []
        """How many owners were alive when each wait began."""
        device = self

        class Event:
            def record(self, stream: Any) -> None:
                device.recorded.append(self)
                device.streams.append(stream)

            def query(self) -> bool:
                return device.recorded.index(self) < device.finished

            def synchronize(self) -> None:
                device.waited += 1
                device.held.append(Owner.alive)
                device.finished = max(device.finished, device.recorded.index(self) + 1)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: device.current)


class Owner:
    """Of a batch's memory."""

    alive = nbytes = 0

    def __init__(self, nbytes: int = 0) -> None:
        self._nbytes = nbytes
        Owner.alive += 1
        Owner.nbytes += nbytes

    def __del__(self) -> None:
        Owner.alive -= 1
        Owner.nbytes -= self._nbytes


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    Owner.alive = Owner.nbytes = 0
    return Device(monkeypatch)


def test_memory_is_kept_until_the_consumers_stream_has_passed(device: Device) -> None:
    lease = KeepAlive(CUDA, 4)
    for _ in range(3):
        lease.renew()
        lease.take(Owner())
    assert Owner.alive == 3 and len(device.recorded) == 2  # nothing of the third is queued yet
    assert set(device.streams) == {"the consumer's stream"}
    device.finished = 1
    lease.renew()
    assert Owner.alive == 2 and device.waited == 0
    device.finished = 3
    lease.renew()
    assert Owner.alive == 0 and device.waited == 0


def test_the_end_waits_for_what_is_still_read(device: Device) -> None:
    lease = KeepAlive(CUDA, 4)
    lease.take(Owner())
    lease.renew()
    lease.take(Owner())
    lease.end()
    assert Owner.alive == 0 and device.waited == 2
    assert device.held == [2, 1]  # nothing is let go before its wait is over
    lease.end()
    assert device.waited == 2


def test_a_finalizer_waits_for_the_stream_on_which_the_batch_was_handed_out(device: Device) -> None:
    """It may run in any thread, where another stream is current."""
    lease = KeepAlive(CUDA, 4)
    lease.take(Owner())
    device.current = "the default stream"
    lease.end()
    assert set(device.streams) == {"the consumer's stream", "the default stream"} and device.waited == 2


def test_the_host_is_a_bounded_number_of_batches_ahead_of_a_device_that_is_slow(device: Device) -> None:
    """Batches of any size count the same. Fails where the host only asks its events: it would hold all 40."""
    lease, most, sizes = KeepAlive(CUDA, 4), list[int](), [256, 17, 256, 1] * 10
    for i, size in enumerate(sizes):
        lease.renew()
        lease.take(Owner(size))
        most.append(Owner.alive)
        assert Owner.nbytes == sum(sizes[max(i - 4, 0) : i + 1])  # the oldest are let go first
    assert max(most) == 5  # those that the device is behind, and the one that was just handed out
    assert device.waited == len(sizes) - 5
    assert device.held == [5] * device.waited  # while the owner is held, and never for more than the oldest


def test_batches_in_torchs_memory_bound_the_host_as_well(device: Device) -> None:
    """They have no owner: torch's allocator keeps their memory until the device has passed."""
    lease = KeepAlive(CUDA, 2)
    for _ in range(10):
        lease.renew()
        lease.take(None)
    assert device.waited == 7 and device.finished == 7


def test_a_device_that_keeps_up_is_never_waited_for(device: Device) -> None:
    lease = KeepAlive(CUDA, 1)
    for _ in range(10):
        lease.renew()
        lease.take(Owner())
        device.finished = len(device.recorded)
    lease.renew()
    device.finished = len(device.recorded)
    lease.renew()
    assert device.waited == 0 and Owner.alive == 0


class Idle(Engine):
    """Nothing runs on it."""

    def __init__(self) -> None:
        self.kept = KeepAlive(CUDA, 4)
        self.closed_with: int | None = None
        """Owners that were alive when it was closed."""

    def run(self, plans: Iterator[Plan]) -> Run:
        return Stopped()

    def close(self) -> None:
        self.closed_with = Owner.alive


class Stopped(Run):
    def __next__(self) -> Batch:
        raise StopIteration

    def close(self) -> None:
        pass


def delivered_on(running: Running, engine: Engine) -> Lease:
    """An iterator's hold on an engine that has delivered a batch, of which only the lease knows the owner."""
    lease = Lease()
    running.run(lease, PlanStream([], lambda later: None), lambda: engine)  # type: ignore[arg-type]
    lease.keep(Batch(None, None, None, Owner()))  # type: ignore[arg-type]
    return lease


def test_the_end_of_an_epoch_does_not_wait_for_the_device(device: Device) -> None:
    """The engine stays, and keeps the memory until the next epoch asks. Closing it waits."""
    running, engine = Running(), Idle()
    running.release(delivered_on(running, engine))
    assert device.waited == 0 and Owner.alive == 1
    lease = delivered_on(running, engine)
    assert Owner.alive == 2
    device.finished = 1
    lease.renew()
    assert Owner.alive == 1 and device.waited == 0
    running.release(lease)
    running.close()
    assert device.waited == 1 and engine.closed_with == 0


def test_an_iterator_that_takes_the_engine_of_another_does_not_wait_for_the_device(device: Device) -> None:
    running, engine = Running(), Idle()
    first = delivered_on(running, engine)
    second = delivered_on(running, engine)
    assert first.engine is None and second.engine is engine
    assert device.waited == 0 and Owner.alive == 2
    running.close()
    assert engine.closed_with == 0


@pytest.mark.parametrize("fails", [False, True])
def test_closing_gives_dalis_pools_back_when_the_device_is_idle(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order: what was freed in the order of a stream is free only when the stream has passed."""
    pytest.importorskip("nvidia.dali")
    import parity_measure as parity

    from gpupipe.engines.dali import engine as module, pools
    from gpupipe.engines.dali.graph import DecoderOptions
    from gpupipe.reading.setup import Setup

    calls: list[str] = []

    def synchronize(device: torch.device) -> None:
        calls.append(f"wait for {device}")
        if fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(pools, "release", lambda: calls.append("release"))
    dataset = parity.arrays("noise", parity.CASES["crop"], 2)
    from gpupipe.engines.dali.executors import GraphAlone
    from gpupipe.engines.dali.graph_end import graph_end

    end = graph_end(dataset.transform.skeleton, whole=True)
    setup = Setup(dataset, dataset.transform, "cuda:1", 2, 1)
    engine = module.DaliEngine(setup, DecoderOptions(), GraphAlone(setup, end))
    engine.close()
    assert calls == []  # nothing was built
    engine.runner._graph = object()  # type: ignore[assignment]
    engine.close()
    engine.close()
    assert calls == (["wait for cuda:1"] if fails else ["wait for cuda:1", "release"])
