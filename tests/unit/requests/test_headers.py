# SPDX-License-Identifier: Apache-2.0
"""What headers say about limits, and what they cannot make us believe (F45)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.request import Quota, QuotaReading
from penstock.requests.headers import NOTHING, HeadReading, read_headers

NOW = 1_772_366_400.0  # 2026-03-01 12:00:00 UTC


def read(*headers: tuple[str, str]) -> HeadReading:
    return read_headers([(name.encode(), value.encode("latin-1")) for name, value in headers], NOW)


def test_headers_that_say_nothing_of_limits_give_nothing() -> None:
    assert read(("Content-Type", "text/plain"), ("Date", "x")) is NOTHING


def test_open_ai_speaks_of_requests_and_tokens() -> None:
    head = read(
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "1s"),
        ("X-RateLimit-Limit-Tokens", "150000"),
        ("x-ratelimit-remaining-tokens", "149984"),
        ("x-ratelimit-reset-tokens", "6ms"),
    )

    assert head.readings == (
        QuotaReading(Quota.REQUESTS, 60, 59, 60.0, 1.0),
        QuotaReading(Quota.TOKENS, 150_000, 149_984, 60.0, 0.006),
    )


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [("6m0s", 360.0), ("1h2m3.5s", 3723.5), ("120ms", 0.12), ("0s", 0.0), ("8.64s", 8.64)],
)
def test_a_duration_of_open_ai_has_parts(reset: str, seconds: float) -> None:
    head = read(
        ("x-ratelimit-limit-requests", "10"),
        ("x-ratelimit-remaining-requests", "10"),
        ("x-ratelimit-reset-requests", reset),
    )

    assert head.readings[0].reset_seconds == pytest.approx(seconds)


def test_the_window_of_a_daily_limit_follows_from_its_reset() -> None:
    head = read(
        ("x-ratelimit-limit-requests", "10000"),
        ("x-ratelimit-remaining-requests", "9999"),
        ("x-ratelimit-reset-requests", "8.64s"),  # 86400 / 10000
    )

    assert head.readings[0].window_seconds == 86_400


def test_anthropic_gives_moments() -> None:
    head = read(
        ("anthropic-ratelimit-requests-limit", "50"),
        ("anthropic-ratelimit-requests-remaining", "49"),
        ("anthropic-ratelimit-requests-reset", "2026-03-01T12:00:01Z"),
        ("anthropic-ratelimit-tokens-limit", "40000"),
        ("anthropic-ratelimit-tokens-remaining", "20000"),
        ("anthropic-ratelimit-tokens-reset", "2026-03-01T13:00:30+01:00"),
    )

    assert head.readings == (
        QuotaReading(Quota.REQUESTS, 50, 49, 60.0, 1.0),
        QuotaReading(Quota.TOKENS, 40_000, 20_000, 60.0, 30.0),
    )


def test_git_hub_gives_an_epoch_and_names_its_bucket() -> None:
    said = [
        ("x-ratelimit-limit", "5000"),
        ("x-ratelimit-remaining", "4999"),
        ("x-ratelimit-reset", str(int(NOW) + 1800)),
    ]

    core = read(*said, ("x-ratelimit-resource", "core"))
    search = read(*said, ("x-ratelimit-resource", "search"))

    assert core.readings == (QuotaReading(Quota.REQUESTS, 5000, 4999, 3600.0, 1800.0),)
    assert search.readings == ()  # one bucket of several must not hold up the others


def test_a_small_reset_is_a_time_to_wait() -> None:
    head = read(
        ("x-ratelimit-limit", "100"), ("x-ratelimit-remaining", "7"), ("x-ratelimit-reset", "42")
    )

    assert head.readings == (QuotaReading(Quota.REQUESTS, 100, 7, 60.0, 42.0),)


def test_the_ietf_fields_give_the_tightest_of_their_members() -> None:
    head = read(
        ("RateLimit-Policy", '"burst";q=100;w=60, "daily";q=1000;w=86400'),
        ("RateLimit", '"burst";r=50;t=30, "daily";r=1;t=3600'),
    )

    assert head.readings == (QuotaReading(Quota.REQUESTS, 1000, 1, 86_400.0, 3600.0),)


def test_the_ietf_fields_of_other_units_are_passed_over() -> None:
    head = read(
        ("RateLimit-Policy", '"size";q=65535;qu="content-bytes";w=10'),
        ("RateLimit", '"size";r=50;t=3'),
    )

    assert head.readings == ()


def test_the_ietf_fields_of_early_drafts_are_read() -> None:
    head = read(("RateLimit-Limit", "10"), ("RateLimit-Remaining", "3"), ("RateLimit-Reset", "5"))

    assert head.readings == (QuotaReading(Quota.REQUESTS, 10, 3, 60.0, 5.0),)


MALFORMED = [
    *("-5", "NaN", "inf", "Infinity", "1e9", "", " ", "1_000", "0x10", "1,5", "+3", "٣", "³"),
    *("99999999999999999999", "9" * 65_536, "\x00", "12;34", "1 2", "nan s", "5 s", "--1"),
]


@pytest.mark.parametrize("value", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_number_is_no_reading(value: str) -> None:
    raw = value.encode("utf-8")
    for prefix, suffix in (("x-ratelimit-", "-requests"), ("x-ratelimit-", ""), ("ratelimit-", "")):
        good = {"limit": b"10", "remaining": b"3", "reset": b"5s" if suffix else b"5"}
        for broken in good:
            headers = [
                (f"{prefix}{name}{suffix}".encode(), raw if name == broken else text)
                for name, text in good.items()
            ]
            assert read_headers(headers, NOW).readings == ()


@pytest.mark.parametrize("value", [*MALFORMED, "Sun, 06 Nov 9999999 08:49:37 GMT"])
def test_a_malformed_retry_after_is_a_quarter_of_an_hour(value: str) -> None:
    head = read_headers([(b"retry-after", value.encode("utf-8"))], NOW)

    if not value.strip(" \t"):
        assert head.retry_after is None
    else:
        assert head.retry_after is not None
        assert head.retry_after.seconds == 900.0
        assert "treated as 15 min" in head.retry_after.doubt


def test_two_headers_of_a_name_are_ignored() -> None:
    head = read(
        ("ratelimit-limit", "10"),
        ("ratelimit-limit", "10"),
        ("ratelimit-remaining", "3"),
        ("ratelimit-reset", "5"),
    )

    assert head == HeadReading(None, ())


@pytest.mark.parametrize(("limit", "remaining"), [("0", "0"), ("5", "6"), ("9999999999999", "1")])
def test_numbers_that_contradict_each_other_are_no_reading(limit: str, remaining: str) -> None:
    head = read(
        ("ratelimit-limit", limit), ("ratelimit-remaining", remaining), ("ratelimit-reset", "5")
    )

    assert head.readings == ()


NAMES = [
    b"retry-after",
    *(f"x-ratelimit-{what}".encode() for what in ("limit", "remaining", "reset", "resource")),
    *(
        f"x-ratelimit-{what}-{quota}".encode()
        for what in ("limit", "remaining", "reset")
        for quota in Quota
    ),
    *(
        f"anthropic-ratelimit-{quota}-{what}".encode()
        for what in ("limit", "remaining", "reset")
        for quota in Quota
    ),
    *(b"ratelimit", b"ratelimit-policy", b"ratelimit-limit", b"ratelimit-remaining"),
    b"ratelimit-reset",
]
VALUES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.integers(-10, 10**14).map(lambda number: str(number).encode()),
    st.floats().map(lambda number: str(number).encode()),
    st.sampled_from([b"6m0s", b"9999-99-99T99:99:99Z", b"0001-01-01T00:00:00+23:59"]),
    st.from_regex(r'\A"a";[qrtw]=[0-9]{1,16}(;w=[0-9]{1,16})?\Z').map(str.encode),
    st.from_regex(r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\Z").map(
        lambda text: text.encode("utf-8")
    ),
)


@given(st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=12))
def test_whatever_a_header_holds_nothing_is_raised_and_every_number_is_sane(
    headers: list[tuple[bytes, bytes]],
) -> None:
    head = read_headers(headers, NOW)

    if head.retry_after is not None:
        assert 0 <= head.retry_after.seconds <= 86_400
    for reading in head.readings:
        numbers = (
            reading.limit,
            reading.remaining,
            reading.window_seconds,
            reading.reset_seconds,
        )
        assert all(math.isfinite(number) and number >= 0 for number in numbers)
        assert reading.limit >= 1
        assert reading.remaining <= reading.limit
        assert reading.window_seconds > 0
