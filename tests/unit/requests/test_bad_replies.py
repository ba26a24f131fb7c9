# SPDX-License-Identifier: Apache-2.0
"""Whatever a provider sends, or does not, the permit comes back and memory stays small.

Goal: F46 and F47 of the catalogue at the transport. Method: a server on loopback that misbehaves in
one way, every kind of client, and a deadline and caps that are small. Deadlines are met on a loop
that does not sit them out.
"""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import cache

import aiohttp
import httpx
import httpx2
import pytest
import requests

from penstock.errors import ProviderThrottled, ProviderUnavailable, ReplyRefused
from penstock.model.request import ReplyFacts, RequestOutcome, RequestReleaseOutcome
from penstock.requests.exchange import ReplyLimits
from penstock.retry.classify import FailureClass, classify
from tests.hasty_loop import run_hasty
from tests.outbound_run import Run, outbound_run
from tests.scripted_server import Call, Script, scripted

LIMITS = ReplyLimits(deadline_seconds=40.0, body_bytes_max=4 * 1024 * 1024)
PATIENT = ReplyLimits(deadline_seconds=60.0, body_bytes_max=4 * 1024 * 1024)

FAILURE, TIMEOUT = RequestOutcome.PROVIDER_FAILURE, RequestOutcome.PROVIDER_TIMEOUT

Get = Callable[[Run, str], Awaitable[bytes]]


async def by_http(run: Run, url: str) -> bytes:
    content: bytes = (await run.clients.http.get("/")).content
    return content


async def by_raw_stream(run: Run, url: str) -> bytes:
    async with run.clients.http_client("httpx").stream("GET", "/") as reply:
        return b"".join([part async for part in reply.aiter_bytes()])


async def by_http_sync(run: Run, url: str) -> bytes:
    return bytes((await asyncio.to_thread(run.clients.http_sync.get, "/")).content)


async def by_aiohttp(run: Run, url: str) -> bytes:
    async with run.clients.http_client("aiohttp") as session, session.get(url) as reply:
        return bytes(await reply.read())


async def by_requests(run: Run, url: str) -> bytes:
    session = run.clients.http_client_sync("requests")
    return bytes((await asyncio.to_thread(session.get, url)).content)


CLIENTS = [by_http, by_raw_stream, by_http_sync, by_aiohttp, by_requests]


async def hung(call: Call) -> None:
    await asyncio.sleep(600)


async def hung_in_body(call: Call) -> None:
    await call.begin()
    await call.chunk(b"some")
    await asyncio.sleep(600)


async def slow_head(call: Call) -> None:
    for byte in b"HTTP/1.1 200 Said\r\nx-a: " + b"y" * 1_000:
        await call.write(bytes([byte]))
        await asyncio.sleep(5)


async def slow_body(call: Call) -> None:
    await call.begin()
    while True:
        await call.chunk(b"x")
        await asyncio.sleep(5)


async def endless(call: Call) -> None:
    await call.begin()
    while True:
        await call.chunk(b"x" * 65_536)


@cache
def packed_bomb() -> bytes:
    return gzip.compress(bytes(64 * 1024 * 1024))  # 64 KiB


async def bomb(call: Call) -> None:
    await call.answer(200, packed_bomb(), {"content-encoding": "gzip"})


async def huge_header(call: Call) -> None:
    await call.write(b"HTTP/1.1 200 Said\r\n")
    for _ in range(1_600):  # 100 MiB
        await call.write(b"x-a: " + b"y" * 65_536 + b"\r\n")


async def reset_at_once(call: Call) -> None:
    call.reset()


async def reset_in_body(call: Call) -> None:
    await call.write(b"HTTP/1.1 200 Said\r\ncontent-length: 1000\r\n\r\npart")
    await asyncio.sleep(0.05)
    call.reset()


async def cut_in_gzip(call: Call) -> None:
    await call.answer(200, gzip.compress(b"x" * 10_000)[:-9], {"content-encoding": "gzip"})


async def no_http(call: Call) -> None:
    await call.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


def outcome_and_error(
    script: Script, get: Get, limits: ReplyLimits
) -> tuple[RequestOutcome, BaseException]:
    async def main() -> tuple[RequestOutcome, BaseException]:
        async with scripted(script) as server, outbound_run(server.url, limits=limits) as run:
            with pytest.raises(Exception) as raised:  # noqa: PT011 (each library has its own)
                await get(run, server.url)
            assert run.admission.held == 0
            [outcome] = set(run.admission.outcomes)  # aiohttp sends a GET again, admitted anew
            return outcome, raised.value

    return run_hasty(main()) if limits is LIMITS else asyncio.run(main())


@pytest.mark.parametrize("get", CLIENTS)
@pytest.mark.parametrize("script", [hung, hung_in_body, slow_head, slow_body])
def test_a_reply_that_does_not_come_ends_at_its_deadline(script: Script, get: Get) -> None:
    outcome, error = outcome_and_error(script, get, LIMITS)

    assert outcome is TIMEOUT
    assert classify(error, now=0.0).category is FailureClass.NODE
    assert isinstance(
        error,
        httpx2.TimeoutException
        | requests.RequestException
        | aiohttp.ServerTimeoutError
        | httpx.TimeoutException,
    )


