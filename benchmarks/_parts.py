"""Measurements in processes of their own: one that crashes, hangs or loses its GPU costs its own answer and no other.

A process serves one measurement after another, so that importing torch is paid once, until something goes wrong in it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from _common import Budget

__all__ = ["Answer", "Part", "answers"]


@dataclass(frozen=True)
class Part:
    """One measurement: a function of a module and its arguments. All of them can be sent to another process."""

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    seconds: float = 90.0
    """After which its process is ended; importing torch is not counted."""


@dataclass(frozen=True)
class Answer:
    """Result of a part, or the reason why it has none."""

    part: Part
    value: Any = None
    failure: str | None = None
    seconds: float = 0.0

    @property
    def brief(self) -> str:
        """The last line of the failure."""
        return (self.failure or "").strip().splitlines()[-1] if self.failure else ""


def answers(parts: Iterable[Part], processes: int, budget: Budget, reserve: float = 5.0) -> Iterator[Answer]:
    """The parts' answers as they come, in about the order of the parts, which is that of their importance.

    Args:
        processes: that work at the same time.
        budget: what has not begun ``reserve`` seconds before its end is left out, and what has not ended by then is
            stopped; both are answers with a failure.
    """
    todo = deque(parts)
    staff = [_Server() for _ in range(min(processes, len(todo)))]
    try:
        while todo or any(server.part for server in staff):
            for server in staff:
                if server.part is None and todo:
                    part = todo.popleft()
                    if budget.enough(reserve, part.name):
                        server.begin(part)
                    else:
                        yield Answer(part, failure="left out: no time")
            busy = [server for server in staff if server.part is not None]
            ready = wait([server.pipe for server in busy], timeout=0.2) if busy else []
            for server in busy:
                if server.pipe in ready:
                    yield from server.answer()
                elif server.late(budget):
                    yield server.stop()
    finally:
        for server in staff:
            server.close()


class _Server:
    """A process that works on one part at a time. A broken one is replaced."""

    def __init__(self) -> None:
        self.part: Part | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, part: Part) -> None:
        if self.pipe.closed:
            self._start()
        self.part, self._began = part, time.monotonic()
        with contextlib.suppress(OSError):  # that it has died is seen when its answer is waited for
            self.pipe.send((part.work, part.arguments))

    def answer(self) -> Iterator[Answer]:
        """Messages from the pipe: that the process has started, an answer, or its end."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            message = _Failed(f"its process died with status {self._process.exitcode}", usable=False)
        if isinstance(message, _Started):
            self._began = time.monotonic()
        elif isinstance(message, _Failed):
            yield self._ended(failure=message.why)
            if not message.usable:
                self.close()
        else:
            yield self._ended(message.value)

    def late(self, budget: Budget) -> bool:
        assert self.part is not None
        return time.monotonic() - self._began > self.part.seconds or budget.left() < 0

    def stop(self) -> Answer:
        self._process.kill()
        self.close()
        return self._ended(failure=f"no answer within {time.monotonic() - self._began:.0f} s")

    def _ended(self, value: Any = None, failure: str | None = None) -> Answer:
        assert self.part is not None
        part, self.part = self.part, None
        return Answer(part, value, failure, time.monotonic() - self._began)

    def close(self) -> None:
        self.pipe.close()
        self._process.join(0.2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@dataclass(frozen=True)
class _Started:
    """A process has imported what it needs."""


@dataclass(frozen=True)
class _Done:
    value: Any


@dataclass(frozen=True)
class _Failed:
    why: str
    usable: bool


def _serve(pipe: Connection) -> None:
    import torch  # noqa: F401, once for all parts

    pipe.send(_Started())
    while True:
        try:
            work, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(_Done(work(*arguments)))
        except BaseException:
            pipe.send(_Failed(traceback.format_exc(), _usable()))


def _usable() -> bool:
    """Whether this process can continue. An error of CUDA stays with its process."""
    import torch

    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception:
        return False
    return True
