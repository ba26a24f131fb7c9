# SPDX-License-Identifier: Apache-2.0
"""Every kind of client passes through admission: sync and async, of four libraries."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from penstock.errors import (
    AttemptOver,
    ProviderNotAvailableHere,
    ProviderThrottled,
    UsageError,
)
from penstock.model.request import RequestOutcome
from penstock.requests import attempt_context
from penstock.requests.attempt_context import AttemptContext
from tests.outbound_run import Run, outbound_run
from tests.scripted_server import Call, scripted

BODY = json.dumps({"text": "ü" * 1_000}).encode()


async def echo(call: Call) -> None:
    """Answers as it is asked to by the path."""
    if call.path == "/zipped":
        await call.answer(200, gzip.compress(BODY), {"content-encoding": "gzip"})
    elif call.path == "/refused":
        await call.answer(429, b"no", {"retry-after": "1", "set-cookie": "a=b"})
    elif call.path == "/moved":
        await call.answer(302, b"", {"location": "/plain"})
    elif call.path == "/slow":
        await asyncio.sleep(30)
    elif call.path == "/chunked":
        await call.begin(200)
        for start in range(0, len(BODY), 500):
            await call.chunk(BODY[start : start + 500])
        await call.end()
    else:
        await call.answer(200, BODY)


def in_thread(work: Callable[[Run], None]) -> Run:
    """Run something in a thread beside a loop with a server and clients."""

    async def main() -> Run:
        async with scripted(echo) as server, outbound_run(server.url) as run:
            await asyncio.to_thread(work, run)
            assert run.admission.held == 0
        return run

    return asyncio.run(main())


def on_loop(work: Callable[[Run, str], Any]) -> Run:
    async def main() -> Run:
        async with scripted(echo) as server, outbound_run(server.url) as run:
            await work(run, server.url)
            assert run.admission.held == 0
        return run

    return asyncio.run(main())


PATHS = ["/plain", "/zipped", "/chunked", "/moved"]


@pytest.mark.parametrize("library", ["httpx2", "httpx"])
@pytest.mark.parametrize("path", PATHS)
def test_an_async_client_reads_any_body(library: str, path: str) -> None:
    async def work(run: Run, url: str) -> None:
        async with run.clients.http_client(library) as client:
            reply = await client.get(path)
            assert reply.content == BODY
            assert "content-encoding" not in reply.headers

    run = on_loop(work)

    assert set(run.admission.outcomes) == {RequestOutcome.SUCCESS}


@pytest.mark.parametrize("library", ["httpx2", "httpx"])
@pytest.mark.parametrize("path", PATHS)
def test_a_sync_client_in_a_thread_reads_any_body(library: str, path: str) -> None:
    def work(run: Run) -> None:
        with run.clients.http_client_sync(library) as client:
            assert client.get(path).content == BODY

    run = in_thread(work)

    assert set(run.admission.outcomes) == {RequestOutcome.SUCCESS}


@pytest.mark.parametrize("path", PATHS)
def test_a_session_of_aiohttp_reads_any_body(path: str) -> None:
    async def work(run: Run, url: str) -> None:
        async with run.clients.http_client("aiohttp") as session:
            async with session.get(path.lstrip("/")) as reply:
                assert await reply.read() == BODY
            reply = await session.post(path.lstrip("/"), json={"model": "m"})
            assert await reply.read() == BODY

    run = on_loop(work)

    assert set(run.admission.outcomes) == {RequestOutcome.SUCCESS}


@pytest.mark.parametrize("path", PATHS)
def test_a_session_of_requests_reads_any_body(path: str) -> None:
    def work(run: Run) -> None:
        with run.clients.http_client_sync("requests") as session:
            assert session.get(f"{base_url(run)}{path}").content == BODY
            reply = session.post(f"{base_url(run)}{path}", json={"a": 1}, stream=True)
            assert b"".join(reply.iter_content(100)) == BODY

    run = in_thread(work)

    assert set(run.admission.outcomes) == {RequestOutcome.SUCCESS}


def base_url(run: Run) -> str:
    return str(run.clients._base_url)


def test_clients_of_sdks_give_raw_refusals() -> None:
    async def work(run: Run, url: str) -> None:
        for library in ("httpx2", "httpx"):
            assert (await run.clients.http_client(library).get("/refused")).status_code == 429
            await asyncio.sleep(0)
        async with run.clients.http_client("aiohttp") as session, session.get("refused") as reply:
            assert reply.status == 429

    run = on_loop(work)

    assert run.admission.outcomes == [RequestOutcome.RATE_LIMITED] * 3
    assert {ending.retry_after_seconds for ending in run.admission.endings} == {1.0}


def test_requests_keep_cookies_of_a_reply() -> None:
    def work(run: Run) -> None:
        with run.clients.http_client_sync("requests") as session:
            assert session.get(f"{base_url(run)}/refused").status_code == 429
            assert session.cookies["a"] == "b"

    in_thread(work)


def test_the_sync_twin_sends_refused_calls_again() -> None:
    async def main() -> None:
        statuses = iter([429, 200])

        async def script(call: Call) -> None:
            await call.answer(next(statuses), b"{}", {"retry-after": "0"})

        async with scripted(script) as server, outbound_run(server.url) as run:
            reply = await asyncio.to_thread(run.clients.http_sync.post, "/", content=b"body")

            assert reply.status_code == 200
            assert [call.body for call in server.calls] == [b"body", b"body"]

    asyncio.run(main())


def test_a_stream_as_a_request_body_is_not_sent_again() -> None:
    async def parts() -> Any:
        yield b"once"

    async def work(run: Run, url: str) -> None:
        with pytest.raises(ProviderThrottled, match="stream"):
            await run.clients.http.post("/refused", content=parts())

    on_loop(work)


def test_a_thread_can_stream_and_stop_early() -> None:
    def work(run: Run) -> None:
        with run.clients.http_sync.stream("GET", "/chunked") as reply:
            parts = reply.iter_raw()
            assert BODY.startswith(next(parts))
            assert run.admission.held == 1

    in_thread(work)


def test_a_sync_client_on_the_loop_is_refused() -> None:
    async def work(run: Run, url: str) -> None:
        with pytest.raises(UsageError, match="would stop the loop"):
            run.clients.http_sync.get("/plain")

    on_loop(work)


def test_an_async_client_on_another_loop_is_refused() -> None:
    def work(run: Run) -> None:
        async def other() -> None:
            with pytest.raises(UsageError, match="belongs to the loop"):
                await run.clients.http.get("/plain")

        asyncio.run(other())

    in_thread(work)


def test_an_unknown_library_is_refused_with_the_known_ones() -> None:
    async def work(run: Run, url: str) -> None:
        with pytest.raises(UsageError, match="httpx2, httpx, aiohttp"):
            run.clients.http_client("curl")
        with pytest.raises(UsageError, match="httpx2, httpx, requests"):
            run.clients.http_client_sync("aiohttp")

    on_loop(work)


def test_clients_are_gone_with_their_run() -> None:
    run = on_loop(lambda run, url: asyncio.sleep(0))

    with pytest.raises(ProviderNotAvailableHere):
        run.clients.http_client("httpx2")
    with pytest.raises(ProviderNotAvailableHere):
        run.clients.admit(None, "chat", None)


# ── Whose attempt is over ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("over", ["was cancelled", "expired"])
def test_a_request_of_an_attempt_that_is_over_is_not_sent(over: str) -> None:
    async def main() -> None:
        async with scripted(echo) as server, outbound_run(server.url) as run:
            attempt = AttemptContext("doi:1", deadline=0.0 if over == "expired" else float("inf"))
            if over != "expired":
                attempt.stop(over)
            attempt_context.current.set(attempt)

            for client in (run.clients.http, run.clients.http_client("httpx")):
                with pytest.raises(AttemptOver, match=r"Job 'doi:1' .* was not sent"):
                    await client.get("/plain")

            assert server.calls == []
            assert run.admission.held == 0

    asyncio.run(main())


def test_a_thread_that_waits_is_woken_when_its_attempt_is_stopped() -> None:
    async def main() -> None:
        async with scripted(echo) as server, outbound_run(server.url) as run:
            attempt = AttemptContext("doi:1")
            attempt_context.current.set(attempt)
            waiting = asyncio.ensure_future(asyncio.to_thread(run.clients.http_sync.get, "/slow"))
            await server.called.wait()

            attempt.stop("was cancelled")

            with pytest.raises(AttemptOver, match="interrupted"):
                await waiting
            assert run.admission.outcomes == [RequestOutcome.LOCAL_CANCELLED]
            assert run.admission.held == 0

    asyncio.run(main())


def test_threads_that_wait_are_woken_when_the_run_ends() -> None:
    async def main() -> None:
        async with scripted(echo) as server:
            async with outbound_run(server.url) as run:
                waiting = asyncio.ensure_future(
                    asyncio.to_thread(run.clients.http_sync.get, "/slow")
                )
                await server.called.wait()
            with pytest.raises(ProviderNotAvailableHere, match="run has ended"):
                await waiting
            assert run.admission.held == 0

    asyncio.run(main())


def by_stream(run: Run) -> None:
    with run.clients.http_sync.stream("GET", "/plain"):
        run.clients.http_sync.get("/plain")


def by_raw_stream(run: Run) -> None:
    client = run.clients.http_client_sync("httpx")
    with client.stream("GET", "/plain"):
        client.get("/plain")


def by_requests(run: Run) -> None:
    session = run.clients.http_client_sync("requests")
    with session.get(f"{run.url}/plain", stream=True):
        session.get(f"{run.url}/plain")


@pytest.mark.parametrize("nested", [by_stream, by_raw_stream, by_requests])
def test_a_thread_that_waits_while_it_keeps_a_permit_back_waits_at_its_own_cost(
    nested: Callable[[Run], None],
) -> None:
    async def main() -> None:
        async with scripted(echo) as server, outbound_run(server.url, max_parallel=1) as run:
            attempt = AttemptContext("doi:1")
            attempt_context.current.set(attempt)
            working = asyncio.ensure_future(asyncio.to_thread(nested, run))
            while not any(  # noqa: ASYNC110 (pressure is only read)
                one.waiters for one in run.admission.pressure.models()
            ):
                await asyncio.sleep(0)

            assert attempt.waited_seconds(1e9) == attempt._waited_seconds

            attempt.stop("has run past its time limit")
            with pytest.raises(AttemptOver, match="past its time limit"):
                await working

    asyncio.run(main())


def test_waiting_for_a_permit_is_counted_once_for_all_that_wait() -> None:
    attempt = AttemptContext("a")
    attempt.begin_wait(10.0)
    attempt.begin_wait(11.0)
    attempt.end_wait(12.0)

    assert attempt.waited_seconds(13.0) == 3.0

    attempt.end_wait(14.0)

    assert attempt.waited_seconds(20.0) == 4.0


# ── Bodies that nobody closes ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("library", ["httpx2", "httpx"])
def test_a_body_that_is_thrown_away_gives_its_permit_back(
    library: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async def script(call: Call) -> None:
            await call.begin(200, {"content-type": "text/event-stream"})
            await call.chunk(b"data: 1\n\n")
            await asyncio.sleep(30)

        async with scripted(script) as server, outbound_run(server.url) as run:
            client = run.clients.http_client(library)
            reply = await client.send(client.build_request("GET", "/"), stream=True)
            assert run.admission.held == 1

            del reply
            while run.admission.held:
                gc.collect()
                await asyncio.sleep(0.005)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())

    assert "discarded" in caplog.text


# ── Calls that are not HTTP ───────────────────────────────────────────────────────────────────────


def test_a_call_that_is_not_http_says_how_it_ended() -> None:
    async def work(run: Run, url: str) -> None:
        async with run.clients.admit("m", "chat", 100) as call:
            assert run.admission.held == 1
            call.used(40)
        async with run.clients.admit(None, "http", None) as call:
            call.rate_limited(retry_after=0)
        with pytest.raises(ValueError, match="mine"):
            async with run.clients.admit(None, "embedding", None):
                raise ValueError("mine")
        with pytest.raises(ConnectionResetError):
            async with run.clients.admit(None, "embedding", None):
                raise ConnectionResetError
        with pytest.raises(httpx2.HTTPStatusError):
            async with run.clients.admit(None, "embedding", None):
                httpx2.Response(
                    429, headers={"retry-after": "7"}, request=httpx2.Request("GET", "http://x")
                ).raise_for_status()

    run = on_loop(work)

    assert run.admission.outcomes == [
        RequestOutcome.SUCCESS,
        RequestOutcome.RATE_LIMITED,
        RequestOutcome.UNEXPECTED_EXCEPTION,
        RequestOutcome.PROVIDER_FAILURE,
        RequestOutcome.RATE_LIMITED,
    ]
    assert run.admission.endings[0].tokens_used == 40
    assert run.admission.endings[-1].retry_after_seconds == 7.0


def test_a_client_that_a_forked_child_has_kept_is_refused_there() -> None:
    def work(run: Run) -> None:
        client = run.clients.http_sync
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)  # it would wait for a loop that does not run here
            try:
                client.get("/plain")
            except ProviderNotAvailableHere:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7

    in_thread(work)


def test_a_thread_admits_too() -> None:
    def work(run: Run) -> None:
        with run.clients.admit("m", "chat", 10) as call:
            call.used(5)
        run.clients._bridge.call(lambda: asyncio.sleep(0))  # what was told before has happened

    run = in_thread(work)

    assert [ending.tokens_used for ending in run.admission.endings] == [5]
