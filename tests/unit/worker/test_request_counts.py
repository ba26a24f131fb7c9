# SPDX-License-Identifier: Apache-2.0
"""Is the last minute counted, and no more than that?"""

from __future__ import annotations

import pytest

from penstock.model.request import RequestOutcome, RequestReleaseOutcome
from penstock.worker.provider_run import ModelCounts


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    counts = ModelCounts()
    counts.add(0.2, 5)
    counts.add(0.9, 5)
    counts.add(30.0, 1)

    assert counts.last_minute(59.9) == (3, 11)
    assert counts.last_minute(60.1) == (1, 1)
    assert counts.last_minute(1000.0) == (0, 0)


def test_it_holds_no_more_than_a_minute_however_long_it_counts() -> None:
    counts = ModelCounts()
    for second in range(10_000):
        counts.add(float(second), 1)

    assert len(counts._seconds) <= 61
    assert counts.last_minute(9_999.0) == (60, 60)


def test_failures_are_in_a_row_until_a_reply_is_better_and_our_own_doing_is_no_reply() -> None:
    counts = ModelCounts()
    counts.ended(RequestOutcome.PROVIDER_FAILURE)
    counts.ended(RequestOutcome.LOCAL_CANCELLED)
    counts.ended(RequestOutcome.PROVIDER_TIMEOUT)

    assert (counts.failed, counts.failed_in_row, counts.refused) == (2, 2, 0)

    counts.ended(RequestOutcome.RATE_LIMITED)

    assert (counts.failed, counts.failed_in_row, counts.refused) == (2, 0, 1)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (RequestReleaseOutcome(RequestOutcome.SUCCESS), 100),
        (RequestReleaseOutcome(RequestOutcome.SUCCESS, tokens_used=7), 7),
        (RequestReleaseOutcome(RequestOutcome.SUCCESS, is_error=True), 0),  # such as 400
        (RequestReleaseOutcome(RequestOutcome.RATE_LIMITED, is_error=True), 0),
        (RequestReleaseOutcome(RequestOutcome.PROVIDER_FAILURE), 0),
        (RequestReleaseOutcome(RequestOutcome.PROVIDER_FAILURE, tokens_used=5), 5),
    ],
)
def test_what_was_not_answered_has_used_no_tokens(
    outcome: RequestReleaseOutcome, expected: int
) -> None:
    assert outcome.tokens_served(100) == expected
    assert outcome.tokens_served(None) in (0, outcome.tokens_used)
