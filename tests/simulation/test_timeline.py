# SPDX-License-Identifier: Apache-2.0
"""Do the two streams of a run join into one timeline per task, with figures that are right?"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock import Context, Penstock
from penstock.events.kinds import RequestEventKind as R
from penstock.events.kinds import SchedulerEvent
from penstock.events.kinds import SchedulerEventKind as S
from penstock.observe.timeline import GAPS, NO_GROUPS, NO_STEPS, CorrelatedRuntimeView
from penstock.testing import harness
from penstock.testing.simulated_provider import ProviderRules, SimulatedProvider


def view_of_calls(jobs: int, latency: float, cap: int) -> CorrelatedRuntimeView:
    app = Penstock("shop")
    api = app.provider("api", base_url="http://simulated.invalid", max_parallel=cap)

    @app.task(uses=api)
    async def fetch(ctx: Context, n: int) -> None:
        await api.http.get(f"/things/{n}")

    simulated = SimulatedProvider(ProviderRules(latency=latency))
    with harness(app, providers={"api": simulated}) as t:
        t.enqueue_many(fetch.job(n=n) for n in range(jobs))
        t.drain()
        return CorrelatedRuntimeView(t.sink.events, t.sink.requests)


def view_of_naps(jobs: int, seconds: float, slots: int) -> CorrelatedRuntimeView:
    app = Penstock("shop")

    @app.task()
    async def nap(ctx: Context, n: int) -> None:
        await asyncio.sleep(seconds)

    with harness(app, settings={"runtime": {"async_slots": slots}}) as t:
        t.enqueue_many(nap.job(n=n) for n in range(jobs))
        t.drain()
        return CorrelatedRuntimeView(t.sink.events)


def test_a_task_has_its_steps_of_both_streams_in_order() -> None:
    view = view_of_calls(jobs=4, latency=2.0, cap=2)

    timelines = list(view.timelines().values())

    assert len(timelines) == 4
    wanted = [
        S.SELECTED,
        S.TASK_LEASE_ACQUIRED,
        S.WORKER_SPAWNED,
        R.REQUEST_WAIT_STARTED,
        R.REQUEST_LEASE_ACQUIRED,
        R.MODEL_REQUEST_STARTED,
        R.REQUEST_LEASE_RELEASED,
        S.TASK_LEASE_RELEASED,
        S.TASK_COMPLETED,
    ]
    for timeline in timelines:
        kinds = [step.kind for step in timeline.steps]
        places = [kinds.index(kind) for kind in wanted]
        assert places == sorted(places)
        assert timeline.task == "fetch"
        assert timeline.call_seconds == pytest.approx(2.0)
    told = [e.numbers for e in view.events if e.event_kind is R.REQUEST_WAIT_COMPLETED]
    seconds = sum((numbers or {})["seconds"] for numbers in told)
    assert seconds >= 4.0  # two at once, 2 s each: two of them waited for 2 s
    assert sum(one.request_wait_seconds for one in timelines) == pytest.approx(seconds)


def test_what_is_held_and_what_waits_is_integrated() -> None:
    view = view_of_naps(jobs=6, seconds=3.0, slots=2)

    assert view.active_capacity_integral.value == pytest.approx(6 * 3.0)
    assert view.ready_idle_gap.value == pytest.approx(0.0, abs=1e-9)
    assert view.hidden_scheduler_resource_waiters.value == 0
    waited = view.ready_queue_wait.value
    assert waited is not None
    assert waited > 0
    assert view.task_admission_wait.value == pytest.approx(waited)


def test_a_selection_that_nothing_made_possible_just_then_is_late() -> None:
    view = view_of_naps(jobs=2, seconds=3.0, slots=1)
    late = [
        msgspec.structs.replace(event, captured_at_monotonic=event.captured_at_monotonic + 0.5)
        if event.event_kind is S.SELECTED
        else event
        for event in view.events
        if isinstance(event, SchedulerEvent)
    ]

    assert CorrelatedRuntimeView(late).ready_idle_gap.value == pytest.approx(1.0)  # 2 × 0.5


def test_what_the_streams_do_not_carry_has_a_reason() -> None:
    view = view_of_naps(jobs=2, seconds=1.0, slots=1)
    scheduler = [
        event
        for event in view.events
        if isinstance(event, SchedulerEvent) and event.event_kind is not S.SELECTED
    ]

    assert view.root_over_admission_debt.missing_reason == NO_GROUPS
    assert CorrelatedRuntimeView(scheduler).ready_queue_wait.missing_reason == GAPS
    assert CorrelatedRuntimeView([]).ready_queue_wait.missing_reason == NO_STEPS
