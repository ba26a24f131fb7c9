# SPDX-License-Identifier: Apache-2.0
"""Does any test of the suite let a key, a prompt or an answer into a log or an event?

The environment of every test holds a key, and the shops of the tests (tests/paid_shop.py,
tests/budget_shop.py) send a key and a prompt with every call and get an answer, each with a canary.
What a test has logged and printed, and every event that was recorded, is looked at when it ends.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator

import pytest

from penstock.events.kinds import RequestEvent, SchedulerEvent
from penstock.testing.recording_sink import RecordingSink

KEY = "Kx71suitekey4f0c9d"
PROMPT = "Kx71suiteprompt5be1"
ANSWER = "Kx71suiteanswer8ad2"
CANARIES = (KEY, PROMPT, ANSWER)

_sinks: weakref.WeakSet[RecordingSink] = weakref.WeakSet()


def pytest_configure() -> None:
    """Plant the key, and hear of every sink."""
    os.environ["SUITE_API_KEY"] = KEY
    init = RecordingSink.__init__

    def noted(self: RecordingSink) -> None:
        init(self)
        _sinks.add(self)

    RecordingSink.__init__ = noted  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that has passed, and has told what it must not."""
    report = yield
    if report.when != "call" or not report.passed:
        return report
    leaks = [f"{name}: {found}" for name, text in report.sections if (found := leaked(text))]
    leaks += [f"an event: {found}" for sink in _sinks if (found := leaked(told(sink)))]
    _sinks.clear()
    if leaks:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} lets canaries out (tests/suite_canaries.py): {leaks}"
    return report


def leaked(text: str) -> list[str]:
    """The canaries in a text."""
    return [canary for canary in CANARIES if canary in text]


def told(sink: RecordingSink) -> str:
    """All words of the events, each once."""
    events: list[SchedulerEvent | RequestEvent] = [*sink.events, *sink.requests]
    words = {str(event.reason) for event in events}
    words |= {repr(event.correlation) for event in {id(e.correlation): e for e in events}.values()}
    words |= {"/".join(event.resource) for event in sink.requests}
    return "\n".join(words)
