"""A store that accepts connections and never answers: Ctrl-C, SIGTERM and the end of a script are not kept waiting."""

from __future__ import annotations

import logging
import os
import signal
import socket
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait

import pytest
from interpreter import QUIET, Interpreter

from gpupipe.codecs import retry
from gpupipe.codecs.patience import Pool, Requests
from gpupipe.codecs.retry import with_retries

pytest.importorskip("obstore")

SCRIPT = """
    import signal, sys, threading
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from gpupipe.sources.remote.choose import client_for
    from gpupipe.sources.remote.clients import ByteRange
    from gpupipe.codecs.patience import Pool
    client = client_for("http", 4, 300.0)
    ranges = [ByteRange({url!r}, k, k + 1) for k in range({count})]
    if {place!r} == "main":
        print("asks", flush=True)
        client.fetch(ranges)
    with Pool(2, "reader") as pool:
        asked = pool.submit(client.fetch, ranges)
        print("asks", flush=True)
        if {place!r} == "reader":
            asked.result()
        sys.exit(3)
"""
"""``main``: the script itself waits; ``reader``: for a thread that waits; ``exit``: one does as the script ends."""


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a store that never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/some.tar"


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("place", "sent", "status"),
    [
        ("main", "SIGINT", -signal.SIGINT),
        ("reader", "SIGINT", -signal.SIGINT),
        ("main", "SIGTERM", -signal.SIGTERM),
        ("exit", None, 3),
    ],
)
def test_nothing_is_kept_waiting(
    place: str, sent: str | None, status: int, count: int, silent: str, warm: Interpreter
) -> None:
    code = textwrap.dedent(SCRIPT).format(url=silent, place=place, count=count)
    with warm.start(code=code, env={**os.environ, "NO_PROXY": "127.0.0.1"}, warn=QUIET) as script:
        assert script.line() == "asks"
        if sent:
            time.sleep(0.5)
            os.kill(script.pid, signal.Signals[sent])
        assert script.wait(45) == status  # a request would hang for 300 s, and for as long five times more
        if sent == "SIGINT":
            assert script.stderr.count("Traceback") == 1 and script.stderr.endswith("KeyboardInterrupt\n")
        else:
            assert script.stderr == ""


def test_a_pool_that_is_shut_down_waits_for_no_answer() -> None:
    never, requests = threading.Event(), Requests(2, "gpupipe-test")
    pool = Pool(3, "reader")
    asked = [pool.submit(requests.results, [never.wait]) for _ in range(3)]
    assert not wait(asked, 0.3).done
    pool.shutdown()
    assert all("no longer awaited" in str(future.exception()) for future in asked)
    never.set()
    assert requests.results([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]


def test_requests_are_as_many_at_a_time_as_asked_for_and_raise() -> None:
    requests, both = Requests(2, "gpupipe-test"), threading.Barrier(2)
    assert requests.results([both.wait] * 4) in ([0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 1, 0])
    with pytest.raises(ZeroDivisionError):
        requests.results([lambda: 1 // 0])
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("gpupipe-test")]
    assert len(set(names)) <= 4  # two of this test, two of the one before


class TestLog:
    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1000.0]
        monkeypatch.setattr(retry, "_SAID", {})
        monkeypatch.setattr("gpupipe.codecs.retry.time.monotonic", lambda: now[0])
        monkeypatch.setattr(retry, "pause", lambda seconds: None)
        return now

    def failing(self, name: str, times: int) -> None:
        left = [times]

        def work() -> None:
            left[0] -= 1
            if left[0] >= 0:
                raise ConnectionError("the connection failed")

        with_retries(lambda: name, work, (0.1,) * times)

    def test_a_store_that_fails_often_is_named_once_a_minute(
        self, clock: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "gpupipe")
        for k in range(50):
            self.failing(f"s3://bucket/{k}.tar from byte 0 on", 2)
        self.failing("s3://other/1.tar from byte 0 on", 1)
        self.failing("/data/1.jpg", 1)
        self.failing("/data/2.jpg", 1)
        assert [r.message.split(":")[0] for r in caplog.records] == ["s3", "s3", "/data/1.jpg"]
        clock[0] += 61
        self.failing("s3://bucket/7.tar", 1)
        assert caplog.records[-1].message.endswith("; 99 more since the last such line")
        assert len(caplog.records) == 4
