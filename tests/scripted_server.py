# SPDX-License-Identifier: Apache-2.0
"""A loopback HTTP server whose every answer a test writes, byte for byte if it likes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec


@dataclass
class Call:
    """One request as the server got it, and the connection to answer on."""

    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    writer: asyncio.StreamWriter = field(repr=False)

    async def answer(
        self,
        status: int = 200,
        body: bytes = b"{}",
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> None:
        """A whole, well-formed answer."""
        lines = [
            f"HTTP/1.1 {status} Said",
            f"content-length: {len(body)}",
            f"content-type: {content_type}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        await self.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def begin(self, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """The head of a chunked answer."""
        lines = [
            f"HTTP/1.1 {status} Said",
            "transfer-encoding: chunked",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        await self.write("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Break the connection without a good-bye."""
        self.writer.transport.abort()


Script = Callable[[Call], Awaitable[None]]


class ScriptedServer:
    """Counts what is in flight and hands every request to the script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._connections: set[asyncio.Task[None]] = set()
        self.calls: list[Call] = []
        self.in_flight = 0
        self.in_flight_max = 0
        self.called = asyncio.Event()  # somebody has
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (call := await _read(reader, writer)) is not None:
                self.calls.append(call)
                self.called.set()
                self.in_flight += 1
                self.in_flight_max = max(self.in_flight, self.in_flight_max)
                try:
                    await self._script(call)
                finally:
                    self.in_flight -= 1
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client is gone, or the test is over
        finally:
            self._connections.discard(task)
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = b""
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    return Call(method, path, headers, body, writer)


@contextlib.asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[ScriptedServer]:
    """Serve on loopback while inside."""
    server = ScriptedServer(script)
    listener = await asyncio.start_server(server._serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()[:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        listener.close()
        for task in list(server._connections):
            task.cancel()
        await asyncio.gather(*server._connections, return_exceptions=True)


def json_body(value: object) -> bytes:
    return msgspec.json.encode(value)
