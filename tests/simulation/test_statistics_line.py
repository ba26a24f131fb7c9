# SPDX-License-Identifier: Apache-2.0
"""Does a long run say now and again how it stands, and not more often than is worth it?"""

from __future__ import annotations

import asyncio
import logging
import re
from itertools import pairwise

import pytest

from penstock import Context, Penstock, RunProgress
from penstock.errors import StoreBusy
from penstock.events.kinds import SchedulerEvent, SchedulerEventKind
from penstock.events.sink import SchedulerEvents
from penstock.model.views import Stats
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.store_future import Reply
from penstock.testing import (
    Harness,
    ManualClock,
    ProviderRules,
    RecordingSink,
    SimulatedProvider,
    harness,
)
from penstock.worker.log_lines import SILENT_MAX, StatisticsLine

SNAPSHOT = SchedulerEventKind.SCHEDULER_HEALTH_SNAPSHOT


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "penstock.statistics"]


def snapshots(t: Harness) -> list[SchedulerEvent]:
    return [event for event in t.events if event.event_kind is SNAPSHOT]


@pytest.fixture
def app() -> Penstock:
    app = Penstock("statistics")

    @app.task()
    async def steady(ctx: Context, n: int) -> int:
        await asyncio.sleep(1)
        return n

    @app.task(max_attempts=2)
    async def fails(ctx: Context) -> None:
        raise ValueError("mine")

    return app


def test_progress_is_reported_once_a_virtual_second_and_at_the_end(app: Penstock) -> None:
    told: list[RunProgress] = []
    with harness(app) as t:
        t.enqueue_many([app.tasks["steady"].job(n=n) for n in range(40)])
        t.enqueue(app.tasks["fails"].job(), key="fails")
        t.drain(on_progress=told.append)

    assert [one.is_last for one in told[:-1]] == [False] * (len(told) - 1)
    assert told[-1].is_last
    assert (told[-1].done, told[-1].errors, told[-1].left) == (40, 1, 0)
    assert [round(one.seconds) for one in told[:-1]] == [*range(1, len(told))]
    assert all(one.done + one.errors + one.left == 41 for one in told)
    assert max(one.rate for one in told) > 0


def test_a_line_and_an_event_say_every_minute_how_the_run_stands(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = {"runtime": {"async_slots": 2, "statistics_seconds": 60}}
    with harness(app, settings=settings) as t:
        for n in range(300):  # two at once, a second each: 150 s
            t.enqueue(app.tasks["steady"].job(n=n), key=f"k{n}")
        t.enqueue(app.tasks["fails"].job(), key="bad", priority=9)
        t.enqueue(app.tasks["steady"].job(n=0), key="later", delay=1_000)
        t.enqueue(app.tasks["steady"].job(n=0), key="after", after=["later"])
        t.drain()

        first, second = snapshots(t)[:2]
        assert first.numbers is not None
        assert second.numbers is not None
        assert first.numbers["done"] == pytest.approx(120, abs=4)
        assert first.numbers["done_per_second"] == pytest.approx(2, abs=0.1)
        assert first.numbers["queued"] == pytest.approx(180, abs=6)
        assert first.numbers["failed"] == 1
        assert (first.numbers["running"], first.numbers["waiting"]) == (2, 1)
        assert first.numbers["delayed"] == 1
        assert second.numbers["done"] == pytest.approx(240, abs=8)
        assert second.captured_at_monotonic - first.captured_at_monotonic == pytest.approx(60)
        assert first.correlation.task is None
        lines = told(caplog)
        assert len(lines) == len(snapshots(t))
        counts = first.numbers
        assert lines[0] == (
            f"{counts['queued']:.0f} queued (1 delayed or to be retried), 2 running, "
            f"{counts['done']:.0f} done (2/s), 1 failed, 1 waiting for others, oldest ready "
            f"{counts['oldest_ready_seconds']:.0f} s."
        )


def test_the_line_names_a_limit_that_is_being_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = Penstock("limits")
    acme = app.provider("acme", base_url="http://acme.invalid")

    @app.task(uses=acme)
    async def call(ctx: Context, number: int) -> None:
        (await acme.http.get(f"/{number}")).raise_for_status()

    hidden = SimulatedProvider(ProviderRules(concurrency=12, latency=0.5))
    settings = {"runtime": {"statistics_seconds": 10}}
    with harness(app, settings=settings, providers={"acme": hidden}) as t:
        t.enqueue_many(call.job(number=number) for number in range(1_000))
        t.drain()

    lines = told(caplog)
    assert len(lines) >= 3
    found = [
        re.search(r", acme limit (\d+) of 256 \((\d+) in flight, \d+ refused", line)
        for line in lines
    ]
    assert all(found)
    assert 9 <= max(int(one.group(1)) for one in found if one) <= 14


def test_nothing_is_said_while_nothing_changes_but_for_every_tenth_time(app: Penstock) -> None:
    with harness(app, settings={"runtime": {"statistics_seconds": 60}}) as t:
        t.enqueue(app.tasks["steady"].job(n=1), key="later", delay=60 * 40)
        t.drain()

        times = [round(event.captured_at_monotonic) for event in snapshots(t)]
        assert {b - a for a, b in pairwise(times[:-1])} == {600}
        assert len(times) == pytest.approx(40 / (SILENT_MAX + 1), abs=1)


def test_zero_turns_it_off(app: Penstock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with harness(app, settings={"runtime": {"statistics_seconds": 0}}) as t:
        t.enqueue(app.tasks["steady"].job(n=1), key="later", delay=600)
        t.drain()

        assert snapshots(t) == []
        assert told(caplog) == []


class _Busy(InProcessStore):
    def stats(self) -> Reply[Stats]:
        return Reply.failed(StoreBusy("held by somebody"))


def test_a_store_that_cannot_be_read_is_told_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    store = _Busy(clock)
    line = StatisticsLine(10, "run", store, clock, SchedulerEvents(clock, (RecordingSink(),)))

    clock.advance(10)

    assert line.tick() is False
    assert "cannot be read: held by somebody" in told(caplog)[0]
    assert line.tick() is False  # not due again yet
    assert len(told(caplog)) == 1


def test_only_counters_and_workers_are_asked() -> None:
    clock = ManualClock()
    asked: list[str] = []

    class Watched(InProcessStore):
        def __getattribute__(self, name: str) -> object:
            if not name.startswith("_"):
                asked.append(name)
            return super().__getattribute__(name)

    line = StatisticsLine(10, "run", Watched(clock), clock, SchedulerEvents(clock, ()))
    asked.clear()
    clock.advance(10)

    assert line.tick() is True
    assert set(asked) - {"app"} == {"stats", "outlook", "workers"}
