# SPDX-License-Identifier: Apache-2.0
"""Replies in the dialects of OpenAI, Anthropic and plain JSON; rate-limit headers, streams."""

from __future__ import annotations

import base64
import math
import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from enum import StrEnum
from typing import Any

import msgspec

from penstock.testing.simulated_provider.rules import (
    HeaderStyle,
    Part,
    QuotaState,
    Reply,
    SimulatedRequest,
)

Headers = list[tuple[str, str]]
CHARACTERS_PER_TOKEN = 4
STREAM_WORDS_MAX = 16  # pieces of a streamed answer
FIRST_PART = 0.3  # of a stream's latency passes before its first byte
EMBEDDING_SIZE = 8

_SENT = ("the", "water", "runs", "through", "a", "gate", "and", "turns", "wheel", "below")


def rate_headers(style: HeaderStyle, quotas: Mapping[str, QuotaState], wall: float) -> Headers:
    """What a reply tells of each quota (`requests`, `tokens`), at a wall-clock time."""
    told: Headers = []
    for name, state in quotas.items():
        if style == "openai":
            told += _openai(name, state)
        elif style == "anthropic":
            told += _anthropic(name, state, wall)
        elif style == "github":
            told += _github(name, state, wall)
        elif style == "ietf_three":
            told += _three_fields(name, state)
    if style == "ietf" and quotas:
        told.append(("ratelimit-policy", ", ".join(map(_policy, quotas, quotas.values()))))
        told.append(("ratelimit", ", ".join(map(_limit, quotas, quotas.values()))))
    return told


def retry_after(seconds: float, wall: float | None) -> str:
    """Seconds, or a date if the wall-clock time is given; whole seconds, never too early."""
    if wall is None:
        return str(math.ceil(seconds))
    return formatdate(math.ceil(wall + seconds), usegmt=True)


def go_duration(seconds: float) -> str:
    """As OpenAI writes durations: `20ms`, `6m0s`, `1h0m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    short = f"{rest:.3f}".rstrip("0").rstrip(".")
    if hours:
        return f"{hours}h{minutes}m{short}s"
    return f"{minutes}m{short}s" if minutes else f"{short}s"


def _openai(name: str, state: QuotaState) -> Headers:
    return [
        (f"x-ratelimit-limit-{name}", _whole(state.limit)),
        (f"x-ratelimit-remaining-{name}", _whole(state.remaining)),
        (f"x-ratelimit-reset-{name}", go_duration(state.reset_seconds)),
    ]


def _anthropic(name: str, state: QuotaState, wall: float) -> Headers:
    reset = datetime.fromtimestamp(math.ceil(wall + state.reset_seconds), UTC)
    return [
        (f"anthropic-ratelimit-{name}-limit", _whole(state.limit)),
        (f"anthropic-ratelimit-{name}-remaining", _whole(state.remaining)),
        (f"anthropic-ratelimit-{name}-reset", reset.strftime("%Y-%m-%dT%H:%M:%SZ")),
    ]


def _github(name: str, state: QuotaState, wall: float) -> Headers:
    if name != "requests":
        return []
    return [
        ("x-ratelimit-limit", _whole(state.limit)),
        ("x-ratelimit-remaining", _whole(state.remaining)),
        ("x-ratelimit-used", _whole(state.limit - math.floor(state.remaining))),
        ("x-ratelimit-reset", str(math.ceil(wall + state.reset_seconds))),
        ("x-ratelimit-resource", "core"),
    ]


def _three_fields(name: str, state: QuotaState) -> Headers:
    if name != "requests":
        return []
    window = math.ceil(state.window_seconds)
    return [
        ("ratelimit-limit", _whole(state.limit)),
        ("ratelimit-policy", f"{_whole(state.limit)};w={window}"),
        ("ratelimit-remaining", _whole(state.remaining)),
        ("ratelimit-reset", str(math.ceil(state.reset_seconds))),
    ]


def _policy(name: str, state: QuotaState) -> str:
    return f'"{name}";q={_whole(state.limit)};w={math.ceil(state.window_seconds)}'


def _limit(name: str, state: QuotaState) -> str:
    return f'"{name}";r={_whole(state.remaining)};t={math.ceil(state.reset_seconds)}'


def _whole(value: float) -> str:
    return str(math.floor(value))


class Dialect(StrEnum):
    """APIs that are spoken."""

    OPENAI_CHAT = "openai_chat"
    OPENAI_EMBEDDINGS = "openai_embeddings"
    ANTHROPIC_MESSAGES = "anthropic_messages"
    PLAIN = "plain"


_PATHS = {
    "/v1/chat/completions": Dialect.OPENAI_CHAT,
    "/v1/embeddings": Dialect.OPENAI_EMBEDDINGS,
    "/v1/messages": Dialect.ANTHROPIC_MESSAGES,
}


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call costs in tokens."""

    prompt: int
    completion: int

    @property
    def total(self) -> int:
        return self.prompt + self.completion


def dialect_of(request: SimulatedRequest) -> Dialect:
    return _PATHS.get(request.path, Dialect.PLAIN) if request.method == "POST" else Dialect.PLAIN


