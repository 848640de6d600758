"""Decides whether gpupipe's engines or torch's DataLoader run a loader."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..interop.datasets import OnlyRows
from ..reasons import FallbackWarning
from ..script_warnings import warn
from .arguments import Arguments
from .native import NativeSession
from .plain import PlainSession
from .resolve import NotNative
from .running import one_thread_in_forks
from .session import Session


def session_of(a: Arguments) -> Session:
    """Return the session for these arguments.

    With ``engine="auto"`` and ``"torch"``, torch's DataLoader runs what gpupipe cannot. ``"auto"`` issues one warning
    with every reason. Other engines raise an error.
    """
    try:
        with one_thread_in_forks():  # runs functions and Datasets of the script
            return NativeSession(a)
    except NotNative as e:
        return _plain(a, e)


def with_arguments(session: Session, **changed: Any) -> Session:
    """Replace a session by one with other arguments at the same position."""
    state = session.state() if session.has_begun else None
    session.close()
    other = session_of(session.arguments.changed(**changed))
    # A session on the other kind of loader cannot read this state.
    if state is not None and type(other) is type(session):
        other.load(state)
    other.report, other.stats = session.report, session.stats
    return other


def refreshed(session: Session) -> Session:
    """Return the session for an epoch that begins now, after any changes in dataset and sampler."""
    try:
        return session.refreshed()
    except NotNative as e:
        changed = _plain(session.arguments, e)
        assert isinstance(session, NativeSession)
        # Only the number of the epoch carries over; torch's loader begins it at its first batch.
        changed.next_epoch = session.position.next_epoch
        session.close()
        return changed


def _plain(a: Arguments, e: NotNative) -> PlainSession:
    if a.engine_name not in ("auto", "torch"):
        raise e.error from None
    if a.cache is not None:
        raise ConfigError(
            f"cache={a.cache!r}: torch's own loader has no cache, but has to do this work because "
            f"{'; '.join(why.text for why in e.reasons)}; leave cache and cache_bytes out"
        ) from None
    if a.scaled:
        raise ConfigError(
            "scaled=True: torch's own loader decodes every image in full, but has to do this work because "
            f"{'; '.join(why.text for why in e.reasons)}; leave it out"
        ) from None
    session = PlainSession(a, e.reasons, e.error.rows if isinstance(e.error, OnlyRows) else None)
    if a.engine_name == "auto":
        warn("DataLoader runs on torch's own loader, without DALI", e.reasons, FallbackWarning)
    return session
