# SPDX-License-Identifier: Apache-2.0
"""Are datasets kept current by the daemon: planned to now, once, whatever fails or dies?"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import msgspec
import pytest

from penstock import Context, Penstock, Slices
from penstock.builds import slice as slice_module
from penstock.builds.report import end_kept_plan
from penstock.calendars import Hourly
from penstock.errors import UsageError
from penstock.model.job import JobState
from penstock.model.plan import PlanState
from penstock.testing import harness
from penstock.testing.harness import Harness

SINCE = "2023-11-14T21:00:00Z"
NOW = ("readings@20", "readings@21", "readings@22", "trend@21", "trend@22")


class Weather:
    """`readings` every hour and the `trend` of the last two, kept current every ten minutes."""

    def __init__(self, since: str = SINCE, every: str = "10m", *, eager: bool = False) -> None:
        self.app = app = Penstock("weather")
        self.built: list[str] = []
        self.failing: set[int] = set()  # hours
        self.seconds = 0.0  # that a slice takes

        @app.dataset(calendar=Hourly(), max_attempts=1)
        async def readings(ctx: Context, at: datetime) -> list[dict[str, Any]]:
            await asyncio.sleep(self.seconds)
            if at.hour in self.failing:
                raise ValueError(f"no reading at {at:%H}")
            self.built.append(f"readings@{at:%H}")
            return [{"degrees": float(at.hour)}]

        @app.dataset(calendar=Hourly(), needs=[readings.lookback(2)])
        async def trend(ctx: Context, at: datetime, readings: Slices) -> list[dict[str, Any]]:
            await asyncio.sleep(self.seconds)
            self.built.append(f"trend@{at:%H}")
            return [{"degrees": sum(row["degrees"] for row in readings.rows())}]

        app.keep_current(trend, since=since, every=every, eager=eager)

    def take(self) -> list[str]:
        """What was built since the last look."""
        built, self.built = sorted(self.built), []
        return built


UNIT = "schedule:datasets"


def cursor(test: Harness) -> Any:
    """What the last plan of the schedule has left."""
    return msgspec.json.decode(test.store.cursors([UNIT]).result().get(UNIT, "null"))


def check(test: Harness) -> None:
    """Nothing is broken, and nobody holds anything."""
    assert test.store.check().result() == []
    assert test.store.locks().result() == []
    assert test.store.open_plans().result() == []


def test_datasets_are_built_up_to_now_and_go_on_with_the_clock() -> None:
    weather = Weather()
    with harness(weather.app) as test:  # it begins at 22:13 on the 14th of November 2023
        test.advance("1m")
        assert weather.take() == [
            "readings@20",
            "readings@21",
            "readings@22",
            "trend@21",
            "trend@22",
        ]
        test.advance("1h")
        assert weather.take() == ["readings@23", "trend@23"]
        assert test.read("trend").to_pylist() == [
            {"degrees": 41.0},
            {"degrees": 43.0},
            {"degrees": 45.0},
        ]
        assert cursor(test)["slices"] == 2
        check(test)


def test_a_slice_that_fails_is_built_by_the_next_tick_and_holds_up_only_what_needs_it() -> None:
    weather = Weather()
    weather.failing = {21}
    with harness(weather.app) as test:
        test.advance("1m")
        assert weather.take() == ["readings@20", "readings@22"]
        assert cursor(test)["failures"] == ["readings@2023-11-14T21:00:00Z"]
        assert (cursor(test)["failed"], cursor(test)["skipped"]) == (1, 2)
        test.advance("10m")
        assert weather.take() == []
        weather.failing = set()
        test.advance("10m")
        assert weather.take() == ["readings@21", "trend@21", "trend@22"]
        assert cursor(test)["failed"] == 0
        check(test)


def test_an_eager_plan_ends_by_itself_as_well() -> None:
    weather = Weather(eager=True)
    weather.failing = {22}
    with harness(weather.app) as test:
        test.advance("1m")
        assert weather.take() == ["readings@20", "readings@21", "trend@21"]
        weather.failing = set()
        test.advance("10m")
        assert weather.take() == ["readings@22", "trend@22"]
        check(test)


def test_two_schedules_that_share_datasets_take_turns() -> None:
    weather = Weather()
    weather.app.keep_current("readings", since=SINCE, every="30m", name="raw")
    weather.seconds = 60.0
    with harness(weather.app) as test:
        test.advance("10m")
        assert sorted({*weather.built}) == weather.take() == [*NOW]
        units = {unit.key: unit for unit in test.store.units(None, "", 9).result()}
        assert {*units} == {UNIT, "schedule:raw"}
        assert all(unit.attempts == 0 for unit in units.values())
        check(test)


def test_datasets_built_by_hand_meanwhile_are_waited_for() -> None:
    weather = Weather(every="30m")
    with harness(weather.app) as test:
        held = test.store.take_locks(["readings"], "run-by-hand", "", 60.0, []).result()
        assert held.taken
        test.advance("30s")
        unit = test.store.unit(UNIT).result()
        assert unit is not None
        assert unit.last_error is not None
        assert unit.last_error.message == "readings is being built by run-by-hand"
        assert weather.take() == []
        test.advance("5m")  # nobody has renewed those locks
        assert weather.take() == [*NOW]
        check(test)


def test_what_was_built_by_hand_is_not_built_again() -> None:
    weather = Weather()
    with harness(weather.app) as test:
        test.build("trend", start="2023-11-14T21:00:00Z", end="2023-11-14T22:30:00Z")
        weather.take()
        test.advance("1m")
        assert weather.take() == []
        check(test)


def test_a_plan_longer_than_the_period_goes_on_and_occurrences_in_between_are_left_out() -> None:
    weather = Weather(every="2m")
    weather.seconds = 1000.0
    with harness(weather.app) as test:
        test.advance("30m")
        unit = test.store.unit(UNIT).result()
        assert unit is not None
        assert unit.failed == 0
        assert unit.ticks > 10
        weather.seconds = 0.0
        test.advance("1h")
        assert weather.take() == [
            "readings@20",
            "readings@21",
            "readings@22",
            "readings@23",
            "trend@21",
            "trend@22",
            "trend@23",
        ]
        check(test)


def test_an_occurrence_that_finds_its_plan_running_waits_if_the_next_is_far() -> None:
    weather = Weather(every="30m")
    weather.seconds = 1800.0
    with harness(weather.app) as test:
        test.advance("45m")  # readings, then trends: an hour
        unit = test.store.unit(UNIT).result()
        assert unit is not None
        assert unit.by_others
        assert unit.last_error is not None
        assert "of an earlier tick still runs" in unit.last_error.message
        weather.seconds = 0.0
        test.advance("75m")
        assert "trend@23" in weather.take()
        check(test)


def test_a_plan_whose_last_step_was_cancelled_is_ended_by_the_next_tick() -> None:
    weather = Weather()
    weather.seconds = 60.0
    with harness(weather.app) as test:
        test.advance("30s")
        (plan,) = test.store.open_plans().result()
        test.store.cancel([f"build:{plan.id}:end"]).result()
        test.advance("20m")
        assert "trend@22" in weather.take()
        check(test)


def test_an_end_that_dies_after_it_has_ended_its_plan_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deaths = iter([ConnectionResetError("the process is gone")])

    async def dying(*given: Any) -> Any:
        report = await end_kept_plan(*given)
        for death in deaths:
            raise death
        return report

    monkeypatch.setattr(slice_module, "end_kept_plan", dying)
    weather = Weather()
    with harness(weather.app) as test:
        test.advance("5m")
        assert next(deaths, None) is None
        assert cursor(test)["slices"] == len(NOW)
        assert test.store.stats().result().states[JobState.QUEUED] == 0
        check(test)


def test_the_next_tick_plans_a_new_version_and_gives_the_plan_of_the_old_one_up() -> None:
    weather = Weather()
    weather.seconds = 3600.0
    with harness(weather.app) as test:
        test.advance("1m")
        (old,) = test.store.open_plans().result()
        test.restart()
        weather.app.datasets["readings"].version = "2"
        test.advance("5m")  # whatever runs is of the old plan
        weather.seconds = 0.0
        test.advance("10m")
        assert {*NOW} <= {*weather.take()}
        plan = test.store.plan(old.id).result()
        assert plan is not None
        assert plan.state is PlanState.ABANDONED
        check(test)


def test_code_that_changed_without_its_version_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weather = Weather()
    with harness(weather.app) as test:
        test.advance("1m")
        test.restart()
        readings = weather.app.datasets["readings"]
        readings.code = f"{readings.code}0"
        test.advance("30m")
    assert caplog.text.count("The code of dataset 'readings' has changed") == 1


def test_a_restart_goes_on_with_the_plan() -> None:
    weather = Weather()
    weather.seconds = 120.0
    with harness(weather.app) as test:
        test.advance("60s")
        (plan,) = test.store.open_plans().result()
        test.restart()
        (same,) = test.store.open_plans().result()
        assert (same.id, same.state) == (plan.id, plan.state)
        test.advance("10m")
        assert weather.take() == [
            "readings@20",
            "readings@21",
            "readings@22",
            "trend@21",
            "trend@22",
        ]
        check(test)


@pytest.mark.parametrize(
    ("since", "targets", "said"),
    [
        ("2023-11-14", ["trendy"], "closest: 'trend'"),
        ("yesterday", ["trend"], "'yesterday' is not a time"),
        ("1700-01-01", ["trend"], "slices"),
    ],
)
def test_mistakes_are_named_at_the_start(since: str, targets: list[str], said: str) -> None:
    weather = Weather()
    weather.app.keep_current(*targets, since=since, every="1h", name="wrong")
    with harness(weather.app) as test, pytest.raises(UsageError, match="schedule:wrong") as refused:
        test.advance("1m")
    assert said in str(refused.value)


def test_a_missing_extra_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.app.build.find_spec", lambda _: None)
    with harness(Weather().app) as test, pytest.raises(UsageError, match="pyarrow is not insta"):
        test.advance("1m")


def test_a_schedule_keeps_at_least_one_dataset() -> None:
    with pytest.raises(UsageError, match="keeps no dataset"):
        Weather().app.keep_current(since="2024-01-01", every="1h", name="none")
