# SPDX-License-Identifier: Apache-2.0
"""SimulatedProvider: a fake rate-limited service, in virtual time or on loopback.

Its transport is a plain object with the methods that httpx2 and httpx call; it takes their classes
from the request that it is given. It waits by the loop's own time: virtual on a virtual loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import cache
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

from penstock.clock import Clock, SystemClock
from penstock.errors import UsageError
from penstock.testing.simulated_provider.core import (
    Answer,
    Call,
    Counts,
    OpenCall,
    ProviderCore,
    Script,
)
from penstock.testing.simulated_provider.rules import Change, Ending, ProviderRules
from penstock.testing.simulated_provider.server import LoopbackServer
from penstock.testing.virtual_loop import VirtualClock, VirtualLoop

VIRTUAL_URL = "http://simulated.invalid"  # where a client with our transport may say it sends to


class SimulatedProvider:
    """A scripted, seeded service with hidden limits; in virtual time, or on loopback.

    It speaks OpenAI's chat completions and embeddings, Anthropic's messages (streamed and not),
    and answers every other path with a small JSON document.

    In virtual time: give `provider.transport()` to a client, or the provider to `harness`. On
    loopback: `with SimulatedProvider(...) as provider:` serves at `provider.url`.

    Args:
        rules: hidden limits, latency, faults.
        seed: of everything that is left to chance; the same calls at the same moments get the
            same answers.
        changes: other rules from a moment or a call on.
        script: answers a call before any limit is looked at; None leaves it to the rules.
        answer: the body of a call that is served, in place of the built-in ones.
    """

    def __init__(
        self,
        rules: ProviderRules | None = None,
        *,
        seed: int = 0,
        changes: Sequence[Change] = (),
        script: Script | None = None,
        answer: Answer | None = None,
    ) -> None:
        self._core = ProviderCore(rules or ProviderRules(), seed, changes, script, answer)
        self._server: LoopbackServer | None = None

    def __repr__(self) -> str:
        return f"<SimulatedProvider at {self.url}, {self.counts.calls} calls>"

    @property
    def url(self) -> str:
        """Where it listens; a name that leads nowhere while it does not."""
        return VIRTUAL_URL if self._server is None else self._server.url

    @property
    def counts(self) -> Counts:
        """What it has seen so far."""
        return self._core.counts

    @property
    def log(self) -> Sequence[Call]:
        """Its calls one by one, in the order of arrival."""
        return self._core.log

    @property
    def rules(self) -> ProviderRules:
        """The rules that hold now."""
        return self._core.rules

    def change(self, **changed: Any) -> None:  # noqa: ANN401 (fields of ProviderRules)
        """Change some rules from now on: `provider.change(concurrency=4)`."""
        self._core.change(replace(self._core.rules, **changed))

    def transport(self) -> SimulatedTransport:
        """The way to it without a network, for a client of httpx2 or httpx."""
        return SimulatedTransport(self._core)

    def __enter__(self) -> Self:
        if self._server is not None:
            raise UsageError(f"The simulated provider serves already, at {self.url}.")
        self._server = LoopbackServer(self._core)
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()


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
        opened = self._core.begin(
            request.method, target, headers, body, clock.monotonic(), clock.now()
        )
        patience = (request.extensions.get("timeout") or {}).get("read")
        answer = _Answer(self._core, opened, clock, library, patience)
        await answer.head()
        stream = _stream_class(library)(answer)
        told = [*opened.reply.headers]
        if opened.reply.length is not None:
            told.append(("content-length", str(opened.reply.length)))
        raw = [(name.encode(), value.encode()) for name, value in told]
        return library.Response(opened.reply.status, headers=raw, stream=stream)

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
        opened: OpenCall,
        clock: Clock,
        library: ModuleType,
        patience: float | None,
    ) -> None:
        self._core = core
        self._open = opened
        self._clock = clock
        self._library = library
        self._patience = patience

    async def head(self) -> None:
        """Wait for the status line; raises as the library does if none comes."""
        reply = self._open.reply
        try:
            await self._wait(reply.wait_seconds)
            if reply.status is None:
                await self._break()
        except BaseException:
            self.finish(whole=False)
            raise

    async def parts(self) -> AsyncIterator[bytes]:
        reply = self._open.reply
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
        self._core.finish(self._open, self._clock.monotonic(), whole=whole)

    async def _break(self) -> None:
        if self._open.reply.ending is Ending.HANG:
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
