"""Clients of the stores: obstore, and a helper process for forked processes.

Both handle many requests at once, retry temporary failures, and report errors in the words of the operating system,
without confidential details from the store's own messages.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ...codecs.patience import Requests
from ...codecs.retry import REMOTE_WAITS, with_retries
from ..storage import Found

A = TypeVar("A")
R = TypeVar("R")

_WHOLE = re.compile("non-partial response|Range request not supported")
"""How obstore reports that it asked for a range and got the whole object, for S3 and for HTTP."""
_IN_ORDER = ("s3://", "s3a://", "gs://")
CHANGED = "the object has changed since it was indexed; make the dataset again"
UNVERSIONED = "the store sends neither ETag nor Last-Modified, so no change would show; copy the files to this machine"
_STATUS = re.compile(r"status code: (\d{3})")


class ByteRange(NamedTuple):
    """A requested range of bytes."""

    url: str
    start: int
    end: int
    version: int = 0
    """Version of the container when it was indexed; 0 for any version. Bytes of any other version are an error."""


class Client(ABC):
    """Interface to a store. Thread-safe in the process that made it."""

    @abstractmethod
    def look(self, urls: Sequence[str]) -> list[Found | OSError]: ...

    @abstractmethod
    def names(self, folder: str, start: str, deep: bool) -> list[str]:
        """Return the URLs of all containers below a folder, which ends with a slash. Raises :class:`OSError`.

        Containers whose names in it do not begin with ``start`` may be omitted and, unless ``deep``, those in
        subfolders.
        """

    @abstractmethod
    def fetch(self, ranges: Sequence[ByteRange]) -> list[memoryview | OSError]:
        """Return the bytes of every range; fewer if a container ends before."""


class Obstore(Client):
    """Client for S3, Google Cloud Storage, Azure and HTTP, based on obstore. Threads wait for many requests at once."""

    def __init__(self, connections: int, timeout: float):
        self._requests = Requests(connections, "gpupipe-remote")
        self._timeout = timeout
        self._stores: dict[str, Any] = {}
        self._lock = threading.Lock()

    def _each(self, work: Callable[[A], R], name: Callable[[A], str], given: Sequence[A]) -> list[R | OSError]:
        def one(it: A) -> R | OSError:
            try:
                return with_retries(lambda: name(it), lambda: work(it), REMOTE_WAITS)
            except OSError as e:
                return e

        return self._requests.results([partial(one, it) for it in given])

    def look(self, urls: Sequence[str]) -> list[Found | OSError]:
        return self._each(self._look, str, urls)

    def fetch(self, ranges: Sequence[ByteRange]) -> list[memoryview | OSError]:
        return self._each(self._checked, lambda r: f"{r.url} from byte {r.start} on", ranges)

    def _checked(self, range: ByteRange) -> memoryview:
        found, version = self._fetch(range)
        data = memoryview(found)
        if len(data) < range.end - range.start:
            # Either the object ends here, or the connection ended too early.
            now = self._look(range.url)
            if now.size > range.start + len(data):
                raise ConnectionError("the answer was truncated")
            # A range behind the end was answered without a version.
            version = now.version
        if range.version and version != range.version:
            raise OSError(errno.EINVAL, CHANGED)
        return data

    def names(self, folder: str, start: str, deep: bool) -> list[str]:
        return self._requests.results(
            [lambda: with_retries(lambda: folder, lambda: self._names(folder, start, deep), REMOTE_WAITS)]
        )[0]

    def _at(self, url: str) -> tuple[str, Any, str]:
        """Return (URL of the store, the store, the path in it)."""
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        base = f"{scheme}://{host}"
        with self._lock:
            if base not in self._stores:
                from obstore.store import from_url

                plain = scheme == "http" or _endpoint().startswith("http://")
                seconds = {"timeout": self._timeout, "connect_timeout": min(self._timeout, 10.0)}
                options: dict[str, Any] = {name: f"{value}s" for name, value in seconds.items()}
                options |= {"allow_http": True} if plain else {}
                # Retries are handled in one place: see with_retries.
                self._stores[base] = from_url(base, client_options=options, retry_config={"max_retries": 0})
            return base, self._stores[base], path

    def _look(self, url: str) -> Found:
        import obstore

        _, store, path = self._at(url)
        found = _mapped(url, lambda: _found(obstore.head(store, path)))
        if not found.version:
            raise OSError(errno.EINVAL, UNVERSIONED)
        return found

    def _names(self, folder: str, start: str, deep: bool) -> list[str]:
        import obstore

        base, store, path = self._at(folder)

        # S3 (except directory buckets) and Google list names in order, so names before and after the prefix are
        # skipped.
        in_order = start > "!" and start.isascii() and base.startswith(_IN_ORDER) and not base.endswith("--x-s3")
        # Names up to the one before start are skipped; ~ follows all letters and digits.
        offset = f"{path}{start[:-1]}{chr(ord(start[-1]) - 1)}~" if in_order else None

        def listed() -> list[str]:
            prefix = path.rstrip("/") or None
            if not deep and not in_order:
                return [f"{base}/{it['path']}" for it in obstore.list_with_delimiter(store, prefix)["objects"]]
            found: list[str] = []
            for some in obstore.list(store, prefix=prefix, offset=offset, chunk_size=1000):
                names = [it["path"] for it in some]
                found += [f"{base}/{name}" for name in names]
                # The names are in order, so nothing that follows begins with start.
                if in_order and names[-1] > path + start and not names[-1].startswith(path + start):
                    break
            return found

        return _mapped(folder, listed)

    def _fetch(self, range: ByteRange) -> tuple[Any, int]:
        import obstore

        _, store, path = self._at(range.url)

        def fetched() -> tuple[Any, int]:
            # The answer contains its version. An If-Match header would depend on the server: many ignore it, and none
            # accepts it for a weak ETag.
            try:
                got = obstore.get(store, path, options={"range": (range.start, range.end)})
                return got.bytes(), _found(got.meta).version
            except obstore.exceptions.BaseError as e:
                if "status code: 416" in str(e):  # the object has become shorter
                    return b"", 0
                raise

        return _mapped(range.url, fetched)


def _endpoint() -> str:
    """Return the S3 endpoint that the environment specifies."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if name in os.environ), "")


