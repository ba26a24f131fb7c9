# SPDX-License-Identifier: Apache-2.0
"""Do all faces tell how a daemon keeps datasets current, and are mistakes named at its start?"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.build_project import BuildProject
from tests.forked import run_forked
from tests.processes import environment_of_tests
from tests.waiting import wait_until

pytestmark = pytest.mark.acceptance

HELD = "pair@2024-01-01"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.integration)])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BuildProject]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    project = BuildProject(tmp_path / "project", url, ttl_seconds=20.0)
    project.say("keep", "1h")
    yield project
    project.close()


def typed(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[Any]:
    return run_forked(
        [sys.executable, "-m", "penstock_command", *words],
        cwd=folder,
        env=environment_of_tests(**more),
        capture_output=True,
        text=True,
        timeout=240,
    )


def told(project: BuildProject, *words: str) -> str:
    done = typed(project.folder, *words, PENSTOCK_STORE=project.url)
    assert "Traceback" not in done.stderr
    return str(done.stdout)


def test_what_failed_is_told_with_the_tick_that_tries_it_again(project: BuildProject) -> None:
    project.say("fail", "east@2024-01-02")
    daemon = project.start_daemon()
    wait_until(lambda: "'schedule:datasets' has ended: 10 slices built" in project.errors(daemon))

    said = told(project, "why", "east@2024-01-02")
    assert "failed in plan" in said
    assert "'schedule:datasets', which keeps 'east' current, ticks next (at " in said
    assert "because east@2024-01-02 failed" in told(project, "why", "week@2024-01-03")
    unit = told(project, "why", "schedule:datasets")
    assert "has built 10 slices by" in unit
    assert "; 1 job failed: east@2024-01-02." in unit
    assert "waits, 1 job failed" in told(project, "schedule", "list")
    (listed,) = json.loads(told(project, "schedule", "list", "--json"))["units"]
    assert listed["last_plan"]["failures"] == ["east@2024-01-02"]
    listing = told(project, "dataset", "list")
    assert "kept current by schedule:datasets (every 3600 s), next try " in listing
    assert "; 1 job failed in its last plan: east@2024-01-02" in listing
    assert "east@2024-01-02 failed in the last plan of 'schedule:datasets'" in told(
        project, "doctor"
    )

    daemon.send_signal(signal.SIGTERM)
    assert project.ended(daemon).code == 0
    assert "retry-failed" not in project.ended(daemon).out
    assert "goes on when a daemon runs, and 'schedule:datasets'" in told(
        project, "why", "east@2024-01-02"
    )


def test_a_plan_that_runs_is_the_schedules(project: BuildProject) -> None:
    project.say("hold", HELD)
    daemon = project.start_daemon()
    wait_until(lambda: HELD in [name for name, _ in project.bodies()])

    assert "of the schedule 'schedule:datasets': job " in told(project, "why", HELD)
    assert "It keeps datasets current, by plan " in told(project, "why", "schedule:datasets")
    assert "1 plan open, none abandoned" in told(project, "doctor")
    wait_until(lambda: "schedules, 0 ticking; plan " in project.errors(daemon))
    project.say("hold", "")
    wait_until(lambda: "has ended: 16 slices built." in project.errors(daemon))


MISTAKES = """
from penstock import Context, Penstock
from penstock.calendars import Daily

app = Penstock("shop")

@app.dataset(calendar=Daily())
def prices(ctx: Context, at) -> bytes:
    return b""

app.keep_current("price", since="2024-01-01", every="1h", name="one")
app.keep_current(prices, since="last week", every="1h", name="two")
"""


def test_mistakes_are_told_together_by_check(folder: Path) -> None:
    (folder / "pipeline.py").write_text(MISTAKES)

    done = typed(folder, "run", "--check")

    assert done.returncode == 2
    assert "schedule:one: No dataset named 'price'" in done.stderr
    assert "closest: 'prices'" in done.stderr
    assert "schedule:two: 'last week' is not a time" in done.stderr
    assert not (folder / ".penstock").exists()


def test_a_folder_for_slices_that_cannot_be_made_is_told_by_check(folder: Path) -> None:
    first = MISTAKES.partition("app.keep_current")[0]
    keeps = 'app.keep_current(prices, since="2024-01-01", every="1h")\n'
    (folder / "pipeline.py").write_text(first + keeps)
    (folder / "penstock.toml").write_text('[datasets]\nroot = "/proc/nowhere"\n')

    done = typed(folder, "run", "--check")

    assert done.returncode == 1
    assert "The output root /proc/nowhere cannot be used" in done.stderr
