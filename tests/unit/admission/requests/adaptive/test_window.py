# SPDX-License-Identifier: Apache-2.0
"""How does the window grow, fall and remember?"""

from __future__ import annotations

from copy import deepcopy
from math import floor, inf

import pytest

from penstock.admission.requests.adaptive.window import FREE, ROUNDING, START, Window


def window(most: int = 256, latency: float = 2.0, hold: float = 10.0) -> Window:
    made = Window(most)
    made.tune(latency, hold)
    return made


def refused_at(level: int, most: int = 256) -> Window:
    made = window(most)
    made.size = float(level + 1)
    made.refused(level, 0.0)
    return made


def test_it_starts_small_and_never_above_the_maximum() -> None:
    assert window().size == START
    assert window(most=2).size == 2


def test_start_doubles_each_second_while_it_is_used() -> None:
    made = window()
    made.advance(1.0, 4)
    assert made.size == pytest.approx(1 + 4 / 0.7)  # used by 4, no further

    made.advance(1.0, 6)
    assert made.size == pytest.approx(1 + 6 / 0.7)


def test_start_doubles_within_two_latencies_where_requests_are_short() -> None:
    made = window(latency=0.1)
    made.advance(0.1, 4)

    assert made.size == pytest.approx(4 * 2**0.5)


def test_start_slows_down_at_a_size_that_a_second_reaches() -> None:
    made = window(latency=4.0)
    made.seen = 200
    made.size = 16.0
    made.advance(4.0, 200)  # one second to 32, then three to double

    assert made.size == pytest.approx(64)


def test_full_window_of_one_grows_at_the_start() -> None:
    made = window(most=1)
    made.set_maximum(10)
    for _ in range(100):
        made.advance(0.05, 1)

    assert made.size >= 2


def test_start_does_not_double_unless_it_is_used() -> None:
    made = window()
    made.advance(10.0, 2)

    assert made.size == START


def test_start_stops_at_twice_what_has_worked() -> None:
    made = window()
    for _ in range(100):
        made.advance(1.0, int(made.size))
    assert made.size == FREE

    made.worked(31)
    for _ in range(100):
        made.advance(1.0, int(made.size))
    assert made.size == 64


def test_refusal_is_remembered_and_a_tenth_is_given_up() -> None:
    made = refused_at(50)

    assert made.ceiling == 50
    assert made.size == 45
    assert not made.is_starting


def test_after_a_refusal_it_comes_back_to_the_ceiling_and_stays() -> None:
    made = refused_at(50)
    made.advance(3.0, 45)  # 1.5 latencies
    assert made.size == pytest.approx(50)

    made.advance(6.0, 50)
    assert made.size == pytest.approx(50)


def test_it_comes_back_as_a_cubic() -> None:
    made = refused_at(50)
    made.advance(1.5, 45)  # half of the way in time

    assert made.size == pytest.approx(50 - 5 * 0.5**3)


def test_it_probes_beyond_the_ceiling_after_the_hold() -> None:
    made = refused_at(50)
    made.advance(10.0, 50)
    made.advance(0.01, 50)

    assert made.size > 51


@pytest.mark.parametrize("level", [1, 2, 3, 9, 10, 50])
def test_full_window_is_probed_at_every_size(level: int) -> None:
    made = refused_at(level)
    for _ in range(100):
        made.advance(1.0, int(made.size))

    assert made.size >= level + 1


def test_it_does_not_probe_unless_it_is_full() -> None:
    made = refused_at(50)
    made.advance(100.0, 30)

    assert made.size == pytest.approx(50)


def test_it_does_not_probe_while_it_may_not() -> None:
    made = refused_at(50)
    made.advance(100.0, 50, may_probe=False)

    assert made.size == pytest.approx(50)


def test_shorter_hold_begins_the_probe_and_does_not_leap_into_it() -> None:
    made = refused_at(50)
    made.advance(9.0, 50)
    made.tune(2.0, 4.0)
    made.advance(0.01, 50)

    assert 51 <= made.size < 52


def test_probe_is_bounded_by_what_has_worked() -> None:
    made = refused_at(50)
    made.worked(49)
    for _ in range(1_000):
        made.advance(1.0, int(made.size))

    assert made.size == 2 + 1.5 * 50


def test_it_does_not_grow_while_less_than_half_of_it_is_in_flight() -> None:
    made = refused_at(50)
    made.advance(100.0, 22)

    assert made.size == 45


def test_a_shorter_latency_alone_does_not_make_it_grow() -> None:
    made = refused_at(100)
    made.tune(4.0, 10.0)
    made.advance(1.0, 100)
    before = made.size

    made.tune(0.2, 10.0)  # now it would have come further in the same time
    made.advance(1.0, 10)

    assert made.size == before


def test_a_full_window_grows_though_its_age_is_ahead_of_it() -> None:
    made = refused_at(100)
    made.set_maximum(10)
    made.advance(1.0, 10)
    made.set_maximum(100)

    for _ in range(10):
        made.advance(0.1, int(made.size))

    assert made.size > 50


def test_time_in_which_it_is_hardly_used_is_no_part_of_the_hold() -> None:
    made = refused_at(50)
    made.advance(3.0, 45)
    made.advance(100.0, 10)
    made.advance(0.01, 50)

    assert made.size == pytest.approx(50)


def test_refusals_that_agree_make_it_sure_and_then_nothing_is_given_up() -> None:
    made = refused_at(50)
    for _ in range(2):
        made.advance(10.0, 50)
        made.size = 51.0
        made.refused(50, 0.0)

    assert made.confidence == 2
    assert made.size == 50


def test_lowest_of_the_refusals_that_agree_is_the_ceiling() -> None:
    made = refused_at(50)
    made.size = 52.0
    made.refused(51, 0.0)

    assert made.ceiling == 50


