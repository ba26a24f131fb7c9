# SPDX-License-Identifier: Apache-2.0
"""Is each service asked in its own words, and are its replies read as they are?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.tables.chat import (
    AnswerRejected,
    Attached,
    ChatReply,
    Endpoint,
    Message,
    chat_request,
    read_reply,
)

OPENAI = Endpoint("https://api.openai.com/v1")
ANTHROPIC = Endpoint("https://api.anthropic.com", "anthropic")
OWN = Endpoint("http://127.0.0.1:8000/v1")
HELLO = [Message("user", "Hello.")]
PICTURE = Attached("cat.png", "image/png", "aGk=")
PAPER = Attached("paper.pdf", "application/pdf", "aGk=")


def completion(content: Any, **more: Any) -> bytes:
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return json.dumps({"choices": [{**choice, **more}], "model": "m-2026"}).encode()


def rejected(document: bytes) -> str:
    with pytest.raises(AnswerRejected) as caught:
        read_reply(document)
    assert "SECRET" not in caught.value.reason
    return caught.value.kind


def test_a_system_text_is_a_turn_for_openai_and_a_field_for_anthropic() -> None:
    path, body = chat_request(OPENAI, "gpt-5", HELLO, system="Be brief.")
    assert path == "/chat/completions"
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
    ]
    path, body = chat_request(ANTHROPIC, "claude", HELLO, system="Be brief.")
    assert path == "/v1/messages"
    assert body["system"] == "Be brief."
    assert body["messages"] == [{"role": "user", "content": "Hello."}]


def test_a_base_url_that_names_the_version_of_anthropic_does_not_get_it_twice() -> None:
    assert chat_request(ANTHROPIC._replace(base_url="https://x.example/v1/"), "c", HELLO)[0] == (
        "/messages"
    )


def test_anthropic_is_told_a_longest_answer_where_the_author_says_none() -> None:
    assert chat_request(ANTHROPIC, "claude", HELLO)[1]["max_tokens"] == 4096
    asked = chat_request(ANTHROPIC, "claude", HELLO, parameters={"max_tokens": 9})
    assert asked[1]["max_tokens"] == 9


def test_only_openai_itself_gets_the_newer_name_of_the_longest_answer() -> None:
    parameters = {"max_tokens": 9, "temperature": 0.5}
    asked = chat_request(OPENAI, "gpt-5", HELLO, parameters=parameters)[1]
    assert (asked["max_completion_tokens"], asked["temperature"]) == (9, 0.5)
    assert "max_tokens" not in asked
    assert chat_request(OWN, "llama", HELLO, parameters=parameters)[1]["max_tokens"] == 9
    both = {"max_tokens": 9, "max_completion_tokens": 7}
    assert chat_request(OPENAI, "gpt-5", HELLO, parameters=both)[1]["max_completion_tokens"] == 7


def test_only_openai_itself_is_told_a_schema() -> None:
    schema = {"type": "object"}
    asked = chat_request(OPENAI, "gpt-5", HELLO, schema=schema)[1]
    assert asked["response_format"]["json_schema"]["schema"] == schema
    for other in (OWN, ANTHROPIC):
        assert "response_format" not in chat_request(other, "m", HELLO, schema=schema)[1]


def test_what_the_author_says_wins() -> None:
    own = {"response_format": {"type": "json_object"}}
    asked = chat_request(OPENAI, "gpt-5", HELLO, schema={"type": "object"}, parameters=own)[1]
    assert asked["response_format"] == {"type": "json_object"}


def test_files_go_before_the_text_in_the_form_of_the_service() -> None:
    turn = [Message("user", "What is this?", [PICTURE, PAPER])]
    image, paper, text = chat_request(OPENAI, "gpt-5", turn)[1]["messages"][0]["content"]
    assert image["image_url"]["url"] == "data:image/png;base64,aGk="
    assert paper["file"]["filename"] == "paper.pdf"
    assert text == {"type": "text", "text": "What is this?"}
    image, paper, text = chat_request(ANTHROPIC, "claude", turn)[1]["messages"][0]["content"]
    assert image["source"] == {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert (image["type"], paper["type"], text["type"]) == ("image", "document", "text")


def test_a_completion_is_read_with_its_usage() -> None:
    document = json.loads(completion("Hi."))
    document["usage"] = {
        "prompt_tokens": 12,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    reply = read_reply(json.dumps(document).encode())
    assert reply == ChatReply("Hi.", "stop", 12, 8, 3, "m-2026")


def test_a_message_of_anthropic_is_read_with_what_its_cache_gave() -> None:
    document = {
        "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi."}],
        "stop_reason": "end_turn",
        "model": "claude",
        "usage": {
            "input_tokens": 4,
            "cache_read_input_tokens": 8,
            "cache_creation_input_tokens": 1,
            "output_tokens": 3,
        },
    }
    reply = read_reply(json.dumps(document).encode())
    assert reply == ChatReply("Hi.", "end_turn", 13, 8, 3, "claude")


@pytest.mark.parametrize("usage", [None, [], "x", {"prompt_tokens": "SECRET"}, {"n": -1}])
def test_a_usage_that_cannot_be_read_is_unknown(usage: object) -> None:
    document = {**json.loads(completion("Hi.")), "usage": usage}
    reply = read_reply(json.dumps(document).encode())
    assert (reply.input_tokens, reply.cached_tokens, reply.output_tokens) == (None, None, None)


def test_what_a_model_thinks_aloud_is_no_part_of_its_answer() -> None:
    assert read_reply(completion("<think>\nSECRET?\n</think>\n\nFour.")).text == "Four."
    assert read_reply(completion("I <think> so.")).text == "I <think> so."


def test_parts_of_a_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "other"}, {"type": "text", "text": "b"}]
    assert read_reply(completion(parts)).text == "ab"


@pytest.mark.parametrize("reason", ["length", "max_tokens"])
def test_an_answer_that_was_cut_off_says_so(reason: str) -> None:
    assert read_reply(completion("Once upon", finish_reason=reason)).is_cut_off


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (b"", "no answer"),
        (b"SECRET", "no answer"),
        (b"[]", "no answer"),
        (b'{"error": {"message": "SECRET"}}', "no answer"),
        (b'{"choices": []}', "no answer"),
        (b'{"choices": [{"message": null}]}', "no answer"),
        (completion(None), "no answer"),
        (completion("  \n"), "no answer"),
        (completion("<think>SECRET</think>"), "no answer"),
        (completion("", finish_reason="length"), "cut off"),
        (completion("SECRET", finish_reason="content_filter"), "refused"),
        (b'{"choices": [{"message": {"content": null, "refusal": "SECRET"}}]}', "refused"),
        (b'{"content": [], "stop_reason": "refusal"}', "refused"),
        (b'{"choices": [' * 2000, "no answer"),
    ],
)
def test_what_is_no_answer_is_rejected_without_a_quote(document: bytes, kind: str) -> None:
    assert rejected(document) == kind
