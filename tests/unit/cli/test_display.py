# SPDX-License-Identifier: Apache-2.0
"""Does a person see what a run does, on a terminal and elsewhere?"""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from penstock.cli.display import LiveDisplay, PlainDisplay
from penstock.model.job import JobState, NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, JobEnd, LeaseRequest, WorkerInfo
from penstock.model.worker_status import ProviderUse, WorkerStatus
from penstock.runtime.display import Display
from penstock.stores.memory import MemoryStore
from penstock.testing import ManualClock


def make_store(clock: ManualClock) -> MemoryStore:
    store = MemoryStore(clock)
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

    display.started(store)
    store.cancel(["k0", "k1"]).result()
    for _ in range(44):  # eleven seconds
        clock.advance(0.25)
        display.tick(store)
    display.line("a \x1b worker's line")
    display.close("run-1")

    assert not display.pipes_workers
    assert [record.getMessage() for record in caplog.records] == [
        "Working on memory:: 4 jobs to do.",
        "0 done, 0 skipped, 0 error, 2 cancelled; 0.2/s; 2 left, about 10 s.",
    ]
    out, err = capsys.readouterr()
    assert out == "0 done, 0 skipped, 0 error in 11 s (0.0/s); 2 left\n"
    assert err == "a \\x1b worker's line\n"


def test_the_live_display_shows_states_rate_and_what_workers_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = ManualClock()
    store = make_store(clock)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, highlight=False)
    display: Display = LiveDisplay(clock=clock, console=console)

    display.line("before the start")
    display.started(store)
    store.cancel(["k0"]).result()
    clock.advance(1)
    display.tick(store)
    display.line("[bold]not markup[/] \x1b[2J")
    display.close("run-1")

    shown = screen.getvalue()
    assert display.pipes_workers
    assert "in_progress" in shown
    assert "1.0/s" in shown
    assert "3.0 s left" in shown
    assert "before the start" in shown
    assert "[bold]not markup[/] \\x1b[2J" in shown
    assert "0 done, 0 skipped, 0 error in 1.0 s" in capsys.readouterr().out


def publish_limit(store: MemoryStore, limit: int) -> None:
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
    display.started(store)

    for limit in [4] * 8 + [16] * 36:  # eleven seconds, four ticks each
        publish_limit(store, limit)
        clock.advance(0.25)
        display.tick(store)

    assert [record.getMessage() for record in caplog.records][1:] == [
        "[acme] limit 4 of 256 (3 in flight, 0 refused).",
        "[acme] limit 4 → 16 of 256 (3 in flight, 0 refused).",
        "0 done, 0 skipped, 0 error, 0 cancelled; 0.0/s; 4 left; "
        "[acme] limit 16 of 256 (3 in flight, 0 refused).",
    ]


def test_the_live_display_shows_limits_that_move() -> None:
    clock = ManualClock()
    store = make_store(clock)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, highlight=False)
    display = LiveDisplay(clock=clock, console=console)
    display.started(store)
    publish_limit(store, 16)

    clock.advance(1)
    display.tick(store)

    assert "[acme] limit 16 of 256 (3 in flight, 0 refused)" in screen.getvalue()


@pytest.mark.parametrize("kind", [PlainDisplay, LiveDisplay])
def test_the_closing_line_counts_what_this_run_did_and_nobody_else(
    kind: type[PlainDisplay] | type[LiveDisplay], capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    store = make_store(clock)
    display = kind(clock=clock)
    display.started(store)
    end_jobs(store, "run-1", 1)
    end_jobs(store, "run-2", 2)
    clock.advance(1)

    display.close("run-1")

    assert capsys.readouterr().out == "1 done, 0 skipped, 0 error in 1.0 s (1.0/s); 1 left\n"


def end_jobs(store: MemoryStore, run_id: str, count: int) -> None:
    worker = WorkerId(f"w-{run_id}")
    store.register(WorkerInfo(id=worker, run_id=run_id, tasks=("t",)), 60).result()
    request = LeaseRequest(worker=worker, tasks=("t",), limit=count, caps=ConfiguredCaps())
    jobs = store.lease(request).result().jobs
    assert len(jobs) == count
    store.ack(worker, [JobEnd(job, JobState.DONE, 1, 2, None) for job in jobs]).result()


@pytest.mark.parametrize("kind", [PlainDisplay, LiveDisplay])
def test_a_run_that_failed_or_never_started_has_no_summary(
    kind: type[PlainDisplay] | type[LiveDisplay], capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    kind(clock=clock).close("run-1")
    failed = kind(clock=clock)
    failed.started(make_store(clock))
    failed.close(None)

    assert "done" not in capsys.readouterr().out


def test_a_closed_store_costs_only_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    store = make_store(clock)
    display = PlainDisplay(clock=clock)
    display.started(store)
    store.close()

    display.close("run-1")

    assert capsys.readouterr().out == ""