@pytest.mark.parametrize("get", CLIENTS)
@pytest.mark.parametrize("script", [reset_at_once, reset_in_body, cut_in_gzip, no_http])
def test_a_reply_that_breaks_off_is_a_failure_and_never_a_part_of_a_success(
    script: Script, get: Get
) -> None:
    outcome, error = outcome_and_error(script, get, PATIENT)

    assert outcome is FAILURE
    assert classify(error, now=0.0).category is FailureClass.NODE


@pytest.mark.parametrize("get", CLIENTS)
@pytest.mark.parametrize("script", [endless, bomb, huge_header])
def test_a_reply_that_is_too_large_is_refused_within_its_cap(script: Script, get: Get) -> None:
    packed_bomb()  # ours, and not the client's
    tracemalloc.start()
    try:
        outcome, error = outcome_and_error(script, get, PATIENT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert outcome is FAILURE
    assert peak < 3 * PATIENT.body_bytes_max
    if script is not huge_header:
        assert isinstance(error, ReplyRefused)


@pytest.mark.parametrize("get", [by_http, by_raw_stream, by_http_sync])
def test_many_headers_are_refused(get: Get) -> None:
    async def script(call: Call) -> None:
        await call.answer(200, b"", {f"x-{n}": "y" * 500 for n in range(150)})

    outcome, error = outcome_and_error(
        script, get, ReplyLimits(deadline_seconds=60.0, header_bytes_max=50_000)
    )

    assert outcome is FAILURE
    assert isinstance(error, ReplyRefused)


def test_a_connection_that_is_refused_is_a_failure() -> None:
    async def main() -> None:
        async with outbound_run("http://127.0.0.1:9") as run:
            with pytest.raises(httpx2.ConnectError) as raised:
                await run.clients.http.get("/")

            assert run.admission.outcomes == [FAILURE]
            assert classify(raised.value, now=0.0).category is FailureClass.NODE

    asyncio.run(main())


async def by_any(run: Run, library: str, url: str) -> None:
    if library == "requests":
        await asyncio.to_thread(run.clients.http_client_sync(library).get, url)
    elif library == "aiohttp":
        async with run.clients.http_client(library) as session, session.get(url) as reply:
            await reply.read()
    else:
        await run.clients.http_client(library).get(url)


@pytest.mark.parametrize("library", ["httpx2", "httpx", "aiohttp", "requests"])
@pytest.mark.parametrize("is_tls", [False, True])
def test_a_name_that_does_not_resolve_and_tls_with_a_plain_server_are_failures(
    is_tls: bool, library: str
) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"this is no TLS\r\n" * 10)
        writer.close()

    async def main() -> BaseException:
        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = f"https://127.0.0.1:{port}/" if is_tls else "http://no-such-host.invalid/"
        async with server, outbound_run(limits=PATIENT) as run:
            with pytest.raises(Exception) as raised:  # noqa: PT011 (each library has its own)
                await by_any(run, library, url)
            assert run.admission.held == 0
            assert set(run.admission.outcomes) == {FAILURE}
            return raised.value

    error = asyncio.run(main())

    assert classify(error, now=0.0).category is FailureClass.NODE
    assert str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("get", CLIENTS)
