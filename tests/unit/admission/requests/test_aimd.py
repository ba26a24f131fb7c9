# SPDX-License-Identifier: Apache-2.0
"""Does the plain limit move exactly as it is written down?"""

from __future__ import annotations

from math import inf

import pytest

from penstock.admission.requests.aimd import Aimd, AimdMark
from penstock.admission.requests.algorithm import LearnedLimit, LimitChange
from penstock.admission.requests.policy import AimdConfig
from penstock.model.request import RequestOutcome, RequestReleaseOutcome

OK = RequestReleaseOutcome(RequestOutcome.SUCCESS)
REFUSED = RequestReleaseOutcome(RequestOutcome.RATE_LIMITED)


def aimd(most: int = 16, **config: float) -> Aimd:
    return Aimd(AimdConfig(**config), most, 0.0)  # type: ignore[arg-type]


def refuse(limit: Aimd, now: float, seconds: float | None = None) -> list[LimitChange]:
    mark = limit.granted(now, 0, 0.0)
    outcome = RequestReleaseOutcome(RequestOutcome.RATE_LIMITED, seconds)
    return [*limit.ended(now, 0, mark, outcome)]


def succeed(limit: Aimd, now: float, times: int = 1) -> list[LimitChange]:
    changes: list[LimitChange] = []
    for _ in range(times):
        changes += limit.ended(now, 0, limit.granted(now, 0, 0.0), OK)
    return changes


def test_it_starts_at_the_maximum_unless_told_otherwise() -> None:
    assert aimd(16).window(0.0, 0) == 16
    assert aimd(16, initial_limit=4).window(0.0, 0) == 4


@pytest.mark.parametrize(("initial", "starts_at"), [(-3, 1), (0, 1), (99, 16)])
def test_initial_limit_is_clamped_to_one_and_the_maximum(initial: int, starts_at: int) -> None:
    assert aimd(16, initial_limit=initial).window(0.0, 0) == starts_at


def test_refusal_takes_three_quarters_rounded_down() -> None:
    limit = aimd(10)

    assert refuse(limit, 0.0) == [LimitChange.DECREASED]
    assert limit.window(0.0, 0) == 7  # floor(10 × 0.75)


def test_a_quota_of_hours_is_a_pause_and_no_ceiling() -> None:
    limit = aimd(10)

    assert refuse(limit, 0.0, 80_000.0) == []
    assert (limit.window(0.0, 0), limit.blocked_until) == (10, 80_000.0)
    assert limit.learned() == LearnedLimit()


def test_limit_never_falls_below_one() -> None:
    limit = aimd(2)
    for now in range(5):
        refuse(limit, float(now))

    assert limit.window(5.0, 0) == 1


def test_refusal_at_one_is_no_decrease() -> None:
    limit = aimd(1)

    assert refuse(limit, 0.0) == []


def test_retry_after_is_the_pause() -> None:
    limit = aimd()
    refuse(limit, 10.0, 7.0)

    assert limit.blocked_until == 17.0
    assert limit.send_at(12.0, 0, 0.0) == 17.0


def test_without_retry_after_the_pause_is_two_seconds() -> None:
    limit = aimd()
    refuse(limit, 10.0)

    assert limit.blocked_until == 12.0


def test_retry_after_of_zero_is_no_pause() -> None:
    limit = aimd()
    refuse(limit, 10.0, 0.0)

    assert limit.send_at(10.0, 0, 0.0) == 10.0


def test_retry_after_of_zero_is_a_pause_once_the_limit_cannot_fall() -> None:
    limit = aimd(1)
    refuse(limit, 10.0, 0.0)

    assert limit.send_at(10.0, 0, 0.0) == 12.0


def test_later_signal_never_shortens_the_pause() -> None:
    limit = aimd()
    refuse(limit, 10.0, 60.0)
    refuse(limit, 11.0)

    assert limit.blocked_until == 70.0


def test_one_burst_decreases_once() -> None:
    limit = aimd(16)
    marks = [limit.granted(0.0, number, 0.0) for number in range(5)]
    changes = [[*limit.ended(1.0, 0, mark, REFUSED)] for mark in marks]

    assert changes == [[LimitChange.DECREASED], [], [], [], []]
    assert limit.window(1.0, 0) == 12


def test_refusal_of_one_admitted_under_the_present_limit_counts() -> None:
    limit = aimd(16)
    refuse(limit, 0.0)
    refuse(limit, 3.0)

    assert limit.window(3.0, 0) == 9  # floor(12 × 0.75)


def test_refusal_of_one_admitted_under_a_lower_limit_counts() -> None:
    limit = aimd(16)

    assert [*limit.ended(1.0, 0, AimdMark(3), REFUSED)] == [LimitChange.DECREASED]


def test_twenty_five_successes_give_one_more() -> None:
    limit = aimd(16, initial_limit=4)

    assert succeed(limit, 0.0, 24) == []
    assert succeed(limit, 0.0) == [LimitChange.INCREASED]
    assert limit.window(0.0, 0) == 5


def test_successes_in_a_pause_do_not_count() -> None:
    limit = aimd(16)
    refuse(limit, 0.0, 10.0)
    succeed(limit, 5.0, 100)

    assert limit.window(5.0, 0) == 12
    assert succeed(limit, 10.0, 25) == [LimitChange.INCREASED]


def test_refusal_begins_the_count_of_successes_anew() -> None:
    limit = aimd(16)
    refuse(limit, 0.0, 0.0)
    succeed(limit, 1.0, 24)
    refuse(limit, 2.0, 0.0)

    assert succeed(limit, 3.0, 24) == []


