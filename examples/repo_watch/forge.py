# SPDX-License-Identifier: Apache-2.0
"""A forge that behaves like GitHub's API, on loopback: repositories, issues, ETags, pages, limits.

python forge.py [REPOSITORY ...] serves until it is interrupted, and says where.

    GET  /repos/OWNER/NAME                                   200, 404
    GET  /repos/OWNER/NAME/issues?since=N&page=P&per_page=M  200 with ETag and Link, 304, 404
    POST /repos/OWNER/NAME/issues   {"title": ...}           201: somebody opens an issue

More than its limit of calls in a minute is refused with 403 and X-RateLimit headers, more than its
burst in a second with 429 and Retry-After. An answer of 304 costs nothing, as on GitHub.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

PER_PAGE = 30


@dataclass(frozen=True, slots=True)
class ForgeLimits:
    """What one client may do."""

    window_seconds: float = 60.0
    per_window: int = 100_000
    per_second: int = 1_000


@dataclass
class Repository:
    """Its issues, oldest first; an issue's number is its place, from 1."""

    issues: list[str] = field(default_factory=list)


class Forge:
    """Owns the repositories and counts what was asked. Every method may be called by any thread."""

    def __init__(self, repositories: list[str], limits: ForgeLimits | None = None) -> None:
        self._limits = limits or ForgeLimits()
        self._lock = threading.Lock()
        self._repositories = {name: Repository() for name in repositories}
        self._window_ends = 0.0
        self._in_window = 0
        self._second = 0
        self._in_second = 0
        self.replies: Counter[int] = Counter()  # by status
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, name: str) -> None:
        with self._lock:
            self._repositories.setdefault(name, Repository())

    def remove(self, name: str) -> None:
        with self._lock:
            del self._repositories[name]

    def open_issue(self, name: str, title: str) -> int:
        """Somebody writes an issue; gives its number."""
        with self._lock:
            issues = self._repositories[name].issues
            issues.append(title)
            return len(issues)

    def issues(self, name: str) -> list[str] | None:
        """The titles of all issues; None: there is no such repository."""
        with self._lock:
            found = self._repositories.get(name)
            return None if found is None else list(found.issues)

    def charge(self) -> tuple[int, dict[str, str]]:
        """Count one call: 200, or why it is refused, and what is said about the limits."""
        now = time.time()
        limits = self._limits
        with self._lock:
            if now >= self._window_ends:
                self._window_ends, self._in_window = now + limits.window_seconds, 0
            if int(now) != self._second:
                self._second, self._in_second = int(now), 0
            status = 200
            if self._in_window >= limits.per_window:
                status = 403
            elif self._in_second >= limits.per_second:
                status = 429
            else:
                self._in_window += 1
                self._in_second += 1
            said = {
                "X-RateLimit-Limit": str(limits.per_window),
                "X-RateLimit-Remaining": str(limits.per_window - self._in_window),
                "X-RateLimit-Reset": str(math.ceil(self._window_ends)),
            }
        if status == 429:
            said["Retry-After"] = "1"
        return status, said

    def refund(self) -> None:
        """The call was answered with 304."""
        with self._lock:
            self._in_window -= 1

    def count(self, status: int) -> None:
        with self._lock:
            self.replies[status] += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, forge: Forge) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.forge = forge

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (its own)
        """A client that goes in the middle of a call is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        forge = self.server.forge
        place = urlsplit(self.path)
        parts = place.path.strip("/").split("/")
        status, said = forge.charge()
        if status != 200:
            self._reply(status, {"message": "API rate limit exceeded"}, said)
            return
        issues = forge.issues("/".join(parts[1:3])) if parts[0] == "repos" else None
        if issues is None or len(parts) not in (3, 4) or parts[3:] not in ([], ["issues"]):
            self._reply(404, {"message": "Not Found"}, said)
        elif len(parts) == 3:
            full_name = "/".join(parts[1:3])
            self._reply(200, {"full_name": full_name, "open_issues": len(issues)}, said)
        else:
            self._issues(issues, parse_qs(place.query), said)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        forge = self.server.forge
        name = "/".join(urlsplit(self.path).path.strip("/").split("/")[1:3])
        if forge.issues(name) is None:
            self._reply(404, {"message": "Not Found"}, {})
            return
        number = forge.open_issue(name, str(json.loads(body)["title"]))
        self._reply(201, {"number": number}, {})

    def _issues(self, issues: list[str], query: dict[str, list[str]], said: dict[str, str]) -> None:
        """The issues after one, oldest first, a page at a time."""
        since, page, per_page = (
            int(query.get(name, [default])[0])
            for name, default in (("since", "0"), ("page", "1"), ("per_page", str(PER_PAGE)))
        )
        found = [
            {"number": number, "title": title} for number, title in enumerate(issues, start=1)
        ][since:]
        begin = (page - 1) * per_page
        shown = found[begin : begin + per_page]
        etag = f'"{hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]}"'
        if self.headers.get("If-None-Match") == etag:
            self.server.forge.refund()
            self._reply(304, None, said | {"ETag": etag})
            return
        if begin + per_page < len(found):
            path = urlsplit(self.path).path
            following = f"{path}?since={since}&page={page + 1}&per_page={per_page}"
            said = said | {"Link": f'<{self.server.forge.url}{following}>; rel="next"'}
        self._reply(200, shown, said | {"ETag": etag})

    def _reply(self, status: int, document: object, headers: dict[str, str]) -> None:
        self.server.forge.count(status)
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 (its own names)
        """Nothing: what a client does is the client's to tell."""


if __name__ == "__main__":
    names = sys.argv[1:] or ["penstock/engine", "penstock/docs", "penstock/site"]
    with Forge(names) as served, contextlib.suppress(KeyboardInterrupt):
        print(f"export FORGE_URL={served.url}  # {', '.join(names)}", flush=True)
        threading.Event().wait()
