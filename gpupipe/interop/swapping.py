"""Functions of libraries that are replaced while a script's dataset runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakSet

Maker = tuple[Any, str, Callable[[Any], Any]]
"""(module or class, name, what makes the replacement of the function with that name)."""


class Swapped:
    """Replacements of functions, for as long as a thread needs them.

    In threads that do not need them, a replacement has to call the original.

    Args:
        makers: returns the functions to replace. Names that a release of a library lacks are ignored.
        is_here: whether the calling thread needs them.
    """

    def __init__(self, makers: Callable[[], Iterable[Maker]], is_here: Callable[[], bool]):
        self._makers, self._is_here = makers, is_here
        self._lock = threading.Lock()
        self._users = 0
        """Number of contexts, over all threads, that are active."""
        self._put: list[tuple[Any, str, Any, Any]] = []
        """(module or class, name, original function, replacement)"""
        _ALL.add(self)

    @contextmanager
    def within(self) -> Iterator[None]:
        """Context in which the functions are replaced."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._put_in()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._take_out()

    def in_forked_child(self) -> None:
        """Forget the other threads, which a forked process does not have."""
        # A thread that the child does not have may hold the old lock.
        self._lock, self._users = threading.Lock(), int(self._is_here())
        if not self._users:
            self._take_out()

    def _put_in(self) -> None:
        for owner, name, make in self._makers():
            if not hasattr(owner, name):  # torchvision without its operators, or another release
                continue
            was = getattr(owner, name)
            now = _made_once(make, was)
            self._put.append((owner, name, was, now))
            setattr(owner, name, now)

    def _take_out(self) -> None:
        while self._put:
            owner, name, was, now = self._put.pop()
            if getattr(owner, name) is now:  # otherwise other code has replaced it since
                setattr(owner, name, was)


_ALL: WeakSet[Swapped] = WeakSet()


def _in_forked_child() -> None:
    for each in _ALL:
        each.in_forked_child()


os.register_at_fork(after_in_child=_in_forked_child)


@lru_cache(maxsize=64)
def _made_once(make: Callable[[Any], Any], was: Any) -> Any:
    now = make(was)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):  # pickle asks for these
        setattr(now, attribute, getattr(was, attribute, None))
    return now
