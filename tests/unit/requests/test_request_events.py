# SPDX-License-Identifier: Apache-2.0
"""Does the stream of events tell of every request that is sent, and how it ended?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx2
import pytest

from penstock.events import kinds
from penstock.events.kinds import Correlation, RequestEvent
from penstock.events.kinds import RequestEventKind as Kind
from penstock.model.provider import RequestResourceKey
from tests.outbound_run import PROVIDER, Run, outbound_run
from tests.scripted_server import Call, Script, json_body, scripted

WHO = Correlation("run-1", task="fetch", job_id=7, execution=3)
STARTED, COMPLETED = Kind.MODEL_REQUEST_STARTED, Kind.MODEL_REQUEST_COMPLETED


def told(script: Script, act: Callable[[Run], Awaitable[object]]) -> list[RequestEvent]:
    """Everything that the stream says while somebody acts."""
    events: list[RequestEvent] = []

    async def main() -> None:
        async with scripted(script) as server, outbound_run(server.url, sink=events.append) as run:
            kinds.current.set(WHO)
            await act(run)

    asyncio.run(main())
    return events


def ends(events: list[RequestEvent]) -> list[tuple[str | None, float | None]]:
    """Outcome and status of each request that ended."""
    return [
        (one.reason, (one.numbers or {}).get("status"))
        for one in events
        if one.event_kind is COMPLETED
    ]


async def fine(call: Call) -> None:
    await call.answer(200, b"x" * 1_000)


async def get(run: Run) -> None:
    await run.clients.http.get("/")


def test_a_request_is_told_step_by_step_with_every_field() -> None:
    events = told(fine, get)

    assert [one.event_kind for one in events] == [
        Kind.REQUEST_RESOURCE_REGISTERED,
        Kind.REQUEST_WAIT_STARTED,
        Kind.REQUEST_WAIT_COMPLETED,
        Kind.REQUEST_LEASE_ACQUIRED,
        STARTED,
        COMPLETED,
        Kind.REQUEST_LEASE_RELEASED,
    ]
    assert [one.sequence for one in events] == [1, 2, 3, 4, 5, 6, 7]
    acquired, started, completed, released = events[3:]
    key = RequestResourceKey(PROVIDER, "127.0.0.1", "http")
    for one in (started, completed):
        assert (one.resource, one.correlation) == (key, WHO)
        assert one.lease_id == acquired.lease_id == released.lease_id is not None
    assert acquired.captured_at_monotonic <= started.captured_at_monotonic
    assert started.captured_at_monotonic <= completed.captured_at_monotonic
    assert (started.reason, started.numbers) == (None, None)
    assert completed.reason == released.reason == "success"
    assert completed.numbers is not None
    assert completed.numbers.pop("seconds") > 0
    assert completed.numbers == {"status": 200.0, "bytes": 1_000.0}


def test_each_attempt_of_a_refused_call_is_told() -> None:
    statuses = iter([429, 200])

    async def script(call: Call) -> None:
        await call.answer(next(statuses), b"", {"retry-after": "0"})

    events = told(script, get)

    assert ends(events) == [("rate_limited", 429.0), ("success", 200.0)]
    assert [one.event_kind for one in events].count(STARTED) == 2
    refused = next(one for one in events if one.event_kind is COMPLETED)
    assert refused.numbers is not None
    assert refused.numbers["retry_after_seconds"] == 0.0


def test_the_tokens_of_a_reply_are_told() -> None:
    async def script(call: Call) -> None:
        await call.answer(200, json_body({"usage": {"total_tokens": 42}}))

    async def ask(run: Run) -> None:
        await run.clients.http.post("/", json={"model": "m", "messages": []})

    [completed] = [one for one in told(script, ask) if one.event_kind is COMPLETED]

    assert completed.numbers is not None
    assert completed.numbers["tokens"] == 42.0
    assert completed.resource.domain == "chat"


@pytest.mark.parametrize("library", ["httpx2", "httpx", "aiohttp", "requests"])
def test_every_client_tells(library: str) -> None:
    async def act(run: Run) -> None:
        if library == "requests":
            session = run.clients.http_client_sync(library)
            await asyncio.to_thread(session.get, run.url)
        elif library == "aiohttp":
            async with run.clients.http_client(library) as session, session.get(run.url) as reply:
                await reply.read()
        else:
            await run.clients.http_client(library).get(run.url)

    events = told(fine, act)

    assert ends(events) == [("success", 200.0)]
    [started] = [one for one in events if one.event_kind is STARTED]
    assert started.correlation == WHO


def test_a_request_that_fails_has_no_status() -> None:
    async def script(call: Call) -> None:
        call.reset()

    async def act(run: Run) -> None:
        with pytest.raises(httpx2.TransportError):
            await get(run)

    assert ends(told(script, act)) == [("provider_failure", None)]


def test_a_request_that_is_cancelled_is_told_as_ended() -> None:
    async def script(call: Call) -> None:
        await asyncio.sleep(60)

    async def act(run: Run) -> None:
        task = asyncio.ensure_future(get(run))
        while not run.admission.held:  # noqa: ASYNC110 (until it has its permit)
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    events = told(script, act)

    assert ends(events) == [("local_cancelled", None)]
    assert [one.event_kind for one in events].count(STARTED) == 1


def test_a_call_that_is_not_http_is_told() -> None:
    async def act(run: Run) -> None:
        async with run.clients.admit("m", "chat", 10) as call:
            call.used(12)

    [completed] = [one for one in told(fine, act) if one.event_kind is COMPLETED]

    assert completed.numbers is not None
    assert completed.numbers["tokens"] == 12.0
    assert "seconds" in completed.numbers