def test_refusal_far_from_the_ceiling_is_a_new_one() -> None:
    made = refused_at(50)
    made.size = 80.0
    made.refused(79, 0.0)

    assert (made.ceiling, made.confidence) == (79, 0)


def test_ceiling_falls_to_half_of_the_window_at_most() -> None:
    made = refused_at(50)
    made.refused(1, 0.0)

    assert made.ceiling == 22.5  # half of 45
    assert made.size == 20


def test_count_is_believed_when_a_pause_has_emptied_the_provider() -> None:
    made = refused_at(50)
    made.refused(3, 0.0, is_drained=True)

    assert (made.ceiling, made.size) == (3, 3)


def test_early_refusals_at_a_known_ceiling_keep_it_away_from_it() -> None:
    made = refused_at(100)
    for _ in range(4):
        made.size = 101.0
        made.refused(100, 0.0)

    assert made.distance == pytest.approx(0.04)
    assert made.size == 96


@pytest.mark.parametrize("level", [1, 2, 3, 5, 8, 64])
def test_refusal_never_makes_it_larger(level: int) -> None:
    made = window()
    made.size = float(level)
    before = made.size
    made.refused(level, 0.0)

    assert 1 <= made.size <= before


def test_cut_by_latency_is_a_ceiling_that_is_probed_in_small_steps() -> None:
    made = window()
    made.size = 100.0
    made.cut(40.0)
    made.worked(99)
    for _ in range(1_000):
        made.advance(1.0, int(made.size))

    assert made.ceiling == 40
    assert made.size == 1 + 1.15 * 40


def test_lower_maximum_holds_at_once() -> None:
    made = refused_at(50)
    made.set_maximum(7)

    assert made.size == 7


@pytest.mark.parametrize("wanted", [46, 49, 50, 51, 53, 60])
def test_seconds_until_are_exact(wanted: int) -> None:
    made = refused_at(50)
    made.worked(49)
    seconds = made.seconds_until(wanted)
    assert seconds < inf

    other = refused_at(50)
    other.worked(49)
    for _ in range(200):
        other.advance(seconds / 200, max(int(other.size), 46))

    assert other.size == pytest.approx(wanted, rel=0.03)


def test_it_does_not_say_that_it_grows_while_it_may_not() -> None:
    made = refused_at(50)
    made.set_maximum(40)
    made.advance(20.0, 40)
    made.set_maximum(256)

    assert made.seconds_until(41, may_probe=False) == inf
    made.advance(5.0, 40, may_probe=False)
    assert made.size == 40


def test_end_of_the_hold_is_not_missed_by_a_rounding_error() -> None:
    made = refused_at(50)
    made.age = 0.1 + 0.2  # the rest of the hold, added to it, is not the hold
    made.hold = 6.1
    seconds = made.seconds_until(51)
    made.advance(seconds + 1e-9, 50)

    assert made.size >= 51


def test_no_slot_is_given_up_for_less_than_half_of_one() -> None:
    small, large = window(), window()
    for made, level in ((small, 12), (large, 200)):
        made.size = float(level + 1)
        made.refused(level, 0.03)

    assert small.top == 12
    assert large.top == 197


def test_costly_refusal_gives_a_tenth_up_however_sure_it_is() -> None:
    made = refused_at(50)
    for _ in range(4):
        made.size = 51.0
        made.refused(50, 0.0, is_costly=True)

    assert made.confidence == 4
    assert made.size == 45


def test_refusal_at_the_top_is_near_the_ceiling_where_a_pause_is_costly() -> None:
    made = refused_at(12)

    assert made.is_near(12, is_costly=False)
    assert not made.is_near(11, is_costly=False)
    assert made.is_near(11, is_costly=True)
    assert not made.is_near(10, is_costly=True)


def test_refusal_with_nothing_in_flight_is_never_near_the_ceiling() -> None:
    assert not refused_at(1).is_near(0, is_costly=True)


def test_seconds_until_of_the_start_are_exact() -> None:
    made = window()

    assert made.seconds_until(8) == pytest.approx(1.0)
    assert made.seconds_until(FREE + 1) == inf  # until something has worked


def test_nothing_grows_beyond_the_maximum() -> None:
    assert window(most=4).seconds_until(5) == inf
    made = refused_at(50, most=52)
    assert made.seconds_until(53) == inf


def test_what_was_learned_is_trusted_by_its_age() -> None:
    fresh, old = window(), window()
    fresh.resume(100.0, 4, 1.0)
    old.resume(100.0, 4, 0.5)

    assert (fresh.size, fresh.confidence) == (90, 4)
    assert (old.size, old.confidence) == (45, 2)
    assert fresh.ceiling == old.ceiling == 100


def whole(made: Window) -> int:
    return floor(made.size + ROUNDING)


def test_the_time_of_its_growth_is_exact_where_the_way_back_is_flat() -> None:
    made = refused_at(10)
    made.advance(2.0, 9)
    seconds = made.seconds_until(10)
    early, due = deepcopy(made), deepcopy(made)
    early.advance(seconds - 1e-5, 9)
    due.advance(seconds + 1e-6, 9)

    assert (whole(early), whole(due)) == (9, 10)


def test_a_full_window_grows_when_it_says_after_its_maximum_was_lowered_and_raised() -> None:
    made = window(latency=1.0, hold=2.0)
    made.size = 21.0
    made.refused(20, 0.0)
    made.advance(2.5, 20)  # it probes
    made.tune(4.0, 10.0)  # the way back would be longer now
    made.set_maximum(1)
    made.set_maximum(256)
    made.advance(made.seconds_until(23) + 1e-6, 22)

    assert whole(made) == 23
