# SPDX-License-Identifier: Apache-2.0
"""The small parts of the journal: which calls are equal, what is kept, who has which place."""

from __future__ import annotations

import asyncio
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.requests.journal.call as call_module
from penstock.config.provider_policy import idempotency_header
from penstock.config.settings import ProviderSettings
from penstock.model.job import JobId, LeasedJob
from penstock.model.journal import CallKey, CallState
from penstock.requests.journal.attempt_calls import AttemptCalls
from penstock.requests.journal.call import (
    PIECE_BYTES,
    BodyRecorder,
    is_truncated,
    replay,
    safe_headers,
)
from penstock.requests.journal.paid_policy import fingerprint, idempotency_key
from penstock.requests.usage import NO_USAGE, TokensUsed, UsageReader

URL = "https://api.example/v1/chat"

# Which calls are the same


def test_a_fingerprint_is_the_same_for_ever() -> None:
    """Whoever changes this changes the version too: old journals must not be misread."""
    found = fingerprint("POST", URL, b'{"a":1}')
    assert found == "1:b5decba42588a88594d2d5d8694ed050cdc14bf0"


def test_method_url_and_body_make_a_call_another_one_and_fragments_do_not() -> None:
    same = fingerprint("post", f"{URL}#part", b"x")
    assert same == fingerprint("POST", URL, b"x", "text/plain")
    others = {
        fingerprint("PUT", URL, b"x"),
        fingerprint("POST", f"{URL}?a=1", b"x"),
        fingerprint("POST", URL, b"y"),
        fingerprint("POST", f"{URL}x", b""),
    }
    assert len(others) == 4
    assert same not in others


def test_the_random_line_of_a_multipart_body_does_not_count() -> None:
    def sent(line: str, text: str = "hi") -> str:
        body = f"--{line}\r\n\r\n{text}\r\n--{line}--\r\n".encode()
        return fingerprint("POST", URL, body, f"multipart/form-data; boundary={line}")

    assert sent("0a1b2c3d4e") == sent("ffffffffff")
    assert sent("0a1b2c3d4e") != sent("0a1b2c3d4e", "ho")


def test_an_idempotency_key_tells_stores_jobs_places_and_purchases_apart() -> None:
    key = CallKey(JobId(1), "f", 0)
    keys = {
        idempotency_key("a", 1, key, 0),
        idempotency_key("b", 1, key, 0),
        idempotency_key("a", 2, key, 0),
        idempotency_key("a", 1, key._replace(job=JobId(2)), 0),
        idempotency_key("a", 1, key._replace(ordinal=1), 0),
        idempotency_key("a", 1, key, 1),
    }
    assert len(keys) == 6
    assert idempotency_key("a", 1, key, 0) in keys


@pytest.mark.parametrize(
    ("url", "said", "expected"),
    [
        ("https://api.openai.com/v1", None, "Idempotency-Key"),
        ("https://api.anthropic.com", None, "Idempotency-Key"),
        ("https://api.anthropic.com", "", ""),
        ("https://api.example", None, None),
        ("https://api.example", "X-Key", "X-Key"),
        (None, None, None),
    ],
)
def test_the_header_of_known_hosts_is_known(
    url: str | None, said: str | None, expected: str | None
) -> None:
    settings = ProviderSettings(base_url=url, idempotency_header=said)
    assert idempotency_header(settings) == expected


# What is kept


def test_only_safe_headers_are_kept() -> None:
    raw = [
        (b"Content-Type", b"application/json"),
        (b"Set-Cookie", b"session=1"),
        (b"Authorization", b"Bearer x"),
        (b"OpenAI-Organization", b"acme"),
        (b"X-RateLimit-Remaining-Tokens", b"9"),
        (b"anthropic-ratelimit-requests-limit", b"50"),
        (b"Content-Length", b"12"),
        (b"Location", b"/jobs/7"),
        (b"Proxy-Authenticate", b"Basic"),
        (b"x-request-id", b"r" * 5_000),
    ]
    kept = safe_headers(raw)
    assert [name for name, _ in kept] == [
        "content-type",
        "x-ratelimit-remaining-tokens",
        "anthropic-ratelimit-requests-limit",
        "location",
        "x-request-id",
    ]
    assert len(kept[-1][1]) == 1_000


@given(st.lists(st.binary(max_size=2_000), max_size=20))
def test_a_recorded_body_is_played_as_it_was(pieces: list[bytes]) -> None:
    recorder = BodyRecorder()
    for piece in pieces:
        recorder.add(piece)
    body = recorder.finish()
    assert body is not None
    assert b"".join(replay(body)) == b"".join(pieces)


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b'{"a": 1}', "application/json", False),
        (b'{"a": 1', "application/json", True),
        (b'{"a": "b', "application/json; charset=utf-8", True),
        (b'{"a": "\xe2\x82', "Application/Problem+JSON", True),
        (b"", "application/json", True),
        (b"[1, 2", "application/vnd.api.v1+json", True),
        (b'{"a": NaN}', "application/json", False),  # Python reads it
        (b'{"a": 1}\n{"a', "application/json", False),  # lines under a wrong name
        (b'{"a": 1}\n{"a', "application/x-ndjson", False),
        (b"<html>", "application/json", False),
        (b'{"a": 1', "text/plain", False),
        (b'{"a": 1', "", False),
    ],
)
def test_a_json_document_without_its_end_is_known(body: bytes, kind: str, expected: bool) -> None:
    recorder = BodyRecorder()
    recorder.add(body)
    kept = recorder.finish()

    assert kept is not None
    assert is_truncated(kept, kind) is expected


