# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio

import httpx2
import pytest

from penstock.errors import ProviderThrottled, ProviderUnavailable
from penstock.model.request import RequestOutcome
from tests.outbound_run import outbound_run
from tests.scripted_server import Call, json_body, scripted


def test_a_call_is_admitted_and_given_back_when_its_body_is_closed() -> None:
    async def main() -> None:
        async def script(call: Call) -> None:
            await call.answer(200, json_body({"path": call.path}))

        async with scripted(script) as server, outbound_run(server.url) as run:
            reply = await run.clients.http.get("/works/1")

            assert reply.json() == {"path": "/works/1"}
            assert run.admission.outcomes == [RequestOutcome.SUCCESS]
            assert run.admission.held == 0

    asyncio.run(main())


def test_a_stream_holds_its_permit_until_it_is_closed() -> None:
    async def main() -> None:
        async def script(call: Call) -> None:
            await call.begin()
            await call.chunk(b"one")
            await call.chunk(b"two")
            await call.end()

        async with scripted(script) as server, outbound_run(server.url) as run:
            async with run.clients.http.stream("GET", "/") as reply:
                assert run.admission.held == 1
                assert b"".join([part async for part in reply.aiter_bytes()]) == b"onetwo"

            assert run.admission.held == 0

    asyncio.run(main())


def test_a_refused_call_is_sent_again_through_admission() -> None:
    async def main() -> None:
        answers = iter([(429, {"retry-after": "0"}), (503, {"retry-after": "0"}), (200, {})])

        async def script(call: Call) -> None:
            status, headers = next(answers)
            await call.answer(status, b"x", headers)

        async with scripted(script) as server, outbound_run(server.url) as run:
            reply = await run.clients.http.post("/", json={"a": 1})

            assert reply.status_code == 200
            assert [call.body for call in server.calls] == [b'{"a":1}'] * 3
            assert run.admission.outcomes == [
                RequestOutcome.RATE_LIMITED,
                RequestOutcome.RATE_LIMITED,
                RequestOutcome.SUCCESS,
            ]

    asyncio.run(main())


@pytest.mark.parametrize("status", [500, 502, 503, 408, 425])
def test_an_ill_provider_is_raised_with_its_status(status: int) -> None:
    async def main() -> None:
        async def script(call: Call) -> None:
            await call.answer(status, b"sorry")

        async with scripted(script) as server, outbound_run(server.url) as run:
            with pytest.raises(ProviderUnavailable) as raised:
                await run.clients.http.get("/")

            assert f"answered {status}: the service failed, not the job." in str(raised.value)
            assert raised.value.status_code == status
            assert isinstance(raised.value.response, httpx2.Response)
            assert raised.value.response.text == "sorry"
            assert run.admission.outcomes == [RequestOutcome.PROVIDER_FAILURE]

    asyncio.run(main())


def test_a_long_cool_down_is_raised_with_its_length() -> None:
    async def main() -> None:
        async def script(call: Call) -> None:
            await call.answer(429, b"", {"retry-after": "31"})

        async with scripted(script) as server, outbound_run(server.url) as run:
            with pytest.raises(ProviderThrottled) as raised:
                await run.clients.http.get("/")

            assert raised.value.retry_after == 31
            assert len(server.calls) == 1

    asyncio.run(main())
