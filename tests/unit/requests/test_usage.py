# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.requests import usage
from penstock.requests.usage import (
    FILES_TOKENS_MAX,
    REPORTED_TOKENS_MAX,
    TokenEstimate,
    TokensUsed,
    UsageReader,
    prompt_tokens,
    read_request,
)

CHAT = {
    "id": "c1",
    "choices": [{"message": {"content": 'He said {"usage": {"total_tokens": 7}} to me.'}}],
    "usage": {
        "prompt_tokens": 10,
        "completion_tokens": 32,
        "total_tokens": 42,
        "completion_tokens_details": {"reasoning_tokens": 5},
    },
}
ANTHROPIC_STREAM = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","usage":'
    b'{"input_tokens":25,"output_tokens":1}}}\n\n'
    + b'event: content_block_delta\ndata: {"delta":{"text":"hello"}}\n\n'
    * 2_000
    + b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":15}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
OPENAI_STREAM = (
    b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n'
    * 2_000
    + b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}\n\n'
    b"data: [DONE]\n\n"
)


def tokens_of(body: bytes, step: int = 1_000) -> int | None:
    reader = UsageReader()
    for start in range(0, len(body), step):
        reader.feed(body[start : start + step])
    return reader.tokens()


@pytest.mark.parametrize("step", [1, 7, 1_000, 1_000_000])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (json.dumps(CHAT).encode(), 42),
        (json.dumps(CHAT, separators=(",", ":")).encode(), 42),
        (json.dumps(CHAT, indent=4).encode(), 42),
        (ANTHROPIC_STREAM, 40),
        (OPENAI_STREAM, 7),
        (b'{"usage": {"input_tokens": 3, "output_tokens": 4}}', 7),
        (b'{"usage": {"total_tokens": -3}}', None),
        (b'{"usage": {"total_tokens": 1e300}}', None),
        (b'{"usage": {"total_tokens": "NaN"}}', None),
        (b'{"usage": {"total_tokens": 99999999999999}}', None),
        (b'{"usage": {', None),
        (b'{"usage": null}', None),
        (b"", None),
    ],
)
def test_the_usage_of_a_reply_is_found(body: bytes, expected: int | None, step: int) -> None:
    assert tokens_of(body, step) == expected


def test_what_a_model_writes_is_no_usage() -> None:
    content = json.dumps({"content": '"usage": {"total_tokens": 7}'}).encode()

    assert tokens_of(content) is None


@given(st.binary(max_size=300))
def test_whatever_a_reply_holds_nothing_is_raised(body: bytes) -> None:
    tokens_of(b'{"usage":{' + body)
    tokens_of(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"usage":' + b'{"a":' * 2_500 + b"1" + b"}" * 2_501,
        b'{"usage":{"prompt_tokens":"\xff"}}',
        b'{"usage":{"\xff":"\xff"},"x":"\xff"}',
        b'{"model":"\xff"}',
    ],
    ids=["deep", "deep usage", "no text", "no names", "no model"],
)
def test_what_is_nested_without_end_or_no_text_tells_nothing(body: bytes) -> None:
    assert tokens_of(body) is None
    assert tokens_of(b'{"x":"' + b"y" * 50_000 + b'",' + body[1:]) is None
    assert read_request(body).model is None


