# SPDX-License-Identifier: Apache-2.0
"""Can every store keep the text of an error, and is no half of a secret in it?"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.job import AttemptError, ErrorCategory
from penstock.redaction.secrets import ERROR_BYTES_MAX, MARGIN, READ_MAX, storable_text

SECRET = "Zq7mXw2pLr9tKv4bZq7mXw2pLr9tKv4b"


@given(
    st.one_of(
        st.text(st.characters()), st.text("é😀 \x00\ud800a", min_size=1).map(lambda t: t * 9000)
    )
)
def test_a_storable_text_is_short_and_can_be_encoded(text: str) -> None:
    kept = storable_text(text)

    assert len(kept.encode()) <= ERROR_BYTES_MAX
    assert "\x00" not in kept
    assert storable_text(kept) == kept


@pytest.mark.parametrize(
    "before", [ERROR_BYTES_MAX - 10, ERROR_BYTES_MAX - 40, READ_MAX - 10, READ_MAX - MARGIN - 5]
)
@pytest.mark.parametrize("filler", ["x", "é", " ", "x "])
def test_a_secret_at_the_cut_leaves_no_half_behind(
    before: int, filler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUT_TOKEN", SECRET)
    text = (filler * before)[:before] + SECRET + "y" * 50_000

    kept = storable_text(text)

    assert SECRET[:8] not in kept
    assert len(kept.encode()) <= ERROR_BYTES_MAX


def test_many_secrets_do_not_bring_a_half_one_into_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at shrinks below the bound, so its very end is kept."""
    monkeypatch.setenv("LONG_TOKEN", SECRET * 100)
    text = (SECRET * 100 + " ") * 20 + "y" * 200
    text = text[: READ_MAX - 300] + SECRET * 100 + " end"

    assert SECRET[:8] not in storable_text(text + "z" * READ_MAX)


def test_an_error_is_redacted_whoever_makes_it_and_whoever_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_TOKEN", SECRET)

    made = AttemptError(ErrorCategory.OWN, f"Kind{SECRET}", f"a {SECRET}", f"{SECRET}.py:1 in f")
    raw = {"category": "own", "kind": "K", "message": f"old {SECRET}", "where": None}
    read = msgspec.json.decode(msgspec.json.encode(raw), type=AttemptError)

    assert made == AttemptError(
        ErrorCategory.OWN, "Kind[redacted]", "a [redacted]", "[redacted].py:1 in f"
    )
    assert read.message == "old [redacted]"
    assert msgspec.json.decode(msgspec.json.encode(made), type=AttemptError) == made
