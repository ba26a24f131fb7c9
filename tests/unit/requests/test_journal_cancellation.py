# SPDX-License-Identifier: Apache-2.0
"""After a cancellation at any await of a call that costs money, is its state the right one?

Goal: F48, and no answer that is lost or handed out before it is durable. Method: virtual time, a
wire and a journal that take time at every step. One call is cancelled at its n-th await, for every
n there is: while it waits, and in the turn of the loop in which it would have gone on. What the
wire has seen tells what the journal must say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from penstock.model.journal import CallState
from penstock.requests.exchange import ReplyLimits
from penstock.requests.journal.paid_policy import fingerprint
from penstock.testing.virtual_loop import VirtualClock, run_virtual
from tests.connections import Cancelled
from tests.paid_run import PaidRun, paid_run

STEP_SECONDS = 0.1


class Wire:
    """Serves in steps, refuses the first request to /victim, and remembers what was asked."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.begun = 0  # requests to /victim that left
        self.refused = 0
        self.served = 0  # to the end of the body

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        is_victim = request.url.path == "/victim"
        self.begun += is_victim
        self.in_flight += 1
        try:
            await asyncio.sleep(STEP_SECONDS)
            await asyncio.sleep(0)
        except BaseException:
            self.in_flight -= 1
            raise
        if is_victim and not self.refused:
            self.refused += 1
            return httpx2.Response(429, headers={"retry-after": "0"}, stream=Body(self, False))
        return httpx2.Response(200, stream=Body(self, is_victim))

    async def aclose(self) -> None: ...


class Body(httpx2.AsyncByteStream):
    def __init__(self, wire: Wire, is_victim: bool) -> None:
        self._wire = wire
        self._is_victim = is_victim
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for _ in range(2):
                await asyncio.sleep(STEP_SECONDS)
                yield b"x"
            self._wire.served += self._is_victim
        finally:
            self._close()

    async def aclose(self) -> None:
        try:
            await asyncio.sleep(0)
        finally:
            self._close()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._wire.in_flight -= 1


async def by_get(run: PaidRun) -> None:
    assert (await run.clients.http.get("/victim")).content == b"xx"


async def by_stream(run: PaidRun) -> None:
    got = b""
    async with run.clients.http.stream("GET", "/victim") as reply:
        async for piece in reply.aiter_bytes():
            got += piece
            await asyncio.sleep(STEP_SECONDS)
        assert CallState.ANSWERED in victim_states(run)  # whoever has its end can rely on it
    assert got == b"xx"


VICTIM = fingerprint("GET", "http://host/victim", b"")


def victim_states(run: PaidRun) -> list[CallState]:
    return [one.state for one in run.records() if one.key.fingerprint == VICTIM]


async def settled(run: PaidRun) -> None:
    await run.writer.drain()
    for _ in range(5):
        await asyncio.sleep(0)


async def cancel_at(call: Callable[[PaidRun], Any], at: int, *, as_it_wakes: bool) -> bool:
    """Was there an n-th await at which the call was cancelled?"""
    wire = Wire()
    async with paid_run(
        "http://host",
        max_parallel=1,
        clock=VirtualClock(),
        journal_seconds=STEP_SECONDS,
        make_transport=lambda module: wire,
        limits=ReplyLimits(deadline_seconds=30.0),
    ) as run:
        with run.attempt():
            before = asyncio.ensure_future(run.clients.http.get("/before"))
            await asyncio.sleep(0)
            victim = Cancelled(call(run), at, as_it_wakes=as_it_wakes)
            was_done = False

            async def suffer() -> None:
                nonlocal was_done
                await victim
                assert victim_states(run) == [CallState.ANSWERED]
                was_done = True

            task = asyncio.ensure_future(suffer())
            after = asyncio.ensure_future(run.clients.http.get("/after"))
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None, task.exception()
            assert (await before).status_code == (await after).status_code == 200
            await settled(run)
            assert run.admission.held == wire.in_flight == 0
            assert run.admission.core.waiting == 0

        states = victim_states(run)
        if wire.served:
            assert states == [CallState.ANSWERED]  # paid for, whoever has it
        elif wire.begun > wire.refused:
            assert states == [CallState.OPEN]
        else:
            assert states in ([], [CallState.CLOSED])

        served, begun = wire.served, wire.begun
        with run.attempt():
            await call(run)
            await settled(run)
        assert wire.begun == begun if served else wire.begun > begun
        assert victim_states(run) == [CallState.ANSWERED]
        assert all(record.reserved == (0, 0) for record in run.records())
        return victim.waits >= at


@pytest.mark.parametrize("as_it_wakes", [False, True])
@pytest.mark.parametrize("call", [by_get, by_stream])
def test_a_cancellation_at_every_await_leaves_permits_and_journal_right(
    call: Callable[[PaidRun], Any], as_it_wakes: bool
) -> None:
    at = 1
    while run_virtual(cancel_at(call, at, as_it_wakes=as_it_wakes)):
        at += 1

    assert at > 8  # there were that many awaits


async def cancel_in_attempt(at: int, *, as_it_wakes: bool) -> bool:
    """The same, and the task that gave up tries again by itself, in the same attempt."""
    wire = Wire()
    async with paid_run(
        "http://host",
        clock=VirtualClock(),
        journal_seconds=STEP_SECONDS,
        make_transport=lambda module: wire,
    ) as run:
        with run.attempt():
            victim = Cancelled(by_get(run), at, as_it_wakes=as_it_wakes)

            async def suffer() -> None:
                await victim

            task = asyncio.ensure_future(suffer())
            await asyncio.wait([task])
            was_cancelled, served = task.cancelled(), wire.served
            await by_get(run)
            await settled(run)
        if was_cancelled:
            assert wire.served == 1
            assert [record.key.ordinal for record in run.records()] == [0]
        else:
            assert (served, wire.served) == (1, 2)
        assert set(run.states()) == {CallState.ANSWERED}
        with run.attempt():
            await by_get(run)
        assert wire.served == (1 if was_cancelled else 2)
        return victim.waits >= at


@pytest.mark.parametrize("as_it_wakes", [False, True])
def test_whoever_gives_up_and_tries_again_buys_no_second_answer(as_it_wakes: bool) -> None:
    at = 1
    while run_virtual(cancel_in_attempt(at, as_it_wakes=as_it_wakes)):
        at += 1

    assert at > 8
