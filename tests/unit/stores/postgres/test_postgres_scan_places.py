# SPDX-License-Identifier: Apache-2.0
"""Does a lease skip dead rows after a slow look, and see the front again in time?"""

from __future__ import annotations

import pytest

from penstock.stores.postgres.lane_cache import (
    FRONT,
    FRONT_SECONDS,
    LANES_MAX,
    SLOW_SECONDS,
    Place,
    ScanPlaces,
)
from penstock.testing.clocks import ManualClock

AT = (-5, 1_000, 7)  # rank, available_at, id


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def places(clock: ManualClock) -> ScanPlaces:
    return ScanPlaces(clock)


def place_of(places: ScanPlaces, lane_id: int) -> Place:
    (rank,), (available_at,), (job_id,) = places.of([lane_id])
    return rank, available_at, job_id


def test_a_look_begins_at_the_front_of_unknown_lanes(places: ScanPlaces) -> None:
    assert place_of(places, 1) == FRONT


def test_only_a_slow_look_matters(places: ScanPlaces, clock: ManualClock) -> None:
    begun = places.now()

    assert not places.matter(begun)
    clock.advance(SLOW_SECONDS)
    assert places.matter(begun)


def test_the_next_look_begins_behind_the_last_that_was_taken(places: ScanPlaces) -> None:
    places.note([(1, -5, 1_000, 6), (1, *AT), (2, 0, 0, 1)])

    assert places.of([1, 2, 3]) == (
        [-5, 0, FRONT[0]],
        [1_000, 0, FRONT[1]],
        [7, 1, FRONT[2]],
    )


def test_a_place_never_goes_back(places: ScanPlaces) -> None:
    places.note([(1, *AT)])

    places.note([(1, -6, 2_000, 9)])

    assert place_of(places, 1) == AT


def test_once_a_place_is_known_every_look_matters(places: ScanPlaces) -> None:
    places.note([(1, *AT)])

    assert places.matter(places.now())


def test_after_a_while_a_look_begins_at_the_front_again(
    places: ScanPlaces, clock: ManualClock
) -> None:
    places.note([(1, *AT)])
    clock.advance(FRONT_SECONDS / 2)
    places.note([(1, 0, 0, 9)])  # does not put it off
    assert place_of(places, 1) != FRONT

    clock.advance(FRONT_SECONDS / 2)

    assert place_of(places, 1) == FRONT


def test_forgetting_says_whether_there_was_a_place(places: ScanPlaces) -> None:
    places.note([(1, *AT)])

    assert not places.forget([2])
    assert places.forget([1, 2])
    assert not places.forget([1])
    assert place_of(places, 1) == FRONT


def test_places_are_bounded(places: ScanPlaces) -> None:
    places.note([(lane_id, *AT) for lane_id in range(LANES_MAX)])

    places.note([(LANES_MAX, *AT)])

    assert place_of(places, LANES_MAX) == FRONT
