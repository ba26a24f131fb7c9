# SPDX-License-Identifier: Apache-2.0
"""Admitted transports of httpx2 and httpx, async and sync, and the retry of refused calls.

Both have the same interface and ask nothing of a transport but two methods; so the library comes in
as an argument. A body is decoded here, within its caps, and its reader gets it plain.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import urllib.request
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from types import ModuleType
from typing import Any, NamedTuple

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.errors import (
    AccountClosed,
    ProviderThrottled,
    ProviderUnavailable,
    ReplyOverdue,
    UsageError,
)
from penstock.model.request import RequestOutcome
from penstock.requests.credentials import Credentials, implied_dialect
from penstock.requests.exchange import CannotDecode, Exchange
from penstock.requests.executor import ModelRequestExecutor, RequestFacts, read_facts
from penstock.requests.journal.bodies import body_class, journaled_body, take_pieces
from penstock.requests.journal.call import PaidCall
from penstock.requests.redirects import Redirects, strip_headers
from penstock.requests.thread_bridge import ThreadBridge
from penstock.terminal_text import format_duration

COOLDOWN_SECONDS_MAX = 30.0  # a longer one is for the queue
REFUSED_SECONDS_MAX = 900.0  # so is a call that is refused again and again
DISCARD_BYTES = 65_536  # of a body that nobody wants; kept for the error
DISCARD_SECONDS = 2.0


KEPT_CONNECTIONS_MAX = 256  # idle ones
ROUTE = "penstock_route"  # an extension of a request that has a route of its own
REDIRECTED = "penstock_redirected"  # one that clients hand on to a request that is redirected


class ProviderRules(NamedTuple):
    """What holds for all requests of one provider, whichever client sends them."""

    redirects: Redirects
    credentials: Credentials


class Route(NamedTuple):
    """How a connection is made: through which proxy, trusting which certificates."""

    proxy: str | None = None
    verify: bool | str | ssl.SSLContext = True  # a text: where the certificates are
    cert: Any = None


class RoutedTransport:
    """Transports of httpx2 or httpx, one for each route.

    Admission bounds how many requests are in flight, so the connection pools have no bound of their
    own: a request that holds a permit must not wait for a connection. The proxies of the
    environment are honoured as the libraries do it.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._has_proxies = bool(urllib.request.getproxies())
        self._by_host: dict[tuple[str, str], Any] = {}
        self._by_route: dict[Route, Any] = {}
        if not self._has_proxies:  # now: reading certificates is not the time of a request
            self._by_host["", ""] = self._transport(Route())

    def handle_async_request(self, request: Any) -> Awaitable[Any]:  # noqa: ANN401
        if ROUTE in request.extensions:
            transport = self._transport(request.extensions[ROUTE])
        else:
            url = request.url
            key = (url.scheme, url.host) if self._has_proxies else ("", "")
            transport = self._by_host.get(key)
            if transport is None:
                transport = self._by_host[key] = self._transport(Route(_proxy_for(*key)))
        sent: Awaitable[Any] = transport.handle_async_request(request)
        return sent

    async def aclose(self) -> None:
        for transport in self._by_route.values():
            await transport.aclose()

    def _transport(self, route: Route) -> Any:  # noqa: ANN401
        transport = self._by_route.get(route)
        if transport is None:
            transport = self._by_route[route] = self._new_transport(route)
        return transport

    def _new_transport(self, route: Route) -> Any:  # noqa: ANN401
        module, verify = self._module, route.verify
        limits = module.Limits(max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS_MAX)
        if module.__name__ == "httpx2" and route == Route():
            from penstock.requests.transports import PooledTransport  # which imports httpx2

            return PooledTransport(limits)
        if isinstance(verify, str):
            is_folder = os.path.isdir(verify)
            verify = ssl.create_default_context(
                cafile=None if is_folder else verify, capath=verify if is_folder else None
            )
        return module.AsyncHTTPTransport(
            limits=limits, proxy=route.proxy, verify=verify, cert=route.cert
        )


def _proxy_for(scheme: str, host: str) -> str | None:
    if not host:
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


BATCH_BYTES = 262_144  # a body up to this size is handed to a thread at once


