# SPDX-License-Identifier: Apache-2.0
"""The real SDKs of OpenAI and Anthropic run on our transport, with no other change.

They take seconds to import, so the tests that use them do so, and not every process of a test run.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.model.request import Quota, RequestOutcome
from penstock.retry.classify import Classified, FailureClass, classify
from tests.outbound_run import outbound_run
from tests.scripted_server import Call, json_body, scripted

CHAT = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-x",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "hello"},
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
}
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "output_tokens": 4},
}


def chunk(content: str | None, usage: object = None) -> dict[str, Any]:
    choices = [{"index": 0, "delta": {"content": content}, "finish_reason": None}]
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-x",
        "choices": [] if content is None else choices,
        "usage": usage,
    }


async def provider(call: Call) -> None:
    """A little of both APIs."""
    if call.headers.get("x-refuse"):
        await call.answer(429, json_body({"error": {"message": "slow down"}}), {"retry-after": "7"})
        return
    is_stream = b'"stream":true' in call.body.replace(b" ", b"")
    if "chat" in call.path and not is_stream:
        await call.answer(
            200,
            json_body(CHAT),
            {
                "x-ratelimit-limit-requests": "60",
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-reset-requests": "1s",
            },
        )
    elif "chat" in call.path:
        await call.begin(200, {"content-type": "text/event-stream"})
        for part in (chunk("hel"), chunk("lo"), chunk(None, CHAT["usage"])):
            await call.chunk(b"data: " + json_body(part) + b"\n\n")
        await call.chunk(b"data: [DONE]\n\n")
        await call.end()
    elif not is_stream:
        await call.answer(200, json_body(MESSAGE))
    else:
        await call.begin(200, {"content-type": "text/event-stream"})
        for event in events():
            kind = str(event["type"]).encode()
            await call.chunk(b"event: " + kind + b"\ndata: " + json_body(event) + b"\n\n")
        await call.end()


def events() -> list[dict[str, Any]]:
    start = {**MESSAGE, "content": [], "usage": {"input_tokens": 9, "output_tokens": 1}}
    return [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "hello"},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 4},
        },
        {"type": "message_stop"},
    ]


QUESTION: Any = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("library", ["httpx2", "httpx"])
def test_the_sdk_of_open_ai_chats_and_streams(library: str) -> None:
    import openai

    async def main() -> None:
        async with scripted(provider) as server, outbound_run(server.url) as run:
            client = openai.AsyncOpenAI(
                api_key="k",
                base_url=f"{server.url}/v1",
                http_client=run.clients.http_client(library),
                max_retries=0,
            )

            reply = await client.chat.completions.create(
                model="gpt-x", messages=QUESTION, max_tokens=50
            )
            assert reply.choices[0].message.content == "hello"

            stream = await client.chat.completions.create(
                model="gpt-x",
                messages=QUESTION,
                stream=True,
                stream_options={"include_usage": True},
            )
            assert run.admission.held == 1
            text = [c.choices[0].delta.content async for c in stream if c.choices]
            assert text == ["hel", "lo"]

            assert run.admission.held == 0
            assert run.admission.outcomes == [RequestOutcome.SUCCESS] * 2
            assert [ending.tokens_used for ending in run.admission.endings] == [12, 12]
            assert run.admission.endings[0].readings[0].quota is Quota.REQUESTS
            first = run.admission.leases[0].item
            assert first.resource == ("acme", "gpt-x", "chat")
            assert 50 < (first.tokens_estimate or 0) < 100
            await client.close()

    asyncio.run(main())


def test_the_sdk_of_anthropic_chats_and_streams() -> None:
    import anthropic

    async def main() -> None:
        async with scripted(provider) as server, outbound_run(server.url) as run:
            client = anthropic.AsyncAnthropic(
                api_key="k",
                base_url=server.url,
                http_client=run.clients.http_client("httpx2"),
                max_retries=0,
            )

            reply = await client.messages.create(model="claude-x", messages=QUESTION, max_tokens=50)
            assert reply.usage.output_tokens == 4

            async with client.messages.stream(
                model="claude-x", messages=QUESTION, max_tokens=50
            ) as stream:
                assert run.admission.held == 1
                assert "".join([text async for text in stream.text_stream]) == "hello"

            assert run.admission.held == 0
            assert [ending.tokens_used for ending in run.admission.endings] == [13, 13]

    asyncio.run(main())


def test_the_sync_sdks_run_in_threads() -> None:
    import anthropic
    import openai

    async def main() -> None:
        async with scripted(provider) as server, outbound_run(server.url) as run:

            def work() -> None:
                client = openai.OpenAI(
                    api_key="k",
                    base_url=f"{server.url}/v1",
                    http_client=run.clients.http_client_sync("httpx2"),
                    max_retries=0,
                )
                stream = client.chat.completions.create(
                    model="gpt-x", messages=QUESTION, stream=True
                )
                assert [c.choices[0].delta.content for c in stream if c.choices] == ["hel", "lo"]
                other = anthropic.Anthropic(
                    api_key="k",
                    base_url=server.url,
                    http_client=run.clients.http_client_sync("httpx2"),
                    max_retries=0,
                )
                message = other.messages.create(model="claude-x", messages=QUESTION, max_tokens=5)
                assert message.stop_reason == "end_turn"

            await asyncio.to_thread(work)

            assert run.admission.held == 0
            assert run.admission.outcomes == [RequestOutcome.SUCCESS] * 2

    asyncio.run(main())


def test_an_sdk_raises_its_own_error_of_a_refusal_and_the_baseline_knows_it() -> None:
    import openai

    async def main() -> None:
        async with scripted(provider) as server, outbound_run(server.url) as run:
            client = openai.AsyncOpenAI(
                api_key="k",
                base_url=f"{server.url}/v1",
                http_client=run.clients.http_client("httpx2"),
                max_retries=0,
                default_headers={"x-refuse": "1"},
            )

            with pytest.raises(openai.RateLimitError) as raised:
                await client.chat.completions.create(model="gpt-x", messages=QUESTION)

            assert len(server.calls) == 1
            assert classify(raised.value, now=0.0) == Classified(FailureClass.SERVICE, 7.0)
            assert run.admission.outcomes == [RequestOutcome.RATE_LIMITED]

    asyncio.run(main())
