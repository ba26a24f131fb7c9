# SPDX-License-Identifier: Apache-2.0
"""Is what the provider limits told from what it does not?"""

from __future__ import annotations

import pytest

from penstock.admission.requests.adaptive.rate import ModeDetector
from penstock.admission.requests.algorithm import LimitMode


def refusals(
    detector: ModeDetector, course: list[tuple[float, int, int, float]]
) -> list[LimitMode]:
    """Each: seconds since the last, requests accepted, in flight, tokens of one."""
    now = 0.0
    modes = []
    detector.refused(now, course[0][2])
    for seconds, count, level, tokens in course:
        for _ in range(count):
            detector.sent(tokens)
        now += seconds
        detector.refused(now, level)
        modes.append(detector.mode)
    return modes


def test_same_level_at_changing_rates_is_concurrency() -> None:
    course = [(10.0, 100, 64, 1.0), (10.0, 200, 64, 1.0), (10.0, 50, 65, 1.0)] * 3

    assert set(refusals(ModeDetector(), course)) == {LimitMode.CONCURRENCY}


def test_same_rate_at_changing_levels_is_a_rate_of_requests() -> None:
    course = [(10.0, 100, 20, 1.0), (20.0, 200, 50, 9.0), (10.0, 101, 12, 2.0)] * 3

    assert refusals(ModeDetector(), course)[-1] is LimitMode.REQUESTS


def test_same_rate_of_tokens_at_changing_levels_is_a_rate_of_tokens() -> None:
    course = [(10.0, 100, 20, 10.0), (10.0, 50, 50, 20.0), (10.0, 200, 12, 5.0)] * 3

    assert refusals(ModeDetector(), course)[-1] is LimitMode.TOKENS


def test_limit_that_moves_itself_teaches_nothing() -> None:
    course = [(10.0, 100, 64, 1.0), (10.0, 30, 16, 1.0), (10.0, 30, 16, 1.0)]

    assert set(refusals(ModeDetector(), course)) == {LimitMode.CONCURRENCY}


def test_too_few_requests_measure_nothing() -> None:
    detector = ModeDetector()
    detector.refused(0.0, 4)
    for _ in range(14):
        detector.sent(1.0)

    assert detector.refused(10.0, 4) is None


def test_refused_requests_are_not_counted() -> None:
    detector = ModeDetector()
    detector.refused(0.0, 4)
    for _ in range(30):
        detector.sent(2.0)
    for _ in range(10):
        detector.not_accepted(2.0)
    rates = detector.refused(10.0, 4)

    assert rates is not None
    assert (rates.requests, rates.tokens, rates.seconds) == pytest.approx((2.0, 4.0, 10.0))


def test_suspected_rate_is_kept_for_five_measurements() -> None:
    detector = ModeDetector()
    detector.suspect_rate()

    course = [(10.0, count, 8, 1.0) for count in (20, 90, 20, 90, 20)]
    modes = refusals(detector, course)
    assert modes[:4] == [LimitMode.REQUESTS] * 4
    assert modes[4] is LimitMode.CONCURRENCY


def test_suspicion_can_be_taken_back() -> None:
    detector = ModeDetector()
    detector.suspect_rate()
    detector.reject_rate()

    assert detector.mode is LimitMode.CONCURRENCY


def test_limit_that_was_sure_and_is_another_teaches_nothing() -> None:
    detector = ModeDetector()
    detector.refused(0.0, 10)
    for now, level in ((10.0, 10), (20.0, 40), (30.0, 10), (40.0, 40)):
        for _ in range(100):
            detector.sent(1.0)
        detector.refused(now, level, has_moved=True)

    assert detector.mode is LimitMode.CONCURRENCY


def test_doors_that_open_and_close_are_a_rate() -> None:
    detector = ModeDetector()

    assert [detector.refused_when_idle(answers) for answers in (1, 5, 9)] == [False, False, True]


def test_door_that_stays_closed_is_none() -> None:
    detector = ModeDetector()

    assert not any(detector.refused_when_idle(7) for _ in range(10))


def test_a_large_request_of_the_time_before_that_is_refused_now_is_no_rate_below_nothing() -> None:
    detector = ModeDetector()
    detector.sent(1_000.0)
    refusals(detector, [(10.0, 20, 8, 1.0)])
    for _ in range(21):
        detector.sent(1.0)
    detector.not_accepted(1_000.0)

    rates = detector.refused(20.0, 8)

    assert rates is not None
    assert (rates.requests, rates.tokens) == (2.0, 2.0)
