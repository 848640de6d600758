"""Decoding in other processes, on this machine or on others: the base of :mod:`gpupipe.integrations.ray`.

A request is some rows of a plan, with the crop and resize that they begin with: pure numbers, made of seed, epoch and
step. The answer is the pixels under the crop. A decoder keeps nothing between requests, so it may die, be late or
answer twice. This process decodes what does not arrive, and whatever a decoder cannot read, so that bad samples are
reported as without decoders.

:class:`Decoders` decides who gets a request and whom to wait for. Its subclasses only carry requests.
:mod:`.worker` answers them.
"""

from __future__ import annotations

import io
import logging
import pickle
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, TimeoutError as Late
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import ImageFile
from rich.filesize import decimal

from ..datasets.dataset import Dataset
from ..datasets.index.column_file import Columns
from ..errors import ConfigError, GpupipeError
from ..transforms.compose import Compose
from ..types import Plan, check_integer
from .buffers import views_of_array

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

_FEWEST, _MOST = 16, 64
"""Images per request, so that it costs little beside them and a decoder that dies has not been asked for many."""
_STARTING = 15.0
"""Seconds without any decoder after which a warning says so."""
_LONGEST_PAUSE = 30.0
"""Seconds between attempts to start a decoder that keeps failing."""

D = TypeVar("D", bound="Decoders")

log = logging.getLogger("gpupipe")


class Hello(NamedTuple):
    """First words of a decoder."""

    versions: str
    """Versions on which its pixels depend."""
    machine: str


class Request(NamedTuple):
    """Some rows of a plan."""

    key: str
    """Hash of ``work``."""
    work: bytes
    """A pickled :class:`~.take.Take`, and whether Pillow reads truncated files. Equal in all requests of a loader."""
    plan: bytes
    """A pickled plan of these rows, with the ops that the answer includes."""


class Answer(NamedTuple):
    """Pixels of the rows of a request."""

    pixels: U8
    """u8[N]: the images one after another. Those of bad rows are unspecified."""
    bad: dict[int, str]
    """Why an image cannot be read, by row of the request."""


