"""What gpupipe does with a loader of a script, why, what it costs, and what to change."""

from __future__ import annotations

import inspect
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader as TorchLoader

from ..bench.machine import cores
from ..datasets.dataset import Dataset
from ..errors import GpupipeError
from ..loader.dataloader import DataLoader
from ..loader.live_session import LiveSession
from ..loader.session import count_samples
from ..reasons import ADVICE, FallbackWarning, GpupipeWarning, Reason
from ..translate.samplers import length_of
from .compare import compared
from .watch import Made

TORCHS_OWN = "torch's own loader"
"""Engine of a loader that gpupipe leaves to torch."""
_NAMES = {"gpupipe": "gpupipe's choice", "torch": TORCHS_OWN, "reference": "the reference engine"}
_ROUNDS = 3
"""Number of rounds that count, after one that fills caches."""
_HELPS = 1.1
"""Least factor by which a change must be faster to be named."""
_FEW = 4
"""Samples of a batch up to which planning it may take longer than loading them. For JPEGs of 64 x 64 pixels, batches of
two are slower than with torch's loader, and batches of four are not."""
_TORCHS = inspect.signature(TorchLoader.__init__).parameters


@dataclass(frozen=True)
class Change:
    """A change of the script, and what it brings."""

    text: str
    factors: tuple[float, ...] = ()
    """Samples per second with the change, divided by those of the script as it is, in every round; empty if not
    measured."""

    @property
    def factor(self) -> float | None:
        """Median of the factors."""
        return statistics.median(self.factors) if self.factors else None

    def __str__(self) -> str:
        return f"{self.text}: {with_range(self.factors)} times as fast" if self.factors else self.text


def with_range(values: Sequence[float]) -> str:
    """Return the median with the range, such as "2.10 (1.95 to 2.30)".

    >>> with_range([2.1, 1.95, 2.3]), with_range([2.0])
    ('2.10 (1.95 to 2.30)', '2.00')
    """
    median = f"{statistics.median(values):.2f}"
    return median if len(values) == 1 else f"{median} ({min(values):.2f} to {max(values):.2f})"


@dataclass
class Explained:
    """Findings about a loader of a script."""

    at: str
    """File and line that made the loader."""
    uses_gpupipe: bool
    """Whether the script made a :class:`gpupipe.DataLoader`."""
    dataset: str
    samples: int | None
    batch_size: int | None
    num_workers: int
    engine: str = ""
    """Engine that gpupipe chooses; :data:`TORCHS_OWN`; or ``"none"`` if it raises an error."""
    why: str = ""
    """Why it is this engine, or the error."""
    reasons: tuple[Reason, ...] = ()
    """Why DALI does not do the work."""
    warnings: tuple[str, ...] = ()
    """Further warnings of gpupipe."""
    remarks: tuple[str, ...] = ()
    """What happened to the measured batches, such as what Pillow decoded instead of DALI."""
    rates: Mapping[str, float] | None = None
    """Samples per second, median of the rounds, by what was measured: ``"gpupipe"``, ``"torch"`` (torch's own loader)
    or ``"reference"`` (gpupipe's torch engine, for datasets that only gpupipe reads)."""
    ratios: tuple[float, ...] = ()
    """Speed of gpupipe's choice, divided by that of torch's loader or of the reference, in every round."""
    compared: str = ""
    """How the first batches compare with torch's from the same seed, if the script's own code makes them."""
    not_measured: str = ""
    """Why something was not measured."""
    change: Change = Change("nothing")

    @property
    def ratio(self) -> float | None:
        """Median of the ratios."""
        return statistics.median(self.ratios) if self.ratios else None


def explain(made: Made, *, seconds: float = 3.0, progress: Callable[[str], None] = lambda text: None) -> Explained:
    """Explain a loader. Measures a few batches for ``seconds`` per candidate; 0 measures nothing.

    ``progress`` is called with what is measured next.

    Errors of the script's own code while measuring are reported in :attr:`Explained.not_measured`.
    """
    dataset, ran = made.arguments["dataset"], made.loader
    found = Explained(made.at, made.ours, type(dataset).__name__, length_of(dataset), ran.batch_size, ran.num_workers)
    with ExitStack() as stack:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                loader = stack.enter_context(closing(DataLoader(**made.arguments)))
            except GpupipeError as e:
                found.engine, found.why, found.change = "none", str(e), Change("what the error says")
                return found
        session = loader._session
        live = session if isinstance(session, LiveSession) else None
        found.engine, found.why = session.engine
        if live is not None and not live.waits:
            found.engine = TORCHS_OWN
        found.reasons = session.reasons
        said = [w.message for w in caught if isinstance(w.message, GpupipeWarning)]
        found.warnings = tuple(str(one) for one in said if not set(session.reasons).issuperset(one.reasons))
        rates: dict[str, list[float]] = {}
        if seconds:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", FallbackWarning)  # it becomes a reason below
                    rates, found.not_measured = measured(_candidates(made, loader, stack), seconds, progress)
            except GpupipeError as e:
                found.not_measured = str(e)
            if live is not None and live.waits and made.arguments.get("seed") is None:
                progress("comparing batches with torch's")
                found.compared = compared(made.arguments, _torchs(made))
        if live is not None and live.nothing_waits is not None:
            found.reasons = (live.nothing_waits,)
        found.remarks = tuple(session.remarks())
        found.rates = {name: statistics.median(rates[name]) for name in _NAMES if name in rates} or None
        found.ratios = _ratios(rates, "gpupipe", "torch") or _ratios(rates, "gpupipe", "reference")
        changes = [Change(name, _ratios(rates, name, "gpupipe")) for name in rates if name not in _NAMES]
        found.change = _smallest(made, found, changes)
        return found


