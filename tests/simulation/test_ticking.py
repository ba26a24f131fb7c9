# SPDX-License-Identifier: Apache-2.0
"""Does each end of a tick become what docs/design/daemon.md says?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Context, Penstock, Skip, TickContext
from penstock.errors import PayloadError, ScheduleEnded, UsageError
from penstock.model.job import ErrorCategory, JobState
from penstock.testing import harness

TICK = "schedule:tick"
SECOND = 1_000_000


class Script:
    """A global schedule, every ten seconds, that does one thing after another."""

    def __init__(self, *steps: Callable[[TickContext], Any], **options: Any) -> None:
        self.app = Penstock("script")
        self.steps = list(steps)
        self.tries: list[tuple[int, int]] = []  # due, begun; seconds after the first tick
        self.started: float | None = None

        @self.app.task()
        async def event(ctx: Context, number: int) -> str | None:
            return ctx.job.partition

        @self.app.every(10, over=(), **options)
        async def tick(ctx: TickContext) -> None:
            if self.started is None:
                self.started = ctx.due_at.timestamp()
            now = self.clock.now()
            self.tries.append(
                (round(ctx.due_at.timestamp() - self.started), round(now - self.started))
            )
            if self.steps:
                value = self.steps.pop(0)(ctx)
                if asyncio.iscoroutine(value):
                    await value

        self.event = event

    def run(self, seconds: float, **options: Any) -> Any:
        with harness(self.app, **options) as test:
            self.clock = test.clock
            test.advance(seconds)
            self.unit = test.unit(TICK)
            self.cursor = test.cursor(TICK)
            self.history = test.attempts(TICK)
            self.states = dict(test.states)
            assert test.store.check().result() == []
        return self


def raises(error: BaseException) -> Callable[[TickContext], Any]:
    def step(ctx: TickContext) -> None:
        raise error

    return step


def moves(value: Any) -> Callable[[TickContext], Any]:
    def step(ctx: TickContext) -> None:
        ctx.cursor = value

    return step


def fine(ctx: TickContext) -> None:
    """Returns."""


def test_a_tick_that_returns_is_armed_again_and_counted_and_leaves_no_history() -> None:
    script = Script().run(35)
    assert script.tries == [(0, 0), (10, 10), (20, 20), (30, 30)]
    assert (script.unit.ticks, script.unit.missed, script.unit.failed) == (4, 0, 0)
    assert script.history == []
    assert script.unit.state is JobState.QUEUED


def test_cursor_and_jobs_are_kept_with_the_tick_that_went_well() -> None:
    script = Script()

    def enqueues(ctx: TickContext) -> None:
        ctx.enqueue(script.event.job(1), key="e1")
        ctx.cursor = {"seen": 1}

    script.steps = [enqueues, fine]
    script.run(15)
    assert script.cursor == {"seen": 1}
    assert script.states["e1"] is JobState.DONE


@pytest.mark.parametrize("end", [Skip("nothing new"), ValueError("no")])
def test_cursor_and_jobs_of_a_tick_that_did_not_go_well_are_forgotten(end: Exception) -> None:
    script = Script()

    def enqueues(ctx: TickContext) -> None:
        ctx.enqueue(script.event.job(1), key="e1")
        ctx.cursor = {"seen": 1}
        raise end

    script.steps = [enqueues]
    script.run(5)
    assert script.cursor is None
    assert "e1" not in script.states


def test_skip_is_an_end_like_any_other() -> None:
    script = Script(raises(Skip("nothing new"))).run(15)
    assert script.tries == [(0, 0), (10, 10)]
    assert script.unit.ticks == 2
    assert script.unit.attempts == 0
    assert script.history == []


def test_a_tick_longer_than_its_interval_does_not_overlap_and_what_passed_is_missed() -> None:
    script = Script(lambda ctx: asyncio.sleep(25), fine).run(45)
    assert script.tries == [(0, 0), (30, 30), (40, 40)]
    assert (script.unit.ticks, script.unit.missed) == (3, 2)


def test_a_fault_of_its_own_leaves_it_degraded_loudly_until_it_is_well_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "penstock.worker")
    script = Script(*[raises(ValueError("token abc"))] * 4).run(500)
    assert [due for due, _ in script.tries[:5]] == [0] * 5  # the same occurrence each time
    gaps = [b - a for (_, a), (_, b) in zip(script.tries[:4], script.tries[1:5], strict=True)]
    assert all(gap <= limit for gap, limit in zip(gaps, (30, 60, 120, 240), strict=True))
    assert script.unit.failed == 4
    assert script.unit.attempts == 0
    loud = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(loud) == 4
    assert all("is degraded" in r.getMessage() for r in loud)
    assert [r.levelno for r in caplog.records if "has recovered" in r.getMessage()] == [
        logging.INFO
    ]
    assert {row.outcome for row in script.history} == {"retry"}
    late = script.tries[4][1]
    assert script.tries[5][0] == (late // 10 + 1) * 10  # the first after now
    assert script.unit.missed == late // 10


def test_others_failures_are_not_charged_and_never_given_up() -> None:
    script = Script(*[raises(ConnectionResetError("gone"))] * 200)
    script.run(300, settings={"tasks": {"give_up_after": 30}})  # as long as jobs are patient
    assert script.unit.state is JobState.QUEUED
    assert script.unit.attempts == 0
    assert script.unit.deferred_since is not None
    assert script.unit.last_error is not None
    assert script.unit.last_error.category is ErrorCategory.NODE
    assert script.unit.failed >= 5


def test_a_tick_past_its_time_limit_is_degraded() -> None:
    script = Script(lambda ctx: asyncio.sleep(1_000), timeout=5).run(40)
    assert script.unit.failed == 1
    assert script.history[0].error is not None
    assert script.history[0].error.category is ErrorCategory.TIMEOUT
    assert script.unit.ticks >= 1


def test_refused_effects_are_a_fault_of_its_own() -> None:
    script = Script()

    def refused(ctx: TickContext) -> None:
        ctx.cursor = 1
        ctx.enqueue(script.event.job(1), key="e1", after=["nobody knows this"])

    script.steps = [refused]
    script.run(35)
    assert script.cursor is None
    assert script.unit.failed == 1
    assert script.unit.ticks >= 1
    assert script.history[0].error is not None
    assert script.history[0].error.kind == "enqueue"
    assert "e1" not in script.states


def test_a_cursor_that_is_no_json_at_the_end_is_a_fault_of_its_own() -> None:
    def spoils(ctx: TickContext) -> None:
        ctx.cursor = seen = [1.0]
        seen.append(float("nan"))

    script = Script(spoils).run(35)
    assert script.cursor is None
    assert script.unit.failed == 1
    assert script.unit.ticks >= 1


def spoils_later(ctx: TickContext) -> None:
    ctx.cursor = seen = [1.0]
    seen.append(float("nan"))


@pytest.mark.parametrize(
    "mistake",
    [
        raises(UsageError("no such call")),
        raises(PayloadError("no such argument")),
        moves(object()),
        moves("x" * 2_000_000),
        spoils_later,
        lambda ctx: ctx.enqueue(Script().event.job(1), key=7),
    ],
)
def test_a_mistake_that_cannot_heal_leaves_a_schedule_degraded_and_is_told_once_a_try(
    mistake: Callable[[TickContext], Any], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(*[mistake] * 100).run(1_200)

    gaps = [b - a for (_, a), (_, b) in zip(script.tries, script.tries[1:], strict=False)]
    loud = [r for r in caplog.records if "is degraded" in r.getMessage()]
    assert script.unit.state is JobState.QUEUED
    assert (script.cursor, script.unit.ticks) == (None, 0)
    assert len(loud) == script.unit.failed == len(script.tries) >= 5
    assert all(gap >= 120 for gap in gaps[3:])  # 30 s, doubling to 5 min


def test_attempts_that_are_used_up_end_the_run() -> None:
    script = Script(*[raises(ValueError("no"))] * 3, max_attempts=3)
    with harness(script.app) as test:
        script.clock = test.clock
        with pytest.raises(ScheduleEnded, match=r"'schedule:tick' has failed 3 times.*ValueError"):
            test.advance(3_600)
        assert test.unit(TICK).state is JobState.ERROR
        test.advance(30)  # the next start arms it again
        assert test.unit(TICK).state is JobState.QUEUED
        assert test.unit(TICK).ticks >= 2


def test_a_tick_knows_when_it_was_due_and_what_has_passed_since() -> None:
    seen: list[tuple[float, int]] = []

    def look(ctx: TickContext) -> None:
        seen.append((ctx.due_at.timestamp(), ctx.missed))

    script = Script(raises(ValueError("no")), look)
    script.run(40)
    due, late = script.tries[1]
    assert due == 0
    assert seen[0][1] == late // 10


def test_jobs_of_a_tick_are_of_its_partition_and_group() -> None:
    app = Penstock("inherits")
    repos = app.partitions("repo", ["a/x", "b"])

    @app.task()
    async def event(ctx: Context) -> str | None:
        ctx.enqueue(second.job(), key=f"second {ctx.job.partition}")
        return ctx.job.partition

    @app.task()
    async def second(ctx: Context) -> str | None:
        return ctx.job.partition

    @app.every(1_000, over=repos)
    async def poll(ctx: TickContext, repo: str) -> None:
        ctx.enqueue(event.job(), key=f"event {repo}")

    with harness(app) as test:
        test.advance(10)
        assert test.results["event a/x"] == "a%2Fx"
        assert test.results["second a%2Fx"] == "a%2Fx"
        assert test.job("event b").group == "b"
        assert test.job("schedule:poll:b").group == "b"


def test_a_retired_unit_ticks_no_more_and_keeps_its_cursor_for_when_it_comes_back() -> None:
    names = ["a", "b"]
    app = Penstock("retires")
    repos = app.partitions("repo", lambda: names)

    @app.every(10, over=repos)
    async def poll(ctx: TickContext, repo: str) -> None:
        ctx.cursor = (ctx.cursor or 0) + 1
        await asyncio.sleep(0.5)

    with harness(app) as test:
        test.advance(25)
        first = test.cursor("schedule:poll:b")
        names.remove("b")
        test.restart()
        test.advance(25)
        assert test.cursor("schedule:poll:b") == first
        assert test.unit("schedule:poll:b").retired_at is not None
        assert test.cursor("schedule:poll:a") > first
        names.append("b")
        test.restart()
        test.advance(25)
        assert test.cursor("schedule:poll:b") > first
        assert test.unit("schedule:poll:b").retired_at is None
