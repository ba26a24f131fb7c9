# SPDX-License-Identifier: Apache-2.0
"""Does nothing begin before every check has passed, and does what they return reach the work?"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Context, Penstock, Skip, TickContext
from penstock.errors import PayloadError, PreflightFailed, UsageError
from penstock.model.job import NewJob
from penstock.model.schedule import PreflightResult
from penstock.testing import harness

TIMEOUT = {"runtime": {"preflight_timeout": 60}}


class Checked:
    """An app whose checks do what a test says, and whose work is counted."""

    def __init__(self, **options: Any) -> None:
        self.app = Penstock("checked")
        self.bodies = 0  # of work
        self.looks: list[str] = []
        self.fails: dict[str, Any] = {}  # partition → an error, or what to await
        self.values: dict[str, Any] = {}
        self.sees: list[Any] = []
        repos = self.app.partitions("repo", ["a", "b", "c"])

        @self.app.preflight(over=repos, **options)
        async def exists(ctx: Context, repo: str) -> Any:
            self.looks.append(repo)
            failing = self.fails.get(repo)
            if isinstance(failing, list):
                failing = failing.pop(0) if failing else None
            if isinstance(failing, BaseException):
                raise failing
            if failing is not None:
                await failing()
            return self.values.get(repo)

        @self.app.preflight()
        def schema(ctx: Context) -> int:
            if isinstance(self.fails.get(""), BaseException):
                raise self.fails[""]
            return 7

        @self.app.task()
        async def event(ctx: Context) -> Any:
            self.bodies += 1
            return dict(ctx.preflight)

        @self.app.every(10, over=repos)
        async def poll(ctx: TickContext, repo: str) -> None:
            self.bodies += 1
            self.sees.append((repo, dict(ctx.preflight)))
            if isinstance(self.fails.get(f"tick {repo}"), BaseException):
                raise self.fails.pop(f"tick {repo}")
            ctx.enqueue(event.job(), key=f"event {repo}")

        self.event = event


def test_every_failure_is_named_and_no_work_code_runs_at_all() -> None:
    checked = Checked()
    checked.fails = {"a": ValueError("no such repository"), "c": RuntimeError("bad token")}
    with harness(checked.app) as test:
        test.enqueue(checked.event.job(), key="waits")
        with pytest.raises(PreflightFailed) as caught:
            test.advance(60)
        assert caught.value.failures == {
            "preflight:exists:a": "ValueError: no such repository",
            "preflight:exists:c": "RuntimeError: bad token",
        }
        assert "2 of 4 preflights" in str(caught.value)
        assert checked.bodies == 0
        assert test.states == {"waits": "queued"}
        assert test.store.units(None, "", 10).result() == []
        kept = test.store.preflights("checked", "", 10).result()
        assert [(x.unit, x.error is None) for x in kept] == [
            ("preflight:exists:a", False),
            ("preflight:exists:b", True),
            ("preflight:exists:c", False),
            ("preflight:schema", True),
        ]
        checked.fails = {}
        test.advance(15)  # the next start is another chance
        assert checked.bodies > 0
        assert all(x.error is None for x in test.store.preflights("checked", "", 10).result())


def test_all_checks_run_concurrently() -> None:
    checked = Checked()
    checked.fails = dict.fromkeys("abc", lambda: asyncio.sleep(10))
    with harness(checked.app) as test:
        before = test.clock.now()
        test.advance(0)
        assert test.clock.now() - before == pytest.approx(10, abs=0.5)


def test_failures_of_others_are_tried_again_within_the_time_limit() -> None:
    checked = Checked()
    checked.fails = {"a": [ConnectionResetError("gone"), ConnectionResetError("gone")]}
    with harness(checked.app, settings=TIMEOUT) as test:
        test.advance(15)
        assert checked.looks.count("a") == 3
        assert checked.bodies > 0


def test_an_ill_service_fails_the_start_when_the_time_is_over() -> None:
    checked = Checked()
    checked.fails = {"a": ConnectionResetError("gone")}
    with harness(checked.app, settings=TIMEOUT) as test:
        before = test.clock.now()
        with pytest.raises(PreflightFailed, match=r"preflight:exists:a .ConnectionResetError"):
            test.advance(15)
        assert checked.looks.count("a") >= 3
        assert test.clock.now() - before <= 60 + 1


def test_a_wait_longer_than_the_time_limit_is_not_waited_for() -> None:
    class Later(Exception):
        retry_after = 900.0

    checked = Checked()
    checked.fails = {"a": Later("come back")}
    with harness(checked.app, settings=TIMEOUT) as test:
        before = test.clock.now()
        with pytest.raises(PreflightFailed, match="come back"):
            test.advance(15)
        assert test.clock.now() - before < 2


def test_a_check_that_hangs_is_ended_by_its_time_limit() -> None:
    checked = Checked()
    checked.fails = {"b": lambda: asyncio.sleep(10_000)}
    with harness(checked.app, settings=TIMEOUT) as test:
        before = test.clock.now()
        with pytest.raises(PreflightFailed, match=r"preflight:exists:b .*time limit of 60 s"):
            test.advance(15)
        assert test.clock.now() - before == pytest.approx(60, abs=1)


@pytest.mark.parametrize("value", [float("nan"), "x" * 70_000, object()])
def test_a_value_that_cannot_be_kept_fails_the_start(value: Any) -> None:
    checked = Checked()
    checked.values = {"a": value}
    with harness(checked.app) as test, pytest.raises(PreflightFailed, match="preflight:exists:a"):
        test.advance(15)
    assert checked.looks.count("a") == 1  # another look would return the same


@pytest.mark.parametrize("mistake", [UsageError("no such call"), PayloadError("no argument")])
def test_a_mistake_of_a_check_fails_the_start_at_once(mistake: Exception) -> None:
    checked = Checked()
    checked.fails = {"a": mistake}
    with harness(checked.app) as test, pytest.raises(PreflightFailed, match=str(mistake)):
        test.advance(15)
    assert checked.looks.count("a") == 1


def test_a_check_that_skips_has_passed() -> None:
    checked = Checked()
    checked.fails = {"a": Skip("not for this one")}
    with harness(checked.app) as test:
        test.advance(15)
        assert checked.bodies > 0


def test_what_checks_return_reaches_ticks_and_jobs_of_their_partition() -> None:
    checked = Checked()
    checked.values = {"a": {"id": 1}, "b": [2]}
    with harness(checked.app) as test:
        test.advance(5)
        assert sorted(checked.sees, key=repr) == [
            ("a", {"exists": {"id": 1}, "schema": 7}),
            ("b", {"exists": [2], "schema": 7}),
            ("c", {"exists": None, "schema": 7}),
        ]
        assert test.results["event a"] == {"exists": {"id": 1}, "schema": 7}
        test.enqueue(checked.event.job(), key="of nobody")
        test.advance(5)
        assert test.results["of nobody"] == {"schema": 7}


def test_the_finest_value_counts() -> None:
    app = Penstock("finest")
    left = app.partitions("left", ["x", "y"])
    right = app.partitions("right", ["x", "y"])

    @app.preflight(over=left)
    async def of_left(ctx: Context, one: str) -> str:
        return f"left {one}"

    @app.preflight(over=right)
    async def of_right(ctx: Context, one: str) -> str:
        return f"right {one}"

    @app.preflight(over=(left, right))
    async def of_both(ctx: Context, one: str, other: str) -> str:
        return f"{one} and {other}"

    seen: dict[str, Any] = {}

    @app.every(100, over=(left, right))
    async def poll(ctx: TickContext, one: str, other: str) -> None:
        seen[f"{one}{other}"] = dict(ctx.preflight)

    with harness(app) as test:
        test.advance(5)
    assert seen["xy"] == {"of_left": "left x", "of_right": "right y", "of_both": "x and y"}
    assert seen["yx"] == {"of_left": "left y", "of_right": "right x", "of_both": "y and x"}


def test_a_check_on_duty_decides_when_a_failed_tick_is_tried_again() -> None:
    checked = Checked(recheck=True)
    with harness(checked.app) as test:
        test.advance(5)
        assert sorted(checked.looks) == ["a", "b", "c"]
        checked.fails = {"tick a": ValueError("no"), "a": ConnectionResetError("still away")}
        test.advance(120)
        unit = test.unit("schedule:poll:a")
        assert unit.last_error is not None
        assert unit.last_error.kind == "preflight exists"
        assert unit.last_error.category == "node"
        bodies = len([repo for repo, _ in checked.sees if repo == "a"])
        checked.fails, checked.values = {}, {"a": "new"}
        test.advance(400)
        assert len([repo for repo, _ in checked.sees if repo == "a"]) > bodies
        assert [seen for repo, seen in checked.sees if repo == "a"][-1]["exists"] == "new"
        kept = {x.unit: x.value for x in test.store.preflights("checked", "", 10).result()}
        assert kept["preflight:exists:a"] == '"new"'
        assert checked.looks.count("b") == 1  # others were not looked at again


def test_a_check_that_is_not_on_duty_is_not_asked_again() -> None:
    checked = Checked()
    with harness(checked.app) as test:
        test.advance(5)
        checked.fails = {"tick a": ValueError("no")}
        test.advance(60)
        assert checked.looks.count("a") == 1
        assert test.unit("schedule:poll:a").attempts == 0


def test_what_a_recheck_finds_in_another_process_reaches_what_is_leased_then() -> None:
    checked = Checked(recheck=True)
    with harness(checked.app) as test:
        test.advance(5)
        found = PreflightResult(
            unit="preflight:exists:a", name="exists", partition="a", value='"new"', checked_at=1
        )
        test.store.keep_preflights("checked", [found]).result()  # as another worker does
        test.advance(10)
        assert checked.sees[-3:].count(("a", {"schema": 7, "exists": "new"})) == 1
        assert [seen for repo, seen in checked.sees[-3:] if repo == "b"] == [
            {"schema": 7, "exists": None}
        ]
        job = NewJob(key="job", task="event", payload="{}", group="a", partition="a")
        test.store.enqueue([job]).result()
        test.advance(1)
        assert test.results["job"] == {"schema": 7, "exists": "new"}


def test_what_a_recheck_finds_is_kept_before_the_body_goes_on() -> None:
    app = Penstock("kept")
    values, kept = ["old", "new"], []

    @app.preflight(recheck=True)
    def token(ctx: Context) -> str:
        return values.pop(0)

    @app.every(10)
    async def poll(ctx: TickContext) -> None:
        kept.append([x.value for x in test.store.preflights("kept", "", 10).result()])
        if len(kept) == 1:
            raise ValueError("the token is old")

    with harness(app) as test:
        test.advance(60)
    assert kept[:2] == [['"old"'], ['"new"']]


def test_a_partition_whose_optional_check_failed_starts_when_it_passes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    checked = Checked(required=False)
    checked.values = {"a": 5}
    checked.fails = {"a": ValueError("no such repository")}
    with harness(checked.app) as test:
        test.advance(120)
        (told,) = [line for line in caplog.messages if "is not required" in line]
        assert told.startswith("preflight:exists:a did not pass")
        assert {repo for repo, _ in checked.sees} == {"b", "c"}
        assert 3 <= checked.looks.count("a") <= 8  # at the start, and with growing waits
        assert (checked.looks.count("b"), checked.looks.count("c")) == (1, 1)
        left_out = test.store.unit("schedule:poll:a").result()
        assert left_out is not None
        assert (left_out.is_failing, left_out.by_others, left_out.attempts) == (True, False, 0)

        checked.fails = {}
        test.advance(300)
        looks = checked.looks.count("a")
        seen = [found for repo, found in checked.sees if repo == "a"]
        assert seen[0] == {"exists": 5, "schema": 7}
        test.advance(60)
        assert checked.looks.count("a") == looks  # it has passed: nobody looks again


def test_a_partition_that_is_left_out_uses_up_no_attempts() -> None:
    app, ticks = Penstock("checked"), []
    fails = [True]

    @app.preflight(required=False)
    def up(ctx: Context) -> None:
        if fails:
            raise ValueError("down")

    @app.every(10, max_attempts=2)
    def poll(ctx: TickContext) -> None:
        ticks.append(1)
        if len(ticks) == 1:
            raise ValueError("once")

    with harness(app) as test:
        test.advance(400)  # ScheduleEnded, if a failed check were an attempt
        assert ticks == []
        fails.clear()
        test.advance(700)
        assert len(ticks) > 2


def test_a_left_out_partition_stays_so_over_a_restart_and_a_required_check_still_counts() -> None:
    checked = Checked(required=False)
    with harness(checked.app) as test:
        test.advance(15)
        checked.fails = {"a": ValueError("gone")}
        ticks = len([repo for repo, _ in checked.sees if repo == "a"])
        test.restart()
        test.advance(60)
        assert len([repo for repo, _ in checked.sees if repo == "a"]) == ticks

        checked.fails = {"a": ValueError("gone"), "": ValueError("no schema")}
        test.restart()
        with pytest.raises(PreflightFailed) as caught:
            test.advance(15)
        assert list(caught.value.failures) == ["preflight:schema"]
