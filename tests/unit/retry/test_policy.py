# SPDX-License-Identifier: Apache-2.0
"""What follows a failure: who pays, how long is the wait, and when does it end?"""

from __future__ import annotations

import math

import pytest

from penstock.errors import ConfigError, EnqueueRefused, PayloadError, UnknownTask, UsageError
from penstock.model.job import ErrorCategory
from penstock.retry.classify import Classified, FailureClass, TimeLimitError
from penstock.retry.policy import GIVE_UP_AFTER_SECONDS, Backoff, RetryDecision, RetryPolicy

NOW = 1_772_366_400.0
DAY = 86_400.0


class Busy(Exception):
    def __init__(self, retry_after: float) -> None:
        self.retry_after = retry_after


def decide(
    error: BaseException,
    *,
    policy: RetryPolicy | None = None,
    attempts: int = 0,
    max_attempts: int = 3,
    ago: float | None = None,
    deferrals: int = 0,
    rand: float = 0.5,
) -> RetryDecision:
    return (policy or RetryPolicy()).decide(
        error,
        attempts=attempts,
        max_attempts=max_attempts,
        deferred_since_seconds_ago=ago,
        deferrals=deferrals,
        now=NOW,
        rand=rand,
    )


def test_own_fault_is_charged_and_waits_longer_each_time() -> None:
    decisions = [decide(ValueError(), attempts=n, max_attempts=9) for n in range(8)]

    assert {d.category for d in decisions} == {ErrorCategory.OWN}
    assert all(d.charge and not d.ends for d in decisions)
    # the middle of 0 to 1, 1 to 2, 2 to 4, … 32 to 60, and 60
    assert [d.delay_seconds for d in decisions] == [0.5, 1.5, 3.0, 6.0, 12.0, 24.0, 46.0, 60.0]


def test_a_mistake_is_charged_and_not_tried_again() -> None:
    first = decide(UsageError("wrong"), attempts=0, max_attempts=9)
    others = [
        decide(error, attempts=0, max_attempts=9)
        for error in (PayloadError("n is missing"), UnknownTask("no 'ask'"))
    ]
    network = UsageError("wrong")
    network.__cause__ = ConnectionResetError()

    assert first == RetryDecision(ErrorCategory.OWN, 0.0, charge=True, ends=True)
    assert others == [first, first]
    assert not decide(network, attempts=0, max_attempts=9).ends
    assert not decide(EnqueueRefused("not there yet"), attempts=0, max_attempts=9).ends


def test_a_death_alone_costs_a_crash_and_the_last_one_ends_the_job() -> None:
    policy = RetryPolicy()

    first = policy.decide_crash(crashes=0, max_crashes=2, rand=0.5)
    last = policy.decide_crash(crashes=1, max_crashes=2, rand=0.5)

    assert first == RetryDecision(ErrorCategory.CRASHED, 0.5, charge=False, ends=False)
    assert last == RetryDecision(ErrorCategory.CRASHED, 0.0, charge=False, ends=True)


@pytest.mark.parametrize(
    ("attempts", "max_attempts", "give_up"),
    [(0, 1, True), (0, 2, False), (1, 3, False), (2, 3, True), (7, 3, True)],
)
def test_own_fault_ends_the_job_with_its_last_attempt(
    attempts: int, max_attempts: int, give_up: bool
) -> None:
    decision = decide(ValueError(), attempts=attempts, max_attempts=max_attempts)

    assert decision.ends is give_up
    assert decision.charge


def test_time_limit_is_charged_under_its_own_name() -> None:
    assert decide(TimeLimitError()) == RetryDecision(ErrorCategory.TIMEOUT, 0.5, True, False)
    assert decide(TimeLimitError(), attempts=2) == RetryDecision(
        ErrorCategory.TIMEOUT, 0.0, True, True
    )


def test_exit_of_the_task_is_charged() -> None:
    assert decide(SystemExit(3)).charge
    assert decide(KeyboardInterrupt()).category is ErrorCategory.OWN


def test_node_error_is_put_off_uncharged_even_on_the_last_attempt() -> None:
    decision = decide(ConnectionError(), attempts=2, max_attempts=3)

    assert decision == RetryDecision(ErrorCategory.NODE, 1.0, False, False)  # 2 × 0.5