def usage_of(request: SimulatedRequest, completion_max: int, dice: random.Random) -> Usage:
    """Prompts by their length, completions by chance up to what the client allows."""
    dialect = dialect_of(request)
    asked = _document(request)
    if dialect is Dialect.PLAIN:
        return Usage(0, 0)
    text = asked.get("input") if dialect is Dialect.OPENAI_EMBEDDINGS else asked.get("messages")
    length = len(text) if isinstance(text, str) else len(msgspec.json.encode(text))
    prompt = max(1, length // CHARACTERS_PER_TOKEN)
    if dialect is Dialect.OPENAI_EMBEDDINGS:
        return Usage(prompt, 0)
    allowed = asked.get("max_completion_tokens") or asked.get("max_tokens")
    most = allowed if isinstance(allowed, int) and allowed > 0 else completion_max
    return Usage(prompt, dice.randint(max(1, most // 4), most))


def success(request: SimulatedRequest, usage: Usage, latency: float, dice: random.Random) -> Reply:
    """What the provider says when all is well."""
    dialect = dialect_of(request)
    asked = _document(request)
    if dialect is Dialect.PLAIN:
        document: dict[str, Any] = {"path": request.path, "call": request.number}
    elif dialect is Dialect.OPENAI_EMBEDDINGS:
        document = _embeddings(asked, usage, dice)
    else:
        words = [dice.choice(_SENT) for _ in range(min(usage.completion, STREAM_WORDS_MAX))]
        if asked.get("stream") is True:
            spoken = _openai_stream if dialect is Dialect.OPENAI_CHAT else _anthropic_stream
            return _stream(spoken(request, asked, words, usage), len(words), latency, usage)
        whole = _openai_chat if dialect is Dialect.OPENAI_CHAT else _anthropic_message
        document = whole(request, asked, " ".join(words), usage)
    return Reply.of(document, wait_seconds=latency, tokens=usage.total)


def error(request: SimulatedRequest, status: int, kind: str, message: str) -> dict[str, Any]:
    """The body of an error, as this API writes it."""
    dialect = dialect_of(request)
    if dialect is Dialect.ANTHROPIC_MESSAGES:
        known = {429: "rate_limit_error", 529: "overloaded_error"}
        return {
            "type": "error",
            "error": {"type": known.get(status, "api_error"), "message": message},
        }
    if dialect is Dialect.PLAIN:
        return {"error": kind, "message": message}
    code = "rate_limit_exceeded" if status == 429 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _document(request: SimulatedRequest) -> Mapping[str, Any]:
    asked = request.json()
    return asked if isinstance(asked, dict) else {}


def _openai_usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.total,
    }


def _openai_chat(
    request: SimulatedRequest, asked: Mapping[str, Any], text: str, usage: Usage
) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": f"chatcmpl-{request.number}",
        "object": "chat.completion",
        "created": int(request.at_seconds),
        "model": asked.get("model", "simulated"),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": _openai_usage(usage),
    }


def _openai_stream(
    request: SimulatedRequest, asked: Mapping[str, Any], words: list[str], usage: Usage
) -> Iterator[bytes]:
    head = {
        "id": f"chatcmpl-{request.number}",
        "object": "chat.completion.chunk",
        "created": int(request.at_seconds),
        "model": asked.get("model", "simulated"),
    }

    def chunk(delta: dict[str, Any], finish: str | None) -> bytes:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        return _sse({**head, "choices": choices})

    yield chunk({"role": "assistant", "content": ""}, None)
    for index, word in enumerate(words):
        yield chunk({"content": word if index == 0 else f" {word}"}, None)
    yield chunk({}, "stop")
    options = asked.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        yield _sse({**head, "choices": [], "usage": _openai_usage(usage)})
    yield b"data: [DONE]\n\n"


def _embeddings(asked: Mapping[str, Any], usage: Usage, dice: random.Random) -> dict[str, Any]:
    given = asked.get("input")
    count = len(given) if isinstance(given, list) and given and not _numbers(given) else 1
    vectors = [[dice.uniform(-1.0, 1.0) for _ in range(EMBEDDING_SIZE)] for _ in range(count)]
    packed = asked.get("encoding_format") == "base64"
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _packed(v) if packed else v}
            for index, v in enumerate(vectors)
        ],
        "model": asked.get("model", "simulated"),
        "usage": {"prompt_tokens": usage.prompt, "total_tokens": usage.total},
    }


def _numbers(given: list[Any]) -> bool:
    """A single text may come as the numbers of its tokens."""
    return all(isinstance(one, int) for one in given)


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _anthropic_message(
    request: SimulatedRequest, asked: Mapping[str, Any], text: str, usage: Usage
) -> dict[str, Any]:
    return {
        "id": f"msg_{request.number}",
        "type": "message",
        "role": "assistant",
        "model": asked.get("model", "simulated"),
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": usage.prompt, "output_tokens": usage.completion},
    }


def _anthropic_stream(
    request: SimulatedRequest, asked: Mapping[str, Any], words: list[str], usage: Usage
) -> Iterator[bytes]:
    opening = _anthropic_message(request, asked, "", Usage(usage.prompt, 1))
    opening["stop_reason"] = None
    block = {"type": "text", "text": ""}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _event({"type": "message_start", "message": opening})
    yield _event({"type": "content_block_start", "index": 0, "content_block": block})
    for index, word in enumerate(words):
        delta = {"type": "text_delta", "text": word if index == 0 else f" {word}"}
        yield _event({"type": "content_block_delta", "index": 0, "delta": delta})
    yield _event({"type": "content_block_stop", "index": 0})
    counted = {"output_tokens": usage.completion}
    yield _event({"type": "message_delta", "delta": ended, "usage": counted})
    yield _event({"type": "message_stop"})


def _stream(messages: Iterator[bytes], words: int, latency: float, usage: Usage) -> Reply:
    step = latency * (1 - FIRST_PART) / max(1, words)
    waits = iter([0.0] + [step] * words)  # the words come one by one, their frame with them
    return Reply(
        headers=(("content-type", "text/event-stream"), ("cache-control", "no-store")),
        parts=tuple(Part(message, next(waits, 0.0)) for message in messages),
        wait_seconds=latency * FIRST_PART,
        tokens=usage.total,
    )


def _sse(document: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def _event(document: Mapping[str, Any]) -> bytes:
    return f"event: {document['type']}\n".encode() + _sse(document)
