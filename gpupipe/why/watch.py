"""Runs a script up to its loaders: until it iterates over one of them, or ends."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader as TorchLoader

from ..loader.dataloader import DataLoader
from ..script_warnings import frame_of_script

_SIGNATURES = {cls: inspect.signature(cls.__init__) for cls in (TorchLoader, DataLoader)}


@dataclass(frozen=True)
class Made:
    """A loader that a script made."""

    loader: TorchLoader[Any]
    arguments: dict[str, Any]
    """Arguments that the script passed, by name."""
    at: str
    """File and line of the script."""

    @property
    def ours(self) -> bool:
        """Whether it is a :class:`gpupipe.DataLoader`."""
        return isinstance(self.loader, DataLoader)


@dataclass
class Watched:
    """Loaders of a script, and how far it ran."""

    made: list[Made] = field(default_factory=list)
    reached: str = ""
    """File and line that began to iterate over a loader; empty if the script ended before."""
    error: BaseException | None = None
    """Exception that ended the script."""


@contextmanager
def watching(reached: Callable[[], Any]) -> Iterator[Watched]:
    """Note every loader that is made, of torch or gpupipe, and call ``reached`` when one of them is iterated over.

    The methods of the classes are replaced, not their names, so that it does not matter how a script imports them, and
    subclasses and loaders of frameworks are noted too.
    """
    watched = Watched()
    before = [(cls, cls.__init__, cls.__iter__) for cls in _SIGNATURES]

    def restore() -> None:
        for cls, init, begin in before:
            cls.__init__, cls.__iter__ = init, begin  # type: ignore[method-assign]

    def replace(cls: type[TorchLoader[Any]]) -> None:
        init, begin = cls.__init__, cls.__iter__

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            if not type(self).__module__.startswith("gpupipe.") or type(self) is DataLoader:
                arguments = _SIGNATURES[cls].bind(self, *args, **kwargs).arguments
                del arguments["self"]
                watched.made.append(Made(self, arguments, _place()))

        def __iter__(self: Any) -> Any:
            if any(one.loader is self for one in watched.made):
                watched.reached = _place()
                restore()
                reached()
            return begin(self)

        cls.__init__, cls.__iter__ = __init__, __iter__  # type: ignore[method-assign]

    for cls in _SIGNATURES:
        replace(cls)
    try:
        yield watched
    finally:
        restore()


def run_script(script: Path, arguments: Sequence[str], done: Callable[[Watched], None]) -> None:
    """Run a script as ``python SCRIPT ARGUMENTS`` does, and call ``done`` once.

    ``done`` is called where the script begins to iterate over a loader, with everything that the script holds still
    alive, or after the script has ended. If it returns, the script continues; let it end the process to prevent that.
    What the script prints goes to standard error, also while ``done`` runs.
    """
    called = False

    def finish() -> None:
        nonlocal called
        called = True
        done(watched)

    sys.argv, sys.path[0] = [str(script), *arguments], str(script.resolve().parent)
    with redirect_stdout(sys.stderr), watching(finish) as watched:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as e:
            watched.error = e if e.code else None
        except Exception as e:
            watched.error = e
    if not called:
        finish()


def _place() -> str:
    frame = frame_of_script()
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