class _Pickler(pickle.Pickler):
    """Sends an index with its content instead of its path, and no transforms: they run where the batches are made."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Columns):
            return obj.with_content()
        if isinstance(obj, Compose):
            return Compose, ([],)
        # Another process has another __main__.
        if getattr(obj, "__module__", None) == "__main__" and hasattr(obj, "__qualname__"):
            raise pickle.PicklingError(f"{obj.__qualname__} is defined in the script itself, not in a module")
        return NotImplemented


def _packed(take: Any, dataset: Dataset) -> bytes:
    sent = io.BytesIO()
    try:
        _Pickler(sent, pickle.HIGHEST_PROTOCOL).dump((take, bool(ImageFile.LOAD_TRUNCATED_IMAGES)))
    except (pickle.PicklingError, TypeError, AttributeError) as e:
        raise ConfigError(
            f"decoders= cannot send {dataset!r} to other processes: {e}; keep in the dataset only what pickles, from "
            "modules that the decoders can import, or leave decoders out"
        ) from None
    return sent.getvalue()


@dataclass(eq=False)
class _Decoder:
    """What is known about a decoder."""

    number: int
    ready: bool = False
    starting: bool = False
    refused: bool = False
    machine: str = ""
    asked: dict[int, float] = field(default_factory=dict)
    """Time of each request without an answer."""
    heard: float = 0.0
    """Time of the last answer."""
    failures: int = 0
    """Number of failures since the last answer."""
    pause_until: float = 0.0

    def is_late(self, patience: float) -> bool:
        if not self.asked:
            return False
        # Patience begins with the last answer, or with the oldest open request if that is later.
        return time.monotonic() - max(self.heard, min(self.asked.values())) > patience


class Decoders(ABC):
    """Processes that decode images for loaders, on this machine or on others. Loaders of a script may share them.

    They start at the first batch. Until one is ready, and whenever none is, this process decodes.

    Args:
        count: number of decoders.
        patience: seconds without an answer after which this process decodes what a decoder was asked for, and asks
            others until it answers.
        versions: versions on which pixels depend, in this process. Decoders with others are not used.
    """

    def __init__(self, count: int, patience: float, versions: str):
        self.versions = versions
        if isinstance(patience, bool) or not isinstance(patience, (int, float)) or not patience > 0:
            raise ConfigError(f"patience must be a number of seconds above 0, not {patience!r}")
        self._decoders = [_Decoder(k) for k in range(check_integer(count, "the number of decoders", 1))]
        self._patience = float(patience)
        self._lock = threading.RLock()
        self._number = 0
        self._since: float | None = None
        """Since when no decoder can be asked."""
        self._closed = False
        self._told: set[str] = set()
        self._counts = Counter[str]()

    # ---- what carries requests

    @abstractmethod
    def start(self, number: int) -> Future[Hello]:
        """Start a decoder, in place of the earlier one with this number."""

    @abstractmethod
    def submit(self, number: int, request: Request) -> Future[Answer]:
        """Send a request to a decoder that has started."""

    @abstractmethod
    def stop(self, number: int) -> None:
        """End a decoder."""

    # ----

    def close(self) -> None:
        """End all decoders. Loaders that still use them decode in this process."""
        # First, so that none is started again.
        with self._lock:
            self._closed = True
        for one in self._decoders:
            with suppress(Exception):
                self.stop(one.number)

    def __enter__(self: D) -> D:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def wait(self, timeout: float = 60.0) -> int:
        """Start all decoders and wait until they are ready. Returns how many are."""
        until = time.monotonic() + timeout
        while True:
            self._wake()
            ready = sum(one.ready for one in self._decoders)
            if ready == len(self._decoders) or time.monotonic() > until:
                return ready
            time.sleep(0.02)

    def check(self, dataset: Dataset) -> None:
        """Raise :class:`ConfigError` if decoders cannot decode a dataset."""
        if dataset.kind != "files" or dataset.sizes is None:
            raise ConfigError(
                f"decoders= decodes images in files, which have an index, but {dataset!r} has {dataset.kind}; leave it "
                "out"
            )

    def images_per_request(self, count: int) -> int:
        """Return how to divide a batch of ``count`` images, so that all decoders share it."""
        return min(max(-(-count // len(self._decoders)), _FEWEST), _MOST)

    def ask(self, request: Request) -> tuple[_Decoder, Future[Answer]] | None:
        """Send a request to a decoder, or return ``None`` if none can be asked now."""
        self._wake()
        with self._lock:
            free = [one for one in self._decoders if one.ready and not one.is_late(self._patience)]
            if not free or self._closed:
                self._warn_without()
                return None
            self._since = None
            one = min(free, key=lambda one: len(one.asked))
            number, self._number = self._number, self._number + 1
            one.asked[number] = time.monotonic()
            self._counts["requests"] += 1
        try:
            future = self.submit(one.number, request)
        except Exception as e:
            future = Future()
            future.set_exception(e)
        future.add_done_callback(lambda done: self._answered(one, number, done))
        return one, future

    def wait_for(self, one: _Decoder, future: Future[Answer]) -> Answer | None:
        """Return an answer, or ``None`` if the decoder died or is late. Raises errors of gpupipe, such as a wrong
        configuration."""
        while True:
            try:
                # Look several times, because an answer to another request shows that the decoder is alive.
                return future.result(self._patience / 8)
            except Late:
                if not future.done() and one.is_late(self._patience):
                    self._tell(
                        f"decoder {one.number} on {one.machine} has not answered for {self._patience:g} s: its images "
                        "are decoded in this process, and it is not asked until it answers"
                    )
                    return None
            except GpupipeError:
                raise
            except Exception:  # reported by _answered
                return None

    def disagreed(self, what: str, why: str) -> None:
        """Note that this process read an image that a decoder could not read."""
        self._tell(
            f"a decoder cannot read {what} ({why}), which this process can: files must have the same paths on all "
            "machines; such images are decoded in this process",
            "disagreed",
        )

    def count(self, **numbers: int) -> None:
        """Add to the counts of ``images`` that decoders decoded, their ``nbytes``, images decoded ``here`` instead, and
        ``requests`` that ``failed`` or were late."""
        with self._lock:
            self._counts.update(numbers)

    def stats(self) -> dict[str, int]:
        """Return the counts since the decoders were made, and how many decoders are ``ready``."""
        names = ("requests", "failed", "images", "here", "nbytes")
        with self._lock:
            ready = sum(one.ready for one in self._decoders)
            return {"decoders": len(self._decoders), "ready": ready, **{name: self._counts[name] for name in names}}

    def remark(self) -> str:
        """Describe for users what the decoders have done."""
        s = self.stats()
        machines = len({one.machine for one in self._decoders if one.ready})
        sent = f", {decimal(s['nbytes'] // s['images'])} each" if s["images"] else ""
        return (
            f"decoders: {s['ready']} of {s['decoders']} ready"
            + (f" on {machines} machine{'s' * (machines > 1)}" if machines else "")
            + f"; they decoded {s['images']:,} images{sent}, this process {s['here']:,}; {s['failed']:,} of "
            f"{s['requests']:,} requests failed or were late"
        )

    def _wake(self) -> None:
        """Start decoders that have not been started, or that died a while ago."""
        now = time.monotonic()
        with self._lock:
            idle = [
                one
                for one in self._decoders
                if not (one.ready or one.starting or one.refused or self._closed) and now >= one.pause_until
            ]
            for one in idle:
                one.starting = True
        for one in idle:
            try:
                future = self.start(one.number)
            except Exception as e:
                future = Future()
                future.set_exception(e)
            future.add_done_callback(lambda done, one=one: self._started(one, done))  # type: ignore[misc]

    def _started(self, one: _Decoder, done: Future[Hello]) -> None:
        with self._lock:
            one.starting = False
            try:
                hello = done.result()
            except BaseException as e:
                self._failed(one, e)
                return
            one.machine = hello.machine
            if hello.versions != self.versions:
                one.refused = True
                self._tell(
                    f"a decoder on {hello.machine} has {hello.versions}, and this process {self.versions}: it is not "
                    "used, because pixels could differ; install the same versions on all machines"
                )
                return
            one.ready, one.heard = True, time.monotonic()
            one.asked.clear()

    def _answered(self, one: _Decoder, number: int, done: Future[Answer]) -> None:
        with self._lock:
            if one.asked.pop(number, None) is None:
                return  # asked of a decoder that has been replaced since
            one.heard = time.monotonic()
            error = None if done.cancelled() else done.exception()
            if error is None or isinstance(error, GpupipeError):
                one.failures = 0
            # All requests of a decoder that dies fail; only the first failure counts.
            elif one.ready:
                self._failed(one, error)

    def _failed(self, one: _Decoder, error: BaseException) -> None:
        one.ready = False
        # Python cannot multiply a float by 2**1024; far fewer doublings reach the longest pause.
        one.pause_until = time.monotonic() + min(0.25 * 2 ** min(one.failures, 64), _LONGEST_PAUSE)
        one.failures += 1
        if not self._closed:
            text = str(error).strip().splitlines() or [""]
            self._tell(
                f"decoder {one.number} failed and is started again: {type(error).__name__}: {text[0]}; this process "
                "decodes its images meanwhile",
                # The first three failures in a row are reported, then one more.
                f"{one.number} {one.failures}" if one.failures < 4 else str(one.number),
            )

    def _warn_without(self) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > _STARTING and not self._closed:
            self._tell(
                f"none of {len(self._decoders)} decoders has been ready for {now - self._since:.0f} s; this process "
                "decodes all images; look whether the cluster has free processors",
                "without",
            )

    def _tell(self, text: str, key: str | None = None) -> None:
        """Log a warning once."""
        with self._lock:
            if (key or text) in self._told:
                return
            self._told.add(key or text)
        log.warning("%s", text)


class Elsewhere:
    """A loader's connection to decoders.

    Args:
        take: the :class:`~.take.Take` that decoders run; picklable.
        dataset: its dataset.
    """

    def __init__(self, decoders: Decoders, take: Any, dataset: Dataset):
        self._decoders, self._take, self._dataset = decoders, take, dataset
        self._lock = threading.Lock()
        self._work: tuple[str, bytes] | None = None

    def ask(self, plan: Plan, sizes: I32, done: int) -> Asked:
        """Request all images of a plan.

        Args:
            sizes: i32[B, 2], height and width of each image when it arrives.
            done: number of the plan's first ops that they include.
        """
        with self._lock:
            if self._work is None:
                work = _packed(self._take, self._dataset)
                self._work = blake2b(work, digest_size=16).hexdigest(), work
        each = self._decoders.images_per_request(len(plan))
        requests = [Request(*self._work, part) for part in _parts(plan, done, each)]
        return Asked(self._decoders, requests, sizes.tolist(), each)


def _parts(plan: Plan, done: int, each: int) -> Iterator[bytes]:
    """Yield the plan in parts of ``each`` rows, with the first ops."""
    assert plan.ops is not None and plan.sizes is not None
    for start in range(0, len(plan), each):
        rows = slice(start, start + each)
        indices, ops = plan.indices[rows], tuple(op.take(rows) for op in plan.ops[:done])
        numbers = plan.seed, plan.epoch, plan.step, indices, plan.keys[rows], len(indices), 0, plan.sizes[rows], ops
        yield pickle.dumps(Plan(*numbers), pickle.HIGHEST_PROTOCOL)


class _Part:
    """A request that was sent."""

    def __init__(self, decoders: Decoders, request: Request, sizes: Sequence[tuple[int, int]]):
        self._decoders, self._sizes = decoders, sizes
        self._sent = decoders.ask(request)
        self._images: list[U8 | str | None] | None = None
        self._lock = threading.Lock()

    def __call__(self, row: int) -> U8 | str | None:
        # The first row that is asked for waits for all, and the others wait for the lock.
        with self._lock:
            if self._images is None:
                self._images, self._sent = self._received(), None
        return self._images[row]

    def _received(self) -> list[U8 | str | None]:
        answer = None if self._sent is None else self._decoders.wait_for(*self._sent)
        if answer is None:
            self._decoders.count(here=len(self._sizes), failed=int(self._sent is not None))
            return [None] * len(self._sizes)
        self._decoders.count(
            images=len(self._sizes) - len(answer.bad), here=len(answer.bad), nbytes=answer.pixels.nbytes
        )
        images: list[U8 | str | None] = [
            *views_of_array(answer.pixels, [(height, width, 3) for height, width in self._sizes])
        ]
        for row, why in answer.bad.items():
            images[row] = why
        return images


class Asked:
    """The images of a plan that were requested. Thread-safe."""

    def __init__(self, decoders: Decoders, requests: Sequence[Request], sizes: Sequence[tuple[int, int]], each: int):
        self.disagreed, self._each = decoders.disagreed, each
        self._parts = [_Part(decoders, one, sizes[k * each : (k + 1) * each]) for k, one in enumerate(requests)]

    def __call__(self, row: int) -> U8 | str | None:
        """Wait for the image of a row: u8[h, w, 3], read-only.

        Returns a text if the decoder could not read it, and ``None`` if nothing arrived. Then decode it here.
        """
        return self._parts[row // self._each](row % self._each)
