"""Whether gpupipe's own engines or torch's own loader do what was asked for."""

from __future__ import annotations

from .arguments import Arguments
from .native import NativeSession
from .plain import PlainSession
from .resolve import NotNative
from .session import Session
from .warnings import warn_once

__all__ = ["refreshed", "session_of"]


def session_of(a: Arguments) -> Session:
    """What stands behind a loader with these arguments.

    ``engine="auto"`` and ``"torch"`` give torch's own loader what gpupipe cannot run; ``"auto"`` says so in one
    warning, with every reason. Other engines refuse it.
    """
    try:
        return NativeSession(a)
    except NotNative as e:
        return _plain(a, e)


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
    session = PlainSession(a, e.reasons)
    if a.engine_name == "auto":
        each = e.reasons if len(e.reasons) == 1 else [f"({i}) {why}" for i, why in enumerate(e.reasons, 1)]
        warn_once(f"torch's own DataLoader runs this as it is, without DALI, because {'; '.join(each)}")
    return session
