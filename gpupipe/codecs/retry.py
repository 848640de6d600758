"""Retries after transient errors of network file systems and busy machines.

A failed read is retried a few times after growing waits. The log gets at most one line per minute for each store, and
one for all files, with the number of omitted lines. Standard library only, because a probing process loads it.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from .patience import gave_up, pause

T = TypeVar("T")

log = logging.getLogger("gpupipe")

_TRANSIENT = {
    *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.EREMOTEIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
    *(errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET),
    *(errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENOTCONN, errno.EPIPE),
}
_WAITS = (0.05, 0.2, 0.8)
"""Seconds before each further attempt. A sector that remains unreadable costs about one second."""
_MORE_WAITS = (1.6, 3.2)
"""Additional waits if the whole machine or the network is at fault: about six seconds in total."""
_DESCRIPTORS = errno.EMFILE, errno.ENFILE
SPARES: list[Callable[[], None]] = []
"""Functions that close files which are only kept open, called when no more can be opened."""
_WAITS_FOR_DESCRIPTORS = (5.0,) * 11
"""Further waits if too many files are open: about a minute in total. No sample could be read in that time."""
_LOST_PATIENCE = 60.0
"""Seconds during which these waits are skipped after they were in vain once."""
REMOTE_WAITS = (0.1, 0.3, 1.0, 3.0, 8.0)
"""Seconds before each further attempt on remote stores, which ask for longer waits under load: about twelve in
total."""


_EVERY = 60.0
"""Seconds between two log lines about one store, or about files."""
_SAID: dict[str, tuple[float, int]] = {}
"""Time of the last log line and number of retries omitted since, by store; "" for files."""


def _say(name: str, reason: str, wait: float) -> None:
    scheme, _, rest = name.partition("://")
    store = f"{scheme}://{rest.partition('/')[0]}" if rest else ""
    now = time.monotonic()
    last, left_out = _SAID.get(store, (-_EVERY, 0))
    if now - last < _EVERY:
        _SAID[store] = last, left_out + 1
        return
    _SAID[store] = now, 0
    more = f"; {left_out} more since the last such line" if left_out else ""
    log.warning("%s: %s; trying again in %.2f s%s", name, reason, wait, more)


_in_vain = -_LOST_PATIENCE
"""Time when additional waits were last in vain."""


def is_transient(error: BaseException) -> bool:
    return isinstance(error, OSError) and (
        # Errors of libraries may lack a number.
        error.errno in _TRANSIENT or (error.errno is None and isinstance(error, (TimeoutError, ConnectionError)))
    )


def reason_of(error: OSError) -> str:
    """Describe an error, as in ``"Stale file handle (ESTALE)"``."""
    text = error.strerror or str(error) or type(error).__name__
    name = errno.errorcode.get(error.errno or 0)
    return f"{text} ({name})" if name else text


def temporary(error: OSError) -> str:
    """Return the reason for a sample that could not be read because of such an error."""
    return f"{reason_of(error)}: the machine or the network is at fault, and the next epoch tries again"


def advised(error: Exception, why: object, advice: str) -> str:
    """Combine the reason ``why`` something cannot be used with ``advice``, unless ``why`` has some or the
    network is at fault."""
    if isinstance(error, (ConnectionError, TimeoutError)):
        advice = "check the network and try again"
    # A semicolon means that advice follows.
    return f"{why}" if ";" in f"{why}" else f"{why}; {advice}"


def waits(seconds: tuple[float, ...] | None = None) -> Iterator[float]:
    """Yield ``seconds``, randomly varied by up to a half, so that simultaneous failures are not retried
    simultaneously."""
    chance = (
        random.SystemRandom()
    )  # forked workers would share any other generator's state, and the global one belongs to the script
    return (s * chance.uniform(0.5, 1.5) for s in (_WAITS if seconds is None else seconds))


def with_retries(name: Callable[[], str], work: Callable[[], T], seconds: tuple[float, ...] | None = None) -> T:
    """Call ``work()`` and retry it after transient errors. Raises the last one, and any other error.

    Args:
        name: returns the name of what is read, for the log.
        seconds: waits before each further attempt; those for files if ``None``.
    """
    pauses: Iterator[float] | None = None  # made at the first error, since nearly all reads succeed
    while True:
        try:
            return work()
        except OSError as e:
            if not is_transient(e):
                raise
            if e.errno in _DESCRIPTORS:
                for close_some in SPARES:
                    close_some()
            pauses = _pauses(e, seconds) if pauses is None else pauses
            wait = next(pauses, None)
            if wait is None:
                raise
            _say(name(), reason_of(e), wait)
            pause(wait)
            if gave_up():
                raise


def _pauses(error: OSError, seconds: tuple[float, ...] | None) -> Iterator[float]:
    global _in_vain
    yield from waits(seconds)
    # Stores have waits of their own, and EIO concerns one file. After waits in vain, other files wait less.
    if seconds is not None or error.errno == errno.EIO or time.monotonic() - _in_vain < _LOST_PATIENCE:
        return
    yield from waits(_MORE_WAITS)
    if error.errno in _DESCRIPTORS:
        yield from waits(_WAITS_FOR_DESCRIPTORS)
    # Reached only if the attempt after the last wait failed as well.
    _in_vain = time.monotonic()
