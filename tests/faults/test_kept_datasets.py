# SPDX-License-Identifier: Apache-2.0
"""F03, F12, F62 of datasets kept current: daemons that die, stop, or are two; builds by hand."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from tests.faults import build_oracle
from tests.faults.build_oracle import DAYS, SLICES
from tests.faults.build_project import BuildProject
from tests.processes import children_of, freeze, kill_run
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

TTL_SECONDS = 6.0  # in which a busy machine renews, and a test can wait
KEPT = (*SLICES, *(f"alone@{day}" for day in DAYS))
HELD = "pair@2024-01-01"
#: Points of a worker, and the hit at which it dies there.
DEATHS = {
    "lock.in_tx": 1,
    "enqueue.committed": 1,  # all jobs are there, the plan is a draft
    "plan.in_tx": 1,
    "dataset.renamed": 9,  # in the middle of the second level
    "dataset.staged": 6,
    "dataset.level_committed": 1,
}
ON_A_SERVER = ("lock.in_tx", "plan.in_tx", "dataset.staged")
CASES = [
    *product(["sqlite"], DEATHS, [False, True]),
    *(
        pytest.param(*case, marks=pytest.mark.integration)
        for case in product(["postgres"], ON_A_SERVER, [False, True])
    ),
]


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BuildProject]:
    kind = request.node.callspec.params.get("store") if hasattr(request.node, "callspec") else None
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else None
    project = BuildProject(tmp_path / "project", url, ttl_seconds=TTL_SECONDS)
    project.say("keep", "1s")
    yield project
    project.close()


def seen(project: BuildProject) -> set[str]:
    return set(build_oracle.visible(build_oracle.manifests(project.url)))


def has_plan(project: BuildProject) -> bool:
    store = project.open()
    try:
        return bool(store.open_plans().result())
    finally:
        store.close()


def begun(project: BuildProject, name: str) -> int:
    return Counter(name for name, _ in project.bodies())[name]


def await_all(project: BuildProject) -> None:
    """Until everything is built, and no plan is left to end."""
    wait_until(lambda: seen(project) >= set(KEPT))
    wait_until(lambda: not has_plan(project))


def stop(project: BuildProject, *daemons: subprocess.Popen[str]) -> None:
    for daemon in daemons:
        wait_until(partial(_hears, project, daemon))
        daemon.send_signal(signal.SIGTERM)
    for daemon in daemons:
        ended = project.ended(daemon)
        assert ended.code == 0, ended
        assert "Traceback" not in ended.errors


def _hears(project: BuildProject, daemon: subprocess.Popen[str]) -> bool:
    """Has it come so far that a signal stops it in good order?"""
    return "supervisor" in project.errors(daemon)


def complete(project: BuildProject) -> None:
    """All is built once, and nothing is left behind."""
    assert project.unsound() == []
    rows = build_oracle.visible(build_oracle.manifests(project.url))
    assert build_oracle.wrong(rows, project.root, eager=False) == []


@pytest.mark.parametrize(("store", "point", "whole"), CASES)
def test_f03_a_plan_goes_on_whoever_dies(
    project: BuildProject, point: str, whole: bool, store: str
) -> None:
    mark = project.folder / "once"
    mark.touch()
    rule = {point: {"at": DEATHS[point], "once": str(mark), "whole": whole}}
    daemon = project.start_daemon(failpoints={"worker": rule})
    wait_until(lambda: not mark.exists())
    if whole:
        assert project.ended(daemon).code == -signal.SIGKILL
        committed = seen(project)
        before = len(project.bodies())
        daemon = project.start_daemon()
        await_all(project)
        assert committed.isdisjoint({name for name, _ in project.bodies()[before:]})
    await_all(project)
    stop(project, daemon)
    complete(project)


def test_two_daemons_and_a_build_by_hand_build_everything_once(project: BuildProject) -> None:
    project.say("hold", HELD)
    daemons = [project.start_daemon("--processes", "2"), project.start_daemon()]
    wait_until(lambda: begun(project, HELD) == 1)
    by_hand = project.start("week", "alone")
    wait_until(lambda: project.has_begun(by_hand))
    project.say("hold", "")
    ended = project.ended(by_hand)
    assert ended.out.startswith("Up to date"), ended
    await_all(project)
    stop(project, *daemons)
    assert Counter(name for name, _ in project.bodies()) == Counter(KEPT)
    complete(project)


def test_a_build_by_hand_takes_over_from_daemons_that_are_gone(project: BuildProject) -> None:
    project.say("hold", HELD)
    daemon = project.start_daemon()
    wait_until(lambda: begun(project, HELD) == 1)
    kill_run(daemon)
    project.say("hold", "")
    before = seen(project)
    ended = project.build("week", "alone")
    assert ended.code == 0, ended
    assert seen(project) >= set(KEPT)
    bodies = Counter(name for name, _ in project.bodies())
    assert all(bodies[name] == 1 for name in before)
    complete(project)


def test_f12_a_daemon_that_stood_still_changes_nothing_of_who_took_over(
    project: BuildProject,
) -> None:
    project.say("hold", HELD)
    daemon = project.start_daemon()
    wait_until(lambda: begun(project, HELD) == 1)
    stopped = [daemon.pid, *children_of(daemon.pid)]
    freeze(stopped, project.folder / "built.db")
    try:
        by_hand = project.start("week", "alone")
        wait_until(lambda: begun(project, HELD) == 2)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    project.say("hold", "")
    assert project.ended(by_hand).code == 0
    await_all(project)
    stop(project, daemon)
    complete(project)


def test_a_supervisor_that_dies_alone_takes_nothing_of_the_plan_along(
    project: BuildProject,
) -> None:
    project.say("hold", HELD)
    daemon = project.start_daemon()
    wait_until(lambda: begun(project, HELD) == 1)
    daemon.kill()
    done = seen(project)
    project.say("hold", "")
    again = project.start_daemon()
    await_all(project)
    stop(project, again)
    bodies = Counter(name for name, _ in project.bodies())
    assert all(bodies[name] == 1 for name in done)
    complete(project)


def test_a_slice_that_fails_is_told_and_built_by_a_later_tick(project: BuildProject) -> None:
    project.say("fail", "east@2024-01-02")
    daemon = project.start_daemon()
    wait_until(lambda: "east@2024-01-02 failed: ValueError" in project.errors(daemon))
    wait_until(lambda: "alone@2024-01-03" in seen(project))
    project.say("fail", "")
    await_all(project)
    stop(project, daemon)
    bodies = Counter(name for name, _ in project.bodies())
    assert all(bodies[name] == 1 for name in KEPT if name != "east@2024-01-02")
    complete(project)


def planning(project: BuildProject) -> subprocess.Popen[str]:
    """A daemon whose tick just enqueues the jobs of its plan."""
    mark = project.folder / "once"
    mark.touch()
    rule = {"enqueue.in_tx": {"at": 1, "once": str(mark), "pause": 0.3}}
    daemon = project.start_daemon(failpoints={"worker": rule})
    wait_until(lambda: not mark.exists())
    return daemon


def working(project: BuildProject) -> subprocess.Popen[str]:
    """A daemon whose plan stands in a body."""
    project.say("hold", HELD)
    daemon = project.start_daemon()
    wait_until(lambda: begun(project, HELD) == 1)
    return daemon


def locked(project: BuildProject) -> subprocess.Popen[str]:
    """A daemon whose tick finds its datasets locked by a build."""
    project.say("hold", HELD)
    project.start("week", "alone")
    wait_until(lambda: begun(project, HELD) == 1)
    return project.start_daemon()


@pytest.mark.parametrize("phase", [planning, working, locked])
def test_f62_a_daemon_that_is_stopped_in_any_phase_goes_on_at_its_next_start(
    project: BuildProject, phase: Callable[[BuildProject], subprocess.Popen[str]]
) -> None:
    daemon = phase(project)
    stop(project, daemon)
    done = seen(project)
    project.say("hold", "")
    again = project.start_daemon()
    await_all(project)
    stop(project, again)
    for build in project.running[:1]:
        build.wait(240)
    bodies = Counter(name for name, _ in project.bodies())
    assert all(bodies[name] == 1 for name in done)
    assert not any(map(children_of, (one.pid for one in project.running)))
    complete(project)
