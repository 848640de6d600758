"""All that the harness knows of gpupipe: which loaders a script makes, and who makes their images."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import gpupipe
from gpupipe.loader.live_session import LiveSession

__all__ = ["Live", "engine_of", "is_live", "watching"]


class Live(gpupipe.DataLoader):  # type: ignore[type-arg, unused-ignore]
    """A loader that runs the code of all datasets."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **{"live": True, "device": "cpu", **named})


@contextmanager
def watching() -> Iterator[list[Any]]:
    """Note every ``gpupipe.DataLoader`` that is made, and close it in the end."""
    loaders: list[Any] = []
    made = gpupipe.DataLoader.__init__

    def noted(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        begun_live[self] = isinstance(self._session, LiveSession)
        loaders.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpupipe.DataLoader, "__init__", noted)
        yield loaders
    for loader in loaders:
        loader.close()


begun_live: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def is_live(loader: Any) -> bool:
    """Whether a loader has torch's order. One that was planned first, and then got other batches, keeps its own."""
    return begun_live[loader]


def engine_of(loader: Any) -> str:
    """``"dali"`` if it makes images, ``"some"`` if code looks at a part of them, ``"torch"`` otherwise."""
    session = loader._session
    if not isinstance(session, LiveSession):
        return str(session.engine[0])
    looks = session.looks
    return "torch" if not looks.waited else "dali" if looks.waited == looks.opened else "some"