def test_service_error_is_put_off_uncharged() -> None:
    error = ValueError()
    error.status_code = 503  # type: ignore[attr-defined]

    assert decide(error) == RetryDecision(ErrorCategory.SERVICE, 2.5, False, False)  # 5 × 0.5


def test_deferred_delays_grow_with_the_time_since_the_first() -> None:
    delays = [decide(ConnectionError(), ago=ago, rand=1.0).delay_seconds for ago in (0, 2, 6, 14)]

    assert delays == pytest.approx([2, 4, 8, 16])
    assert decide(ConnectionError(), ago=3600.0, rand=1.0).delay_seconds == 120.0
    assert decide(ConnectionError(), ago=-50.0, rand=1.0).delay_seconds == 2.0


def test_counted_deferrals_raise_the_step_where_they_are_known() -> None:
    assert decide(ConnectionError(), deferrals=3, rand=1.0).delay_seconds == 16.0
    assert decide(ConnectionError(), ago=14.0, deferrals=1, rand=1.0).delay_seconds == (
        pytest.approx(16.0)
    )


def test_wait_that_was_asked_for_is_obeyed_exactly() -> None:
    for rand in (0.0, 0.3, 0.99):
        assert decide(Busy(42.0), ago=1000.0, rand=rand).delay_seconds == 42.0
    assert decide(Busy(80_000.0)).delay_seconds == 80_000.0
    assert decide(Busy(1e9)).delay_seconds == 900.0


def test_wait_of_zero_is_backed_off_instead_of_spinning() -> None:
    assert decide(Busy(0.0), rand=0.5).delay_seconds == 2.5
    assert decide(Busy(0.0), ago=3600.0, rand=0.5).delay_seconds == 300.0


@pytest.mark.parametrize("error", [ConnectionError(), Busy(5.0)])
def test_deferrals_end_when_the_first_is_too_long_ago(error: Exception) -> None:
    assert GIVE_UP_AFTER_SECONDS == DAY
    assert not decide(error, ago=None).ends
    assert not decide(error, ago=DAY - 6).ends

    ended = decide(error, ago=DAY)

    assert (ended.ends, ended.charge, ended.delay_seconds) == (True, False, 0.0)


def test_the_last_try_is_when_the_time_is_over_and_not_a_back_off_later() -> None:
    short = RetryPolicy(give_up_after_seconds=5.0)

    assert decide(Busy(0), policy=short, ago=3.0, rand=0.99).delay_seconds == 2.0
    assert decide(ConnectionError(), policy=short, ago=4.0, rand=0.99).delay_seconds == 1.0


def test_a_wait_that_would_end_too_late_is_not_begun() -> None:
    short = RetryPolicy(give_up_after_seconds=60.0)

    assert not decide(Busy(60.0), policy=short).ends
    assert decide(Busy(61.0), policy=short).ends
    assert decide(Busy(31.0), policy=short, ago=30.0).ends


def test_own_fault_after_a_long_deferral_is_judged_by_attempts_alone() -> None:
    assert not decide(ValueError(), ago=2 * DAY).ends


def test_every_part_can_be_replaced() -> None:
    def knows(error: BaseException) -> Classified | None:
        return Classified(FailureClass.SERVICE, 3.0) if isinstance(error, KeyError) else None

    policy = RetryPolicy(
        classifiers=(knows,),
        node=Backoff(10, 10),
        service=Backoff(20, 20),
        own=Backoff(30, 30),
        give_up_after_seconds=60.0,
    )

    assert decide(KeyError(), policy=policy).delay_seconds == 3.0
    assert decide(ConnectionError(), policy=policy, rand=1.0).delay_seconds == 10.0
    assert decide(Busy(0), policy=policy, rand=1.0).delay_seconds == 20.0
    assert decide(ValueError(), policy=policy, rand=1.0).delay_seconds == 30.0
    assert decide(ConnectionError(), policy=policy, ago=60.0).ends


def test_exact_wait_for_an_own_fault_is_obeyed_and_charged() -> None:
    policy = RetryPolicy(classifiers=(lambda _error: Classified(FailureClass.UNKNOWN, 17.0),))

    assert decide(ValueError(), policy=policy) == RetryDecision(
        ErrorCategory.OWN, 17.0, True, False
    )


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_policy_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="give_up_after_seconds"):
        RetryPolicy(give_up_after_seconds=seconds)
