# SPDX-License-Identifier: Apache-2.0
"""How does a request of httpx2 get to the connections of httpcore2?

What `httpx2.AsyncHTTPTransport` does without a proxy, with the same errors, over our own network
and without a generator around every body. TLS, keep-alive and HTTP/1.1 are the library's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NoReturn

import httpcore2
import httpx2

from penstock.requests.network import AsyncioBackend

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
_MEANINGS: dict[type, Any] = {getattr(httpcore2, name): getattr(httpx2, name) for name in _NAMES}


class PoolWire:
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
        return f"<PoolWire of {self._pool!r}>"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it; the head of its reply."""
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
            raise_meaning(error)
        return httpx2.Response(
            reply.status,
            headers=reply.headers,
            stream=PoolBody(reply.stream),
            extensions=reply.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class PoolBody(httpx2.AsyncByteStream):
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
            raise_meaning(error)
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


def raise_meaning(error: Exception) -> NoReturn:
    """Raise what an error of httpcore2 is in httpx2; others are raised as they are."""
    for kind in type(error).__mro__:
        if kind in _MEANINGS:
            raise _MEANINGS[kind](str(error)) from error
    raise error
