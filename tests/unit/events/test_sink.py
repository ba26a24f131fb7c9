# SPDX-License-Identifier: Apache-2.0
"""Are events numbered without gaps, and can a listener harm the run?"""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.events.kinds import Correlation, SchedulerEvent, SchedulerEventKind
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


def test_a_listener_that_emits_something_itself_and_raises_is_switched_off_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = RecentEvents()

    def echo(event: SchedulerEvent) -> None:
        events.emit(EMPTY, WHO)
        raise OSError("no more")

    def echo_once(event: SchedulerEvent) -> None:
        if event.sequence == 1:
            echo(event)
        raise asyncio.CancelledError

    events = SchedulerEvents(ManualClock(), [echo_once, heard])
    with caplog.at_level(logging.ERROR, "penstock.events"):
        events.emit(EMPTY, WHO)
        events.emit(EMPTY, WHO)

    assert [event.sequence for event in heard.events] == [1, 2, 3]
    assert caplog.text.count("is switched off") == 1


def test_a_listener_that_can_be_neither_compared_nor_shown_is_switched_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd:
        def __call__(self, event: SchedulerEvent, /) -> None:
            raise OSError("no more")

        def __eq__(self, other: object) -> bool:
            raise OSError("not with me")

        def __repr__(self) -> str:
            raise OSError("nor this")

        __hash__ = None  # type: ignore[assignment]

    first, second = Odd(), Odd()
    events = SchedulerEvents(ManualClock(), [first, second])
    with caplog.at_level(logging.ERROR, "penstock.events"):
        events.emit(EMPTY, WHO)

    assert caplog.text.count("The event listener Odd raised OSError('no more')") == 2
