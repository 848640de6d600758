"""What a loader waits for: measured while it runs, and named with the next step."""

from __future__ import annotations

import multiprocessing
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from .. import stages
from ..stages import NAMES, NEXT
from ..system import bytes_from_disk, cores, counts_reads, processor_times, processors_busy

StageName = Literal[
    "storage", "decoding", "transforms", "user code", "hand-over", "model", "memory", "lock", "processor", "nothing"
]
PROCESSOR = "processor"
"""Time in which threads and worker processes were ready to run and had no processor: a stage beside the others."""

_SAMPLE = 0.5
"""Seconds between two looks at what costs more than a function call."""
_LEAST = 0.01
"""Seconds below which single events, such as the end of an epoch, decide."""
_STALL = 0.1
"""Share of waiting below which the model is the bottleneck."""
_FAULTS = 100.0
"""Major page faults per second from which memory is the bottleneck."""
_PRESSURE = 0.1
"""Share of time in which tasks of the machine wait for memory, from which memory is the bottleneck."""
_TINY = 16
"""Samples in a batch below which batches are tiny."""
_PER_BATCH = 0.25
"""Share of the hand-over from which tiny batches are the cause."""
_SEEN = 0.2
"""Share of transforms in the work from which their waiting tells how long other threads waited for Python's lock."""
_CLEAR = 0.4
"""Share of the waiting below which no stage stands out."""
_FROM_DISK = 1 << 16
"""Bytes per second that storage delivers at least if a loader waits for it: less than one image."""
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
    busy: float = 0.0
    """Processor time of this process in ``next()``."""
    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys([*NAMES, PROCESSOR], 0.0))
    """Time of all threads and processes by stage."""
    cpu: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))
    """Processor time of all threads and processes by stage."""
    queued: float = 0.0
    """Time in which threads other than the consumer were ready to run and had no processor."""
    delayed: float = 0.0
    """Time in which the consumer was ready to run and had no processor."""
    ran: float = 0.0
    """Time of this process and its worker processes on processors."""
    busy_cores: float = 0.0
    """Time of all programs on the processors that this process may use."""
    from_disk: float = 0.0
    """Bytes that storage had to bring."""
    faults: float = 0.0
    """Number of major page faults of this process."""
    pressure: float = 0.0
    """Time in which some task of the machine waited for memory."""
    sampled: float = 0.0
    """Time over which the last seven were taken."""


class Meter:
    """Measures one iterator. ``enter()`` and ``leave()`` enclose each ``next()``, in the thread that calls it."""

    def __init__(self, into: Measured):
        self._into, self._left = into, 0.0

    def enter(self) -> None:
        NEXT.__enter__()
        self._entered, self._process, self._own = time.perf_counter(), time.process_time(), stages.own()

    def leave(self) -> None:
        NEXT.__exit__()
        into, spent, left, now = self._into, stages.spent(), self._left, time.perf_counter()
        self._left = now
        # The first next() starts the engine and does not count.
        if not left:
            self._spent, self._sampled, self._sample = spent, now, _Sample()
            return
        into.work += self._entered - left
        into.wait += now - self._entered
        into.busy += time.process_time() - self._process
        into.own += stages.own() - self._own
        passed, self._spent = spent.since(self._spent), spent
        for name, wall, cpu in zip(NAMES, passed.wall, passed.cpu, strict=True):
            if wall:
                into.stages[name] += wall
                into.cpu[name] += cpu
        if now - self._sampled > _SAMPLE:
            sample = _Sample()
            sample.add_to(into, self._sample)
            into.sampled += now - self._sampled
            self._sampled, self._sample = now, sample


