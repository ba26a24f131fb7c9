# SPDX-License-Identifier: Apache-2.0
"""Admitted sessions of aiohttp.

A middleware admits them; the session's class of replies keeps the permit until the body is closed.
Bodies are decoded here, in bounded pieces, since aiohttp takes a gzip body that ends in the middle
for a whole one; what is read is counted, by whatever method. A reply that is thrown away gives its
permit back at its deadline: its connection keeps it alive.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.payload import BytesPayload

from penstock.errors import ReplyOverdue, ReplyRefused
from penstock.requests.clients.httpx import ProviderRules
from penstock.requests.exchange import ACCEPTED, PIECE_BYTES, CannotDecode, Exchange
from penstock.requests.executor import ModelRequestExecutor, RequestFacts, read_facts
from penstock.requests.redirects import Redirected, strip_headers

MESSAGE_LENGTH_MAX = 200  # characters

#: Where the next request of this task comes from, if a session is about to follow a redirect.
_redirected: ContextVar[Redirected | None] = ContextVar("penstock_redirected", default=None)


class _DecodedContent(aiohttp.StreamReader):
    """A body as its reader wants it: fed from the encoded one, piece by piece, when it is empty."""

    def __init__(self, encoded: aiohttp.StreamReader, exchange: Exchange) -> None:
        super().__init__(encoded._protocol, PIECE_BYTES, loop=encoded._loop)
        self._encoded = encoded
        self._exchange = exchange
        self._pieces: Iterator[bytes] = iter(())

    async def _wait(self, func_name: str) -> None:
        """Feed more of the body, or its end, when there is nothing to read."""
        try:
            piece = next(self._pieces, None)
            if piece is None:
                chunk = await self._encoded.readany()
                if chunk:
                    self._pieces = self._exchange.received(chunk) or iter(())
                else:
                    self._exchange.complete()
                    self.feed_eof()
        except (CannotDecode, ReplyRefused) as error:
            self._exchange.fail(error)
            if isinstance(error, CannotDecode):
                raise aiohttp.ClientPayloadError(str(error)) from error
            raise
        if piece:
            self.feed_data(piece)


class AdmittedResponse(aiohttp.ClientResponse):
    """A reply that keeps its exchange until it is read or closed."""

    exchange: Exchange | None = None
    _is_decoded = False

    def hold(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._is_decoded = exchange.decodes()
        if self._is_decoded:
            self.content = _DecodedContent(self.content, exchange)
        if not exchange.counts_tokens:  # else the body is wanted first
            self.content.on_eof(self._all_is_there)

    async def read(self) -> bytes:
        exchange = self.exchange
        if self._body is not None or exchange is None:
            return await super().read()
        if self.closed and exchange.is_over and not exchange.is_complete:
            return await super().read()  # it was closed before: aiohttp says so
        gathered = bytearray()
        try:
            while True:
                if exchange.is_complete:  # it has come, and waits here
                    chunk = await self.content.readany()
                else:
                    with exchange:
                        chunk = await self.content.readany()
                if not chunk:
                    break
                if not self._is_decoded:  # else it was counted there
                    exchange.received(chunk)
                gathered += chunk
        except BaseException as error:
            exchange.fail(error)
            self.close()
            if isinstance(error, ReplyOverdue):
                raise aiohttp.ServerTimeoutError(str(error)) from error
            raise
        self._body = bytes(gathered)
        if not exchange.is_complete:
            exchange.complete()
        await super().read()  # gives the connection back
        exchange.close()
        return self._body

    def release(self) -> Any:  # noqa: ANN401 (aiohttp's own)
        released = super().release()
        self._let_go()
        return released

    def close(self) -> None:
        super().close()
        self._let_go()

    def _all_is_there(self) -> None:
        if self.exchange is not None:
            if not self.exchange.is_complete:
                self.exchange.complete()
            self._let_go()

    def _let_go(self) -> None:
        if self.exchange is not None:
            self.exchange.close()


class _AiohttpRequest:
    """One request, as the executor sees it."""

    __slots__ = ("_handler", "_request", "facts")

    call = None  # a provider that costs money gives no such session

    def __init__(
        self,
        request: aiohttp.ClientRequest,
        handler: aiohttp.ClientHandlerType,
        facts: RequestFacts,
    ) -> None:
        self._request = request
        self._handler = handler
        self.facts = facts

    async def send(self) -> aiohttp.ClientResponse:
        try:
            return await self._handler(self._request)
        except aiohttp.ClientResponseError as error:
            # What it cannot parse it shows as a status of 400, which nobody has sent.
            raise aiohttp.ClientPayloadError(
                f"The reply is not HTTP: {error.message[:MESSAGE_LENGTH_MAX]}"
            ) from error

    def head(self, reply: aiohttp.ClientResponse) -> tuple[int, Sequence[tuple[bytes, bytes]]]:
        return reply.status, reply.raw_headers

    def closer(self, reply: aiohttp.ClientResponse) -> Callable[[], Coroutine[Any, Any, None]]:
        connection, content = reply.connection, reply.content

        async def close() -> None:
            if connection is not None:
                connection.close()
            if not content.is_eof() and content.exception() is None:  # whoever reads is told
                content.set_exception(
                    aiohttp.ServerTimeoutError("A reply was not read in time and is closed.")
                )

        return close

    def hold(self, reply: aiohttp.ClientResponse, exchange: Exchange) -> aiohttp.ClientResponse:
        assert isinstance(reply, AdmittedResponse)  # noqa: S101 (the session makes no others)
        reply.hold(exchange)
        return reply

    async def peek(self, reply: aiohttp.ClientResponse, count: int) -> bytes:
        return (await reply.read())[:count]


class AdmittingMiddleware:
    """Admits the requests of one session, redirected ones by its provider's rule."""

    def __init__(self, executor: ModelRequestExecutor, rules: ProviderRules) -> None:
        self._executor = executor
        self._rules = rules

    def trace(self) -> aiohttp.TraceConfig:
        """Return what tells this middleware that the next request is a redirected one."""
        config = aiohttp.TraceConfig()
        config.on_request_redirect.append(self._note_redirect)
        return config

    async def _note_redirect(
        self,
        _session: aiohttp.ClientSession,
        context: Any,  # noqa: ANN401 (one for each call, with all its redirects)
        params: aiohttp.TraceRequestRedirectParams,
    ) -> None:
        reply = params.response
        before = getattr(context, "redirected", None)
        context.redirected = self._rules.redirects.mark(before, str(reply.url), reply.status)
        _redirected.set(context.redirected)

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        came_from, url = _redirected.get(), str(request.url)
        _redirected.set(None)
        # A provider that costs money gives no such session, so no body is of a paid call.
        if came_from is not None and await self._rules.redirects.check(
            came_from, url, carries_paid_body=False
        ):
            strip_headers(request.headers)
        else:
            self._executor.add_credentials(self._rules.credentials, url, request.headers)
        body: bytes | None = b""
        if isinstance(request.body, BytesPayload):
            body = await request.body.as_bytes()
        elif request.body:
            body = None
        facts = read_facts(request.url.host or "", request.url.path, body)
        try:
            reply, _ = await self._executor.execute_attempt(
                _AiohttpRequest(request, handler, facts)
            )
        except ReplyOverdue as error:
            raise aiohttp.ServerTimeoutError(str(error)) from error
        return reply


def make_connector() -> aiohttp.TCPConnector:
    """Connections for all sessions of a provider; admission bounds them."""
    return aiohttp.TCPConnector(limit=0)


def make_session(
    executor: ModelRequestExecutor,
    connector: aiohttp.TCPConnector,
    base_url: str,
    connect_seconds: float,
    rules: ProviderRules,
) -> aiohttp.ClientSession:
    """A session whose requests are admitted and whose replies are raw."""
    middleware = AdmittingMiddleware(executor, rules)
    return aiohttp.ClientSession(
        f"{base_url.rstrip('/')}/" if base_url else None,
        connector=connector,
        connector_owner=False,
        middlewares=(middleware,),
        trace_configs=[middleware.trace()],
        response_class=AdmittedResponse,
        headers={"Accept-Encoding": ACCEPTED},
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
        trust_env=True,
    )