def test_a_huge_body_of_known_length_is_refused_within_its_cap(get: Get) -> None:
    async def script(call: Call) -> None:
        size = 100 * 1024 * 1024
        await call.write(b"HTTP/1.1 200 Said\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // 65_536):
            await call.write(b"x" * 65_536)

    tracemalloc.start()
    try:
        outcome, error = outcome_and_error(script, get, PATIENT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert outcome is FAILURE
    assert isinstance(error, ReplyRefused)
    assert peak < 3 * PATIENT.body_bytes_max


def test_a_gzip_body_is_read_by_every_method_of_aiohttp() -> None:
    text = b"line\n" * 200_000

    async def script(call: Call) -> None:
        await call.answer(200, gzip.compress(text), {"content-encoding": "gzip"})

    async def main() -> None:
        async with scripted(script) as server, outbound_run(server.url) as run:
            session = run.clients.http_client("aiohttp")
            async with session.get(server.url) as reply:
                assert await reply.read() == text
            async with session.get(server.url) as reply:
                assert b"".join([part async for part in reply.content.iter_any()]) == text
            async with session.get(server.url) as reply:
                assert b"".join([line async for line in reply.content]) == text
            async with session.get(server.url) as reply:
                assert await reply.content.readexactly(10) == text[:10]
            await session.close()
            assert run.admission.held == 0
            assert set(run.admission.outcomes) == {RequestOutcome.SUCCESS}

    asyncio.run(main())


@pytest.mark.parametrize("library", ["httpx2", "aiohttp"])
def test_a_body_that_is_left_open_gives_its_permit_back_at_its_deadline(
    library: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            scripted(hung_in_body) as server,
            outbound_run(server.url, limits=LIMITS) as run,
        ):
            client = run.clients.http_client(library)
            if library == "aiohttp":
                reply = await client.get(server.url)
            else:
                reply = await client.send(client.build_request("GET", "/"), stream=True)
            assert run.admission.held == 1

            while run.admission.held:  # noqa: ASYNC110 (it is the clock that does it)
                await asyncio.sleep(1)

            assert run.admission.outcomes == [RequestOutcome.LOCAL_TIMEOUT]
            with pytest.raises(Exception):  # noqa: B017, PT011
                await (reply.read() if library == "aiohttp" else reply.aread())
            await (client.close() if library == "aiohttp" else client.aclose())

    run_hasty(main())

    assert "not read and closed" in caplog.text


def test_a_reader_that_takes_most_of_the_time_is_not_the_providers_fault() -> None:
    async def read(run: Run) -> None:
        async with run.clients.http.stream("GET", "/") as reply:
            async for _ in reply.aiter_bytes():
                await asyncio.sleep(30)

    async def main() -> None:
        async with scripted(slow_body) as server, outbound_run(server.url, limits=LIMITS) as run:
            with pytest.raises(httpx2.HTTPError):
                await read(run)

            assert run.admission.outcomes == [RequestOutcome.LOCAL_TIMEOUT]

    run_hasty(main())


# ── Providers that lie (F52) ──────────────────────────────────────────────────────────────────────


def overloaded(facts: ReplyFacts) -> RequestOutcome | RequestReleaseOutcome | None:
    if b"overloaded" in facts.body_start:
        return RequestReleaseOutcome(RequestOutcome.RATE_LIMITED, 0.0)
    if b"broken" in facts.body_start:
        return RequestOutcome.PROVIDER_FAILURE
    return None


def test_a_success_with_the_body_of_an_error_is_what_the_classifier_says() -> None:
    async def main() -> None:
        bodies = iter([b'{"error": "overloaded"}', b'{"answer": 42}', b'{"error": "broken"}'])

        async def script(call: Call) -> None:
            await call.answer(200, next(bodies))

        async with (
            scripted(script) as server,
            outbound_run(server.url, classifier=overloaded) as run,
        ):
            reply = await run.clients.http.get("/")
            assert reply.json() == {"answer": 42}

            with pytest.raises(ProviderUnavailable) as raised:
                await run.clients.http.get("/")

            assert classify(raised.value, now=0.0).category is FailureClass.SERVICE
            assert run.admission.outcomes == [
                RequestOutcome.RATE_LIMITED,
                RequestOutcome.SUCCESS,
                RequestOutcome.PROVIDER_FAILURE,
            ]

    asyncio.run(main())


def test_a_classifier_sees_the_first_event_of_a_stream_and_takes_nothing_of_it() -> None:
    seen: list[bytes] = []

    def look(facts: ReplyFacts) -> None:
        seen.append(facts.body_start)

    async def main() -> None:
        go_on = asyncio.Event()

        async def script(call: Call) -> None:
            await call.begin(200, {"content-type": "text/event-stream"})
            await call.chunk(b"data: 1\n\n")
            await go_on.wait()
            await call.chunk(b"data: 2\n\n")
            await call.end()

        async with (
            scripted(script) as server,
            outbound_run(server.url, classifier=look) as run,
            run.clients.http.stream("GET", "/") as reply,
        ):
            go_on.set()
            assert b"".join([part async for part in reply.aiter_bytes()]) == (
                b"data: 1\n\ndata: 2\n\n"
            )

    asyncio.run(main())

    assert seen == [b"data: 1\n\n"]


def test_a_classifier_that_raises_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    def wrong(facts: ReplyFacts) -> None:
        raise KeyError("oops")

    async def main() -> None:
        async def script(call: Call) -> None:
            await call.answer(200, b"fine")

        async with scripted(script) as server, outbound_run(server.url, classifier=wrong) as run:
            assert (await run.clients.http.get("/")).text == "fine"

    asyncio.run(main())

    assert "classifier raised" in caplog.text


def test_a_refusal_whose_body_hangs_does_not_keep_its_permit() -> None:
    async def main() -> None:
        async def script(call: Call) -> None:
            await call.begin(429, {"retry-after": "600"})
            await asyncio.sleep(600)

        async with scripted(script) as server, outbound_run(server.url, limits=PATIENT) as run:
            with pytest.raises(ProviderThrottled):
                await run.clients.http.get("/")

            assert run.admission.held == 0
            assert [ending.retry_after_seconds for ending in run.admission.endings] == [600.0]

    run_hasty(main())


def test_git_hub_refuses_with_403_and_an_empty_bucket() -> None:
    async def main() -> None:
        async def script(call: Call) -> None:
            await call.answer(
                403,
                b"",
                {
                    "x-ratelimit-limit": "60",
                    "x-ratelimit-remaining": "0",
                    "x-ratelimit-reset": "700",
                },
            )

        async with scripted(script) as server, outbound_run(server.url) as run:
            with pytest.raises(ProviderThrottled) as raised:
                await run.clients.http.get("/")

            assert raised.value.retry_after == 700.0

    asyncio.run(main())
