# SPDX-License-Identifier: Apache-2.0
"""Does each part of an attempt keep its own answers, and end with the attempt?"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import AttemptOver
from penstock.requests import attempt_context
from penstock.requests.attempt_context import AttemptContext
from tests.paid_run import PaidRun, paid_run
from tests.scripted_server import Call, scripted


class Counting:
    """Answers each call with its number."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, call: Call) -> None:
        self.calls += 1
        body = f'{{"n": {self.calls}, "usage": {{"prompt_tokens": 3, "completion_tokens": 4}}}}'
        await call.answer(200, body.encode())


async def asked(run: PaidRun, url: str, *names: str) -> list[int]:
    """What each part, all at once, is answered to the same question."""
    whole = attempt_context.current.get()
    assert whole is not None

    async def ask(name: str) -> int:
        part = whole.part(name)
        attempt_context.current.set(part)
        try:
            reply = await run.clients.http.post(f"{url}/v1/chat/completions", json={"model": "m"})
            return int(reply.json()["n"])
        finally:
            part.dissolve()

    return await asyncio.gather(*(asyncio.create_task(ask(name)) for name in names))


def test_equal_calls_of_two_parts_keep_their_own_answers_in_any_order() -> None:
    server_counts = Counting()

    async def main() -> None:
        async with scripted(server_counts) as server, paid_run(server.url) as run:
            with run.attempt():
                first = await asked(run, server.url, "0:review", "1:review", "2:review")
            with run.attempt():
                again = await asked(run, server.url, "2:review", "0:review", "1:review")
            assert sorted(first) == [1, 2, 3]
            assert again == [first[2], first[0], first[1]]

    asyncio.run(main())
    assert server_counts.calls == 3


def test_a_part_that_is_made_again_finds_what_it_has_bought() -> None:
    server_counts = Counting()

    async def main() -> None:
        async with scripted(server_counts) as server, paid_run(server.url) as run:
            with run.attempt():
                assert await asked(run, server.url, "0:review") == [1]
                assert await asked(run, server.url, "0:review") == [1]
                assert await asked(run, server.url, "0:review:1") == [2]

    asyncio.run(main())
    assert server_counts.calls == 2


def test_a_part_knows_what_its_answers_cost() -> None:
    async def main() -> list[Any]:
        seen = []
        async with scripted(Counting()) as server, paid_run(server.url) as run:
            for _ in range(2):
                with run.attempt():
                    whole = attempt_context.current.get()
                    assert whole is not None
                    part = whole.part("0:review")
                    token = attempt_context.current.set(part)
                    await run.clients.http.post(
                        f"{server.url}/v1/chat/completions", json={"model": "m"}
                    )
                    attempt_context.current.reset(token)
                    assert part.calls is not None
                    assert part.calls.delivered is not None
                    seen += part.calls.delivered
        return seen

    bought, reused = asyncio.run(main())
    assert (bought.is_reused, reused.is_reused) == (False, True)
    for told in (bought, reused):
        assert (told.answer.input_tokens, told.answer.output_tokens) == (3, 4)
        assert told.answer.key.fingerprint.endswith("#0:review")
        assert told.answer.body is None


def test_what_stops_an_attempt_stops_its_parts() -> None:
    async def main() -> None:
        async with scripted(Counting()) as server, paid_run(server.url) as run:
            with run.attempt():
                whole = attempt_context.current.get()
                assert whole is not None
                part, left = whole.part("0:a"), whole.part("1:a")
                left.dissolve()
                left.dissolve()
                whole.stop("was cancelled")
                assert left.stop_reason is None
                attempt_context.current.set(part)
                with pytest.raises(AttemptOver, match="was cancelled"):
                    await run.clients.http.post(f"{server.url}/x")
                late = whole.part("2:a")
                assert late.stop_reason == "was cancelled"

    asyncio.run(main())


def test_the_parts_of_an_attempt_call_one_provider_together() -> None:
    called: list[tuple[str, bool]] = []
    whole = AttemptContext("job", on_call=lambda provider, first: called.append((provider, first)))
    for name in ("0:a", "1:a"):
        whole.part(name).calls_provider("openai")
    assert called == [("openai", True)]