def test_a_body_is_played_in_pieces_of_bounded_size() -> None:
    recorder = BodyRecorder()
    recorder.add(bytes(10 * PIECE_BYTES))
    body = recorder.finish()
    assert body is not None
    assert len(body) < PIECE_BYTES
    assert max(map(len, replay(body))) <= PIECE_BYTES


def test_a_body_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "BODY_BYTES_MAX", 100)
    noise = zlib.compress(bytes(range(256)) * 4)[:200]
    for pieces in ([noise], [noise[:60], noise[60:]], [noise[n : n + 1] for n in range(200)]):
        recorder = BodyRecorder()
        for piece in pieces:
            recorder.add(piece)
        assert recorder.finish() is None


@pytest.mark.parametrize(
    "last", [b"data: [DONE]\n\n", b'data: {"type": "message_stop"}\n\n', b"data: [DO", b"NE]\n\n"]
)
def test_streams_say_when_they_have_said_all(last: bytes) -> None:
    recorder = BodyRecorder()
    recorder.add(b'data: {"delta": "x"}\n\n' * 50)
    assert not recorder.has_last_event
    recorder.add(b"data: [DO" if last == b"NE]\n\n" else b"")
    recorder.add(last)
    assert recorder.has_last_event is (last != b"data: [DO")


def test_a_last_event_may_be_long_and_is_no_words_of_a_model() -> None:
    recorder = BodyRecorder()
    recorder.add(b'data: {"delta": "a stream ends by data: [DONE], or \\"message_stop\\""}\n\n')
    assert not recorder.has_last_event
    recorder.add(b'event: response.completed\ndata: {"type":"response.completed","response":{"')
    recorder.add(b"y" * 1_000)
    assert not recorder.has_last_event
    recorder.add(b'"}}\n\n')
    assert recorder.has_last_event


# What it cost


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (b'{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}', (10, 5)),
        (b'{"prompt_tokens":10,"total_tokens":10}', (10, 0)),
        (b'{"input_tokens":7,"output_tokens":3,"total_tokens":10}', (7, 3)),
        (
            b'{"input_tokens":7,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,'
            b'"output_tokens":3}',
            (127, 3),
        ),
        (b'{"total_tokens":12}', (12, 0)),
    ],
)
def test_usage_is_split_into_what_was_read_and_written(
    usage: bytes, expected: tuple[int, int]
) -> None:
    reader = UsageReader()
    reader.feed(b'{"x":1,"usage":' + usage + b"}")
    assert reader.used().settle(TokensUsed(9, 0)) == (TokensUsed(*expected), False)


def test_a_reply_without_a_usage_says_nothing() -> None:
    reader = UsageReader()
    reader.feed(b'{"x":1}')
    assert reader.used() == NO_USAGE


# Who has which place


def calls(token: int = 1) -> AttemptCalls:
    return AttemptCalls(LeasedJob(JobId(1), token, "job", "task", "g", 0, "[]"))


def test_equal_calls_have_places_in_order_and_leave_them_to_the_next() -> None:
    own = calls()
    first, second, other = own.take_key("f"), own.take_key("f"), own.take_key("g")
    assert [first.ordinal, second.ordinal, other.ordinal] == [0, 1, 0]
    own.free_key(second)
    own.free_key(first)
    assert [own.take_key("f").ordinal for _ in range(3)] == [0, 1, 2]


def test_doubts_are_those_of_one_provider() -> None:
    own = calls()
    own.record_state(CallKey(JobId(1), "a", 0), CallState.OPEN, "p", "m", 0)
    own.record_state(CallKey(JobId(1), "b", 0), CallState.OPEN, "q", "m", 0)
    own.record_state(CallKey(JobId(1), "c", 0), CallState.ANSWERED, "p", "m", 0)
    assert own.in_doubt_with("p") == [CallKey(JobId(1), "a", 0)]


def test_a_place_is_taken_when_what_is_written_about_it_is_durable() -> None:
    async def main() -> None:
        own = calls()
        key = own.take_key("f")
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        own.track_write(key, first)
        waiting = asyncio.ensure_future(own.wait_written(key))
        await asyncio.sleep(0)
        first.add_done_callback(lambda _: own.track_write(key, second))
        first.set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        second.set_exception(OSError())
        await waiting

    asyncio.run(main())