class _Sample:
    """What Linux has counted so far."""

    def __init__(self) -> None:
        # The private set, because active_children() would collect workers that torch is about to ask for.
        workers = [child.pid for child in tuple(multiprocessing.process._children)]  # type: ignore[attr-defined]
        self._threads = processor_times(workers)
        faults = (resource.getrusage(who).ru_majflt for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        self._numbers = processors_busy(), bytes_from_disk(workers), sum(faults), _pressure()

    def add_to(self, into: Measured, before: _Sample) -> None:
        """Add the difference to an earlier sample."""
        consumer = threading.get_native_id()
        # A thread of the script that computes waits for a processor, too, but no batch waits for it.
        others = {thread.native_id for thread in threading.enumerate()} - stages.threads() - {consumer}
        for thread, (ran, queued) in self._threads.items():
            ran_before, queued_before = before._threads.get(thread, (0.0, 0.0))
            into.ran += max(ran - ran_before, 0.0)  # the number of a thread may be used again
            if thread in others:
                continue
            waited = max(queued - queued_before, 0.0)
            into.stages[PROCESSOR] += waited
            if thread == consumer:
                into.delayed += waited
            else:
                into.queued += waited
        busy, read, faults, pressure = (b - a for a, b in zip(before._numbers, self._numbers, strict=True))
        into.busy_cores += busy
        into.from_disk += max(read, 0.0)  # workers may have ended
        into.faults += faults
        into.pressure += pressure


def _pressure() -> float:
    try:
        with open("/proc/pressure/memory", encoding="ascii") as file:
            # The first line, "some", ends with the total in microseconds.
            return int(file.readline().rpartition("=")[2]) / 1e6
    except (OSError, ValueError):
        return 0.0


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
    if stall < _STALL:
        text = "data is there before the loop asks for it; gpupipe why measures the model without the loader"
        return Bottleneck("model", 1 - stall, f"the loop waits for {stall:.0%} of the time", text)
    shares = _shares(found, of)
    unexplained = shares.pop("nothing", 0.0)
    stage = max(shares, key=lambda name: shares[name])
    if of.batch_size < _TINY and shares["hand-over"] > _PER_BATCH:
        stage = "hand-over"  # transforms, too, take longer by the image
    per_second = found.faults / found.sampled if found.sampled else 0.0
    if found.sampled and (per_second > _FAULTS or found.pressure > _PRESSURE * found.sampled):
        why = f"{per_second:,.0f} pages per second had to be read back from disk"
        return Bottleneck("memory", stall, why, _memory(of))
    if shares[stage] < max(_CLEAR, unexplained):
        return Bottleneck("nothing", stall, _nothing(stall, shares), _LOOK_AGAIN)
    why = f"the loop waits for {stall:.0%} of the time, {shares[stage]:.0%} of it for this"
    return Bottleneck(stage, stall * shares[stage], why, _ADVICE[stage](found, of))


_LOOK_AGAIN = (
    "measure for longer, and while nothing else runs; if cores are idle, raise num_workers, then prefetch_factor"
)


def _nothing(stall: float, shares: dict[StageName, float]) -> str:
    largest = sorted(shares, key=lambda name: -shares[name])[:3]
    named = ", ".join(f"{name} {shares[name]:.0%}" for name in largest if shares[name] > 0)
    return f"the loop waits for {stall:.0%} of the time, and nothing stands out" + (f": {named}" if named else "")


def _taken_by_others(found: Measured, of: Work) -> float:
    """Return the share of the time queued for a processor that other programs cause.

    Threads that are more than the cores wait for each other, and are no reason to look elsewhere.
    """
    queued = found.queued + found.delayed
    missed = min(queued, of.cores * found.sampled - found.ran, found.busy_cores - found.ran)
    return max(missed, 0.0) / queued if queued > 0 else 0.0


def _shares(found: Measured, of: Work) -> dict[StageName, float]:
    """Return the share of each stage in the waiting."""
    s, c, n, wait = found.stages, found.cpu, max(of.workers, 1), found.wait
    sampled, own, others = found.sampled or 1.0, found.own / wait, _taken_by_others(found, of)
    if of.plain:
        return _plain_shares(found, of, others)
    # A consumer that waits for a processor has something to do. More than it does is the latency of its wake-ups.
    delayed = min(found.delayed / sampled, own)
    own, kept_off = min(own + delayed * (1 - others), 1.0), delayed * others
    # Whatever else the process computes while the loop waits, DALI's threads do.
    seen = sum(c[name] for name in ("decoding", "transforms", "user code", "storage"))
    graph = min(s["graph"], wait)
    # Cores that this process kept busy while the loop waited.
    cores = min(found.busy / wait, of.cores)
    computed = min(max(found.busy - found.own - seen, 0.0), graph * of.cores)
    # Seconds in which DALI's threads did not compute: they waited, for files or for the lock.
    idle = max(0.0, 1 - cores / min(max(n, 1), of.cores)) * graph * n
    # Threads that neither compute nor wait for a processor wait for files where they read them, else for Python's lock.
    names = ("decoding", "transforms", "storage", "user code")
    lost = [max(s[name] - c[name], 0.0) for name in names] + [idle]
    # Samples cover a part of the time, and this is scaled to all of it.
    queued = min((found.queued + found.delayed) / sampled * (wait + found.work), sum(lost))
    # Share of the waiting that a lack of processors does not explain.
    kept = 1 - queued / max(sum(lost), 1e-9)
    reading, late, stored, user, idle = (seconds * kept for seconds in lost)
    waiting = reading + idle
    least_seen = max(s["transforms"], _SEEN * (s["transforms"] + s["decoding"] + graph), 1e-9)
    # Transforms read no files, so they wait for the lock, as do other threads for the same share of their time.
    contended = late / least_seen
    # Without a byte from a disk, what waits inside of a decoder does not wait for storage.
    stage: StageName = "storage" if of.remote or _read_from_disk(found) else "nothing"
    seconds: dict[StageName, float] = {
        "storage": c["storage"] + stored,
        "decoding": c["decoding"] + computed,
        "transforms": c["transforms"],
        "user code": c["user code"] + user,
        "lock": late + waiting * contended,
        "processor": queued * others,
    }
    seconds[stage] = seconds.get(stage, 0.0) + waiting * (1 - contended)
    every = sum(seconds.values())
    if every <= 0:
        return {"hand-over": 1.0}
    # The hand-over has its own share, and the other stages divide what remains.
    left = max(1 - own - kept_off, 0.0)
    rest = {name: left * value / every for name, value in seconds.items()}
    return {**rest, "processor": rest["processor"] + kept_off, "hand-over": own}


def _plain_shares(found: Measured, of: Work, others: float) -> dict[StageName, float]:
    """Return the shares where torch's own loader does the work, which only knows the time of the consumer."""
    sampled, own = found.sampled or 1.0, found.own / found.wait
    delayed = min(found.delayed / sampled, 1.0)
    if not of.workers:
        return {"user code": 1 - delayed * others, "processor": delayed * others, "hand-over": 0.0}
    own = min(own + min(delayed, own) * (1 - others), 1.0)
    kept_off = (1 - own) * min(found.queued * others / sampled / of.workers, 1.0)
    return {"hand-over": own, "user code": 1 - own - kept_off, "processor": kept_off}


def _read_from_disk(found: Measured) -> bool:
    return found.from_disk > _FROM_DISK * found.sampled or not counts_reads()


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
    by_pillow = 2 * found.cpu["decoding"] > found.busy
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


def _lock(found: Measured, of: Work) -> str:
    if found.work < _STALL * found.wait:
        return "threads wait for Python's lock: move other threads of the script to a process, or use fewer num_workers"
    return "threads wait for Python's lock: move Python code of the training loop to another process"


def _processor(found: Measured, of: Work) -> str:
    return (
        f"other programs use the {of.cores} cores that this process may use: stop them, or reserve cores; more workers "
        "make it no faster"
    )


def _memory(of: Work) -> str:
    return "lower batch_size, num_workers or cache_bytes, or give the process more memory"


_ADVICE: dict[StageName, Callable[[Measured, Work], str]] = {
    "storage": _storage,
    "decoding": _decoding,
    "transforms": _transforms,
    "user code": _user_code,
    "hand-over": _hand_over,
    "lock": _lock,
    "processor": _processor,
}
