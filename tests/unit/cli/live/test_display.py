# SPDX-License-Identifier: Apache-2.0
"""Does a person see what a run does, on a terminal and elsewhere?"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable

import pytest

from penstock.cli.live.display import LiveDisplay, PlainDisplay, format_progress, make_display
from penstock.cli.live.poller import UnitPoller
from penstock.cli.live.terminal import Terminal
from penstock.cli.render.throughput import Throughput
from penstock.model.job import JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.model.schedule import UnitPlan
from penstock.model.worker import ProviderUse, WorkerStatus
from penstock.observe.live import RunSnapshot, Work
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.supervisor.display import Course, Display
from penstock.supervisor.protocol import Checking
from penstock.testing import ManualClock
from penstock.worker.log_lines import LimitChanges


def live_display(*, clock: ManualClock) -> LiveDisplay:
    """On a terminal that is not there."""
    return LiveDisplay(Terminal(-1, None), io.StringIO(), colour=False, clock=clock)


def make_store(clock: ManualClock) -> InProcessStore:
    store = InProcessStore(clock)
    jobs = [NewJob(key=f"k{n}", task="t", payload="{}", group="t") for n in range(4)]
    store.enqueue(jobs).result()
    return store


def test_the_plain_display_says_something_every_ten_seconds(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "penstock.run")
    clock = ManualClock()
    store = make_store(clock)
    display: Display = PlainDisplay(clock=clock)

    display.started(store, "run-1")
    store.cancel(["k0", "k1"]).result()
    for _ in range(44):  # eleven seconds
        clock.advance(0.25)
        display.tick(store, Course.WORKING)
    display.line("a \x1b worker's line")
    display.close("run-1")

    assert not display.pipes_workers
    assert [record.getMessage() for record in caplog.records] == [
        "Working on memory:: 4 jobs to do.",
        "0 done, 0 skipped, 0 error, 2 cancelled; 0.2/s; 2 left.",
    ]
    out, err = capsys.readouterr()
    assert out == (
        "0 done, 0 skipped, 0 error, 2 cancelled in 11 s (0.0/s); 2 left\n"
        "Next: penstock queue run --drain continues with the remaining jobs\n"
    )
    assert err == "a \\x1b worker's line\n"


def publish_limit(store: InProcessStore, limit: int) -> None:
    worker = WorkerId("w-limits")
    if not store.workers().result():
        store.register(WorkerInfo(id=worker, run_id="run-1", tasks=("t",)), 60).result()
    found = ProviderUse(provider="[acme]", model="m", limit=limit, limit_max=256, in_flight=3)
    store.publish(worker, WorkerStatus(captured_at=1, providers=(found,)).encoded()).result()


def test_the_plain_display_tells_a_limit_that_moves(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.run")
    clock = ManualClock()
    store = make_store(clock)
    display = PlainDisplay(clock=clock)
    display.started(store, "run-1")

    for limit in [4] * 8 + [16] * 36:  # eleven seconds, four ticks each
        publish_limit(store, limit)
        clock.advance(0.25)
        display.tick(store, Course.WORKING)

    assert [record.getMessage() for record in caplog.records][1:] == [
        "[acme] limit 4 of 256 (3 in flight, 0 refused).",
        "[acme] limit 4 → 16 of 256 (3 in flight, 0 refused).",
        "0 done, 0 skipped, 0 error, 0 cancelled; 0.0/s; 4 left; "
        "[acme] limit 16 of 256 (3 in flight, 0 refused); no progress: no worker has taken a job "
        "yet.",
    ]


@pytest.mark.parametrize("make", [PlainDisplay, live_display])
def test_the_closing_line_counts_what_this_run_did_and_nobody_else(
    make: Callable[..., PlainDisplay | LiveDisplay], capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    store = make_store(clock)
    display = make(clock=clock)
    display.started(store, "run-1")
    end_jobs(store, "run-1", 1)
    end_jobs(store, "run-2", 2)
    clock.advance(1)

    display.close("run-1")

    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "1 done, 0 skipped, 0 error in 1.0 s (1.0/s); 1 left"
    assert rest == ["Next: penstock queue run --drain continues with the remaining jobs"]


def end_jobs(store: InProcessStore, run_id: str, count: int) -> None:
    worker = WorkerId(f"w-{run_id}")
    store.register(WorkerInfo(id=worker, run_id=run_id, tasks=("t",)), 60).result()
    request = LeaseRequest(worker=worker, tasks=("t",), limit=count, caps=ConfiguredCaps())
    jobs = store.lease(request).result().jobs
    assert len(jobs) == count
    store.ack(worker, [JobEnd(job, JobState.DONE, 1, 2, None) for job in jobs]).result()


@pytest.mark.parametrize("make", [PlainDisplay, live_display])
def test_a_run_that_failed_or_never_started_has_no_summary(
    make: Callable[..., PlainDisplay | LiveDisplay], capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    make(clock=clock).close("run-1")
    failed = make(clock=clock)
    failed.started(make_store(clock), "run-1")
    failed.close(None)

    assert "done" not in capsys.readouterr().out


def test_a_closed_store_costs_only_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    store = make_store(clock)
    display = PlainDisplay(clock=clock)
    display.started(store, "run-1")
    store.close()

    display.close("run-1")

    assert capsys.readouterr().out == ""


def publish_outage(store: InProcessStore, clock: ManualClock, failed_in_row: int) -> None:
    worker = WorkerId("w-limits")
    if not store.workers().result():
        store.register(WorkerInfo(id=worker, run_id="run-1", tasks=("t",)), 600).result()
    until = round((clock.now() + 8) * 1_000_000) if failed_in_row else None
    found = ProviderUse(
        provider="acme",
        model="m",
        limit=256,
        limit_max=256,
        failed_in_row=failed_in_row,
        blocked_until_at=until,
    )
    status = WorkerStatus(captured_at=round(clock.now() * 1_000_000), providers=(found,))
    store.publish(worker, status.encoded()).result()


def test_the_plain_display_says_why_nothing_moves_and_when_it_moves_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "penstock.run")
    clock = ManualClock()
    store = make_store(clock)
    display = PlainDisplay(clock=clock)
    display.started(store, "run-1")

    for failed in [3] * 11 + [0] * 3:
        publish_outage(store, clock, failed)
        clock.advance(1.0)
        display.tick(store, Course.WORKING)

    assert [record.getMessage() for record in caplog.records][1:] == [
        "acme is down (3 failures in a row); it is probed now and then, and its jobs wait "
        "uncharged.",
        "0 done, 0 skipped, 0 error, 0 cancelled; 0.0/s; 4 left; no progress: acme is down "
        "(3 failures in a row), probed in 7 s.",
        "acme has recovered.",
    ]


def test_what_is_no_terminal_gets_plain_lines() -> None:
    assert isinstance(make_display("text"), PlainDisplay)
    assert isinstance(make_display("json"), PlainDisplay)


def test_lines_go_to_stderr_while_no_screen_is_shown() -> None:
    errors = io.StringIO()
    display: Display = LiveDisplay(Terminal(-1, None), errors, colour=False, clock=ManualClock())

    display.line("[bold]not markup[/] \x1b[2J")

    assert display.pipes_workers
    assert display.keys() is None
    assert list(display.typed()) == []
    assert errors.getvalue() == "[bold]not markup[/] \\x1b[2J\n"


def arm_units(store: InProcessStore, count: int) -> None:
    plans = [
        UnitPlan(
            key=f"schedule:poll:{n}",
            task="schedule:poll",
            payload="{}",
            group=str(n),
            partition=str(n),
            timing="every 10 s",
            first_at=10**18,
        )
        for n in range(count)
    ]
    store.arm("shop", plans).result()


def test_a_daemon_first_tells_how_far_the_preflights_are(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "penstock.run")
    clock = ManualClock()
    store = make_store(clock)
    display: Display = PlainDisplay(clock=clock, daemon=True)

    display.started(store, "run-1", Course.CHECKING)
    for passed in range(13):
        display.tick(store, Course.CHECKING, Checking(passed=passed, failed=0, total=40))
        clock.advance(1.0)
    arm_units(store, 3)
    display.tick(store, Course.WORKING)
    clock.advance(11.0)
    display.tick(store, Course.WORKING)
    clock.advance(1.0)
    display.close("run-1")

    assert [record.getMessage() for record in caplog.records] == [
        "0 of 40 preflights have passed.",
        "10 of 40 preflights have passed.",
        "Working on memory:: 4 jobs to do, 3 units of schedules.",
        "0 done, 0 skipped, 0 error, 0 cancelled; 0.0/s; 4 left; 3 units of schedules, 0 ticking; "
        "no progress: no worker has taken a job yet.",
    ]
    assert capsys.readouterr().out == (
        "0 done, 0 skipped, 0 error in 12 s (0.0/s); 4 left\n"
        "3 units of schedules\n"
        "Next: penstock run continues with the remaining jobs\n"
    )


def test_a_run_of_the_queue_does_not_speak_of_units(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.run")
    clock = ManualClock()
    store = make_store(clock)
    arm_units(store, 3)

    PlainDisplay(clock=clock).started(store, "run-1")

    assert caplog.records[0].getMessage() == "Working on memory:: 4 jobs to do."


def test_a_round_over_many_units_takes_a_page_at_a_time() -> None:
    clock = ManualClock()
    store = InProcessStore(clock)
    arm_units(store, 700)
    round_ = UnitPoller(store)

    round_.poll(2 * 10**18)
    assert round_.found.late == 0  # the round is not over
    round_.poll(2 * 10**18)

    assert round_.found.late == 700
    round_.poll(0)
    round_.poll(0)
    assert round_.found.late == 0


def test_a_time_left_is_told_only_if_something_is_left() -> None:
    ended = {JobState.DONE: 60}
    snapshot = RunSnapshot(work=Work())

    idle = format_progress(snapshot, Throughput(ended, 0, 20.0, 3.0, 3.0, 0.0), LimitChanges(0.0))
    busy = format_progress(snapshot, Throughput(ended, 9, 20.0, 3.0, 3.0, 3.0), LimitChanges(0.0))

    assert idle == ["60 done", "3.0/s", "0 left"]
    assert busy[2] == "9 left, about 3.0 s"


def test_a_daemon_whose_preflights_fail_never_says_that_it_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "penstock.run")
    clock = ManualClock()
    store = make_store(clock)
    display: Display = PlainDisplay(clock=clock, daemon=True)

    display.started(store, "run-1", Course.CHECKING)
    display.tick(store, Course.CHECKING, Checking(passed=0, failed=1, total=1))
    display.tick(store, Course.STOPPING)
    late: Display = PlainDisplay(clock=clock, daemon=True)
    late.started(store, "run-2", Course.STOPPING)

    assert not [line for line in caplog.messages if line.startswith("Working on")]
