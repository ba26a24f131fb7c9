# SPDX-License-Identifier: Apache-2.0
"""F12, F62 of builds: bodies that fail, two builds at once, builds that stand still, signals."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.model.plan import PlanState
from tests.faults import build_oracle
from tests.faults.build_oracle import DAYS, SLICES
from tests.faults.build_project import BuildProject
from tests.processes import children_of, freeze, is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

HELD = "pair@2024-01-01"
UP_TO_HELD = 9  # manifests when nothing but that is missing in its level
MODES = pytest.mark.parametrize("mode", [(), ("--eager",)], ids=["by level", "eager"])


@pytest.fixture
def project(tmp_path: Path) -> Iterator[BuildProject]:
    project = BuildProject(tmp_path / "project")
    yield project
    project.close()


def seen(project: BuildProject) -> set[str]:
    return set(build_oracle.visible(build_oracle.manifests(project.url)))


def begun(project: BuildProject, name: str) -> int:
    return Counter(name for name, _ in project.bodies())[name]


def held(project: BuildProject) -> subprocess.Popen[str]:
    """A build that stands in a body of its second level until `hold` says nothing more."""
    project.say("hold", HELD)
    process = project.start("week")
    wait_until(lambda: begun(project, HELD) == 1)
    return process


def run_id(project: BuildProject) -> str:
    """Who holds the locks."""
    store = project.open()
    try:
        return store.locks().result()[0].run_id
    finally:
        store.close()


def complete(project: BuildProject) -> None:
    """All is built, and nothing is left behind."""
    assert seen(project) >= set(SLICES)
    assert project.unsound() == []
    rows = build_oracle.visible(build_oracle.manifests(project.url))
    assert build_oracle.wrong(rows, project.root, eager=False) == []


@MODES
def test_what_needs_a_failed_slice_is_skipped_and_named_and_all_else_is_built(
    project: BuildProject, mode: tuple[str, ...]
) -> None:
    project.say("fail", "east@2024-01-02")
    ended = project.build("week", "alone", *mode)
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("FAILED")] == [
        ["FAILED", "east@2024-01-02"]
    ]
    skipped = {tuple(line.split(maxsplit=2)[1:]) for line in lines if line.startswith("skipped")}
    because = "upstream failed: east@2024-01-02"
    assert skipped == {
        ("pair@2024-01-02", because),
        ("pair@2024-01-03", because),
        ("week@2024-01-01..2024-01-02", because),
        ("week@2024-01-03", because),
    }
    assert "same command" in ended.errors
    assert seen(project) == {
        *(f"{name}@{day}" for name in ("west", "alone") for day in DAYS),
        *(f"east@{day}" for day in (build_oracle.BEFORE, DAYS[0], DAYS[2])),
        "pair@2024-01-01",
    }
    assert project.unsound() == []
    before = len(project.bodies())
    project.say("fail", "")
    assert project.build("week", "alone", *mode).code == 0
    again = {name for name, _ in project.bodies()[before:]}
    assert again == {
        *("east@2024-01-02", "pair@2024-01-02", "pair@2024-01-03"),
        *(f"week@{day}" for day in DAYS),
    }
    complete(project)


def test_the_second_of_two_builds_waits_plans_again_and_finds_the_work_done(
    project: BuildProject,
) -> None:
    first = held(project)
    second = project.start("week", "--eager")
    wait_until(lambda: project.has_begun(second))
    project.say("hold", "")
    assert project.ended(first).code == 0
    ended = project.ended(second)
    assert ended.code == 0
    assert ended.out.startswith(f"Up to date: {len(SLICES)} slices")
    assert Counter(name for name, _ in project.bodies()) == Counter(SLICES)
    complete(project)


def test_f12_a_build_that_stood_still_changes_nothing_and_says_who_has_its_locks(
    project: BuildProject,
) -> None:
    first = held(project)
    loser = run_id(project)
    stopped = [first.pid, *children_of(first.pid)]
    freeze(stopped, project.folder / "built.db")
    try:
        second = project.start("week")
        wait_until(lambda: begun(project, HELD) == 2)
        wait_until(lambda: len(build_oracle.manifests(project.url)) == UP_TO_HELD)
        winner = run_id(project)
        before = build_oracle.manifests(project.url)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    ended = project.ended(first)
    assert winner != loser
    assert ended.code == 1
    assert f"being built by {winner}" in ended.errors
    assert build_oracle.manifests(project.url) == before
    assert not any(map(is_alive, stopped))
    project.say("hold", "")
    assert project.ended(second).code == 0
    complete(project)


def waiting(project: BuildProject) -> tuple[subprocess.Popen[str], Callable[[], None]]:
    """A build that waits for the locks of another."""
    other = held(project)
    process = project.start("week")
    wait_until(lambda: project.has_begun(process))

    def let_go() -> None:
        project.say("hold", "")
        assert project.ended(other).code == 0

    return process, let_go


def planning(project: BuildProject) -> tuple[subprocess.Popen[str], Callable[[], None]]:
    """A build whose jobs are just being enqueued."""
    mark = project.folder / "once"
    mark.touch()
    rule = {"enqueue.in_tx": {"at": 1, "once": str(mark), "pause": 0.3}}
    process = project.start("week", failpoints={"worker": rule})
    wait_until(lambda: not mark.exists())
    return process, lambda: None


def working(project: BuildProject) -> tuple[subprocess.Popen[str], Callable[[], None]]:
    """A build that stands in a body."""
    return held(project), lambda: project.say("hold", "")


@pytest.mark.parametrize("phase", [waiting, planning, working])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_f62_a_build_that_is_stopped_in_any_phase_goes_on_with_the_same_command(
    project: BuildProject,
    phase: Callable[[BuildProject], tuple[subprocess.Popen[str], Callable[[], None]]],
    number: signal.Signals,
    code: int,
) -> None:
    process, let_go = phase(project)
    process.send_signal(number)
    ended = project.ended(process)
    assert ended.code == code, ended
    assert "Traceback" not in ended.errors
    done = seen(project)
    let_go()
    if phase is not waiting:
        assert project.unsound() in ([], [f"a plan is left: {plan}" for plan in left(project)])
    settled = Counter(name for name, _ in project.bodies() if name in done)
    assert project.build("week").code == 0
    assert Counter(name for name, _ in project.bodies() if name in done) == settled
    complete(project)


def left(project: BuildProject) -> list[str]:
    """Plans that wait for the same command."""
    store = project.open()
    try:
        plans = store.open_plans().result()
        return [plan.id for plan in plans if plan.state in (PlanState.LEFT, PlanState.DRAFT)]
    finally:
        store.close()
