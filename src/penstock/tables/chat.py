# SPDX-License-Identifier: Apache-2.0
"""Requests to chat models and their replies: OpenAI's chat completions, Anthropic's messages.

Every other service is asked as OpenAI is: what calls itself compatible knows chat completions. No
SDK is needed, and nothing here sends: a request is a path below the base URL and a JSON body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

ANTHROPIC = "anthropic"
ANTHROPIC_TOKENS = 4096  # of an answer, where the author says nothing and the service insists
SCHEMA_NAME = "answer"

#: What a model thinks aloud before it answers, where its server does not take it apart.
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)


class AnswerRejected(Exception):
    """A reply that is no answer, or not the wanted one; its reason quotes nothing of it."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind  # a word for counts: "no answer", "cut off", "refused", "no JSON", …
        self.reason = reason


class Attached(NamedTuple):
    """A file that goes with a message."""

    name: str
    media_type: str  # "image/png"
    content: str  # base64


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str  # "user" or "assistant"
    text: str
    files: Sequence[Attached] = ()


class Endpoint(NamedTuple):
    """A service that answers chats."""

    base_url: str
    api: str | None = None  # "anthropic"; else as OpenAI

    @property
    def is_openai(self) -> bool:
        """OpenAI itself, which knows what services that are compatible with it need not know."""
        return (urlsplit(self.base_url).hostname or "").endswith("openai.com")


class ChatReply(NamedTuple):
    """What a model has answered, and what it says that it has read and written."""

    text: str
    finish_reason: str | None = None  # in its service's own words
    input_tokens: int | None = None  # None: the reply does not say
    cached_tokens: int | None = None  # of the input
    output_tokens: int | None = None
    model: str | None = None

    @property
    def is_cut_off(self) -> bool:
        """It ended since it had become as long as it may be."""
        return self.finish_reason in ("length", "max_tokens")


def chat_request(
    endpoint: Endpoint,
    model: str,
    messages: Sequence[Message],
    *,
    system: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    schema: Mapping[str, Any] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request.

    Args:
        endpoint: who is asked.
        model: as its service calls it.
        messages: the conversation so far; the last turn is the user's.
        system: what the model is told before it.
        parameters: go into the body as they are.
        schema: a JSON schema that the answer must follow. OpenAI is told of it; whoever else is
            asked learns it from the prompt.
    """
    if endpoint.api == ANTHROPIC:
        return _anthropic(endpoint, model, messages, system, dict(parameters or {}))
    body: dict[str, Any] = {"model": model, "messages": []}
    if system is not None:
        body["messages"].append({"role": "system", "content": system})
    body["messages"] += [{"role": one.role, "content": _openai_content(one)} for one in messages]
    given = dict(parameters or {})
    if endpoint.is_openai and "max_tokens" in given:  # its newer models refuse the older name
        given.setdefault("max_completion_tokens", given.pop("max_tokens"))
    if endpoint.is_openai and schema is not None:
        wanted = {"name": SCHEMA_NAME, "schema": schema, "strict": False}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return "/chat/completions", {**body, **given}


def _anthropic(
    endpoint: Endpoint,
    model: str,
    messages: Sequence[Message],
    system: str | None,
    parameters: dict[str, Any],
) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"model": model}
    if system is not None:
        body["system"] = system
    body["messages"] = [{"role": one.role, "content": _anthropic_content(one)} for one in messages]
    has_version = urlsplit(endpoint.base_url).path.rstrip("/").endswith("/v1")
    path = "/messages" if has_version else "/v1/messages"
    return path, {**body, "max_tokens": ANTHROPIC_TOKENS, **parameters}


def _openai_content(message: Message) -> Any:  # noqa: ANN401 (JSON)
    if not message.files:
        return message.text
    return [*map(_openai_file, message.files), {"type": "text", "text": message.text}]


def _openai_file(file: Attached) -> dict[str, Any]:
    url = f"data:{file.media_type};base64,{file.content}"
    if file.media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": file.name, "file_data": url}}


def _anthropic_content(message: Message) -> Any:  # noqa: ANN401 (JSON)
    if not message.files:
        return message.text
    return [*map(_anthropic_file, message.files), {"type": "text", "text": message.text}]


def _anthropic_file(file: Attached) -> dict[str, Any]:
    kind = "image" if file.media_type.startswith("image/") else "document"
    source = {"type": "base64", "media_type": file.media_type, "data": file.content}
    return {"type": kind, "source": source}


# ── Replies ───────────────────────────────────────────────────────────────────────────────────────


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: object = None
    completion_tokens: object = None
    prompt_tokens_details: object = None
    input_tokens: object = None
    output_tokens: object = None
    cache_read_input_tokens: object = None
    cache_creation_input_tokens: object = None


class _Message(msgspec.Struct, gc=False):
    content: object = None
    refusal: object = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message | None = None
    finish_reason: object = None


class _Completion(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    content: object = None  # of Anthropic: a list of blocks
    stop_reason: object = None
    model: object = None
    usage: object = None


_completion = msgspec.json.Decoder(_Completion)


def read_reply(document: bytes) -> ChatReply:
    """Read a reply of either kind.

    Raises:
        AnswerRejected: it is no answer, though its status says so; or the model has refused to
            answer.
    """
    try:
        reply = _completion.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise AnswerRejected("no answer", "the reply is not a chat completion") from None
    usage = _usage(reply.usage)
    model = reply.model if isinstance(reply.model, str) else None
    if reply.choices:
        choice = reply.choices[0]
        message = choice.message or _Message()
        text, reason = _text(message.content), _word(choice.finish_reason)
        if message.refusal or reason == "content_filter":
            raise AnswerRejected("refused", "the model refuses to answer")
    else:
        text, reason = _text(reply.content), _word(reply.stop_reason)
        if reason == "refusal":
            raise AnswerRejected("refused", "the model refuses to answer")
    if text is None:
        raise AnswerRejected("no answer", "the reply has no text")
    text = _THOUGHT.sub("", text)
    answer = ChatReply(text, reason, *usage, model)
    if not text.strip():
        if answer.is_cut_off:
            raise AnswerRejected("cut off", "the model had used up its tokens before it answered")
        raise AnswerRejected("no answer", "the answer is empty")
    return answer


def _text(content: object) -> str | None:
    """The text of a message: as such, or as parts of which those that are text count."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [
        part["text"]
        for part in content
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]
    return "".join(parts) if parts else None


def _usage(said: object) -> tuple[int | None, int | None, int | None]:
    """Tokens read, those of them that were cached, and tokens written."""
    try:
        usage = msgspec.convert(said, _Usage)
    except msgspec.ValidationError:
        return None, None, None
    written = _count(usage.output_tokens)
    if _count(usage.prompt_tokens) is not None:
        cached = None
        if isinstance(usage.prompt_tokens_details, dict):
            cached = _count(usage.prompt_tokens_details.get("cached_tokens"))
        return _count(usage.prompt_tokens), cached, _count(usage.completion_tokens)
    cached, read = _count(usage.cache_read_input_tokens), _count(usage.input_tokens)
    if read is not None:  # of Anthropic: what a cache gives comes on top
        read += (cached or 0) + (_count(usage.cache_creation_input_tokens) or 0)
    return read, cached, _count(usage.completion_tokens) if written is None else written


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 10**9 else None


def _word(value: object) -> str | None:
    return value[:100] if isinstance(value, str) else None
