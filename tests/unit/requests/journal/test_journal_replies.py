# SPDX-License-Identifier: Apache-2.0
"""Which replies are whole, and what of their heads does a replay tell?"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.model.journal import CallState
from tests.paid_run import PaidRun, paid_run
from tests.scripted_server import Call, ScriptedServer, scripted
from tests.unit.requests.journal.test_journal_clients import in_thread, open_ai, twice

MADE = {
    "location": "/v1/batches/7",
    "operation-location": "/v1/operations/7",
    "retry-after": "2",
    "etag": '"v1"',
    "x-request-id": "r-1",
    "set-cookie": "session=secret",
    "authorization": "Bearer secret",
}


async def made(call: Call) -> None:
    await call.answer(202, b'{"id": "b", "object": "batch"}', MADE)


def _asked(library: str) -> Any:
    async def direct(run: PaidRun, server: ScriptedServer) -> Any:
        reply = await run.clients.http_client(library).post(f"{server.url}/x", json={"a": 1})
        return reply.status_code, dict(reply.headers)

    def threaded(run: PaidRun, server: ScriptedServer) -> Any:
        reply = run.clients.http_client_sync(library).post(f"{server.url}/x", json={"a": 1})
        return reply.status_code, {name.lower(): value for name, value in reply.headers.items()}

    async def sdk(run: PaidRun, server: ScriptedServer) -> Any:
        batches = open_ai(run, server, "httpx2").batches.with_raw_response
        reply = await batches.create(
            completion_window="24h", endpoint="/v1/responses", input_file_id="f"
        )
        assert reply.parse().id == "b"
        return reply.status_code, dict(reply.headers)

    if library == "openai":
        return sdk
    return in_thread(threaded) if library == "requests" else direct


@pytest.mark.parametrize("library", ["httpx2", "httpx", "requests", "openai"])
def test_a_replay_says_where_its_result_will_be_and_gives_no_secret_away(library: str) -> None:
    first, second, records, sent = twice(_asked(library), made)

    assert sent == 1
    assert first[0] == second[0] == 202
    wanted = {name: MADE[name] for name in [*MADE][:5]}
    assert {name: second[1][name] for name in wanted} == wanted
    assert {name: first[1][name] for name in wanted} == wanted
    assert not {"set-cookie", "authorization"} & second[1].keys()
    assert records[0].reused == 1


def test_a_reply_that_ends_with_its_connection_is_kept_if_it_is_whole() -> None:
    sent: list[bytes] = []

    async def main() -> None:
        async def until_closed(call: Call) -> None:
            body = b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4}, "x": 1}'
            sent.append(body[:-3] if len(sent) == 0 else body)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
            await call.write(head + sent[-1])
            call.writer.close()

        async with scripted(until_closed) as server, paid_run(server.url) as run:
            got = []
            for _ in range(3):
                with run.attempt():
                    got.append((await run.clients.http.post("/", json={"a": 1})).content)
            assert got == [sent[0], sent[1], sent[1]]
            (record,) = run.records()
            assert (record.state, record.bought) == (CallState.ANSWERED, 2)

    asyncio.run(main())
    assert len(sent) == 2


@pytest.mark.parametrize(("status", "head"), [(204, b""), (202, b"content-length: 0\r\n")])
def test_an_answer_without_a_body_is_whole(status: int, head: bytes) -> None:
    async def main() -> None:
        async def empty(call: Call) -> None:
            said = b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\n%s\r\n"
            await call.write(said % (status, head))

        async with scripted(empty) as server, paid_run(server.url) as run:
            for _ in range(2):
                with run.attempt():
                    reply = await run.clients.http.post("/", json={"a": 1})
                    assert (reply.status_code, reply.content) == (status, b"")
            (record,) = run.records()
            assert (record.state, record.bought) == (CallState.ANSWERED, 1)

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}", b'{"usage":{"prompt_tokens":"\xff"}}'],
    ids=["deep", "no text"],
)
def test_an_answer_that_nobody_can_read_is_paid_once_and_gives_its_permit_back(body: bytes) -> None:
    async def main() -> None:
        async def odd(call: Call) -> None:
            await call.answer(200, body)

        async with scripted(odd) as server, paid_run(server.url) as run:
            for _ in range(2):
                with run.attempt():
                    assert (await run.clients.http.post("/", json={"a": 1})).content == body
            (record,) = run.records()
            assert (record.state, record.bought) == (CallState.ANSWERED, 1)
            assert len(server.calls) == 1

    asyncio.run(main())
