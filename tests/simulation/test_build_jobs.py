# SPDX-License-Identifier: Apache-2.0
"""What does a job of a build read, return and leave behind, and what if it cannot?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock import Context, Penstock, Skip, Slices
from penstock.calendars import Daily, Every
from penstock.model.job import JobState
from penstock.testing import harness
from tests.building import DAY_1, DAY_3, DAY_4, Chain
from tests.datasets import DAY, Steps
from tests.samples import market


def test_the_function_is_told_its_moment_and_what_it_needs() -> None:
    app = Penstock("told")
    told: dict[str, Any] = {}

    @app.dataset(calendar=Daily(at="16:00", tz="America/New_York"))
    def prices(ctx: Context, at: datetime) -> list[dict[str, Any]]:
        told["job"] = ctx.job
        return [{"day": at.isoformat()}]

    @app.dataset(calendar=Daily(), needs=[prices.window(timedelta(days=2))])
    def seen(ctx: Context, at: datetime, prices: Slices) -> list[dict[str, Any]]:
        told["seen"] = [one.isoformat() for one in prices.timestamps]
        return prices.rows()

    with harness(app) as test:
        report = test.build("seen", start=DAY_3, end=DAY_4)
        assert report.ok
        days = ["2024-01-01T16:00:00-05:00", "2024-01-02T16:00:00-05:00"]
        assert told["seen"] == days
        assert [row["day"] for row in test.read("seen").to_pylist()] == days
        assert told["job"].task == "dataset:prices"
        assert told["job"].attempt == 1
        (key,) = (key for key in test.results if ":seen@" in key)
        assert test.results[key]["rows"] == 2
        assert test.results[key]["slices"] == 1
        job = test.job(key)
        assert re.fullmatch(r"dataset:seen#root-[0-9a-f]+", job.task)
        assert (job.group, job.level) == ("seen", 1)


def test_a_needed_slice_that_is_not_there_fails_the_job_by_name() -> None:
    app = Penstock("missing")

    shifted = [0]

    class Moving(Steps, frozen=True):
        """Its moments change after the plan was made."""

        def before(self, at: int, count: int) -> Sequence[int]:
            return super().before(at - shifted[-1], count)

    @app.dataset(calendar=Moving())
    def prices(ctx: Context, at: datetime) -> bytes:
        shifted.append(100 * DAY)
        return b"1"

    @app.dataset(calendar=Steps(), needs=[prices], max_attempts=1)
    def copied(ctx: Context, at: datetime, prices: Slices) -> bytes:
        return prices.bytes()

    with harness(app) as test:
        report = test.build("copied", start=DAY_3, end=DAY_4)
        (failed,) = report.failed
        assert failed.error is not None
        assert "The needed slice prices@2023-09-25 is not committed" in failed.error.message


def test_what_is_returned_must_fit() -> None:
    app = Penstock("returned")

    @app.dataset(calendar=Daily())
    def nothing(ctx: Context, at: datetime) -> Any:
        return None

    @app.dataset(calendar=Daily(), batch=5)
    def too_few(ctx: Context, at: Sequence[datetime]) -> dict[datetime, bytes]:
        return {at[0]: b"1"}

    @app.dataset(calendar=Daily(), max_attempts=1)
    def given_up(ctx: Context, at: datetime) -> bytes:
        raise Skip("a holiday")

    @app.dataset(calendar=Daily(), needs=[given_up])
    def after(ctx: Context, at: datetime, given_up: Slices) -> bytes:
        return b""

    with harness(app) as test:
        report = test.build("nothing", "too_few", "after", start=DAY_1, end=DAY_3)
        said = {x.job_id.split(":")[2]: x.error.message for x in report.failed if x.error}
        assert set(said) == {
            "nothing@2024-01-01",
            "nothing@2024-01-02",
            "too_few@2024-01-01..2024-01-02",
        }
        assert "2024-01-02" in said["too_few@2024-01-01..2024-01-02"]
        for failed in report.failed:  # another try would return the same
            assert len(test.store.attempts(failed.job_id).result()) == 1
        assert [x.status for x in report.skipped] == [JobState.SKIPPED] * 4
        assert report.slices == 0
        for name in app.datasets:
            assert test.read(name).num_rows == 0
        assert test.store.check().result() == []


async def child(ctx: Context, n: int) -> None: ...


CHILD = Penstock("child").task()(child)
MISTAKES: dict[str, Callable[[Context], Any]] = {
    "nothing": lambda ctx: None,
    "an object": lambda ctx: object(),
    "rows that are no dicts": lambda ctx: [1, 2],
    "a column of objects": lambda ctx: [{"a": object()}],
    "a number too large": lambda ctx: [{"a": 2**70}],
    "a view in pieces": lambda ctx: memoryview(b"abcd")[::2],
    "a job without arguments": lambda ctx: ctx.enqueue(CHILD.job_from_json("{}"), key="c"),
    "a key that is no text": lambda ctx: ctx.enqueue(CHILD.job(n=1), key=7),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("is_async", [True, False])
def test_a_mistake_that_cannot_heal_is_tried_once(is_async: bool) -> None:
    app = Penstock("mistaken")

    def dataset(name: str, make: Callable[[Context], Any]) -> None:
        if is_async:

            @app.dataset(calendar=Daily(), name=name)
            async def build(ctx: Context, at: datetime) -> Any:
                return make(ctx)
        else:

            @app.dataset(calendar=Daily(), name=name)
            def build(ctx: Context, at: datetime) -> Any:
                return make(ctx)

    names = {name.replace(" ", "_"): make for name, make in MISTAKES.items()}
    for name, make in names.items():
        dataset(name, make)

    with harness(app) as test:
        report = test.build(*names, start=DAY_1, end="2024-01-02")

        tries = {
            failed.job_id.split(":")[2].split("@")[0]: len(
                test.store.attempts(failed.job_id).result()
            )
            for failed in report.failed
        }
        assert tries == dict.fromkeys(names, 1)


def test_jobs_that_a_slice_enqueues_come_with_it() -> None:
    app = Penstock("enqueues")

    @app.task()
    def told(ctx: Context, day: int) -> int:
        return day

    @app.dataset(calendar=Daily())
    def prices(ctx: Context, at: datetime) -> bytes:
        ctx.enqueue(told.job(day=at.day), key=f"told {at.day}")
        return b""

    with harness(app) as test:
        assert test.build("prices", start=DAY_1, end=DAY_3).ok
        test.drain()
        assert test.results["told 2"] == 2


def test_failures_are_tried_again_and_leave_one_slice() -> None:
    app = Penstock("again")
    tries: list[int] = []

    @app.dataset(calendar=Every(timedelta(hours=12)))
    async def flaky(ctx: Context, at: datetime) -> list[dict[str, int]]:
        tries.append(ctx.job.attempt)
        if ctx.job.attempt < 3:
            raise (
                ConnectionError("away") if ctx.job.attempt == 1 and len(tries) == 1 else ValueError
            )
        return [{"attempt": ctx.job.attempt}]

    with harness(app) as test:
        report = test.build(flaky, start=DAY_1, end=DAY_3)
        assert report.ok
        assert report.slices == 4
        assert [row["attempt"] for row in test.read("flaky").to_pylist()] == [3, 3, 3, 3]
        keys = [key for key in test.results if "flaky@" in key]
        assert "flaky@2024-01-01T12:00:00Z" in " ".join(keys)


@pytest.mark.parametrize(("eager", "seen"), [(False, [0, 0, 0]), (True, [1, 2, 3])])
def test_readers_see_whole_levels_or_single_jobs(eager: bool, seen: list[int]) -> None:
    app = Penstock("levels")
    counts: list[int] = []

    @app.dataset(calendar=Daily())
    async def prices(ctx: Context, at: datetime) -> list[dict[str, int]]:
        await asyncio.sleep(60 * at.day)
        counts.append(test.read("prices").num_rows)
        return [{"day": at.day}]

    with harness(app) as test:
        report = test.build("prices", start=DAY_1, end="2024-01-05", eager=eager)
        assert report.ok
        assert counts == [0, *seen]
        assert test.read("prices").num_rows == 4


@pytest.mark.parametrize("eager", [False, True])
def test_a_long_lookback_skips_only_what_needs_the_failed_slice(eager: bool) -> None:
    app = Penstock("long")

    @app.dataset(calendar=Daily(), max_attempts=1)
    def prices(ctx: Context, at: datetime) -> bytes:
        if (at.month, at.day) == (1, 1):
            raise ValueError("a holiday")
        return b"1"

    @app.dataset(calendar=Daily(), needs=[prices.lookback(10)])
    def mean(ctx: Context, at: datetime, prices: Slices) -> list[dict[str, int]]:
        return [{"count": len(prices)}]

    with harness(app) as test:
        report = test.build("mean", start="2024-01-08", end="2024-01-14", eager=eager)
        assert [x.job_id.rpartition("@")[2] for x in report.skipped] == [
            "2024-01-08",
            "2024-01-09",
            "2024-01-10",
        ]
        assert {x.error.message for x in report.skipped if x.error} == {
            "upstream failed: prices@2024-01-01"
        }
        assert [row["count"] for row in test.read("mean").to_pylist()] == [10, 10, 10]


def test_a_plan_says_what_it_is_about() -> None:
    chain = Chain()
    with harness(chain.app) as test:
        chain.calls.failing = {"prices@01"}
        report = test.build("total", start=DAY_1, end=DAY_3)
        assert report.plan_id is not None
        plan = test.store.plan(report.plan_id).result()
        assert plan is not None
        document = msgspec.json.decode(plan.document)
        assert document["targets"] == ["total"]
        assert document["datasets"] == ["mean", "prices", "total"]
        assert document["slices"] == 7
        assert plan.levels == 3


def test_the_sample_of_the_specification_is_built() -> None:
    with harness(market.app) as test:
        report = test.build("report", start="2024-01-01", end="2024-03-01")
        assert report.ok
        assert test.read("report").num_rows == 2
        assert test.read("volatility").num_rows == 2
        assert test.build("report", start="2024-01-01", end="2024-03-01").plan_id is None
