# SPDX-License-Identifier: Apache-2.0
"""Do clients of every library, and the SDKs on them, take an answer from the journal as a reply?

The SDKs take seconds to import, so the tests that use them do so, and not every process of a run.
"""

from __future__ import annotations

import asyncio
import contextvars
import gzip
import json
from typing import Any

import httpx2
import pytest

from penstock.errors import CallInDoubt, StoreFailed, UsageError
from penstock.model.journal import CallState
from penstock.model.spending import Amount, Price
from penstock.requests import attempt_context
from penstock.requests.journal.paid_policy import PaidPolicy
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from tests.outbound_run import PROVIDER
from tests.paid_run import PaidRun, paid_run
from tests.scripted_server import Call, ScriptedServer, scripted
from tests.unit.requests.test_sdks import QUESTION, provider

PRICES = {"gpt-x": Price(1_000_000, 2_000_000), "claude-x": Price(3_000_000, 15_000_000)}
RULES = PaidPolicy(PROVIDER, prices=PRICES)


def twice(ask: Any, script: Any = provider) -> tuple[Any, Any, list[Any], int]:
    """What two attempts of a job get for the same call, its records, and how often it was sent."""

    async def main() -> tuple[Any, Any, list[Any], int]:
        sent = 0

        async def counted(call: Call) -> None:
            nonlocal sent
            sent += 1
            await script(call)

        async with scripted(counted) as server, paid_run(server.url, rules=RULES) as run:
            got = []
            for _ in range(2):
                with run.attempt():
                    got.append(await ask(run, server))
            await run.writer.drain()
            return got[0], got[1], run.records(), sent

    return asyncio.run(main())


def in_thread(ask: Any) -> Any:
    async def asked(run: PaidRun, server: ScriptedServer) -> Any:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: context.run(ask, run, server))

    return asked


def open_ai(run: PaidRun, server: ScriptedServer, library: str) -> Any:
    import openai

    client = run.clients.http_client(library)
    return openai.AsyncOpenAI(
        api_key="k", base_url=f"{server.url}/v1", http_client=client, max_retries=0
    )