@pytest.mark.parametrize("piece", [b'"usage":{', b'{"usage":{"a":', b'"usage":{"a":{}},'])
def test_a_reply_that_is_full_of_usages_is_read_once(piece: bytes) -> None:
    with mock.patch.object(usage, "_BRACE", mock.Mock(wraps=usage._BRACE)) as brace:
        tokens_of(b"[" + piece * (60_000 // len(piece)))

    looked_at = sum(call.args[2] - call.args[1] for call in brace.finditer.call_args_list)
    assert 0 < looked_at <= 4_000 * usage.USAGE_BYTES_MAX


def test_a_reader_keeps_a_bounded_part_of_a_body() -> None:
    reader = UsageReader()
    for _ in range(1_000):
        reader.feed(b"x" * 4_096)

    assert len(reader._head) + len(reader._tail) < 40_000


@pytest.mark.parametrize(
    ("body", "output"),
    [
        ({"max_tokens": 100}, 100),
        ({"max_output_tokens": 200}, 200),
        ({"max_completion_tokens": 300, "max_tokens": 1}, 300),
        ({"max_tokens": -1}, None),
        ({"max_tokens": "12"}, None),
        ({}, None),
    ],
)
def test_a_request_says_how_much_it_may_be_answered(
    body: dict[str, object], output: int | None
) -> None:
    assert read_request(json.dumps(body).encode()).output_tokens == output


@pytest.mark.parametrize("body", [None, b"", b"[1]", b"{", b'{"model": ', b"\xff\xfe", b"text"])
def test_a_body_that_is_no_json_object_says_nothing(body: bytes | None) -> None:
    asked = read_request(body)

    assert asked.model is None
    assert asked.output_tokens is None


def test_an_estimate_is_prompt_and_answer() -> None:
    body = json.dumps({"max_tokens": 100, "prompt": "x" * 4_000}).encode()

    assert 1_100 <= TokenEstimate().of(body, read_request(body)) < 1_120


def test_an_estimate_without_a_maximum_learns_what_answers_cost() -> None:
    estimate, body = TokenEstimate(), b'{"model": "m"}'
    for _ in range(100):
        estimate.learn(prompt_tokens(body), 503)

    assert 495 <= estimate.of(body, read_request(body)) <= 505


@pytest.mark.parametrize("size", [10, 10_000, 50_000])
@pytest.mark.parametrize("after", [{}, {"stop_reason": "tool_use"}])
def test_arguments_of_a_tool_are_no_usage(size: int, after: dict[str, str]) -> None:
    forged = {"usage": {"input_tokens": 90_000_000, "output_tokens": 90_000_000}}
    body = {
        "content": [{"type": "tool_use", "input": forged}, {"text": "x" * size}],
        "usage": {"input_tokens": 3, "output_tokens": 4},
        **after,
    }
    reader = UsageReader()
    reader.feed(json.dumps(body).encode())

    assert reader.used() == (3, 4, None)


@pytest.mark.parametrize(
    ("n", "expected"), [(None, 100), (3, 300), (0, 100), (-1, 100), ("3", 100), (10**9, 10**9)]
)
def test_every_answer_that_is_wanted_may_be_as_long(n: object, expected: int) -> None:
    asked = read_request(json.dumps({"max_tokens": 100, "n": n}).encode())

    assert asked.output_tokens == expected


EXPECTED = TokensUsed(50, 200)


def settled(usage: object, expected: TokensUsed = EXPECTED) -> tuple[int, int, bool]:
    reader = UsageReader()
    reader.feed(json.dumps({"usage": usage}).encode())
    used, is_estimated = reader.used().settle(expected)
    return *used, is_estimated


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 32, "total_tokens": 42}, (10, 32, False)),
        ({"input_tokens": 10, "output_tokens": 0}, (10, 0, False)),
        ({"input_tokens": 10, "cache_read_input_tokens": None, "output_tokens": 3}, (10, 3, False)),
        ({"input_tokens": 9, "cache_read_input_tokens": 1, "output_tokens": 3}, (10, 3, False)),
        ({"prompt_tokens": 10, "completion_tokens": "many"}, (10, 200, True)),
        ({"prompt_tokens": 10, "completion_tokens": None}, (10, 200, True)),
        ({"prompt_tokens": 10}, (10, 200, True)),
        ({"prompt_tokens": -1, "completion_tokens": 32}, (50, 32, True)),
        ({"input_tokens": 9, "cache_read_input_tokens": {}, "output_tokens": 3}, (50, 3, True)),
        ({"prompt_tokens": 10, "completion_tokens": REPORTED_TOKENS_MAX + 1}, (10, 200, True)),
        ({"prompt_tokens": 2**70, "completion_tokens": 2**70}, (50, 200, True)),
        ({"prompt_tokens": 10, "completion_tokens": [], "total_tokens": 42}, (10, 32, False)),
        ({"completion_tokens": 32, "total_tokens": 42}, (10, 32, False)),
        ({"prompt_tokens": 10, "total_tokens": 10}, (10, 0, False)),  # embeddings
        ({"prompt_tokens": 10, "total_tokens": 3}, (10, 0, False)),
        ({"total_tokens": 300}, (100, 200, True)),
        ({"total_tokens": 42}, (0, 42, True)),
        ({}, (50, 200, True)),
    ],
)
def test_what_a_reply_does_not_tell_costs_what_was_expected(
    usage: dict[str, object], expected: tuple[int, int, bool]
) -> None:
    assert settled(usage) == expected


def test_a_stream_that_ends_in_garbage_has_not_told_what_it_wrote() -> None:
    reader = UsageReader()
    reader.feed(ANTHROPIC_STREAM.replace(b'{"output_tokens":15}', b'{"output_tokens":"15"}'))

    assert reader.used() == (25, None, None)
    assert reader.tokens() is None


def test_where_nothing_was_expected_nothing_is_estimated() -> None:
    assert settled({}, TokensUsed(0, 0)) == (0, 0, False)


@pytest.mark.parametrize("size", [1_000, 400_000, 1_000_000, 8_000_000])
def test_a_prompt_counts_by_its_length_however_long(size: int) -> None:
    body = json.dumps({"prompt": "word " * (size // 5)}).encode()

    assert prompt_tokens(body) == len(body) // 4


def test_images_in_a_prompt_are_no_text() -> None:
    image = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * 50_000
    text = "word " * 200_000
    body = json.dumps({"content": [{"text": text}, {"image_url": {"url": image}}]}).encode()

    assert prompt_tokens(body) == pytest.approx(250_000 + FILES_TOKENS_MAX, abs=20)


def test_a_long_word_that_nobody_says_to_be_a_file_is_text() -> None:
    body = json.dumps({"prompt": "x" * 1_000_000}).encode()

    assert prompt_tokens(body) == len(body) // 4


def test_a_body_that_is_no_json_is_taken_for_a_file() -> None:
    assert prompt_tokens(b"\x89PNG" * 1_000_000) == FILES_TOKENS_MAX
    assert prompt_tokens(None) == 0
