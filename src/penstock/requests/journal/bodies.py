# SPDX-License-Identifier: Apache-2.0
"""Reply bodies of paid calls for httpx2 and httpx: journaled while read, and replayed when reused.

A client checks the class of a body, so ours are made from those of its library.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from typing import Any, Protocol

from penstock.admission.requests.decisions import RequestAdmissionLease
from penstock.errors import UsageError
from penstock.model.journal import CALL, Answer
from penstock.requests.exchange import Exchange
from penstock.requests.journal.call import PaidCall, replay

REQUEST_BYTES_MAX = 64 * 1024 * 1024  # of a request that comes as a stream
LAST_SECONDS = 2.0  # for the end of a stream whose last event was read


class _Body(Protocol):
    @property
    def lease(self) -> RequestAdmissionLease: ...

    async def __anext__(self) -> bytes: ...

    async def peek(self, count: int) -> bytes: ...

    async def aclose(self) -> None: ...


class _JournaledBody:
    """Passes a body on and records it; its end comes when the answer is durable."""

    def __init__(self, body: _Body, call: PaidCall, exchange: Exchange) -> None:
        self._body = body
        self._call = call
        self._exchange = exchange
        self._has_ended = False

    @property
    def lease(self) -> RequestAdmissionLease:
        return self._body.lease

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        call = self._call
        try:
            piece = await self._body.__anext__()
        except StopAsyncIteration:
            await call.complete(self._exchange)
            self._has_ended = True
            raise
        except BaseException:
            call.interrupt()
            raise
        call.record(piece)
        return piece

    async def peek(self, count: int) -> bytes:
        return await self._body.peek(count)

    async def aclose(self) -> None:
        call = self._call
        try:
            if call.has_last_event and not self._has_ended:
                await self._read_end()
        finally:
            if call.is_answer and not self._has_ended:
                call.interrupt()
            try:
                await self._body.aclose()
            except BaseException:
                call.lose()  # on the last step to its reader
                raise

    async def _read_end(self) -> None:
        """Readers of streams leave with the last event; the connection has a little more."""
        with contextlib.suppress(Exception):  # the last event has come already
            async with asyncio.timeout(LAST_SECONDS):
                while True:
                    self._call.record(await self._body.__anext__())
        await self._call.complete(self._exchange)
        self._has_ended = True


class _ReplayedBody:
    """A body that was recorded."""

    lease: None = None  # it needs no permit

    def __init__(self, body: bytes) -> None:
        self._pieces: Iterator[bytes] = replay(body)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """There is nothing behind it."""


async def take_pieces(body: AsyncIterator[bytes], most: int) -> tuple[bytes, bool]:
    """Read some of what is left, and whether that was all; for a reader in another thread."""
    taken = bytearray()
    async for piece in body:
        taken += piece
        if len(taken) >= most:
            return bytes(taken), False
    return bytes(taken), True


def journaled_body(library: Any, body: _Body, call: PaidCall, exchange: Exchange) -> Any:  # noqa: ANN401
    """Wrap a body so that it is journaled while it is read."""
    return body_class(_JournaledBody, library.AsyncByteStream)(body, call, exchange)


def replayed_reply(library: Any, answer: Answer) -> Any:  # noqa: ANN401 (a reply of the library)
    """Build the reply of a journaled answer."""
    stream = body_class(_ReplayedBody, library.AsyncByteStream)(answer.body or b"")
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    return library.Response(
        answer.status, headers=headers, stream=stream, extensions={CALL: answer.key}
    )


@lru_cache
def body_class(ours: type, base: type) -> Any:  # noqa: ANN401
    """Make our class of bodies one of a library's: its clients check the class of a body."""
    return type(ours.__name__.strip("_"), (ours, base), {})


async def whole_body(library: Any, request: Any) -> bytes:  # noqa: ANN401
    """Read the whole body of a request, which can then be sent again.

    Raises:
        UsageError: it is a stream of more than `REQUEST_BYTES_MAX` bytes.
    """
    try:
        body: bytes = request.content
    except library.RequestNotRead:
        gathered = bytearray()
        async for piece in request.stream:
            gathered += piece
            if len(gathered) > REQUEST_BYTES_MAX:
                raise UsageError(
                    f"The body of a call that costs money is a stream of more than "
                    f"{REQUEST_BYTES_MAX:,} bytes: it was not sent; send less at once."
                ) from None
        request.stream = library.ByteStream(bytes(gathered))
        body = await request.aread()
    return body
