"""A store behind a network, on the loopback: enough of S3's protocol, and plain HTTP, for real clients. It counts what
it is asked, and can be slow, cut answers, fail, refuse, and change."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Literal, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["BUCKET", "KEY", "Asked", "Fault", "Store", "store"]

BUCKET = "bucket"
KEY = "the-key-id"
SECRET = "a secret that must be seen nowhere"
_2020 = 1_577_836_800
PAGE = 7
"""Names in one answer to a question for names: clients must ask for the rest."""

Fault = Literal["none", "500", "503", "cut", "reset", "404", "403"]


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    range: tuple[int, int] | None
    """First byte, and the one after the last."""


@dataclass
class Store:
    """What the server has, and how it behaves."""

    objects: dict[str, bytes] = field(default_factory=dict)
    """By ``bucket/path``."""
    fault: Callable[[Asked], Fault] = lambda asked: "none"
    delay: float = 0.0
    """Seconds before each answer."""
    ranges: bool = True
    """Whether ranges are answered with 206; else the whole object comes."""
    etags: bool = True
    dates: bool = True
    """Whether answers have ``ETag`` and ``Last-Modified``."""
    modified: dict[str, int] = field(default_factory=dict)
    """Seconds after the beginning of 2020, by path."""
    asked: list[Asked] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    port: int = 0
    lock: Lock = field(default_factory=Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """How users of S3 tell its clients where it is, and who they are."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }

    def counts(self) -> Counter[str]:
        with self.lock:
            return Counter(asked.method for asked in self.asked)

    def bytes_asked(self) -> int:
        with self.lock:
            return sum(asked.range[1] - asked.range[0] for asked in self.asked if asked.range)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_GET(self) -> None:
        self._answer("GET")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, method: str) -> None:
        store = self.store
        split = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = Asked(method, unquote(split.path).lstrip("/"), self._range())
        with store.lock:
            store.asked.append(asked)
            store.at_once += 1
            store.most_at_once = max(store.most_at_once, store.at_once)
        try:
            if store.delay:
                time.sleep(store.delay)
            fault = store.fault(asked)
            if fault == "reset":
                self.close_connection = True
                return
            if fault.isdigit():
                self._send(int(fault), b"<Error><Code>Fault</Code></Error>")
            elif asked.path.startswith(f"{BUCKET}/") and KEY not in self.headers.get("Authorization", ""):
                self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
            elif method == "PUT":
                with store.lock:
                    store.objects[asked.path] = body
                self._send(200, b"", ETag=_tag(body))
            elif "list-type" in split.query:
                self._names(asked.path.strip("/"), parse_qs(split.query))
            else:
                self._object(asked, cut=fault == "cut")
        finally:
            with store.lock:
                store.at_once -= 1

    def _range(self) -> tuple[int, int] | None:
        given = self.headers.get("Range")
        if given is None:
            return None
        first, last = given.removeprefix("bytes=").split("-")
        return int(first), int(last) + 1

    def _object(self, asked: Asked, cut: bool) -> None:
        with self.store.lock:
            data = self.store.objects.get(asked.path)
        if data is None:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        seconds = self.store.modified.get(asked.path, 0)
        about = {"Accept-Ranges": "bytes"}
        about |= {"ETag": _tag(data)} if self.store.etags else {}
        about |= {"Last-Modified": formatdate(_2020 + seconds, usegmt=True)} if self.store.dates else {}
        if asked.range is None or not self.store.ranges:
            self._send(200, data, cut=cut, **about)
            return
        start, end = asked.range[0], min(asked.range[1], len(data))
        if start >= len(data):
            self._send(416, b"")
            return
        about["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self._send(206, data[start:end], cut=cut, **about)

    def _names(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", query.get("start-after", [""]))[0]
        with self.store.lock:
            names = sorted(p[len(bucket) + 1 :] for p in self.store.objects if p.startswith(f"{bucket}/{prefix}"))
        if query.get("delimiter", [""])[0]:
            n = len(prefix)
            names = sorted({name[:n] + "".join(name[n:].partition("/")[:2]) for name in names})
        names = [name for name in names if name > after]
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.store.objects[f'{bucket}/{name}'])}</Size>"
            f"<LastModified>2020-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            if not name.endswith("/")
            else f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in names[:PAGE]
        )
        more = len(names) > PAGE
        rest = f"<NextContinuationToken>{escape(names[PAGE - 1])}</NextContinuationToken>" if more else ""
        text = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{rest}{entries}</ListBucketResult>"
        self._send(200, text.encode())

    def _send(self, status: int, body: bytes, cut: bool = False, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True


@lru_cache(64)
def _tag(data: bytes) -> str:
    """As stores do it, once for all requests: of a shard it takes far longer than an answer."""
    return f'"{hashlib.md5(data).hexdigest()}"'


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A client that goes away is none."""


@contextmanager
def store() -> Iterator[Store]:
    """A store that answers as long as the context lasts."""
    found = Store()
    handler = type("Handler", (_Handler,), {"store": found})
    with _Server(("127.0.0.1", 0), handler) as server:
        found.port = server.server_address[1]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="store", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
