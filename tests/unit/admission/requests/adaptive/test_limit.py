# SPDX-License-Identifier: Apache-2.0
"""What does each outcome mean to the adaptive limit?"""

from __future__ import annotations

from math import inf

import pytest

from penstock.admission.requests.adaptive.latency import LatencyWatch
from penstock.admission.requests.adaptive.limit import Adaptive, AdaptiveMark
from penstock.admission.requests.algorithm import LearnedLimit, LimitChange, LimitMode
from penstock.model.request import (
    Quota,
    QuotaReading,
    RequestOutcome,
    RequestReleaseOutcome,
)

OK = RequestReleaseOutcome(RequestOutcome.SUCCESS)
LATENCY = 1.0


class Desk:
    """An adaptive limit and what is in flight."""

    def __init__(self, most: int = 256, learned: LearnedLimit | None = None) -> None:
        self.limit = Adaptive(most, 0.0, lambda: 0.0, learned)
        self.now = 0.0
        self.marks: list[AdaptiveMark] = []

    def send(self, tokens: float = 1.0) -> AdaptiveMark:
        mark = self.limit.granted(self.now, len(self.marks), tokens)
        self.marks.append(mark)
        return mark

    def fill(self, count: int) -> None:
        while len(self.marks) < count:
            self.send()

    def end(self, mark: AdaptiveMark, outcome: RequestReleaseOutcome = OK) -> list[LimitChange]:
        self.marks.remove(mark)
        return [*self.limit.ended(self.now, len(self.marks), mark, outcome)]

    def refuse(self, mark: AdaptiveMark, seconds: float | None = None) -> list[LimitChange]:
        return self.end(mark, RequestReleaseOutcome(RequestOutcome.RATE_LIMITED, seconds))

    def turn(self, count: int) -> None:
        """A latency later, those in flight have ended well and so many are in flight."""
        self.now += LATENCY
        for mark in [*self.marks]:
            self.end(mark)
        self.fill(count)

    def window(self) -> int:
        return self.limit.window(self.now, len(self.marks))


def known(ceiling: float = 40.0, confidence: int = 4, **rest: object) -> Desk:
    learned = LearnedLimit(ceiling, confidence, latency_seconds=LATENCY, **rest)  # type: ignore[arg-type]
    return Desk(learned=learned)


def test_it_starts_small() -> None:
    assert Desk().window() == 4
    assert Desk(most=2).window() == 2


def test_window_is_one_at_least_and_the_maximum_at_most() -> None:
    desk = Desk(most=6)
    for _ in range(50):
        desk.turn(desk.window())
    assert desk.window() == 6

    desk.limit.set_max(1)
    assert desk.window() == 1


def test_full_window_says_when_it_grows_and_keeps_its_word() -> None:
    desk = Desk()
    desk.fill(4)
    due = desk.limit.grows_at(desk.now, 4)

    assert 0 < due < 1
    assert desk.limit.window(due, 4) == 5


def test_refusal_stops_everything_until_retry_after() -> None:
    desk = Desk()
    desk.fill(4)
    desk.now = 0.1
    desk.refuse(desk.marks[-1], 5.0)

    assert desk.limit.blocked_until == pytest.approx(5.1)
    assert desk.limit.send_at(1.0, 3, 1.0) >= 5.1


def test_shorter_retry_after_never_shortens_a_pause() -> None:
    desk = Desk()
    desk.fill(4)
    desk.refuse(desk.marks[-1], 60.0)
    desk.refuse(desk.marks[-1], 1.0)

    assert desk.limit.blocked_until == pytest.approx(60.0)


def test_refusals_of_one_epoch_decrease_once() -> None:
    desk = Desk()
    for _ in range(8):
        desk.turn(desk.window())
    assert desk.window() > 16
    first = desk.refuse(desk.marks[-1])
    size = desk.window()
    others = [desk.refuse(mark) for mark in [*desk.marks[-5:]]]

    assert first == [LimitChange.DECREASED]
    assert others == [[]] * 5
    assert desk.window() == size


def test_first_strike_at_a_known_ceiling_is_forgiven() -> None:
    desk = known(40.0)
    desk.fill(41)
    desk.now = 0.05
    desk.refuse(desk.marks[-1], 15.0)

    assert desk.limit.blocked_until == -inf


def test_second_strike_near_it_stops_everything() -> None:
    desk = known(40.0)
    for now in (0.05, 2.0):
        desk.fill(41)
        desk.now = now
        desk.refuse(desk.marks[-1], 15.0)
        desk.marks.clear()

    assert desk.limit.blocked_until == pytest.approx(17.0)


