# SPDX-License-Identifier: Apache-2.0
"""Can text from anywhere give orders to a terminal?"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.terminal_text import (
    escaped,
    format_dollars,
    format_duration,
    format_spending,
    format_table,
    iso_time,
    one_line,
    print_document,
)


@given(st.text())
def test_escaped_text_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    assert escaped(text).isprintable()


def test_printable_text_stays_as_it_is() -> None:
    assert escaped("doi:10.1/x – ü 漢") == "doi:10.1/x – ü 漢"
    assert escaped("a\x1b[31mb\n\x9b\u202e") == "a\\x1b[31mb\\n\\x9b\\u202e"


def test_a_sentence_has_one_line() -> None:
    assert one_line("first\n  second\x07 ") == "first second\\x07"


def test_a_document_on_a_terminal_is_json_without_orders(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = {"key": "a\x1b\x7f\x9b\u202e", "name": "ü"}

    print_document(document)

    out = capsys.readouterr().out
    assert json.loads(out) == document
    assert out.replace("\n", "").isprintable()
    assert "ü" in out


def test_times_are_iso_in_utc() -> None:
    assert iso_time(None) is None
    assert iso_time(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.4, "9.4 s"),
        (42, "42 s"),
        (200, "3:20"),
        (754, "12:34"),
        (7400, "2:03:20"),
    ],
)
def test_spans_are_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_tables_align_numbers_on_the_right() -> None:
    assert format_table(["", "done"], [["all", 1234], ["a\x1b", 5]]) == [
        "        done",
        "all    1,234",
        "a\\x1b      5",
    ]


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "$0.00"),
        (4_200, "$0.0042"),
        (20_000, "$0.02"),
        (500_000, "$0.50"),
        (1_234_000, "$1.23"),
        (1_204_500_000, "$1,204.50"),
    ],
)
def test_money_is_short(micros: int, text: str) -> None:
    assert format_dollars(micros) == text


@pytest.mark.parametrize(
    ("micros", "tokens", "words"),
    [(2_500_000, 7, "$2.50"), (0, 1_234, "1,234 tokens"), (0, 0, "nothing")],
)
def test_without_prices_tokens_are_what_was_spent(micros: int, tokens: int, words: str) -> None:
    assert format_spending(micros, tokens) == words
