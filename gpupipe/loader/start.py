"""Whether gpupipe's own engines or torch's own loader do what was asked for."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..reasons import FallbackWarning
from ..script_warnings import warn
from .arguments import Arguments
from .native import NativeSession
from .plain import PlainSession
from .resolve import NotNative
from .running import one_thread_in_forks
from .session import Session

__all__ = ["refreshed", "session_of", "with_arguments"]


def session_of(a: Arguments) -> Session:
    """What stands behind a loader with these arguments.

    ``engine="auto"`` and ``"torch"`` give torch's own loader what gpupipe cannot run; ``"auto"`` says so in one
    warning, with every reason. Other engines refuse it.
    """
    try:
        with one_thread_in_forks():  # functions and Datasets of the script are tried
            return NativeSession(a)
    except NotNative as e:
        return _plain(a, e)


def with_arguments(session: Session, **changed: Any) -> Session:
    """A session with other arguments, at the place where this one stands, which ends."""
    state = session.state() if session.has_begun else None
    session.close()
    other = session_of(session.arguments.changed(**changed))
    if state is not None and type(other) is type(session):
        other.load(state)
    other.report, other.stats = session.report, session.stats
    return other


def refreshed(session: Session) -> Session:
    """The session for an epoch that begins now, after whatever changed in dataset and sampler."""
    try:
        return session.refreshed()
    except NotNative as e:
        changed = _plain(session.arguments, e)
        assert isinstance(session, NativeSession)
        changed.next_epoch = session.position.next_epoch
        session.close()
        return changed


def _plain(a: Arguments, e: NotNative) -> PlainSession:
    if a.engine_name not in ("auto", "torch"):
        raise e.error from None
    if a.cache is not None:
        raise ConfigError(
            f"cache={a.cache!r}: torch's own loader has no such thing, and has to do this work because "
            f"{'; '.join(why.text for why in e.reasons)}; leave cache and cache_bytes out"
        ) from None
    if a.scaled:
        raise ConfigError(
            "scaled=True: torch's own loader decodes nothing smaller, and has to do this work because "
            f"{'; '.join(why.text for why in e.reasons)}; leave it out"
        ) from None
    session = PlainSession(a, e.reasons)
    if a.engine_name == "auto":
        warn("DataLoader runs on torch's own loader, without DALI", e.reasons, FallbackWarning)
    return session
