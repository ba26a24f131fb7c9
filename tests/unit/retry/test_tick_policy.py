# SPDX-License-Identifier: Apache-2.0
"""What follows a failed tick? A schedule waits for others without end and is degraded by itself."""

from __future__ import annotations

import pytest

from penstock.model.job import ErrorCategory
from penstock.retry.classify import TimeLimitError
from penstock.retry.policy import Backoff, RetryDecision, RetryPolicy

NOW = 1_772_366_400.0
YEAR = 366 * 86_400.0


class Busy(Exception):
    retry_after = 17


def decide(
    error: BaseException,
    *,
    policy: RetryPolicy | None = None,
    attempts: int = 0,
    max_attempts: int | None = None,
    ago: float | None = None,
) -> RetryDecision:
    return (policy or RetryPolicy()).decide_tick(
        error,
        attempts=attempts,
        max_attempts=max_attempts,
        deferred_since_seconds_ago=ago,
        now=NOW,
        rand=0.5,
    )


def test_its_own_faults_are_charged_and_never_end_it() -> None:
    decisions = [decide(ValueError(), attempts=n) for n in (0, 1, 2, 3, 4, 1_000_000)]

    assert all(one.charge and not one.ends for one in decisions)
    assert {one.category for one in decisions} == {ErrorCategory.OWN}
    # the middle of 0 to 30, 30 to 60, 60 to 120, 120 to 240, 240 to 300, and 300
    assert [one.delay_seconds for one in decisions] == [15.0, 45.0, 90.0, 180.0, 270.0, 300.0]


def test_a_time_limit_is_its_own_fault() -> None:
    decision = decide(TimeLimitError("late"))

    assert (decision.category, decision.charge) == (ErrorCategory.TIMEOUT, True)
    assert decision.delay_seconds == 15.0


@pytest.mark.parametrize(("attempts", "gives_up"), [(0, False), (1, False), (2, True), (9, True)])
def test_where_its_author_said_so_its_attempts_are_used_up(attempts: int, gives_up: bool) -> None:
    assert decide(ValueError(), attempts=attempts, max_attempts=3).ends is gives_up


def test_others_are_waited_for_without_end() -> None:
    node = decide(ConnectionResetError(), ago=YEAR, attempts=9, max_attempts=3)
    service = decide(Busy(), ago=YEAR)

    assert (node.category, node.charge, node.ends) == (ErrorCategory.NODE, False, False)
    assert node.delay_seconds == 120.0
    assert (service.category, service.charge, service.ends) == (
        ErrorCategory.SERVICE,
        False,
        False,
    )
    assert service.delay_seconds == 17.0


def test_the_first_waits_are_the_baselines() -> None:
    assert decide(ConnectionResetError()).delay_seconds == 1.0
    assert decide(ConnectionResetError(), ago=2.0).delay_seconds == 3.0


def test_a_classifier_may_name_the_wait_of_a_degraded_tick() -> None:
    policy = RetryPolicy(classifiers=(lambda _: ("unknown", 3),))

    assert decide(ValueError(), policy=policy) == RetryDecision(ErrorCategory.OWN, 3, True, False)


def test_the_back_off_can_be_replaced() -> None:
    policy = RetryPolicy(degraded=Backoff(2.0, 4.0))

    assert [decide(ValueError(), policy=policy, attempts=n).delay_seconds for n in range(3)] == [
        1.0,
        3.0,
        4.0,
    ]
