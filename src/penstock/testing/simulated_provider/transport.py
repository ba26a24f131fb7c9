# SPDX-License-Identifier: Apache-2.0
"""A transport for httpx2 and httpx that reaches a simulated provider without a network.

A plain object with the methods of a transport; it works under httpx2 and httpx, whose classes it
takes from the request that it is given. It waits by the loop's own time: virtual on a virtual loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from functools import cache
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

from penstock.clock import Clock, SystemClock
from penstock.testing.simulated_provider.core import ProviderCore, Visit
from penstock.testing.simulated_provider.messages import Ending
from penstock.testing.virtual_loop import VirtualClock, VirtualLoop


class _Request(Protocol):
    """What httpx2 and httpx have in common."""

    method: str
    extensions: Any

    @property
    def url(self) -> Any: ...  # noqa: ANN401

    @property
    def headers(self) -> Any: ...  # noqa: ANN401

    async def aread(self) -> bytes: ...


class SimulatedTransport:
    """Carries requests to a provider's core and its answers back."""

    def __init__(self, core: ProviderCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<SimulatedTransport, {self._core.counts.calls} calls>"

    async def handle_async_request(self, request: _Request) -> Any:  # noqa: ANN401 (of its library)
        library = sys.modules[type(request).__module__.partition(".")[0]]
        clock = _clock()
        body = await request.aread()
        headers = {name.lower(): value for name, value in request.headers.items()}
        target = request.url.raw_path.decode("ascii")
        visit = self._core.visit(
            request.method, target, headers, body, clock.monotonic(), clock.now()
        )
        patience = (request.extensions.get("timeout") or {}).get("read")
        answer = _Answer(self._core, visit, clock, library, patience)
        await answer.head()
        stream = _stream_class(library)(answer)
        told = [*visit.reply.headers]
        if visit.reply.length is not None:
            told.append(("content-length", str(visit.reply.length)))
        raw = [(name.encode(), value.encode()) for name, value in told]
        return library.Response(visit.reply.status, headers=raw, stream=stream)

    async def aclose(self) -> None:
        """There is nothing to close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class _Answer:
    """One answer on its way; tells the core when it is over, whichever way."""

    def __init__(
        self,
        core: ProviderCore,
        visit: Visit,
        clock: Clock,
        library: ModuleType,
        patience: float | None,
    ) -> None:
        self._core = core
        self._visit = visit
        self._clock = clock
        self._library = library
        self._patience = patience

    async def head(self) -> None:
        """Wait for the status line; raises as the library does if none comes."""
        reply = self._visit.reply
        try:
            await self._wait(reply.wait_seconds)
            if reply.status is None:
                await self._break()
        except BaseException:
            self.finish(whole=False)
            raise

    async def parts(self) -> AsyncIterator[bytes]:
        reply = self._visit.reply
        try:
            for part in reply.parts:
                if part.wait_seconds > 0:
                    await self._wait(part.wait_seconds)
                yield part.data
            if reply.ending is not Ending.COMPLETE:
                await self._break()
            self.finish(whole=True)
        finally:
            self.finish(whole=False)

    def finish(self, *, whole: bool) -> None:
        self._core.finish(self._visit, self._clock.monotonic(), whole=whole)

    async def _break(self) -> None:
        if self._visit.reply.ending is Ending.HANG:
            await self._wait(float("inf"))
        self.finish(whole=True)
        raise self._library.ReadError("The simulated provider has reset the connection.")

    async def _wait(self, seconds: float) -> None:
        if self._patience is None or seconds <= self._patience:
            await self._sleep(seconds)
            return
        await self._clock.sleep(self._patience)
        raise self._library.ReadTimeout(f"Nothing came within {self._patience:g} s.")

    async def _sleep(self, seconds: float) -> None:
        if seconds == float("inf"):
            await asyncio.get_running_loop().create_future()
        await self._clock.sleep(seconds)


class _Stream:
    """A body in the form that the library reads."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._parts = answer.parts()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        self._answer.finish(whole=False)


@cache
def _stream_class(library: ModuleType) -> Any:  # noqa: ANN401 (a class made of the library's)
    return type("SimulatedStream", (_Stream, library.AsyncByteStream), {})


def _clock() -> Clock:
    loop = asyncio.get_running_loop()
    return VirtualClock(loop) if isinstance(loop, VirtualLoop) else SystemClock()
