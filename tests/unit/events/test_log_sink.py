# SPDX-License-Identifier: Apache-2.0
"""Events in the log, for whoever asks for debug lines."""

from __future__ import annotations

import logging

import pytest

from penstock.events.kinds import Correlation, SchedulerEvent, SchedulerEventKind
from penstock.events.sink import LogEvents, RecentEvents, default_sinks


def test_an_event_is_one_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    correlation = Correlation("run-1", "fetch", job_id=7, execution=1)
    event = SchedulerEvent(
        SchedulerEventKind.TASK_COMPLETED, 1.5, 3, correlation, "done", {"jobs": 2}
    )

    with caplog.at_level(logging.DEBUG, "penstock.events"):
        LogEvents()(event)

    assert caplog.messages == ["#3 task_completed 7:1 done {'jobs': 2}"]


def test_events_are_logged_only_where_debug_lines_are_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "penstock.events"):
        quiet = default_sinks()
    with caplog.at_level(logging.DEBUG, "penstock.events"):
        loud = default_sinks()

    assert [type(sink) for sink in quiet] == [RecentEvents]
    assert [type(sink) for sink in loud] == [RecentEvents, LogEvents]
