# SPDX-License-Identifier: Apache-2.0
"""Does a column of a batch arrive at the server as it was?"""

from __future__ import annotations

import psycopg
import pytest

from penstock.stores.postgres.bulk_insert import numbers, texts

AWKWARD = [
    "",
    " ",
    "null",
    "NULL",
    "a,b",
    "{a}",
    'say "x"',
    "back\\slash",
    '\\"',
    "line\nfeed\ttab",
    "é\U0010ffff",
    None,
]


def test_numbers_are_joined_and_none_is_null() -> None:
    assert numbers([1, -(2**63), None]) == "{1,-9223372036854775808,null}"
    assert numbers([]) == "{}"


def test_texts_are_quoted_and_none_is_not() -> None:
    assert texts(["a", None, "null"]) == '{"a",null,"null"}'
    assert texts(['"', "\\"]) == '{"\\"","\\\\"}'
    assert texts([]) == "{}"


@pytest.mark.integration
def test_the_server_reads_every_text_as_it_was(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("select %s::text[]", (texts(AWKWARD),)).fetchone()

    assert found == (AWKWARD,)
