# SPDX-License-Identifier: Apache-2.0
"""Does the copy of the provider's buckets say what is left?"""

from __future__ import annotations

import pytest

from penstock.admission.requests.adaptive.rate import Mirrors
from penstock.model.request import Quota, QuotaReading


def tokens(remaining: float, limit: float = 6_000.0, reset: float = 0.0) -> QuotaReading:
    return QuotaReading(Quota.TOKENS, limit, remaining, 60.0, reset)


def test_nothing_is_known_until_a_reply_tells() -> None:
    mirrors = Mirrors()

    assert not mirrors
    assert mirrors.ready_at(5.0, 1e9) == 5.0
    assert not mirrors.explains_refusal(1e9)


def test_request_waits_until_its_tokens_and_a_reserve_are_there() -> None:
    mirrors = Mirrors()
    sent = mirrors.sent(0.0, 100.0)
    mirrors.read(0.0, sent, [tokens(0.0, reset=10.0)])  # 99.8 per second, 998 in all

    assert mirrors.ready_at(0.0, 500.0) == pytest.approx(700.0 / 99.8)


def test_request_larger_than_the_bucket_waits_for_a_full_one() -> None:
    mirrors = Mirrors()
    sent = mirrors.sent(0.0, 100.0)
    mirrors.read(0.0, sent, [tokens(0.0, reset=10.0)])

    assert mirrors.ready_at(0.0, 1e9) == pytest.approx(10.0)


def test_what_was_sent_since_counts_against_the_first_reading() -> None:
    mirrors = Mirrors()
    sent = mirrors.sent(0.0, 100.0)
    mirrors.sent(0.0, 400.0)
    mirrors.read(0.0, sent, [tokens(500.0, reset=5.0)])

    assert mirrors.ready_at(0.0, 100.0) == pytest.approx(40.0 / 99.8)  # 140 needed, 100 left


def test_lower_reading_is_taken_wholly_and_a_higher_one_by_half() -> None:
    mirrors = Mirrors()
    mirrors.read(0.0, mirrors.sent(0.0, 0.0), [tokens(1_000.0)])
    low = mirrors.sent(0.0, 0.0)
    mirrors.read(0.0, low, [tokens(400.0, reset=6.1)])
    assert mirrors.ready_at(0.0, 100.0) == 0.0
    assert mirrors.explains_refusal(185.0)

    high = mirrors.sent(0.0, 0.0)
    mirrors.read(0.0, high, [tokens(1_000.0)])
    assert not mirrors.explains_refusal(300.0)
    assert mirrors.explains_refusal(340.0)  # 700 left


@pytest.mark.parametrize(
    "reading",
    [
        QuotaReading(Quota.TOKENS, 0.0, 5.0, 60.0, 1.0),
        QuotaReading(Quota.TOKENS, -1.0, 5.0, 60.0, 1.0),
        QuotaReading(Quota.TOKENS, 100.0, -1.0, 60.0, 1.0),
        QuotaReading(Quota.TOKENS, 100.0, 5.0, 0.0, 1.0),
    ],
)
def test_readings_that_cannot_be_are_ignored(reading: QuotaReading) -> None:
    mirrors = Mirrors()
    mirrors.read(0.0, mirrors.sent(0.0, 1.0), [reading])

    assert not mirrors


def test_empty_bucket_explains_a_refusal_and_a_full_one_does_not() -> None:
    mirrors = Mirrors()
    mirrors.read(0.0, mirrors.sent(0.0, 1.0), [QuotaReading(Quota.REQUESTS, 60.0, 60.0, 60.0, 0.0)])
    assert not mirrors.explains_refusal(1.0)

    for _ in range(58):
        mirrors.sent(0.0, 1.0)
    assert mirrors.explains_refusal(1.0)


def test_headers_are_believed_for_a_day() -> None:
    mirrors = Mirrors()
    reading = QuotaReading(Quota.REQUESTS, 1.0, 0.0, 80_000.0, 80_000.0)
    mirrors.read(0.0, mirrors.sent(0.0, 1.0), [reading])

    assert 80_000.0 <= mirrors.ready_at(1.0, 1.0) < 81_000.0


def test_headers_that_say_never_are_believed_for_a_quarter_of_an_hour() -> None:
    mirrors = Mirrors()
    mirrors.read(0.0, mirrors.sent(0.0, 1.0), [QuotaReading(Quota.REQUESTS, 1.0, 0.0, 1e9, 1e9)])

    assert mirrors.ready_at(1.0, 1.0) == 900.0
    assert mirrors.ready_at(900.0, 1.0) == 900.0
