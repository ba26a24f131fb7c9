# SPDX-License-Identifier: Apache-2.0
"""Health checks of a daemon: liveness and readiness, over HTTP on loopback.

`/live`: its loop turns. `/ready`: every preflight has passed, schedules and queue are worked on,
and the store answers. The answer is a line of text and 200 or 503.
"""

from __future__ import annotations

import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.clock import Clock
from penstock.errors import UsageError

HUNG_SECONDS = 15.0  # a loop that has not turned for so long is not alive
READ_SECONDS = 5.0  # for a question to arrive
LOOPBACK = "127.0.0.1"


class Health:
    """Owns what probes are told. Written by the supervisor's loop, read by the server's threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_monotonic = clock.monotonic()
        self._not_ready: str | None = "The run has not begun."

    def turned(self) -> None:
        self._turned_monotonic = self._clock.monotonic()

    def ready(self) -> None:
        self._not_ready = None

    def not_ready(self, why: str) -> None:
        self._not_ready = why

    def live_answer(self) -> tuple[HTTPStatus, str]:
        seconds = self._clock.monotonic() - self._turned_monotonic
        if seconds > HUNG_SECONDS:
            return HTTPStatus.SERVICE_UNAVAILABLE, f"Nothing has moved for {seconds:.0f} s."
        return HTTPStatus.OK, "alive"

    def ready_answer(self) -> tuple[HTTPStatus, str]:
        status, text = self.live_answer()
        why = self._not_ready
        if status is HTTPStatus.OK and why is not None:
            return HTTPStatus.SERVICE_UNAVAILABLE, why
        return status, "ready" if status is HTTPStatus.OK else text


class HealthServer:
    """Owns the port and its threads."""

    def __init__(self, health: Health, port: int) -> None:
        try:
            self._server = _Server(health, port)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UsageError(
                f"The port {port} of --health cannot be used: {why}; name another."
            ) from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="penstock-health", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a probe does not wait behind others that only connect

    def __init__(self, health: Health, port: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.health = health

    def server_bind(self) -> None:
        """Without the name of the host, which a resolver may take its time for."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (its own)
        """Ignore a probe that hangs up."""


class _Handler(BaseHTTPRequestHandler):
    timeout = READ_SECONDS
    server: _Server
    server_version, sys_version = "penstock", ""

    def do_GET(self) -> None:
        health = self.server.health
        answers = {"/live": health.live_answer, "/ready": health.ready_answer}
        ask = answers.get(self.path.partition("?")[0])
        if ask is None:
            self._answer(HTTPStatus.NOT_FOUND, "Ask for /live or /ready.")
        else:
            self._answer(*ask())

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 (its own)
        """Probes come every few seconds: nobody wants to read of them."""
