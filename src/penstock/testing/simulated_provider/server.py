# SPDX-License-Identifier: Apache-2.0
"""An HTTP server on loopback for a simulated provider.

Its loop has a thread of its own, so that sync clients, other processes and other loops are served.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from penstock.clock import SystemClock
from penstock.testing.simulated_provider.core import OpenCall, ProviderCore
from penstock.testing.simulated_provider.rules import Ending, Part, Reply

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 * 1024 * 1024
HOST = "127.0.0.1"
BACKLOG = 1024  # connections that wait to be accepted
BODILESS = (204, 304)  # statuses of replies without a body
ANSWER_SECONDS = 30.0  # that starting or stopping may take


class MalformedRequest(Exception):
    """What came is no request that we can read."""


@dataclass(frozen=True, slots=True)
class RawRequest:
    """One request, whole."""

    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class RequestParser:
    """Bytes of a connection; gives whole requests."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> RawRequest | None:
        """The next request; None until all of it is there."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise MalformedRequest("the head is too long")
            return None
        line, *fields = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        words = line.split(" ")
        if len(words) != 3:
            raise MalformedRequest("the request line is malformed")
        headers = {}
        for field in fields:
            name, _, value = field.partition(":")
            headers[name.strip().lower()] = value.strip()
        found = self._body(end + 4, headers)
        if found is None:
            return None
        body, after = found
        del self._buffer[:after]
        return RawRequest(words[0], words[1], headers, body)

    def _body(self, start: int, headers: Mapping[str, str]) -> tuple[bytes, int] | None:
        """The body and where it ends; None until all of it is there."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks(start)
        text = headers.get("content-length", "0")
        if not text.isdecimal() or int(text) > BODY_BYTES_MAX:
            raise MalformedRequest("the length of the body is invalid")
        end = start + int(text)
        return None if len(self._buffer) < end else (bytes(self._buffer[start:end]), end)

    def _chunks(self, at: int) -> tuple[bytes, int] | None:
        body = bytearray()
        while True:
            line_end = self._buffer.find(b"\r\n", at)
            if line_end < 0:
                return None
            try:
                size = int(bytes(self._buffer[at:line_end]).partition(b";")[0], 16)
            except ValueError:
                raise MalformedRequest("the length of a chunk is invalid") from None
            data, at = line_end + 2, line_end + 2 + size + 2
            if len(body) + size > BODY_BYTES_MAX:
                raise MalformedRequest("the body is too long")
            if len(self._buffer) < at:
                return None
            if size == 0:
                return bytes(body), at
            body += self._buffer[data : data + size]


def head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """The first lines of a reply."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")


def chunk(data: bytes) -> bytes:
    """A piece of a body of unknown length; an empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


log = logging.getLogger("penstock.testing")


def _framing(reply: Reply) -> list[tuple[str, str]]:
    """How its head says where the body ends; nothing, if there may be none."""
    if reply.status in BODILESS:
        return []
    if reply.length is None:
        return [("transfer-encoding", "chunked")]
    return [("content-length", str(reply.length))]


class LoopbackServer:
    """Listens at a free port and answers as its core decides. Owns a thread."""

    def __init__(self, core: ProviderCore) -> None:
        self._core = core
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="simulated-provider", daemon=True
        )
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Return when it listens."""
        self._thread.start()
        self._wait(self._listen())

    def stop(self) -> None:
        """Cut every connection and end."""
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_SECONDS)

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(
            lambda: _Connection(self._core, self._connections), HOST, 0, backlog=BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        answering = [link.answering for link in self._connections if link.answering is not None]
        for link in list(self._connections):
            link.cut()
        await asyncio.gather(*answering, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close


class _Connection(asyncio.Protocol):
    """One client; its calls are answered one after another."""

    def __init__(self, core: ProviderCore, connections: set[_Connection]) -> None:
        self._core = core
        self._clock = SystemClock()
        self._connections = connections
        self._incoming = RequestParser()
        self._writable = asyncio.Event()
        self._writable.set()
        self.answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self.answering is not None:
            self.answering.cancel()

    def data_received(self, data: bytes) -> None:
        self._incoming.feed(data)
        if self.answering is None:
            self._next()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def cut(self) -> None:
        self._transport.abort()
        if self.answering is not None:
            self.answering.cancel()

    def _next(self) -> None:
        try:
            request = self._incoming.take()
        except MalformedRequest as error:
            self._transport.write(head(400, [("content-length", "0"), ("x-error", str(error))]))
            self._transport.close()
            return
        if request is None:
            return
        try:
            opened = self._core.begin(
                request.method,
                request.target,
                request.headers,
                request.body,
                self._clock.monotonic(),
                self._clock.now(),
            )
        except Exception as error:  # of a script or an answer: its author must see it
            log.exception("The answer of a simulated provider raised.")
            told = msgspec.json.encode({"error": {"message": f"{type(error).__name__}: {error}"}})
            sizes = [("content-type", "application/json"), ("content-length", str(len(told)))]
            self._transport.write(head(500, sizes) + told)
            self._next()
            return
        bodiless = request.method == "HEAD"
        self.answering = asyncio.get_running_loop().create_task(self._answer(opened, bodiless))

    async def _answer(self, opened: OpenCall, bodiless: bool) -> None:
        try:
            await self._send(opened.reply, bodiless)
            self._core.finish(opened, self._clock.monotonic(), whole=True)
        finally:
            self._core.finish(opened, self._clock.monotonic(), whole=False)
        self.answering = None
        if opened.reply.ending is Ending.RESET:
            self._reset()
        elif not self._transport.is_closing():
            self._next()

    async def _send(self, reply: Reply, bodiless: bool) -> None:
        await self._pause(reply.wait_seconds)
        if reply.status is not None:
            bodiless = bodiless or reply.status in BODILESS
            self._transport.write(head(reply.status, [*reply.headers, *_framing(reply)]))
            for part in () if bodiless else reply.parts:
                await self._send_part(part, chunked=reply.length is None)
        if reply.ending is Ending.HANG:
            await asyncio.get_running_loop().create_future()
        if reply.length is None and reply.ending is Ending.COMPLETE and not bodiless:
            self._transport.write(chunk(b""))

    async def _send_part(self, part: Part, *, chunked: bool) -> None:
        await self._pause(part.wait_seconds)
        await self._writable.wait()
        if part.data:
            self._transport.write(chunk(part.data) if chunked else part.data)
        if self._transport.is_closing():
            raise asyncio.CancelledError

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await self._clock.sleep(seconds)

    def _reset(self) -> None:
        """End the connection so that the client is told of a reset, not of an end."""
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
