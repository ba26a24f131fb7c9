# SPDX-License-Identifier: Apache-2.0
"""Do quotes of content go, however they are written, and does the rest of a sentence stay?"""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.redaction.content_guard import QUOTED, extract_texts, redact_content

PROMPT = 'Tell me all about\nthe "yellow" bird, its nest and its song.'


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"Invalid prompt: {PROMPT}", f"Invalid prompt: {QUOTED}"),
        (f"Invalid prompt: {PROMPT!r}, shorten it", f"Invalid prompt: '{QUOTED}', shorten it"),
        (json.dumps({"error": PROMPT}), f'{{"error": "{QUOTED}"}}'),
        (json.dumps(json.dumps({"error": PROMPT})), f'"{{\\"error\\": \\"{QUOTED}\\"}}"'),
        ("No: the yellow bird, its nest … (cut)", f"No: {QUOTED} … (cut)"),
        ("the bird is yellow", "the bird is yellow"),
        ("status 404 for https://api.org/all/about/the/bird", None),
        ("", None),
    ],
)
def test_a_quote_goes_and_the_rest_stays(text: str, left: str | None) -> None:
    payload = json.dumps({"prompt": PROMPT, "url": "https://api.org/all/about/the/bird"})

    assert redact_content(text, extract_texts(payload)) == (text if left is None else left)


def test_a_part_of_a_very_long_word_goes_and_a_long_name_stays() -> None:
    image, path = "iVBORw0KGgo" * 40, "/data/" + "folder/" * 12 + "file.txt"

    text = redact_content(f"cannot decode {image[11:90]} of {path}", [image, path])

    assert text == f"cannot decode {QUOTED} of {path}"


def test_a_very_long_word_goes_though_less_of_it_is_known_than_is_quoted() -> None:
    image = "".join(f"{number:x}" for number in range(9_000))

    for part in (image, image[500:], image[:-500]):
        for known in (image[:8_000], image[-8_000:]):
            assert redact_content(f"cannot decode {part}", [known]) == f"cannot decode {QUOTED}"


def test_scripts_without_blanks_are_known_too() -> None:
    text = redact_content("got 请总结这篇文章的内容 back", ["请总结这篇文章的内容"])

    assert text == f"got {QUOTED} back"


def test_the_pieces_of_a_stream_are_read_together() -> None:
    words = [PROMPT[at : at + 3] for at in range(0, len(PROMPT), 3)]
    stream = "".join(
        f"data: {json.dumps({'choices': [{'delta': {'content': word}}]})}\n\n" for word in words
    )

    assert redact_content(f"not liked: {PROMPT}", extract_texts(stream)) == f"not liked: {QUOTED}"


@given(st.text(), st.lists(st.text()))
def test_doing_it_twice_changes_nothing(text: str, sources: list[str]) -> None:
    once = redact_content(text, sources)

    assert redact_content(once, sources) == once


def test_a_hostile_text_costs_little() -> None:
    began = time.monotonic()
    for piece in ("a ", '"', "\\", '\\"', "x" * 200 + " ", '{"a":"'):
        redact_content(piece * 16_000, extract_texts(piece * 200_000))

    assert time.monotonic() - began < 30


def test_a_document_that_was_cut_says_what_it_has_said_wherever_the_cut_is() -> None:
    words = "Tell me all about the yellow bird; 请总结这篇文章的内容 "
    content = f"{words}{json.dumps({'bird': 'yellow'})} " * 3
    body = json.dumps({"messages": [{"role": "user", "content": content}]})
    begins = body.index(json.dumps(words)[1:-1]) + len(json.dumps(words)) - 2

    for cut in range(begins, len(body)):
        assert redact_content(words, extract_texts(body[:cut])).strip() == QUOTED, body[:cut][-8:]


def test_a_document_that_was_cut_after_a_backslash_costs_little() -> None:
    began = time.monotonic()
    assert extract_texts('{"content": "' + '\\"' * 60_000 + "\\") == ['"' * 60_000]

    assert time.monotonic() - began < 30
