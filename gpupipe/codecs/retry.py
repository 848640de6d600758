"""Errors that pass by themselves: what network file systems and busy machines answer once and not again.

Such a read is tried again after growing waits, a few times. The log has one line for each store in a minute, and one
for all files, which counts those that it leaves out. Standard library only, because a probing process loads it.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from .patience import gave_up, pause

__all__ = ["REMOTE_WAITS", "advised", "is_transient", "reason_of", "temporary", "waits", "with_retries"]

T = TypeVar("T")

log = logging.getLogger("gpupipe")

_TRANSIENT = {
    *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.EREMOTEIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
    *(errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET),
    *(errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENOTCONN, errno.EPIPE),
}
_WAITS = (0.05, 0.2, 0.8)
"""Seconds before each further attempt. A sector that stays unreadable costs about one second."""
_MORE_WAITS = (1.6, 3.2)
"""Those after them, where the whole machine or the network is at fault: about six seconds together."""
_LOST_PATIENCE = 60.0
"""Seconds in which nobody waits that long, once somebody did in vain."""
REMOTE_WAITS = (0.1, 0.3, 1.0, 3.0, 8.0)
"""Likewise, of stores behind a network, which ask for more patience when many ask them: about twelve seconds."""


_EVERY = 60.0
"""Seconds between two lines in the log about the same store, or about files."""
_SAID: dict[str, tuple[float, int]] = {}
"""By store, "" for files: when something was said, and how many retries were not said since."""


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
    log.warning("%s: %s; reading it again in %.2f s%s", name, reason, wait, more)


_in_vain = -_LOST_PATIENCE
"""When somebody waited for the machine and gave up."""


def is_transient(error: BaseException) -> bool:
    return isinstance(error, OSError) and (
        error.errno in _TRANSIENT or (error.errno is None and isinstance(error, (TimeoutError, ConnectionError)))
    )


def reason_of(error: OSError) -> str:
    """``"Stale file handle (ESTALE)"``."""
    text = error.strerror or str(error) or type(error).__name__
    name = errno.errorcode.get(error.errno or 0)
    return f"{text} ({name})" if name else text


def temporary(error: OSError) -> str:
    """The reason of a sample that could not be read for such an error."""
    return f"{reason_of(error)}: the machine or the network is at fault, and the next epoch tries again"


def advised(error: Exception, why: object, advice: str) -> str:
    """``why`` something cannot be used, and ``advice``, unless ``why`` has some or the network is at fault."""
    if isinstance(error, (ConnectionError, TimeoutError)):
        advice = "check the network and try again, or use the copies on this machine with Remote(offline=True)"
    return f"{why}" if ";" in f"{why}" else f"{why}; {advice}"


def waits(seconds: tuple[float, ...] | None = None) -> Iterator[float]:
    """``seconds``, each up to a half shorter or longer: what failed together shall not come again together."""
    chance = random.SystemRandom()  # forked workers would share the state of any other, and the script owns the global
    return (s * chance.uniform(0.5, 1.5) for s in (_WAITS if seconds is None else seconds))


def with_retries(name: Callable[[], str], work: Callable[[], T], seconds: tuple[float, ...] | None = None) -> T:
    """``work()``. A transient error is tried again, the last one is raised, like any other.

    Args:
        name: what is read, for the log.
        seconds: before each further attempt; those of files if ``None``.
    """
    pauses: Iterator[float] | None = None  # made at the first error: nearly all reads never see one
    while True:
        try:
            return work()
        except OSError as e:
            if not is_transient(e):
                raise
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
    if seconds is not None or error.errno == errno.EIO or time.monotonic() - _in_vain < _LOST_PATIENCE:
        return
    yield from waits(_MORE_WAITS)
    _in_vain = time.monotonic()
