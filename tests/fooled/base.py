"""What a case is, and how it is run and compared."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T

__all__ = ["BATCH", "COUNT", "EVAL", "RARE", "TRAIN", "Case", "Outcome", "Pictures", "case", "cases", "differs", "run"]

COUNT, BATCH = 24, 4
EVAL = T.Compose([T.Resize(24), T.CenterCrop(20), T.ToTensor()])
TRAIN = T.Compose([T.RandomCrop(20), T.RandomHorizontalFlip(), T.ToTensor()])
RARE = 5
"""A sample that trials do not look at."""
Made = TypeVar("Made", bound=Callable[..., Any])
_LEVELS = 3.02 / 255
"""Difference allowed between pixels of DALI and of torchvision."""
_ROUNDING = 1e-6
"""Tolerance for float32, because the reference may compute in another order."""


class Pictures(Dataset[Any]):
    """A list of files, Pillow, a transform that draws nothing."""

    def __init__(self, root: Path, transform: Any = EVAL):
        self.paths = sorted(root.glob("*.jpg"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, i: int) -> Image.Image:
        return Image.open(self.paths[i]).convert("RGB")

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), i


def write_pictures(root: Path) -> Path:
    """Red says where a column was, green where a row was, blue which picture it is."""
    rows, columns = np.mgrid[:32, :36]
    for i in range(COUNT):
        blue = np.full_like(rows, 10 * i)
        pixels = np.stack([7 * columns, 7 * rows, blue], 2).astype(np.uint8)
        Image.fromarray(pixels).save(root / f"{i:02}.jpg", quality=95)
    return root


@dataclass(frozen=True)
class Case:
    """One thing that scripts do.

    Attributes:
        script: (loader class, folder of pictures, arguments of the loader) to what is compared.
        forks: whether it says something only with workers that are forked, or with none.
    """

    name: str
    script: Callable[..., Any]
    forks: bool


_cases: dict[str, Case] = {}


def cases() -> dict[str, Case]:
    """All of them, by name."""
    from . import (  # noqa: F401
        beside,
        failing,
        identity,
        joined,
        looks,
        outside,
        randomness,
        replaced,
        states,
        structures,
        targets,
        unforeseen,
    )

    return _cases


def case(
    facts: Callable[[list[Any]], Any] | None = None, *, forks: bool = False, **options: Any
) -> Callable[[Made], Made]:
    """A decorator for a Dataset, of which two epochs are compared, or for a function that is a script.

    Args:
        facts: of the epochs, which are lists of batches: what is compared.
        forks: see :class:`Case`.
        options: other arguments of the loader.
    """

    def noted(made: Made) -> Made:
        script = _two_epochs(made, facts, options) if isinstance(made, type) else made
        assert made.__name__ not in _cases, made.__name__
        _cases[made.__name__] = Case(made.__name__, script, forks)
        return made

    return noted


def _two_epochs(kind: Any, facts: Callable[[list[Any]], Any] | None, options: Mapping[str, Any]) -> Callable[..., Any]:
    def script(Loader: Any, root: Path, **arguments: Any) -> Any:
        loader = Loader(kind(root), **{"batch_size": BATCH, **options, **arguments})
        epochs = [list(loader) for _ in range(2)]
        return epochs if facts is None else facts(epochs)

    return script


# ---- running


@dataclass
class Outcome:
    """What a script came to: ``value``, or the exception that ended it."""

    value: Any = None
    error: Exception | None = None
    warned: str = ""


def run(of: Case, Loader: Any, root: Path, **arguments: Any) -> Outcome:
    random.seed(0), np.random.seed(0), torch.manual_seed(0)  # noqa: NPY002
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            outcome = Outcome(of.script(Loader, root, **arguments))
        except Exception as e:
            outcome = Outcome(error=e)
    outcome.warned = "; ".join(str(w.message) for w in caught)
    return outcome


# ---- comparing


def differs(got: Outcome, want: Outcome, *, exact: bool = True) -> str | None:
    """What is not as torch has it; ``None`` if nothing. ``exact``: whether pixels must be equal."""
    if want.error is not None:
        return None if got.error is not None else f"torch raises {want.error!r}"
    if got.error is not None:
        return f"raises {type(got.error).__name__}: {got.error}"
    return _difference(got.value, want.value, "", exact)


def _difference(a: Any, b: Any, at: str, exact: bool) -> str | None:
    if type(a) is not type(b):
        return f"{at}: {type(a).__name__}, not {type(b).__name__}"
    if isinstance(b, Mapping):
        if list(a) != list(b):
            return f"{at}: keys {list(a)}, not {list(b)}"
        return next((d for key in b if (d := _difference(a[key], b[key], f"{at}.{key}", exact))), None)
    if isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{at}: {len(a)} parts, not {len(b)}"
        pairs = enumerate(zip(a, b, strict=True))
        return next((d for i, (x, y) in pairs if (d := _difference(x, y, f"{at}[{i}]", exact))), None)
    if isinstance(b, (torch.Tensor, np.ndarray, Image.Image)):
        return _difference_of_arrays(a, b, at, exact)
    if hasattr(b, "__dict__") and not isinstance(b, type):
        return _difference(vars(a), vars(b), at, exact)
    return None if a == b else f"{at}: {a!r}, not {b!r}"


def _difference_of_arrays(a: Any, b: Any, at: str, exact: bool) -> str | None:
    x, y = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in (a, b))
    if x.dtype != y.dtype or x.shape != y.shape:
        return f"{at}: {x.dtype}{list(x.shape)}, not {y.dtype}{list(y.shape)}"
    if np.array_equal(x, y, equal_nan=y.dtype.kind == "f"):
        return None
    if y.dtype.kind == "f":
        tolerance = _ROUNDING * max(1.0, float(np.nanmax(np.abs(y)))) if exact else _LEVELS
    else:
        tolerance = 3 if y.dtype == np.uint8 and not exact else 0
    apart = np.abs(x.astype(np.float64) - y.astype(np.float64)).max()
    return f"{at}: {apart:.3g} apart" if not apart <= tolerance else None
