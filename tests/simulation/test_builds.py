# SPDX-License-Identifier: Apache-2.0
"""Is exactly that built which must be, and is nothing else seen by readers?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, Penstock
from penstock.calendars import Daily
from penstock.errors import UsageError
from penstock.model.job import JobState
from penstock.model.plan import BuildReport
from tests.building import (
    DAY_1,
    DAY_3,
    DAY_4,
    DAY_6,
    MEMORY,
    SQLITE,
    Builder,
    Chain,
    builder,
)


@pytest.fixture(params=[MEMORY, SQLITE])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    found: str = request.param
    return found


@pytest.fixture
def chain() -> Chain:
    return Chain()


@pytest.fixture
def made(chain: Chain, kind: str) -> Iterator[Builder]:
    with builder(chain.app, kind) as found:
        yield found
        found.check()


def statuses(report: BuildReport) -> dict[str, str]:
    """What failed and was skipped, and why."""
    return {
        result.job_id.split(":", 2)[2]: result.error.message if result.error else ""
        for result in (*report.failed, *report.skipped)
    }


def test_what_is_needed_is_built_and_the_second_time_nothing(chain: Chain, made: Builder) -> None:
    report = made.build("total", start=DAY_1, end=DAY_4)
    assert report.ok
    assert (report.slices, report.done) == (10, 9)  # prices 4, mean 3, total 3 in two batches
    assert len(chain.calls.take()) == 10
    assert [row["mean"] for row in made.rows("total")] == [16.0, 1.5, 2.5]
    assert [row["mean"] for row in made.rows("total", "2024-01-02", DAY_3)] == [1.5]
    again = made.build("total", start=DAY_1, end=DAY_4)
    assert again.ok
    assert (again.plan_id, again.slices, again.fresh) == (None, 0, 10)
    assert chain.calls.take() == []


def test_later_days_are_added_to_what_is_there(chain: Chain, made: Builder) -> None:
    made.build("total", start=DAY_1, end=DAY_3)
    chain.calls.take()
    report = made.build("total", start=DAY_1, end=DAY_4)
    assert chain.calls.take() == ["mean@03", "prices@03", "total@03"]
    assert (report.slices, report.fresh) == (3, 7)


def test_a_new_version_builds_what_depends_on_it(chain: Chain, kind: str) -> None:
    with builder(chain.app, SQLITE) as made:
        made.build("total", "weather", start=DAY_1, end=DAY_3)
    newer = Chain(versions={"mean": 2})
    with builder(newer.app, SQLITE) as made:
        report = made.build("total", "weather", start=DAY_1, end=DAY_3)
        assert report.ok
        assert newer.calls.take() == ["mean@01", "mean@02", "total@01", "total@02"]
        made.build("total", "weather", start=DAY_1, end=DAY_3)
        assert newer.calls.take() == []
        made.check()


@pytest.mark.parametrize("eager", [False, True])
def test_a_failed_job_takes_with_it_only_what_needs_it(
    chain: Chain, made: Builder, eager: bool
) -> None:
    chain.calls.failing = {"prices@03"}
    report = made.build("total", "weather", start=DAY_1, end=DAY_6, eager=eager)
    assert not report.ok
    assert [result.status for result in report.failed] == [JobState.ERROR]
    assert statuses(report) == {
        "prices@2024-01-03": "prices@03 shall fail",
        "mean@2024-01-03": "upstream failed: prices@2024-01-03",
        "mean@2024-01-04": "upstream failed: prices@2024-01-03",
        "total@2024-01-03..2024-01-04": "upstream failed: prices@2024-01-03",
    }
    assert made.committed("prices") == [31, 1, 2, 4, 5]
    assert made.committed("mean") == [1, 2, 5]
    assert made.committed("total") == [1, 2, 5]
    assert made.committed("weather") == [1, 2, 3, 4, 5]
    assert report.slices == 16
    chain.calls.take()
    chain.calls.failing = set()
    assert made.build("total", "weather", start=DAY_1, end=DAY_6, eager=eager).ok
    assert chain.calls.take() == [
        "mean@03", "mean@04", "prices@03", "total@03", "total@04",
    ]  # fmt: skip


def test_an_eager_build_cannot_fail_fast(chain: Chain, made: Builder) -> None:
    with pytest.raises(UsageError, match="An eager build has no levels"):
        made.build("total", start=DAY_1, end=DAY_3, eager=True, fail_fast=True)


def test_fail_fast_commits_the_level_and_begins_nothing_more(chain: Chain, made: Builder) -> None:
    chain.calls.failing = {"weather@02"}
    report = made.build("total", "weather", start=DAY_1, end=DAY_3, fail_fast=True)
    assert [result.job_id.split(":", 2)[2] for result in report.failed] == ["weather@2024-01-02"]
    assert len(report.skipped) == 3
    said = {result.error.message for result in report.skipped if result.error is not None}
    assert said == {"upstream level failed: weather@2024-01-02 (--fail-fast)"}  # no key of ours
    assert made.committed("prices") == [31, 1, 2]
    assert made.committed("weather") == [1]
    assert made.committed("mean") == []
    assert [name for name in chain.calls.take() if name.startswith("mean")] == []


def test_the_same_plan_may_fail_twice(chain: Chain, made: Builder) -> None:
    chain.calls.failing = {"weather@01"}
    first = made.build("weather", start=DAY_1, end=DAY_3)
    second = made.build("weather", start=DAY_1, end=DAY_3)
    third = made.build("weather", start=DAY_1, end=DAY_3)
    assert len(first.failed) == len(second.failed) == len(third.failed) == 1
    assert third.plan_id == f"{second.plan_id}-2"


def test_force_builds_everything_anew(chain: Chain, made: Builder) -> None:
    made.build("mean", start=DAY_1, end=DAY_3)
    chain.calls.take()
    report = made.build("mean", start=DAY_1, end=DAY_3, force=True)
    assert report.slices == 5
    assert len(chain.calls.take()) == 5
    assert made.build("mean", start=DAY_1, end=DAY_3).plan_id is None
    parts = list(Path(made.app.datasets["mean"].files()[0]).parent.iterdir())
    assert len(parts) == 2  # whoever reads the old one may still do so
    made.build("mean", start=DAY_1, end=DAY_3, force=True)
    parts = list(Path(made.app.datasets["mean"].files()[0]).parent.iterdir())
    assert len(parts) == 2  # the oldest was swept


def test_an_upstream_slice_that_was_built_anew_is_followed(chain: Chain, made: Builder) -> None:
    made.build("mean", start=DAY_1, end=DAY_6)
    chain.calls.take()
    made.build("prices", start=DAY_3, end=DAY_4, force=True)
    chain.calls.take()
    made.build("mean", start=DAY_1, end=DAY_6)
    assert chain.calls.take() == ["mean@03", "mean@04"]


def test_no_level_is_seen_by_halves(chain: Chain, made: Builder) -> None:
    seen: list[int] = []
    chain.calls.stop_at = lambda name: seen.append(len(made.committed("prices")))
    made.build("mean", start=DAY_1, end=DAY_4)
    assert set(seen) == {0, 4}


def test_an_empty_range_is_up_to_date(chain: Chain, made: Builder) -> None:
    report = made.build("total", start=DAY_3, end=DAY_3)
    assert report.ok
    assert report.plan_id is None


def counting() -> Penstock:
    app = Penstock("counting")

    @app.dataset(calendar=Daily())
    def numbers(ctx: Context, at: datetime) -> list[dict[str, Any]]:
        return [{"n": at.day + 1, "early": at.day in {1, 2, 3}}]

    return app


def counting_otherwise(ctx: Context, at: datetime) -> list[dict[str, Any]]:
    return [{"n": at.day + 2, "early": at.day in {1, 2, 3}}]


def test_code_that_has_changed_without_its_version_is_told_once(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with builder(counting(), kind) as made:
        made.build("numbers", start=DAY_1, end=DAY_4)
        made.build("numbers", start=DAY_1, end=DAY_4)
        assert "The code of dataset" not in caplog.text
        numbers = made.app.datasets["numbers"]
        del numbers.code  # as a new process begins
        numbers.function = counting_otherwise

        report = made.build("numbers", start=DAY_1, end=DAY_6)

        (told,) = [line for line in caplog.messages if line.startswith("The code of dataset")]
        assert told.startswith("The code of dataset 'numbers' has changed, its version (1) has not")
        assert report.slices == 2  # a warning only
        made.build("numbers", start=DAY_1, end=DAY_6)  # its newest slice is of this code
        assert caplog.text.count("The code of dataset") == 1


def test_the_fingerprint_of_code_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Of sets and nested functions as well, whatever the seed of hashes, and below other lines."""
    body = """
from penstock import Penstock
from penstock.calendars import Daily
app = Penstock("a")
@app.dataset(calendar=Daily())
def numbers(ctx, at):
    def inner(x): return x in {"a", "b", "c", "d"}
    return [{"n": inner(at), "t": ("x", 1, 2.0, None)}]
print(numbers.code)
"""
    said = set()
    for seed, before in (("1", ""), ("2", "# moved\n\n")):
        (tmp_path / f"app{seed}.py").write_text(before + body)
        done = subprocess.run(
            [sys.executable, f"app{seed}.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        said.add(done.stdout)
    assert len(said) == 1
    assert said != {"None\n"}


def test_rows_without_pyarrow_are_refused_once_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chain = Chain()

    @chain.app.dataset(calendar=Daily())
    def raw(ctx: Context, at: datetime) -> bytes:
        return b"as it is"

    with builder(chain.app, SQLITE) as made:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UsageError, match=r"^Rows of the dataset 'mean' and 2 more are kept"):
            made.build("total", start=DAY_1, end=DAY_4)
        assert chain.calls.take() == []
        assert made.build("raw", start=DAY_1, end=DAY_4).slices == 3
