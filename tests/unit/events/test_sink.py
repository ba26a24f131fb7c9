# SPDX-License-Identifier: Apache-2.0
"""Are events numbered without gaps, and can a listener harm the run?"""

from __future__ import annotations

import logging

import pytest

from penstock.events.correlation import Correlation
from penstock.events.kinds import SchedulerEvent, SchedulerEventKind
from penstock.events.sink import RecentEvents, SchedulerEvents
from penstock.testing import ManualClock

EMPTY = SchedulerEventKind.QUEUE_EMPTY
WHO = Correlation("run-1", task="t", job_id=7)


def test_every_listener_hears_every_event_with_number_time_and_correlation() -> None:
    clock, heard = ManualClock(), RecentEvents()
    other: list[SchedulerEvent] = []
    events = SchedulerEvents(clock, [heard, other.append])

    events.emit(EMPTY, WHO)
    clock.advance(2.5)
    events.emit(SchedulerEventKind.CANCELLED, WHO, "released", {"jobs": 3.0})

    assert list(heard.events) == other
    assert [event.sequence for event in other] == [1, 2]
    assert other[1].captured_at_monotonic - other[0].captured_at_monotonic == 2.5
    assert (other[1].reason, other[1].numbers, other[1].correlation) == (
        "released",
        {"jobs": 3.0},
        WHO,
    )


def test_a_listener_that_raises_is_switched_off_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []

    def broken(event: SchedulerEvent) -> None:
        calls.append("broken")
        raise ValueError("no disk")

    before, after = RecentEvents(), RecentEvents()
    events = SchedulerEvents(ManualClock(), [before, broken, after])

    with caplog.at_level(logging.ERROR, "penstock.events"):
        for _ in range(3):
            events.emit(EMPTY, WHO)

    assert calls == ["broken"]
    assert len(before.events) == len(after.events) == 3
    assert caplog.text.count("is switched off; the run goes on") == 1


def test_without_a_listener_nothing_is_built() -> None:
    events = SchedulerEvents(ManualClock(), [])

    events.emit(EMPTY, WHO)

    assert events.sequence == 0


def test_recent_events_forget_the_oldest() -> None:
    recent = RecentEvents(limit=3)
    events = SchedulerEvents(ManualClock(), [recent])
    for _ in range(10):
        events.emit(EMPTY, WHO)

    assert [event.sequence for event in recent.events] == [8, 9, 10]