def test_limit_never_exceeds_the_maximum() -> None:
    limit = aimd(4)

    assert succeed(limit, 0.0, 200) == []
    assert limit.window(0.0, 0) == 4


def test_soft_ceiling_is_recovered_above_the_level_of_the_last_refusal() -> None:
    limit = aimd(16, initial_limit=4, successes_until_increase=1)
    refuse(limit, 0.0, 0.0)  # 4 → 3

    assert succeed(limit, 1.0) == [LimitChange.INCREASED]  # 4: the level itself
    assert succeed(limit, 1.0) == [LimitChange.INCREASED, LimitChange.SOFT_CEILING_RECOVERED]
    assert succeed(limit, 1.0) == [LimitChange.INCREASED]


def test_it_is_fully_recovered_at_the_maximum_once() -> None:
    limit = aimd(4, successes_until_increase=1)
    refuse(limit, 0.0, 0.0)  # 4 → 3

    assert succeed(limit, 1.0) == [LimitChange.INCREASED, LimitChange.FULLY_RECOVERED]
    assert succeed(limit, 1.0) == []


def test_ramp_rises_linearly_from_one() -> None:
    limit = aimd(11, startup_ramp_seconds=10.0)

    assert [limit.window(now, 0) for now in (0.0, 0.9, 1.0, 5.0, 10.0, 99.0)] == [
        1,
        1,
        2,
        6,
        11,
        11,
    ]


def test_ramp_says_when_it_has_room() -> None:
    limit = aimd(11, startup_ramp_seconds=10.0)
    due = limit.grows_at(0.0, 1)

    assert due == pytest.approx(1.0)
    assert limit.window(due, 1) == 2
    assert limit.grows_at(10.0, 11) == inf


def test_refusal_ends_the_ramp() -> None:
    limit = aimd(11, startup_ramp_seconds=10.0)
    limit.window(5.0, 0)
    refuse(limit, 5.0)  # 6 → 4

    assert limit.window(60.0, 0) == 4
    assert limit.grows_at(60.0, 4) == inf


def test_success_in_the_ramp_adds_nothing_to_it() -> None:
    limit = aimd(11, startup_ramp_seconds=10.0, successes_until_increase=1)

    assert succeed(limit, 1.0, 5) == []
    assert limit.window(1.0, 0) == 2


@pytest.mark.parametrize(
    "outcome", [o for o in RequestOutcome if o not in (OK.outcome, REFUSED.outcome)]
)
def test_other_outcomes_change_nothing(outcome: RequestOutcome) -> None:
    limit = aimd(16)
    refuse(limit, 0.0)
    before = (limit.window(1.0, 0), limit.blocked_until, limit.consecutive_refusals)
    mark = limit.granted(1.0, 0, 0.0)

    assert [*limit.ended(1.0, 0, mark, RequestReleaseOutcome(outcome))] == []
    assert (limit.window(1.0, 0), limit.blocked_until, limit.consecutive_refusals) == before


def test_refusals_in_a_row_are_counted_until_a_success() -> None:
    limit = aimd()
    refuse(limit, 0.0)
    refuse(limit, 0.0)
    assert limit.consecutive_refusals == 2

    succeed(limit, 5.0)
    assert limit.consecutive_refusals == 0


def test_lower_maximum_holds_at_once() -> None:
    limit = aimd(16)
    limit.set_max(5)

    assert limit.window(0.0, 0) == 5


def test_learned_is_where_it_was_refused() -> None:
    limit = aimd(16)
    assert limit.learned() == LearnedLimit()

    refuse(limit, 0.0)
    assert limit.learned() == LearnedLimit(ceiling=16)


def resumed(ceiling: float, age_seconds: float = 0.0, most: int = 16, **config: float) -> Aimd:
    known = LearnedLimit(ceiling=ceiling)
    return Aimd(AimdConfig(**config), most, 0.0, known, age_seconds)  # type: ignore[arg-type]


def test_what_was_learned_is_where_the_next_run_begins() -> None:
    first = aimd(16)
    refuse(first, 0.0)
    assert first.learned() == LearnedLimit(ceiling=16.0)
    refuse(first, 10.0)  # at 12

    second = resumed(first.learned().ceiling or 0.0)

    assert first.learned() == LearnedLimit(ceiling=12.0)
    assert second.window(0.0, 0) == 9  # 12 × 0.75
    assert second.learned() == first.learned()


def test_what_was_reached_after_a_refusal_is_kept() -> None:
    limit = aimd(16, successes_until_increase=1)
    refuse(limit, 0.0)
    refuse(limit, 10.0)

    succeed(limit, 20.0, 6)

    assert limit.window(20.0, 0) == 15  # 9 + 6
    assert limit.learned() == LearnedLimit(ceiling=15.0)


@pytest.mark.parametrize(
    ("age_seconds", "begins"),
    [(0, 6), (43_200, 11), (86_399, 15), (86_400, 16), (1e9, 16)],  # 8 × 0.75 = 6; (6 + 16) / 2
)
def test_what_was_learned_is_forgotten_in_a_day(age_seconds: float, begins: int) -> None:
    assert resumed(8.0, age_seconds).window(0.0, 0) == begins


def test_what_was_learned_never_exceeds_what_is_declared() -> None:
    assert resumed(100.0, most=4).window(0.0, 0) == 4
    assert resumed(100.0, initial_limit=2).window(0.0, 0) == 2
    assert resumed(0.1).window(0.0, 0) == 1
