# SPDX-License-Identifier: Apache-2.0
"""F74, in seconds: a run leaves no descriptor, no thread and no memory behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Context, Penstock
from tests.faults import leaks
from tests.faults.flatness import HOUR, Sample, Trend, not_flat
from tests.faults.soak_flat import LongRun
from tests.waiting import wait_until

pytestmark = pytest.mark.faults


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Penstock]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text('durability = "normal"\n')
    app = leaks.leaky_app()
    yield app
    app.close()


def test_f74_two_thousand_jobs_leave_no_descriptor_and_no_thread(app: Penstock) -> None:
    leaks.work(app, 0, 200)  # opens what stays open
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()

    leaks.work(app, 200, 2_000)

    wait_until(lambda: threading.active_count() <= threads)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_f74_jobs_that_are_forgotten_leave_no_memory(app: Penstock) -> None:
    """20,000 of them in `make soak-flat`."""
    assert leaks.leaked(app, rounds=6, count=500) == []


def test_f74_a_leak_is_found(app: Penstock) -> None:
    kept: list[bytes] = []

    @app.task()
    async def hoards(ctx: Context, n: int) -> None:
        kept.append(bytes(4_000))  # far above what the runner itself keeps or frees in a round

    (sentence,) = leaks.leaked(app, rounds=5, count=100)
    assert "of each job stay in memory" in sentence


def test_f74_a_short_run_of_everything_stays_flat(tmp_path: Path) -> None:
    """`make soak-flat` for some seconds: too short for slopes, long enough for all its parts."""
    long_run = LongRun(tmp_path, 4.0, kill_every_seconds=1.5)

    long_run.run()
    lines = long_run.judge()

    assert long_run.broken == [], lines
    assert long_run.kills >= 1
    assert long_run.sent > 300, lines


def steady(slope_mib_per_hour: float, seconds: int, descriptors: int = 0) -> list[Sample]:
    """Made-up samples: a rise, and a saw-tooth of 0.3 MiB on top of it."""
    return [
        Sample(at, 50 + slope_mib_per_hour * at / HOUR + 0.3 * (at % 5) / 5, 20, 5 + descriptors)
        for at in range(seconds)
    ]


def test_f74_the_measure_finds_a_leak_and_no_leak_where_there_is_none() -> None:
    assert not_flat("p", steady(0.0, 1800)) == []
    assert not_flat("p", steady(0.9, 24 * 3600)) == []
    assert "memory grows by 2.0 MiB an hour" in not_flat("p", steady(2.0, 24 * 3600))[0]
    assert "memory grows" in not_flat("p", steady(20.0, 1800))[0]
    assert Trend.of([(0.0, 1.0), (1800.0, 2.0)]).per_hour == pytest.approx(2.0)
    leaking = [Sample(float(at), 50.0, 20 + at // 100, 5 + at // 200) for at in range(1800)]
    assert [line.split(":")[1].split()[0] for line in not_flat("p", leaking)] == [
        "descriptors",
        "threads",
    ]
