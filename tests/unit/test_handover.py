"""The lease on memory that is not torch's, and what closing a DALI engine on a GPU does, with CUDA's part played."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpupipe.engines.delivery import KeepAlive


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

    alive = 0

    def __init__(self) -> None:
        Owner.alive += 1

    def __del__(self) -> None:
        Owner.alive -= 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    Owner.alive = 0
    return Device(monkeypatch)


def test_memory_is_kept_until_the_consumers_stream_has_passed(device: Device) -> None:
    lease = KeepAlive(torch.device("cuda", 0))
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
    lease = KeepAlive(torch.device("cuda", 0))
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
    lease = KeepAlive(torch.device("cuda", 0))
    lease.take(Owner())
    device.current = "the default stream"
    lease.end()
    assert set(device.streams) == {"the consumer's stream", "the default stream"} and device.waited == 2


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