def _found(meta: Any) -> Found:
    modified = meta.get("last_modified")
    # obstore reports 1970 if the store gives no time.
    said = meta.get("e_tag") or meta.get("version") or (modified if modified and modified.timestamp() else None)
    return Found(int(meta["size"]), _version(said))


def _version(said: Any) -> int:
    """Convert a store's version to a negative number, which is never a time; 0 if it gives none."""
    if not said:
        return 0
    digest = hashlib.blake2b(str(said).strip('"').encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | -(1 << 63)


def _mapped(url: str, work: Callable[[], R]) -> R:
    """Raise foreign errors as those of the operating system. Keeps only the HTTP status, since the text may
    contain signatures."""
    try:
        return work()
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    except (NotImplementedError, ImportError):
        raise
    except OSError as e:
        if e.errno is not None:
            raise OSError(e.errno, os.strerror(e.errno)) from None
        # Without a number, the error comes from the client, and is worth another attempt.
        raise ConnectionError(f"{type(e).__name__} of the store") from None
    except Exception as e:
        kind, text = type(e).__name__, str(e)
        if _WHOLE.search(text):
            what = "the store ignores ranges and answers with whole files; copy them to this machine"
            raise OSError(errno.EINVAL, what) from None
        status = _STATUS.search(text)
        code = int(status.group(1)) if status else 0
        if kind in ("PermissionDeniedError", "UnauthenticatedError") or code in (401, 403):
            what = "the store refuses access; are credentials in the environment that its client reads?"
            raise PermissionError(errno.EACCES, what) from None
        # 408, 425 and 429 invite another attempt, as do numbers from 500 on.
        if code and code not in (408, 425, 429) and code < 500:
            raise OSError(errno.EINVAL, f"the store answers with status {code}") from None
        if kind in ("NotSupportedError", "InvalidPathError", "UnknownConfigurationKeyError", "ValueError"):
            raise OSError(errno.EINVAL, f"the store's client refuses it ({kind})") from None
        said = f"status {code}" if code else "the connection failed, was cut, or took too long"
        raise ConnectionError(f"network error: {said} ({kind})") from None
