"""What a script is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["SCRIPTS", "Args", "Engine", "Epochs", "Script", "script"]

Engine = Literal["dali", "some", "torch"]
Epochs = Iterator[Iterable[Any]]
"""What a script yields: once per epoch, something that gives the batches of that epoch."""


@dataclass(frozen=True)
class Args:
    """What the command line of a training script would have said."""

    data: Path
    """A folder as :func:`tree.make_tree` fills it."""
    seed: int = 0
    """For scripts that seed something of their own. Another one gives another run."""
    workers: int = 0
    epochs: int = 2


@dataclass(frozen=True)
class Script:
    """One script of the corpus. ``run(args, DataLoader)`` is its data code, with the class under test handed in."""

    name: str
    family: str
    """The module that it stands in."""
    style: str
    """Whose habits it has."""
    run: Callable[[Args, Any], Epochs]
    engine: Engine
    """Who makes its images: DALI, DALI and Pillow, or the script's own code."""
    needs: tuple[str, ...]
    """Packages beyond those of the development environment."""
    workers: int
    """Worker processes. Few scripts have any, to be quick: those that show something by them."""


SCRIPTS: dict[str, Script] = {}
"""All scripts by name, in the order of their definition."""


def script(
    *, engine: Engine, needs: tuple[str, ...] = (), workers: int = 0
) -> Callable[[Callable[[Args, Any], Epochs]], Callable[[Args, Any], Epochs]]:
    """Put a function into :data:`SCRIPTS`; arguments as the fields of :class:`Script`."""

    def add(run: Callable[[Args, Any], Epochs]) -> Callable[[Args, Any], Epochs]:
        name, doc = run.__name__, run.__doc__
        assert doc, f"{name}: say in the docstring whose habits it has"
        assert name not in SCRIPTS, f"{name}: there is another script of this name, in {SCRIPTS[name].family}"
        family = run.__module__.rpartition(".")[2]
        style = " ".join(doc.split())
        SCRIPTS[name] = Script(name, family, style, run, engine, needs, workers)
        return run

    return add
