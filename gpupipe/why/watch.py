"""Runs a script up to its loaders: until it iterates over one of them, or ends."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from torch.utils.data import DataLoader as TorchLoader

from ..loader.dataloader import DataLoader
from ..script_warnings import place_in_script

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
    stopped: bool = False
    """Whether loaders are left alone from now on."""


Begin = Callable[[], Iterator[Any]]
"""Begins an epoch of a loader."""


@contextmanager
def watching(
    iterate: Callable[[Watched, Made, Begin], Iterator[Any]] = lambda watched, made, begin: begin(),
) -> Iterator[Watched]:
    """Note every loader that is made, of torch or gpupipe, and call ``iterate`` for ``iter()`` of one of them.

    The methods of the classes are replaced, not their names, so that it does not matter how a script imports them, and
    subclasses and loaders of frameworks are noted too.
    """
    watched = Watched()
    before = [(cls, cls.__init__, cls.__iter__) for cls in _SIGNATURES]

    def replace(cls: type[TorchLoader[Any]], init: Any, begin: Any) -> None:

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            if watched.stopped:
                return
            if not type(self).__module__.startswith("gpupipe.") or type(self) is DataLoader:
                arguments = _SIGNATURES[cls].bind(self, *args, **kwargs).arguments
                del arguments["self"]
                watched.made.append(Made(self, arguments, place_in_script()))

        def __iter__(self: Any) -> Any:
            made = next((one for one in watched.made if one.loader is self), None)
            if made is None or watched.stopped:
                return begin(self)
            watched.reached = watched.reached or place_in_script()
            return iterate(watched, made, lambda: begin(self))

        cls.__init__, cls.__iter__ = __init__, __iter__  # type: ignore[method-assign]

    for methods in before:
        replace(*methods)
    try:
        yield watched
    finally:
        for cls, init, begin in before:
            cls.__init__, cls.__iter__ = init, begin  # type: ignore[method-assign]


def _within_script(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames that run the script."""
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        frames = frames.tb_next
    return frames


def run_script(
    script: Path,
    arguments: Sequence[str],
    iterate: Callable[[Watched, Made, Begin], Iterator[Any]],
    ended: Callable[[Watched], NoReturn],
) -> NoReturn:
    """Run a script as ``python SCRIPT ARGUMENTS`` does. What it prints goes to standard error.

    Args:
        iterate: called where the script begins to iterate over a loader, with everything that it holds still alive. If
            it returns, the script continues.
        ended: called after the script has ended; ends the process.
    """
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.resolve().parent)
    with redirect_stdout(sys.stderr), watching(iterate) as watched:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as e:
            watched.error = e if e.code else None
        except Exception as e:
            watched.error = e.with_traceback(_within_script(e.__traceback__))
        watched.stopped = True
        ended(watched)
