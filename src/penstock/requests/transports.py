# SPDX-License-Identifier: Apache-2.0
"""The connection pool of httpx2 on asyncio: TCP and TLS streams, with Happy Eyeballs.

It imports httpx2, so it is itself imported when the first client is made.
"""

from __future__ import annotations

import asyncio
import ipaddress
import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import chain, zip_longest
from typing import Any, NoReturn, TypeVar, cast

import httpcore2
import httpx2

HEAD_START_SECONDS = 0.25

P = TypeVar("P", bound=asyncio.Protocol)
Address = tuple[socket.AddressFamily, str]
Pair = tuple[asyncio.Transport, P]


class Connector:
    """Connects to one port of a host."""

    def __init__(self, host: str, port: int, local_address: str | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._host = host
        self._port = port
        self._local = None if local_address is None else (local_address, 0)

    async def connect(self, make: Callable[[], P]) -> P:
        """Connect, racing the addresses of the host (Happy Eyeballs).

        Raises:
            OSError: no address of the host can be reached.
        """
        if _is_address(self._host):
            return (await self._attempt(make, (socket.AF_UNSPEC, self._host)))[1]
        found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        addresses = interleave_families((info[0], cast("str", info[4][0])) for info in found)
        if not addresses:
            raise OSError(f"The name {self._host!r} has no address.")
        if len(addresses) == 1:
            return (await self._attempt(make, addresses[0]))[1]
        return await self._race(make, addresses)

    async def _attempt(self, make: Callable[[], P], address: Address) -> Pair[P]:
        family, ip = address
        return await self._loop.create_connection(
            make, ip, self._port, family=family, local_addr=self._local
        )

    async def _race(self, make: Callable[[], P], addresses: list[Address]) -> P:
        waiting = addresses[::-1]
        running: set[asyncio.Task[Pair[P]]] = set()
        errors: list[BaseException] = []
        try:
            while waiting or running:
                if waiting:
                    running.add(self._loop.create_task(self._attempt(make, waiting.pop())))
                ended, _ = await asyncio.wait(
                    running,
                    timeout=HEAD_START_SECONDS if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in ended:
                    running.discard(task)
                    error = task.exception()
                    if error is None:
                        return task.result()[1]
                    errors.append(error)
        finally:
            for task in running:
                task.cancel()
                task.add_done_callback(_close_loser)
        reasons = "; ".join(dict.fromkeys(map(str, errors)))
        raise OSError(f"No address of {self._host!r} can be reached: {reasons}")


def interleave_families(addresses: Iterable[Address]) -> list[Address]:
    """Alternate address families, so that an unreachable one costs one head start."""
    families: dict[socket.AddressFamily, list[Address]] = {}
    for address in dict.fromkeys(addresses):
        families.setdefault(address[0], []).append(address)
    return [one for one in chain.from_iterable(zip_longest(*families.values())) if one is not None]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _close_loser(task: asyncio.Task[Pair[P]]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[0].abort()


HELD_BYTES_MAX = 131_072  # received and not yet read; one chunk of the loop may come on top
HELD_BYTES_LOW = 32_768  # then more is taken
HANDSHAKE_SECONDS_MAX = 3600.0  # when nobody sets a limit; the loops have a short one of their own


class AsyncioBackend(httpcore2.AsyncNetworkBackend):
    """Connects to hosts by TCP."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address of the host that answers; with TCP_NODELAY."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                stream = await Connector(host, port, local_address).connect(
                    lambda: AsyncioStream(loop)
                )
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(str(error)) from error
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(str(error)) from error
        try:
            for option in socket_options or ():
                stream.get_extra_info("socket").setsockopt(*option)
        except OSError as error:
            stream.close()
            raise httpcore2.ConnectError(str(error)) from error
        return stream


class AsyncioStream(httpcore2.AsyncNetworkStream, asyncio.Protocol):
    """One connection: what came in and was not yet read, and who waits for more.

    One reader and one writer at a time. It is closed by its owner, or when the other side has
    nothing more to say; what came in before can be read then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Any = None  # until the handshake is over
        self._chunks: deque[bytes] = deque()
        self._held_bytes = 0
        self._is_over = False  # nothing more comes
        self._is_lost = False  # there is no socket any more
        self._is_closed = False  # by its owner
        self._error: Exception | None = None
        self._is_paused = False  # nothing more is taken
        self._is_full = False  # nothing more is sent
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._poll: select.poll | None = None

    def __repr__(self) -> str:
        state = "over" if self._is_over else "open"
        return f"<AsyncioStream, {state}, {self._held_bytes} bytes to read>"

    # ── Calls of httpcore2 ───────────────────────────────────────────────────────────────────

    async def read(
        self,
        max_bytes: int,
        timeout: float | None = None,
    ) -> bytes:
        """Read some bytes, as soon as there are any; none: the other side has ended."""
        chunks = self._chunks
        if not chunks and not self._is_over:
            self._reader = reader = self._loop.create_future()
            try:
                if timeout is None:
                    await reader
                else:
                    await self._in_time(reader, timeout, httpcore2.ReadTimeout)
            finally:
                self._reader = None
        if not chunks:
            if self._error is not None:
                raise httpcore2.ReadError(str(self._error)) from self._error
            if self._is_closed:
                raise httpcore2.ReadError("The connection is closed.")
            return b""
        chunk = chunks.popleft()
        if len(chunk) > max_bytes:
            chunks.appendleft(chunk[max_bytes:])
            chunk = chunk[:max_bytes]
        self._held_bytes -= len(chunk)
        if self._is_paused and self._held_bytes <= HELD_BYTES_LOW:
            self._is_paused = False
            self._transport.resume_reading()
        return chunk

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,
    ) -> None:
        """Send; wait while more is under way than the loop takes."""
        if not buffer:
            return
        if self._is_over or self._transport.is_closing():
            raise httpcore2.WriteError(str(self._error or "The connection is closed."))
        self._transport.write(buffer)
        if self._is_full:
            self._writer = writer = self._loop.create_future()
            try:
                await self._in_time(writer, timeout, httpcore2.WriteTimeout)
            finally:
                self._writer = None

    async def aclose(self) -> None:
        """Close it; the other side is not waited for."""
        self.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Make a TLS stream of this one, which is of no use then; a failure closes both."""
        stream = AsyncioStream(self._loop)
        try:
            async with asyncio.timeout(timeout):
                transport = await self._loop.start_tls(
                    self._transport,
                    stream,
                    ssl_context,
                    server_hostname=server_hostname,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX if timeout is None else timeout + 1,
                )
            if transport is None:
                raise ConnectionResetError("The connection was closed after the handshake.")
        except BaseException as error:
            if not self._transport.is_closing():
                self._transport.abort()
            if isinstance(error, TimeoutError):
                raise httpcore2.ConnectTimeout(str(error)) from error
            if isinstance(error, OSError):  # ssl.SSLError is one
                raise httpcore2.ConnectError(str(error)) from error
            raise
        stream.connection_made(transport)
        return stream

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401
        """Return what httpcore2 and its users want to know of it; None: unknown."""
        if info == "is_readable":
            return self._is_readable()
        name = {"client_addr": "sockname", "server_addr": "peername"}.get(info, info)
        if name in ("sockname", "peername", "socket", "ssl_object"):
            return self._transport.get_extra_info(name)
        return None

    def close(self) -> None:
        """Close it now."""
        self._is_closed = True
        if not self._is_lost:  # the standard loop of Python 3.11 may raise on what is gone
            self._transport.abort()

    def _is_readable(self) -> bool:
        """True if bytes, or the end, have come that nobody asked for."""
        if self._chunks or self._is_over or self._transport.is_closing():
            return True
        if self._poll is None:  # the loop may not have looked for a while
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(self._poll.poll(0))

    async def _in_time(
        self, waiter: asyncio.Future[None], seconds: float | None, late: type[Exception]
    ) -> None:
        if seconds is None:
            await waiter
            return
        timer = self._loop.call_later(seconds, _fail, waiter, late())
        try:
            await waiter
        finally:
            timer.cancel()

    # ── Calls of the loop ───────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX and not self._is_paused and self._transport:
            self._is_paused = True
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> None:
        self._is_over = True
        _wake(self._reader)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        _wake(self._writer)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = self._is_lost = True
        self._error = error
        _wake(self._reader)
        _fail(self._writer, httpcore2.WriteError(str(error or "The connection is closed.")))


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _fail(waiter: asyncio.Future[None] | None, error: Exception) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_exception(error)


_NAMES = (
    "TimeoutException",
    "ConnectTimeout",
    "ReadTimeout",
    "WriteTimeout",
    "PoolTimeout",
    "NetworkError",
    "ConnectError",
    "ReadError",
    "WriteError",
    "ProxyError",
    "UnsupportedProtocol",
    "ProtocolError",
    "LocalProtocolError",
    "RemoteProtocolError",
)
_HTTPX_ERRORS: dict[type, Any] = {
    getattr(httpcore2, name): getattr(httpx2, name) for name in _NAMES
}


class PooledTransport:
    """A transport of httpx2 that owns a pool of connections."""

    def __init__(self, limits: httpx2.Limits) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=AsyncioBackend(),
        )

    def __repr__(self) -> str:
        return f"<PooledTransport of {self._pool!r}>"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the head of its reply."""
        url = request.url
        asked = httpcore2.Request(
            request.method,
            httpcore2.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            reply = await self._pool.handle_async_request(asked)
        except Exception as error:
            raise_as_httpx(error)
        return httpx2.Response(
            reply.status,
            headers=reply.headers,
            stream=PooledBody(reply.stream),
            extensions=reply.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class PooledBody(httpx2.AsyncByteStream):
    """A body that is read once, from its connection."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401
        self._stream = stream
        self._chunks: Any = None  # a generator, while there may be more
        self._is_read = False  # somebody waits for the next chunk

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._chunks = self._stream.__aiter__()
        return self

    async def __anext__(self) -> bytes:
        self._is_read = True
        try:
            chunk: bytes = await self._chunks.__anext__()
        except StopAsyncIteration:
            self._chunks = None
            raise
        except Exception as error:
            raise_as_httpx(error)
        finally:
            self._is_read = False
        return chunk

    async def aclose(self) -> None:
        """Give the connection back, or close it if there is more to read."""
        chunks, self._chunks = self._chunks, None
        try:
            if chunks is not None and not self._is_read:
                await chunks.aclose()
        finally:
            await self._stream.aclose()


def raise_as_httpx(error: Exception) -> NoReturn:
    """Raise the error of httpx2 for one of httpcore2; others are raised as they are."""
    for kind in type(error).__mro__:
        if kind in _HTTPX_ERRORS:
            raise _HTTPX_ERRORS[kind](str(error)) from error
    raise error
