# SPDX-License-Identifier: Apache-2.0
"""Does an outage stop everything, and does one request find its end?"""

from __future__ import annotations

from penstock.admission.requests.breaker import CircuitBreaker


def ended(
    breaker: CircuitBreaker,
    now: float,
    *,
    failed: bool,
    is_probe: bool = False,
    sent_at: float = 0.0,
) -> bool:
    return breaker.ended(now, failed=failed, is_probe=is_probe, sent_at=sent_at, rand=lambda: 0.5)


def opened(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for number in range(20):
        ended(breaker, now, failed=number >= 8)
    return breaker


def test_twelve_failures_of_twenty_open_it() -> None:
    breaker = opened(10.0)

    assert breaker.is_open
    assert breaker.until == 11.0


def test_eleven_failures_of_twenty_do_not() -> None:
    breaker = CircuitBreaker()
    for number in range(20):
        ended(breaker, 0.0, failed=number >= 9)

    assert not breaker.is_open


def test_failures_are_forgotten_after_twenty_outcomes() -> None:
    breaker = CircuitBreaker()
    for number in range(200):
        ended(breaker, 0.0, failed=number % 20 < 11)

    assert not breaker.is_open


def test_one_request_tests_and_nothing_else_leaves() -> None:
    breaker = opened()

    assert breaker.sent()
    assert breaker.is_probing
    assert not breaker.sent()


def test_failed_test_makes_the_pause_longer() -> None:
    breaker = opened()
    pauses = []
    now = 1.0
    for _ in range(6):
        breaker.sent()
        ended(breaker, now, failed=True, is_probe=True)
        pauses.append(breaker.until - now)
        now = breaker.until

    assert pauses == [2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


def test_good_test_closes_it() -> None:
    breaker = opened()
    breaker.sent()

    assert ended(breaker, 2.0, failed=False, is_probe=True, sent_at=1.5)
    assert not breaker.is_open
    assert not breaker.is_probing


def test_answer_to_an_older_request_does_not_close_it() -> None:
    breaker = opened()

    assert not ended(breaker, 1.5, failed=False, sent_at=0.5)
    assert breaker.is_open


def test_lost_test_lets_the_next_one_try() -> None:
    breaker = opened()
    breaker.sent()
    breaker.probe_lost()

    assert breaker.sent()


def test_it_opens_anew_only_after_twenty_more_outcomes() -> None:
    breaker = opened()
    breaker.sent()
    ended(breaker, 2.0, failed=False, is_probe=True)
    for _ in range(19):
        ended(breaker, 3.0, failed=True)
    assert not breaker.is_open

    ended(breaker, 3.0, failed=True)
    assert breaker.is_open