@pytest.mark.parametrize(("seconds", "blocked_until"), [(15.0, 0.55), (5.0, 5.05)])
def test_strike_below_the_ceiling_is_forgiven_only_where_a_pause_is_long(
    seconds: float, blocked_until: float
) -> None:
    desk = known(12.0, confidence=1)
    desk.fill(12)
    desk.now = 0.05
    desk.refuse(desk.marks[-1], seconds)  # the twelfth of twelve that have worked

    assert desk.limit.blocked_until == pytest.approx(blocked_until)


def test_after_it_requests_leave_evenly() -> None:
    desk = known(12.0, confidence=1)
    desk.fill(12)
    desk.refuse(desk.marks[-1], 15.0)
    desk.now = 5.0
    desk.marks.clear()
    desk.send()

    size = desk.window()
    assert desk.limit.send_at(5.0, 1, 1.0) == pytest.approx(5.0 + LATENCY / (0.95 * size), abs=0.02)


def test_door_that_stays_closed_is_not_knocked_at_twice() -> None:
    """Every pause ends in another refusal: each is one of its own, and Retry-After holds."""
    desk = known(5.0, confidence=1)
    for number in range(4):
        desk.now = max(desk.now, desk.limit.blocked_until) + 0.05
        desk.fill(desk.window())
        desk.refuse(desk.marks[-1], 15.0)
        desk.marks.clear()
        if number:
            assert desk.limit.blocked_until == pytest.approx(desk.now + 15.0)


@pytest.mark.parametrize(
    "outcome",
    [
        RequestOutcome.LOCAL_CANCELLED,
        RequestOutcome.LOCAL_TIMEOUT,
        RequestOutcome.UNEXPECTED_EXCEPTION,
    ],
)
def test_local_outcomes_change_nothing(outcome: RequestOutcome) -> None:
    desk = known(40.0)
    desk.fill(30)
    before = (desk.window(), desk.limit.blocked_until, desk.limit.learned())
    for mark in [*desk.marks]:
        assert desk.end(mark, RequestReleaseOutcome(outcome, 60.0)) == []

    assert (desk.window(), desk.limit.blocked_until, desk.limit.learned()) == before


def test_bucket_of_the_headers_holds_requests_back() -> None:
    desk = Desk()
    reading = QuotaReading(Quota.REQUESTS, 60.0, 0.0, 60.0, 60.0)
    mark = desk.send()
    desk.now = 1.0
    desk.end(mark, RequestReleaseOutcome(RequestOutcome.SUCCESS, readings=(reading,)))

    assert desk.limit.send_at(1.0, 0, 1.0) > 2.0


def test_refusal_that_headers_explain_changes_no_window() -> None:
    desk = known(40.0)
    reading = QuotaReading(Quota.REQUESTS, 60.0, 0.0, 60.0, 60.0)
    desk.end(desk.send(), RequestReleaseOutcome(RequestOutcome.SUCCESS, readings=(reading,)))
    size = desk.window()
    desk.refuse(desk.send(), 3.0)

    assert desk.window() == size
    assert desk.limit.blocked_until == pytest.approx(3.0)


def test_refusals_with_almost_nothing_in_flight_are_taken_for_a_rate() -> None:
    desk = Desk()
    desk.send()
    desk.refuse(desk.send())

    assert desk.limit.mode is LimitMode.REQUESTS


def test_failures_open_the_breaker_and_one_request_tests_it() -> None:
    desk = Desk()
    failed = RequestReleaseOutcome(RequestOutcome.PROVIDER_FAILURE)
    for _ in range(20):
        desk.end(desk.send(), failed)
    assert desk.limit.blocked_until == pytest.approx(1.0)

    desk.now = 1.5
    assert desk.limit.send_at(1.5, 0, 1.0) == 1.5
    test = desk.send()
    assert desk.limit.send_at(1.6, 1, 1.0) == inf

    desk.now = 2.0
    desk.end(test)
    assert desk.limit.send_at(3.0, 0, 1.0) == 3.0


@pytest.mark.parametrize("outcome", [RequestOutcome.LOCAL_CANCELLED, RequestOutcome.RATE_LIMITED])
def test_test_that_says_nothing_does_not_block_for_ever(outcome: RequestOutcome) -> None:
    desk = Desk()
    for _ in range(20):
        desk.end(desk.send(), RequestReleaseOutcome(RequestOutcome.PROVIDER_FAILURE))
    desk.now = 1.5
    desk.end(desk.send(), RequestReleaseOutcome(outcome))

    assert desk.limit.send_at(100.0, 0, 1.0) == 100.0