class AdmittedTransport:
    """Sends what an async client gives it; every attempt is admitted."""

    is_paid = False

    def __init__(
        self,
        library: Any,  # noqa: ANN401 (httpx2 or httpx)
        executor: ModelRequestExecutor,
        inner: Any,  # noqa: ANN401 (a transport of the library)
        rules: ProviderRules,
        *,
        sends_again: bool,
    ) -> None:
        self.library = library
        self.inner = inner
        self.body_class = body_class(_AsyncBody, library.AsyncByteStream)
        self.executor = executor
        self._rules = rules
        self._sends_again = sends_again
        self._loop = executor.loop

    async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                "An async client of a provider belongs to the loop of its run; in a thread use "
                "`provider.http_sync` or `provider.http_client_sync()`."
            )
        redirects, credentials = self._rules
        headers, came_from = request.headers, request.extensions.get(REDIRECTED)
        has_body = "content-length" in headers or "transfer-encoding" in headers
        if came_from is not None and await redirects.check(
            came_from, str(request.url), carries_paid_body=self.is_paid and has_body
        ):
            strip_headers(headers)
        elif not credentials.is_empty:
            self.executor.add_credentials(credentials, str(request.url), headers)
        reply = await self.send(request)
        if reply.has_redirect_location:
            mark = redirects.mark(came_from, str(request.url), reply.status_code)
            request.extensions[REDIRECTED] = mark
        return reply

    async def send(self, request: Any, call: PaidCall | None = None) -> Any:  # noqa: ANN401
        """Send what may be sent."""
        attempt = _HttpxRequest(self, request, call)
        try:
            if self._sends_again:
                return await _send_with_retries(self.executor, attempt)
            return (await self.executor.execute_attempt(attempt))[0]
        except ReplyOverdue as error:
            raise self.library.ReadTimeout(str(error), request=request) from error

    async def aclose(self) -> None:
        """Do nothing: a client was closed, but the connections belong to the run."""

    async def __aenter__(self) -> AdmittedTransport:
        return self

    async def __aexit__(self, *exit_: object) -> None:
        await self.aclose()


class SyncTransport:
    """Sends what a sync client in a thread gives it, by the loop's transport."""

    def __init__(self, inner: AdmittedTransport, bridge: ThreadBridge) -> None:
        self._inner = inner
        self._bridge = bridge

    def handle_request(self, request: Any) -> Any:  # noqa: ANN401
        request.read()  # a sync stream cannot be read on the loop
        library = self._inner.library
        reply = self._bridge.call(lambda: self._inner.handle_async_request(request))
        lease: RequestAdmissionLease | None = reply.stream.lease
        if lease is not None:  # what the loop noted ended with its call
            self._inner.executor.note_lease(lease)
        stream = body_class(_SyncBody, library.SyncByteStream)(reply, self._bridge)
        return library.Response(
            reply.status_code, headers=reply.headers, stream=stream, extensions=reply.extensions
        )

    def close(self) -> None:
        """Do nothing: a client was closed, but the connections belong to the run."""

    def __enter__(self) -> SyncTransport:
        return self

    def __exit__(self, *exit_: object) -> None:
        self.close()


class _HttpxRequest:
    """One request, as the executor sees it."""

    __slots__ = ("_request", "_transport", "call", "can_repeat", "facts")

    def __init__(
        self,
        transport: AdmittedTransport,
        request: Any,  # noqa: ANN401
        call: PaidCall | None,
    ) -> None:
        self._transport = transport
        self._request = request
        self.call = call
        body: bytes | None
        try:
            body = request.content
        except transport.library.RequestNotRead:
            body = None
        self.can_repeat = body is not None
        url = request.url
        self.facts: RequestFacts = read_facts(
            url.host, url.raw_path.decode("ascii"), body, implied_dialect(request.headers)
        )

    def send(self) -> Awaitable[Any]:
        sent: Awaitable[Any] = self._transport.inner.handle_async_request(self._request)
        return sent

    def head(self, reply: Any) -> tuple[int, Sequence[tuple[bytes, bytes]]]:  # noqa: ANN401
        return reply.status_code, reply.headers.raw

    def closer(self, reply: Any) -> Callable[[], Coroutine[Any, Any, None]]:  # noqa: ANN401
        close: Callable[[], Coroutine[Any, Any, None]] = reply.stream.aclose
        return close

    def hold(self, reply: Any, exchange: Exchange) -> Any:  # noqa: ANN401
        if exchange.decodes():
            del reply.headers["content-encoding"]
            reply.headers.pop("content-length", None)
        transport = self._transport
        library = transport.library
        reply.stream = transport.body_class(library, self._request, reply.stream, exchange)
        if self.call is not None:
            reply.stream = journaled_body(library, reply.stream, self.call, exchange)
        return reply

    async def peek(self, reply: Any, count: int) -> bytes:  # noqa: ANN401
        is_stream = reply.headers.get("content-type", "").startswith("text/event-stream")
        start: bytes = await reply.stream.peek(1 if is_stream else count)
        return start[:count]

    async def discard(self, reply: Any) -> Any:  # noqa: ANN401
        """Close a reply, soon, and return one that holds the beginning of its body."""
        start = b""
        try:
            with contextlib.suppress(Exception):  # its status was what mattered
                async with asyncio.timeout(DISCARD_SECONDS):
                    start = await reply.stream.peek(DISCARD_BYTES)
        finally:
            await reply.stream.aclose()
        return self._transport.library.Response(
            reply.status_code, headers=reply.headers, content=start, request=self._request
        )


