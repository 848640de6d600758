"""What a loader waits for: measured while it runs, and named with the next step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from .. import stages
from ..stages import NAMES, NEXT
from ..system import cores

StageName = Literal["storage", "decoding", "transforms", "user code", "hand-over", "model", "nothing"]

_LEAST = 0.01
"""Seconds below which single events, such as the end of an epoch, decide."""
_STALL = 0.1
"""Share of waiting below which the model is the bottleneck."""
_TINY = 16
"""Samples in a batch below which batches are tiny."""
_PER_BATCH = 0.25
"""Share of the hand-over from which tiny batches are the cause."""
_CLEAR = 0.4
"""Share of the waiting below which no stage stands out."""
_LARGE = 4.0
"""Decoded pixels per pixel of the batch from which images are large."""


@dataclass
class Measured:
    """Sums over the epochs of a loader in seconds, each without the time until its first batch, when an engine
    starts."""

    wait: float = 0.0
    """Time in ``next()``."""
    work: float = 0.0
    """Time of the training loop outside of it."""
    own: float = 0.0
    """Processor time of the consumer in ``next()``, outside of the other stages."""
    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))
    """Time of all threads and processes by stage."""


class Meter:
    """Measures one iterator. ``enter()`` and ``leave()`` enclose each ``next()``, in the thread that calls it."""

    def __init__(self, into: Measured):
        self._into, self._left, self._spent = into, 0.0, stages.spent()

    def enter(self) -> None:
        NEXT.__enter__()
        self._entered, self._own = time.perf_counter(), stages.own()

    def leave(self) -> None:
        NEXT.__exit__()
        into, spent, left, now = self._into, stages.spent(), self._left, time.perf_counter()
        self._left = now
        # The first next() starts the engine and does not count.
        if left:
            into.work += self._entered - left
            into.wait += now - self._entered
            into.own += stages.own() - self._own
            for name, seconds in zip(NAMES, spent.since(self._spent), strict=True):
                into.stages[name] += seconds
        self._spent = spent


@dataclass(frozen=True)
class Work:
    """What a loader does, as far as advice depends on it."""

    workers: int
    """Threads or worker processes that make batches; 0: the training loop's own thread."""
    batch_size: int
    remote: bool = False
    """Whether files are behind a network."""
    plain: bool = False
    """Whether torch's own loader does the work."""
    collates: bool = False
    """Whether the script has a Dataset or a collate function of its own."""
    shrink: float = 1.0
    """Pixels of an image file per pixel of the batch, on average."""
    dali: bool = False
    """Whether DALI decodes what it supports."""
    cores: int = field(default_factory=cores)


@dataclass(frozen=True)
class Bottleneck:
    """What limits the speed, and what to do about it."""

    stage: StageName
    share: float
    """Share of the time of the training loop that this stage takes, as far as it can be attributed."""
    why: str
    """What was measured."""
    next_step: str


def bottleneck(found: Measured, of: Work) -> Bottleneck | None:
    """Name the bottleneck; ``None`` if hardly anything was measured."""
    if found.wait <= 0 or found.wait + found.work < _LEAST:
        return None
    stall = found.wait / (found.wait + found.work)
    why = f"the loop waits for {stall:.0%} of the time"
    if stall < _STALL:
        text = "data is there before the loop asks for it; gpupipe why measures the model without the loader"
        return Bottleneck("model", 1 - stall, why, text)
    shares = _shares(found, of)
    stage = max(shares, key=lambda name: shares[name])
    if of.batch_size < _TINY and shares["hand-over"] > _PER_BATCH:
        stage = "hand-over"  # transforms, too, take longer by the image
    if shares[stage] < _CLEAR:
        largest = sorted(shares, key=lambda name: -shares[name])[:3]
        named = ", ".join(f"{name} {shares[name]:.0%}" for name in largest)
        return Bottleneck("nothing", stall, f"{why}, and nothing stands out: {named}", _LOOK_AGAIN)
    why += f", {shares[stage]:.0%} of it for this"
    return Bottleneck(stage, stall * shares[stage], why, _ADVICE[stage](found, of))


_LOOK_AGAIN = (
    "measure for longer, and while nothing else runs; if cores are idle, raise num_workers, then prefetch_factor"
)


def _shares(found: Measured, of: Work) -> dict[StageName, float]:
    """Return the share of each stage in the waiting."""
    if of.plain and not of.workers:
        return {"user code": 1.0, "hand-over": 0.0}
    s = found.stages
    seconds: dict[StageName, float] = {
        "storage": s["storage"],
        "decoding": s["decoding"] + _of_graph(found, of),
        "transforms": s["transforms"],
        "user code": s["user code"],
    }
    every = sum(seconds.values())
    if every <= 0:
        return {"hand-over": 1.0}
    # The hand-over has its own share, and the other stages divide what remains.
    own = min(found.own / found.wait, 1.0)
    return {**{name: (1 - own) * value / every for name, value in seconds.items()}, "hand-over": own}


def _of_graph(found: Measured, of: Work) -> float:
    """Return the seconds of DALI's threads, which work while one of ours waits for its graph."""
    return found.stages["graph"] * min(max(of.workers, 1), of.cores)


def _more_workers(of: Work) -> str | None:
    """Advise more workers if cores are idle while the loop waits."""
    if of.workers >= of.cores:
        return None
    return f"use num_workers={of.cores}: {of.workers or 'no'} worker{'s' * (of.workers != 1)} for {of.cores} cores"


def _storage(found: Measured, of: Work) -> str:
    if of.remote:
        return 'raise prefetch_factor, use shuffle="blocks", or copy the files to a local disk'
    return 'pack the files into shards (gpupipe pack), use shuffle="blocks", a faster disk, or cache="ram"'


def _decoding(found: Measured, of: Work) -> str:
    if (more := _more_workers(of)) is not None:
        return more
    by_pillow = found.stages["decoding"] > _of_graph(found, of)
    # DALI decodes only the window of a crop, so scaled=True gains nothing there.
    if of.dali and (by_pillow or of.shrink >= _LARGE):
        return "write the images as JPEG of the size that training needs (gpupipe pack --resize), or use cache="
    if of.shrink >= _LARGE:
        return "decode large images smaller (scaled=True, gpupipe pack --resize), or use cache="
    return 'keep decoded images (cache="ram" or cache="disk"), or decode on a GPU'


def _transforms(found: Measured, of: Work) -> str:
    return _more_workers(of) or "leave some transforms out"


def _user_code(found: Measured, of: Work) -> str:
    if (more := _more_workers(of)) is not None:
        return more
    if of.plain:
        return "let DALI do the work: gpupipe why SCRIPT lists the reasons why it does not"
    return "profile __getitem__, own transforms and collate_fn, and replace them by transforms of gpupipe"


def _hand_over(found: Measured, of: Work) -> str:
    if of.batch_size < _TINY:
        return f"use a larger batch_size: every batch costs the same, and has {of.batch_size} samples"
    if of.plain or of.collates:
        return "return tensors of fixed size rather than objects, and do less in collate_fn"
    return "use a larger batch_size: the images cost little, and every batch costs the same"


_ADVICE: dict[StageName, Callable[[Measured, Work], str]] = {
    "storage": _storage,
    "decoding": _decoding,
    "transforms": _transforms,
    "user code": _user_code,
    "hand-over": _hand_over,
}