def test_learned_ceiling_is_the_start() -> None:
    desk = known(100.0)

    assert desk.window() == 90
    assert desk.limit.ceiling == 100.0
    assert desk.limit.send_at(0.0, 0, 1.0) == 0.0
    desk.send()
    assert desk.limit.send_at(0.0, 1, 1.0) == pytest.approx(LATENCY / (3 * 90))


def test_learned_rate_is_the_start() -> None:
    desk = known(40.0, mode=LimitMode.REQUESTS, rate=10.0)
    desk.send()

    assert desk.limit.mode is LimitMode.REQUESTS
    assert desk.limit.send_at(0.0, 1, 1.0) == pytest.approx(1 / 9.6)


def test_what_was_learned_a_day_ago_is_forgotten() -> None:
    learned = LearnedLimit(100.0, 8, latency_seconds=LATENCY)
    limit = Adaptive(256, 0.0, lambda: 0.0, learned, 86_400.0)

    assert limit.ceiling is None
    assert limit.window(0.0, 0) == 4


def test_a_latency_that_was_learned_does_not_make_a_fast_provider_slow() -> None:
    desk = Desk(learned=LearnedLimit(40.0, 4, latency_seconds=600.0))
    desk.send()

    assert desk.limit.send_at(0.0, 1, 1.0) < 0.1


@pytest.mark.parametrize(("part_of_a_day", "found"), [(0.0, 0.955), (0.95, 0.55)])
def test_a_latency_that_was_learned_counts_the_less_the_older_it_is(
    part_of_a_day: float, found: float
) -> None:
    learned = LearnedLimit(latency_seconds=1.0)
    limit = Adaptive(256, 0.0, lambda: 0.0, learned, part_of_a_day * 86_400)

    limit.ended(0.1, 0, limit.granted(0.0, 0, 1.0), OK)

    assert limit.learned().latency_seconds == pytest.approx(found)


def test_a_ceiling_that_only_latency_has_found_is_not_kept() -> None:
    desk = Desk()
    for _ in range(20):
        desk.turn(desk.window())
    desk.now += 9 * LATENCY
    desk.turn(desk.window())
    assert desk.limit.ceiling is not None

    assert desk.limit.learned() == LearnedLimit(
        latency_seconds=desk.limit.learned().latency_seconds
    )


def test_what_is_learned_leads_to_the_same_limit() -> None:
    desk = known(100.0)

    again = Desk(learned=desk.limit.learned())
    assert again.window() == desk.window()
    assert again.limit.learned() == desk.limit.learned()


def test_growth_is_told_in_steps_and_the_maximum_once() -> None:
    desk = Desk(most=8)
    told: list[LimitChange] = []
    desk.fill(4)
    desk.refuse(desk.marks[-1], 0.1)
    for _ in range(200):
        desk.now += LATENCY
        for mark in [*desk.marks]:
            told += desk.end(mark)
        desk.fill(desk.window())

    assert told.count(LimitChange.FULLY_RECOVERED) == 1
    assert told.count(LimitChange.SOFT_CEILING_RECOVERED) >= 1
    assert told.count(LimitChange.INCREASED) < 10


def test_a_window_below_a_limit_of_latency_names_the_time_of_its_growth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LatencyWatch, "limit", 2.5)  # while a smaller window is tried
    limit = Adaptive(1, 0.0, lambda: 0.0, LearnedLimit(4.0, 3))
    limit.set_max(8)
    due = limit.grows_at(0.0, 1)

    assert due < inf
    assert limit.window(due, 1) == 2
    assert limit.grows_at(due, 2) == inf


def test_a_quota_of_hours_is_a_pause_and_no_ceiling() -> None:
    desk = Desk()
    desk.fill(4)
    desk.turn(8)
    before = desk.window()

    for mark in [*desk.marks]:
        desk.refuse(mark, 80_000.0)

    assert desk.window() == before
    assert desk.limit.blocked_until == desk.now + 80_000.0
    assert desk.limit.learned().ceiling is None
    assert desk.limit.send_at(desk.now + 79_999.0, 0, 1.0) >= desk.now + 80_000.0


def test_a_reply_that_says_that_nothing_is_left_for_hours_begins_the_pause() -> None:
    desk = Desk()
    used_up = QuotaReading(Quota.REQUESTS, 100.0, 0.0, 86_400.0, 20_000.0, 20_000.0)

    desk.end(desk.send(), RequestReleaseOutcome(RequestOutcome.SUCCESS, readings=(used_up,)))

    assert desk.limit.blocked_until == desk.now + 20_000.0