@pytest.mark.parametrize("library", ["httpx2", "httpx"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_of_open_ai_takes_a_replay(library: str, stream: bool) -> None:
    async def ask(run: PaidRun, server: ScriptedServer) -> str:
        client = open_ai(run, server, library)
        if not stream:
            reply = await client.chat.completions.create(model="gpt-x", messages=QUESTION)
            assert reply.usage is not None
            return f"{reply.choices[0].message.content} {reply.usage.total_tokens}"
        chunks = await client.chat.completions.create(model="gpt-x", messages=QUESTION, stream=True)
        text, total = "", 0
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            total = chunk.usage.total_tokens if chunk.usage else total
        return f"{text} {total}"

    first, second, records, sent = twice(ask)

    assert first == second == "hello 12"
    assert sent == 1
    assert records[0].used == Amount(5 + 2 * 7, 12)
    assert (records[0].bought, records[0].reused) == (1, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_of_anthropic_takes_a_replay(stream: bool) -> None:
    import anthropic

    async def ask(run: PaidRun, server: ScriptedServer) -> str:
        client = anthropic.AsyncAnthropic(
            api_key="k",
            base_url=server.url,
            http_client=run.clients.http_client("httpx2"),
            max_retries=0,
        )
        said: Any = {"model": "claude-x", "max_tokens": 9, "messages": QUESTION}
        if not stream:
            message = await client.messages.create(**said)
            return f"{message.content[0].text} {message.usage.output_tokens}"
        text = ""
        async with client.messages.stream(**said) as chunks:
            async for piece in chunks.text_stream:
                text += piece
            final = await chunks.get_final_message()
        return f"{text} {final.usage.output_tokens}"

    first, second, records, sent = twice(ask)

    assert first == second == "hello 4"
    assert sent == 1
    assert records[0].used == Amount(9 * 3 + 4 * 15, 13)


def test_the_sync_sdk_of_open_ai_takes_a_replay_of_a_stream() -> None:
    import openai

    def ask(run: PaidRun, server: ScriptedServer) -> str:
        client = openai.OpenAI(
            api_key="k",
            base_url=f"{server.url}/v1",
            http_client=run.clients.http_client_sync("httpx2"),
            max_retries=0,
        )
        chunks = client.chat.completions.create(model="gpt-x", messages=QUESTION, stream=True)
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

    first, second, _, sent = twice(in_thread(ask))

    assert first == second == "hello"
    assert sent == 1


@pytest.mark.parametrize("library", ["httpx2", "httpx", "requests"])
@pytest.mark.parametrize("stream", [False, True])
def test_sync_clients_take_a_replay(library: str, stream: bool) -> None:
    def ask(run: PaidRun, server: ScriptedServer) -> Any:
        client = run.clients.http_client_sync(library)
        url = f"{server.url}/chat"
        if library == "requests":
            reply = client.post(url, json={"a": 1}, stream=stream)
            body = b"".join(reply.iter_content(100)) if stream else reply.content
            return reply.status_code, json.loads(body)["id"], reply.headers["content-type"]
        if not stream:
            reply = client.post(url, json={"a": 1})
            return reply.status_code, reply.json()["id"], reply.headers["content-type"]
        with client.stream("POST", url, json={"a": 1}) as reply:
            body = b"".join(reply.iter_bytes())
            return reply.status_code, json.loads(body)["id"], reply.headers["content-type"]

    first, second, records, sent = twice(in_thread(ask))

    assert first == second
    assert first[:2] == (200, "c")
    assert sent == 1
    assert [record.state for record in records] == [CallState.ANSWERED]


def test_a_thread_knows_of_the_permit_of_a_call_that_is_kept_and_of_none_when_it_is_replayed() -> (
    None
):
    def ask(run: PaidRun, server: ScriptedServer) -> Any:
        with run.clients.http_client_sync("httpx2").stream("POST", f"{server.url}/chat") as reply:
            given = len(attempt_context.held_leases.get())
            reply.read()
            return given

    first, second, _, _ = twice(in_thread(ask))

    assert (first, second) == (1, 0)


def test_a_body_that_came_compressed_is_replayed_plain() -> None:
    async def main() -> None:
        async def zipped(call: Call) -> None:
            headers = {
                "content-encoding": "gzip",
                "content-type": "text/plain",
                "set-cookie": "session=secret",
                "x-request-id": "r-1",
            }
            await call.answer(200, gzip.compress(b"hello" * 1000), headers)

        async with scripted(zipped) as server, paid_run(server.url) as run:
            for _ in range(2):
                with run.attempt():
                    reply = await run.clients.http.get("/")
                    assert reply.content == b"hello" * 1000
            assert reply.headers["x-request-id"] == "r-1"
            assert "set-cookie" not in reply.headers
            (record,) = run.records()
            answer = run.store.answer_of(record.key).result()
            assert answer is not None
            assert answer.body is not None
            assert len(answer.body) < 200
            assert {name for name, _ in answer.headers} <= {"content-type", "x-request-id", "date"}

    asyncio.run(main())


def test_an_idempotency_key_is_the_same_at_every_send_and_new_for_another_purchase() -> None:
    keys: list[str | None] = []

    async def main() -> None:
        async def broken_then_whole(call: Call) -> None:
            keys.append(call.headers.get("idempotency-key"))
            if len(keys) == 1:
                call.reset()
            else:
                await call.answer(200, b"{}")

        rules = PaidPolicy(PROVIDER, idempotency_header="Idempotency-Key")
        async with scripted(broken_then_whole) as server, paid_run(server.url, rules=rules) as run:
            with run.attempt(), pytest.raises(httpx2.TransportError):
                await run.clients.http.post("/", json={"a": 1})
            with run.attempt():
                await run.clients.http.post("/", json={"a": 1})
                await run.clients.http.post("/", json={"a": 1})
                mine = {"Idempotency-Key": "mine"}
                await run.clients.http.post("/", json={"a": 2}, headers=mine)

    asyncio.run(main())
    assert keys[0] == keys[1]
    assert str(keys[0]).startswith("penstock-")
    assert keys[2] not in (None, keys[0])
    assert keys[3] == "mine"


def test_a_request_that_comes_as_a_stream_is_read_first_and_known_again() -> None:
    async def main() -> None:
        bodies: list[bytes] = []

        async def keep(call: Call) -> None:
            bodies.append(call.body)
            await call.answer(200, b"{}")

        async def pieces() -> Any:
            for piece in (b"a", b"b", b"c"):
                yield piece

        async with scripted(keep) as server, paid_run(server.url) as run:
            for _ in range(2):
                with run.attempt():
                    await run.clients.http.post("/", content=pieces())
            files = {"file": ("a.wav", b"sound", "audio/wav")}
            for _ in range(2):
                with run.attempt():
                    await run.clients.http.post("/", files=files)
            assert len(bodies) == 2
            assert bodies[0] == b"abc"

    asyncio.run(main())


def test_an_endless_request_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import penstock.requests.journal.bodies as bodies

    monkeypatch.setattr(bodies, "REQUEST_BYTES_MAX", 1_000)

    async def main() -> None:
        async def endless() -> Any:
            while True:
                yield b"x" * 100

        async with paid_run("http://127.0.0.1:9") as run:
            with run.attempt(), pytest.raises(UsageError, match="more than 1,000 bytes"):
                await run.clients.http.post("/", content=endless())
            assert run.admission.held == 0
            assert run.records() == []

    asyncio.run(main())


def test_a_connection_that_was_never_made_costs_nothing() -> None:
    async def main() -> None:
        async with paid_run("http://127.0.0.1:9") as run:
            with run.attempt(), pytest.raises(httpx2.ConnectError):
                await run.clients.http.get("/")
            await run.writer.drain()
            assert run.states() == [CallState.CLOSED]

    asyncio.run(main())


def test_calls_without_a_job_and_clients_of_aiohttp_are_refused() -> None:
    async def main() -> None:
        async with paid_run("http://127.0.0.1:9") as run:
            with pytest.raises(UsageError, match=r"asyncio\.to_thread"):
                await run.clients.http.get("/")
            with pytest.raises(UsageError, match="aiohttp"):
                run.clients.http_client("aiohttp")

    asyncio.run(main())


def test_a_held_call_is_known_whatever_an_sdk_makes_of_the_error() -> None:
    import openai

    async def main() -> None:
        async def reset(call: Call) -> None:
            call.reset()

        rules = PaidPolicy(PROVIDER, holds_in_doubt=True)
        async with scripted(reset) as server, paid_run(server.url, rules=rules) as run:
            with run.attempt(), pytest.raises(openai.APIConnectionError):
                await open_ai(run, server, "httpx2").models.list()
            with run.attempt() as calls:
                with pytest.raises((openai.APIConnectionError, CallInDoubt)):
                    await open_ai(run, server, "httpx2").models.list()
                assert calls.in_doubt is not None
            assert run.states() == [CallState.HELD]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["intend", "answered"])
def test_a_store_that_has_failed_lets_nothing_out(name: str) -> None:
    def fail(store: InProcessStore) -> None:
        setattr(store, name, lambda *args: Reply.failed(StoreFailed("disk I/O error")))

    async def read(run: PaidRun) -> None:
        async with run.clients.http.stream("POST", "/chat", json={}) as reply:
            async for _ in reply.aiter_raw():
                pass

    async def main() -> None:
        async with scripted(provider) as server, paid_run(server.url, prepare=fail) as run:
            with run.attempt():
                with pytest.raises(StoreFailed):
                    await run.clients.http.post("/chat", json={})
                with pytest.raises(StoreFailed):
                    await read(run)
            assert run.admission.held == 0
            assert len(server.calls) == (0 if name == "intend" else 2)
            assert CallState.ANSWERED not in run.states()

    asyncio.run(main())


@pytest.mark.parametrize("library", ["httpx2", "httpx"])
def test_a_header_beyond_ascii_is_played_as_it_came(library: str) -> None:
    async def main() -> None:
        async def answer(call: Call) -> None:
            await call.write(
                b"HTTP/1.1 200 OK\r\nx-request-id: caf\xe9\r\ncontent-length: 2\r\n\r\nhi"
            )

        async with scripted(answer) as server, paid_run(server.url) as run:
            for _ in range(2):
                with run.attempt():
                    reply = await run.clients.http_client(library).get("/")
                    assert (reply.text, reply.headers["x-request-id"]) == ("hi", "café")
            assert len(server.calls) == 1

    asyncio.run(main())


def test_a_body_in_a_code_that_only_its_reader_knows_is_played_with_its_name() -> None:
    async def main() -> None:
        async def answer(call: Call) -> None:
            await call.answer(200, b"coded", {"content-encoding": "x-own"})

        async with scripted(answer) as server, paid_run(server.url) as run:
            for _ in range(2):
                with run.attempt():
                    reply = await run.clients.http.get("/")
                    assert (reply.content, reply.headers["content-encoding"]) == (b"coded", "x-own")
            assert len(server.calls) == 1

    asyncio.run(main())