def _torchs(made: Made) -> dict[str, Any]:
    """Return the arguments that torch's loader has, too."""
    return {name: value for name, value in made.arguments.items() if name in _TORCHS}


def _candidates(made: Made, loader: DataLoader, stack: ExitStack) -> dict[str, Iterable[Any]]:
    """Return what to measure, by a name of :data:`_NAMES` or a change of the script."""

    def make(**changed: Any) -> DataLoader:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return stack.enter_context(closing(DataLoader(**{**made.arguments, **changed})))

    found: dict[str, Iterable[Any]] = {"gpupipe": loader}
    if isinstance(made.arguments["dataset"], Dataset):
        found["reference"] = make(engine="torch")
    else:
        found["torch"] = TorchLoader(**_torchs(made)) if made.ours else made.loader
    if loader.num_workers < (more := cores()):
        found[f"num_workers={more}"] = make(num_workers=more)
    return found


def measured(
    candidates: Mapping[str, Iterable[Any]], seconds: float, progress: Callable[[str], None]
) -> tuple[dict[str, list[float]], str]:
    """Return samples per second in every round of loaders that take turns, by name, and why one could not be measured.

    Every turn is an epoch of its own, without the time until its first batches. The first round does not count, because
    caches fill.
    """
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for round_ in range(_ROUNDS + 1):
        for name, batches in candidates.items():
            progress(f"{f'round {round_} of {_ROUNDS}' if round_ else 'warming up'}: {_NAMES.get(name, name)}")
            try:
                rate = _rate(batches, seconds / _ROUNDS)
            except Exception as e:  # raised by the script's code
                return {}, f"{name}: {type(e).__name__}: {e}"
            if round_:
                rates[name].append(rate)
    return rates, ""


def _ratios(rates: Mapping[str, Sequence[float]], name: str, base: str) -> tuple[float, ...]:
    """Return the ratios of two candidates within each round; empty if one was not measured."""
    pairs = zip(rates.get(name, ()), rates.get(base, ()), strict=False)
    return tuple(a / b for a, b in pairs if b)


def _rate(batches: Iterable[Any], seconds: float) -> float:
    """Return samples per second, at least until the second batch or the end of the epoch."""
    first = max(getattr(batches, "num_workers", 0), 1)
    began = left = time.perf_counter()
    samples = taken = 0
    for batch in batches:
        left = time.perf_counter()
        taken += 1
        if taken == first and taken < 2 * first and samples == 0:
            began = left  # every worker has delivered its first batch
            continue
        if taken > first:
            samples += count_samples(batch)
        if samples and left - began >= seconds:
            break
    return samples / (left - began) if samples else 0.0


def _smallest(made: Made, found: Explained, changes: list[Change]) -> Change:
    """Return the smallest change that helps."""
    helpful = next((change for change in changes if (change.factor or 0) >= _HELPS), None)
    if not made.ours and not found.reasons and found.engine != TORCHS_OWN:
        line = f"{made.at}: make it with gpupipe.DataLoader, with the same arguments"
        ratio = found.ratio
        if ratio is None:
            return Change(line)
        if ratio >= _HELPS:
            return Change(line, found.ratios)
        if helpful is not None and ratio * (helpful.factor or 0) >= _HELPS:
            both = (a * b for a, b in zip(found.ratios, helpful.factors, strict=True))
            return Change(f"{line} and {helpful.text}", tuple(both))
        return Change("nothing: torch's own loader is as fast with these arguments")
    slower = found.ratio is not None and found.ratio <= 1 / _HELPS and not found.reasons
    if slower and (helpful is None or (helpful.factor or 0) * (found.ratio or 0) <= 1 / _HELPS):
        return Change(_instead(made, found), tuple(1 / ratio for ratio in found.ratios))
    if helpful is not None:
        return helpful
    if found.reasons:
        return Change(f"{made.at}: {ADVICE[found.reasons[0].code]}")
    return Change("nothing")


def _instead(made: Made, found: Explained) -> str:
    """Return the change to the faster of two loaders, where gpupipe's choice is slower."""
    if "torch" not in (found.rates or {}):
        return f'{made.at}: engine="torch"'
    line = f"{made.at}: make it with torch's DataLoader"
    few = found.batch_size is not None and found.batch_size <= _FEW
    return f"{line}, or use larger batches, because gpupipe plans and hands over each of them" if few else line
