# SPDX-License-Identifier: Apache-2.0
"""Does only strict JSON cross into a store, and does a refusal say where?"""

from __future__ import annotations

import dataclasses
import enum
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PayloadError, StrictJsonError
from penstock.model import strict_json
from penstock.model.job import TERMINAL, TRANSITIONS, JobState
from penstock.model.lease import ConfiguredCaps

LIMIT = 1024 * 1024

_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text
)
_documents = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4)
)


@given(_documents)
def test_strict_json_comes_back_as_it_went(value: Any) -> None:
    text = strict_json.dumps(value, limit_bytes=LIMIT)

    assert strict_json.loads(text) == value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": float("nan")}]}, "$.a[1].b"),
        ([float("inf")], "$[0]"),
        ({"a": 2**63}, "$.a"),
        ({"a": -(2**63) - 1}, "$.a"),
        ({"a": {1: 2}}, "$.a"),
        ({"a": b"bytes"}, "$.a"),
        ("\ud800", "$"),
        ({"a\x00": 1}, "$"),
        ("nul\x00", "$"),
        (object(), "$"),
    ],
    ids=["nan", "inf", "big", "small", "key", "bytes", "surrogate", "nul-key", "nul", "object"],
)
def test_what_is_not_strict_is_refused_with_its_place(value: Any, path: str) -> None:
    with pytest.raises(StrictJsonError) as error:
        strict_json.dumps(value, limit_bytes=LIMIT)

    assert error.value.path == path


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_sixty_four_levels_are_the_most() -> None:
    assert strict_json.loads(strict_json.dumps(_nested(64), limit_bytes=LIMIT)) == _nested(64)
    with pytest.raises(StrictJsonError, match="deeper than 64"):
        strict_json.dumps(_nested(65), limit_bytes=LIMIT)
    with pytest.raises(StrictJsonError, match="deeper than 64"):
        strict_json.loads("[" * 65 + "]" * 65)
    with pytest.raises(StrictJsonError, match="deeper than 64"):
        strict_json.loads("[" * 200_000)


def test_a_document_at_the_limit_is_kept_and_one_byte_more_is_not() -> None:
    assert len(strict_json.dumps("x" * 98, limit_bytes=100)) == 100
    with pytest.raises(StrictJsonError, match="at most 100"):
        strict_json.dumps("x" * 99, limit_bytes=100)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        "NaN",
        "[Infinity]",
        "[-Infinity]",
        '"\\ud800"',
        '"\\u0000"',
        "9223372036854775808",
        "1" * 5_000,
        "",
        "{",
        "1e999",
    ],
)
def test_text_from_outside_is_held_to_the_same_rules(text: str) -> None:
    with pytest.raises(PayloadError):
        strict_json.loads(text)


def test_bytes_that_are_not_utf8_are_refused_with_their_place() -> None:
    with pytest.raises(PayloadError, match="byte 3"):
        strict_json.loads(b'"a\xff"')


class _Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class _Point:
    x: int
    when: datetime
    colour: _Colour


def test_dataclasses_dates_and_enums_become_plain_json() -> None:
    value = _Point(1, datetime(2026, 1, 2, tzinfo=UTC), _Colour.RED)

    text = strict_json.dumps(value, limit_bytes=LIMIT)

    assert strict_json.loads(text) == {"x": 1, "when": "2026-01-02T00:00:00Z", "colour": "red"}


class _Stubborn:
    def model_dump(self, mode: str) -> object:
        raise LookupError("no such field")


def test_a_model_that_cannot_be_dumped_is_refused_as_such() -> None:
    with pytest.raises(StrictJsonError, match="no such field"):
        strict_json.dumps({"a": _Stubborn()}, limit_bytes=LIMIT)


def test_the_table_of_transitions_names_every_state_and_ends_only_where_jobs_end() -> None:
    assert set(TRANSITIONS) == set(JobState)
    for source, targets in TRANSITIONS.items():
        assert source not in targets
        if source in TERMINAL:
            assert not set(targets) & TERMINAL
            assert JobState.IN_PROGRESS not in targets
        else:
            assert JobState.CANCELLED in targets


def test_a_cap_is_found_by_its_key_then_by_its_dimension() -> None:
    caps = ConfiguredCaps({"host:*": 3, "host:slow": 1, "pool:all": 8})

    assert caps.cap("host:slow", {}) == 1
    assert caps.cap("host:other", {}) == 3
    assert caps.cap("host:a:b", {}) == 3
    assert caps.cap("pool:all", {}) == 8
    assert caps.cap("pool:other", {}) is None
    assert ConfiguredCaps().cap("host:x", {}) is None