async def _send_with_retries(executor: ModelRequestExecutor, request: _HttpxRequest) -> Any:  # noqa: ANN401
    """Send until it is not refused; raise what needs a longer back-off than a client waits."""
    refused_since: float | None = None
    refusals = 0
    while True:
        reply, exchange = await executor.execute_attempt(request, refusals)
        ending = exchange.ending
        if ending is None or ending.outcome is RequestOutcome.SUCCESS:
            return reply
        reply = await request.discard(reply)
        answer = f"{exchange.where} answered {exchange.status}"
        wait_seconds = ending.retry_after_seconds
        if ending.outcome is RequestOutcome.ACCOUNT_CLOSED:
            raise AccountClosed(
                f"{answer}: its account is closed ({ending.said or 'it says no more'}), and its "
                "jobs wait until it is open.",
                exchange.status,
                None,
                reply,
            )
        if ending.outcome is not RequestOutcome.RATE_LIMITED:
            doubt = f"; {ending.doubt}" if ending.doubt else ""
            raise ProviderUnavailable(
                f"{answer}: the service failed, not the job{doubt}.",
                exchange.status,
                wait_seconds,
                reply,
            )
        now = executor.clock.monotonic()
        if refused_since is None:
            refused_since = now
        if wait_seconds is not None and wait_seconds > COOLDOWN_SECONDS_MAX:
            why = ending.doubt or f"it asks to wait {format_duration(wait_seconds)}"
        elif now - refused_since > REFUSED_SECONDS_MAX:
            why = f"it has refused this call for {now - refused_since:.0f} s"
        elif not request.can_repeat:
            why = "the body of this call is a stream and cannot be sent again"
        else:
            refusals += 1
            continue
        raise ProviderThrottled(f"{answer}: {why}.", exchange.status, wait_seconds, reply)


class _AsyncBody:
    """A body that keeps its exchange until it is closed."""

    _chunks: AsyncIterator[bytes] | None = None
    _pieces: Iterator[bytes] | None = None  # of a chunk that is decoded
    _ahead: deque[bytes] | None = None  # peeked at, not yet read
    _has_ended = False

    def __init__(
        self,
        library: Any,  # noqa: ANN401
        request: Any,  # noqa: ANN401
        stream: Any,  # noqa: ANN401
        exchange: Exchange,
    ) -> None:
        self._library = library
        self._request = request
        self._stream = stream
        self._exchange = exchange

    @property
    def lease(self) -> RequestAdmissionLease:
        return self._exchange.lease

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._ahead:
            return self._ahead.popleft()
        exchange = self._exchange
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = self._stream.__aiter__()
        try:
            while not self._has_ended:
                if self._pieces is not None:
                    for piece in self._pieces:
                        return piece
                try:
                    with exchange:
                        chunk = await chunks.__anext__()
                except StopAsyncIteration:
                    exchange.complete()
                    self._has_ended = True
                    break
                self._pieces = exchange.received(chunk)
                if self._pieces is None:
                    return chunk
        except BaseException as error:
            exchange.fail(error)
            if isinstance(error, ReplyOverdue):
                raise self._library.ReadTimeout(str(error), request=self._request) from error
            if isinstance(error, CannotDecode):
                raise self._library.RemoteProtocolError(
                    str(error), request=self._request
                ) from error
            raise
        raise StopAsyncIteration

    async def peek(self, count: int) -> bytes:
        """Return the beginning of the body, so much or more; it can still be read wholly."""
        ahead: deque[bytes] = deque()
        size = 0
        try:
            async for piece in self:
                ahead.append(piece)
                size += len(piece)
                if size >= count:
                    break
        finally:
            self._ahead = ahead
        return b"".join(ahead)

    async def aclose(self) -> None:
        try:
            if not self._has_ended and isinstance(self._chunks, AsyncGenerator):
                await self._chunks.aclose()
            await self._stream.aclose()
        finally:
            self._exchange.close()

    def __del__(self) -> None:
        if not self._exchange.is_over:
            self._exchange.abandon()


class _SyncBody:
    """A body that a thread reads: short ones at once, streams as they come."""

    def __init__(self, reply: Any, bridge: ThreadBridge) -> None:  # noqa: ANN401
        self._body = reply.stream
        self._bridge = bridge
        length = reply.headers.get("content-length", "")
        self._most = BATCH_BYTES if length.isdecimal() else 1

    def __iter__(self) -> Generator[bytes, None, None]:
        is_last = False
        while not is_last:
            taken, is_last = self._bridge.call(lambda: take_pieces(self._body, self._most))
            if taken:
                yield taken

    def close(self) -> None:
        self._bridge.call(self._body.aclose)
