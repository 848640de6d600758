"""Where workers give out the memory of tensors: nothing in a folder, and nothing for other users."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Client
from multiprocessing.resource_sharer import DupFd
from pathlib import Path
from typing import Any

import pytest

from gpupipe.reading import tensor_socket


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """(address, key) of three descriptors of a process, which takes us for user 4711 if there is a file ``other``."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here, there = multiprocessing.Pipe()
    if not (pid := os.fork()):
        try:
            multiprocessing.current_process()._config["tempdir"] = None  # type: ignore[attr-defined]
            real = tensor_socket._CREDENTIALS

            class Credentials:
                size = real.size

                def unpack(self, given: bytes) -> tuple[int, ...]:
                    return (1, 4711, 1) if (tmp_path / "other").exists() else real.unpack(given)

            tensor_socket._CREDENTIALS = Credentials()  # type: ignore[assignment]
            tensor_socket.listen_without_a_file()
            with open(os.devnull) as file:
                there.send([vars(DupFd(file.fileno()))["_id"] for _ in range(3)])
                there.poll(60)
        finally:
            os._exit(0)
    try:
        assert here.poll(60)
        yield here.recv()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def take(ident: Any) -> int:
    fd = DupFd.__new__(DupFd)
    vars(fd)["_id"] = ident
    return fd.detach()


def test_descriptors_come_without_a_file(shared: Any, tmp_path: Path) -> None:
    fds = [take(ident) for ident in shared]
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in fds] == [os.devnull] * 3
    for fd in fds:
        os.close(fd)
    assert list(tmp_path.iterdir()) == []


def test_other_users_are_sent_away(shared: Any, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with pytest.raises((OSError, EOFError)):
        take(shared[0])
    (tmp_path / "other").unlink()
    os.close(take(shared[0]))  # it goes on


def test_the_key_is_asked_for(shared: Any) -> None:
    with pytest.raises(multiprocessing.AuthenticationError):
        Client(shared[0][0], authkey=b"guessed")
    os.close(take(shared[1]))  # it goes on
