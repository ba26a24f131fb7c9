# SPDX-License-Identifier: Apache-2.0
"""F63: preflights that fail, hang, flap, die or break later; then no work code has run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.daemon_project import DaemonProject
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

HASTY = {"PENSTOCK_RUNTIME__PREFLIGHT_TIMEOUT": "0.3"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[DaemonProject]:
    made = DaemonProject(tmp_path / "project")
    yield made
    made.close()


def refused(
    project: DaemonProject, *arguments: str, quick: bool = False, **environment: str
) -> tuple[str, str]:
    """Run into a refusal: nothing but checks has run, and nothing is armed."""
    code, out, err = project.ended(*arguments, quick=quick, **environment)
    assert code == 3, (out, err)
    assert "Traceback" not in err, err
    assert project.bodies("tick") == project.bodies("event") == []
    store = project.open()
    try:
        assert store.units(None, "", 10).result() == []
    finally:
        store.close()
    return out, err


def test_f63_every_failure_is_named_with_partition_and_hint(project: DaemonProject) -> None:
    project.say("check-a", "fail")
    project.say("check-b", "exit")
    project.say("check-token", "fail")

    out, err = refused(project)

    assert out == ""
    rows = [line.split() for line in err.splitlines() if line.startswith(("FAILED", " "))]
    assert rows == [
        ["FAILED", "reachable:a", "ValueError:", "a", "is", "not", "there"],
        ["Is", "its", "name", "right?"],
        ["FAILED", "reachable:b", "SystemExit:", "5"],
        ["Is", "its", "name", "right?"],
        ["FAILED", "token", "ValueError:", "token", "is", "not", "there"],
    ]
    assert err.endswith("3 of 3 preflights failed; nothing else was started.\n")


def test_f63_checks_that_hang_on_the_loop_and_in_threads_fail_in_time(
    project: DaemonProject,
) -> None:
    project.say("check-a", "hang")
    project.say("check-b", "node")
    project.say("check-token", "block")

    _, err = refused(project, quick=False, **HASTY)

    assert "FAILED  reachable:a  TimeLimitError" in err
    assert "FAILED  reachable:b  ConnectionResetError: gone" in err
    assert "FAILED  token        TimeLimitError" in err


def test_f63_a_check_that_blocks_the_loop_is_named_and_hides_no_other(
    project: DaemonProject,
) -> None:
    project.say("check-b", "block")
    project.say("check-token", "fail")

    _, err = refused(project, quick=True, **HASTY)

    assert "FAILED  reachable:b  it had not ended by preflight_timeout" in err
    assert "FAILED  token        ValueError: token is not there" in err
    assert "passed " not in err
    assert err.endswith("2 of 3 preflights failed; nothing else was started.\n")


def test_f63_checks_whose_process_dies_are_told_in_the_document_with_all_others(
    project: DaemonProject,
) -> None:
    project.say("hosts", "a b c")
    project.say("check-a", "die")
    project.say("check-b", "fail")
    project.say("check-token", "die")

    out, err = refused(project, "--check", "--json")

    document = json.loads(out)
    found = {(one["name"], one["partition"]): one["problem"] for one in document["preflights"]}
    died = "the process died while it ran (killed by SIGKILL)"
    assert found == {
        ("reachable", "a"): died,
        ("reachable", "b"): "ValueError: b is not there",
        ("reachable", "c"): None,
        ("token", None): died,
    }
    assert (document["passed"], document["failed"]) == (1, 3)
    assert "Working on" not in err


def test_f63_a_process_that_dies_for_no_fault_of_a_check_is_followed_by_another(
    project: DaemonProject,
) -> None:
    project.say("check-a", "die once")
    process = project.start()
    project.await_bodies("event")

    assert project.stop(process) == 0
    assert "Another process checks again." in project.errors()


def test_f63_a_check_that_flaps_is_tried_again_and_the_work_begins(project: DaemonProject) -> None:
    project.say("check-a", "once")
    # The baseline waits up to two seconds; the work begins nevertheless.
    process = project.start()
    project.await_bodies("event")

    assert project.stop(process) == 0
    assert [words[0] for words in project.bodies("check")].count("a") == 2


def retried_soon(project: DaemonProject) -> None:
    """Let degraded units be tried again at once."""
    code = (project.folder / "daemon_app.py").read_text()
    soon = "app.baseline(degraded=(0.05, 0.1))\nhosts = app"
    project.say("daemon_app.py", code.replace("hosts = app", soon))


def test_f63_what_breaks_later_is_looked_at_before_the_next_try(project: DaemonProject) -> None:
    project.say("interval", "0.2")
    retried_soon(project)
    process = project.start()
    project.await_bodies("tick", 2)
    project.say("check-a", "fail")
    project.say("tick-a", "fail")
    checks = len(project.bodies("check"))
    wait_until(lambda: len(project.bodies("check")) >= checks + 2)
    ticks = [words[0] for words in project.bodies("tick")].count("a")
    project.unsay("tick-a")
    project.await_bodies("tick", 2)  # others go on
    assert [words[0] for words in project.bodies("tick")].count("a") == ticks  # it does not

    project.unsay("check-a")
    wait_until(lambda: [words[0] for words in project.bodies("ticked")].count("a") > ticks)

    assert project.stop(process) == 0
    assert "'preflight reachable'" in project.errors() or "preflight reachable" in project.errors()
    assert project.broken() == []


def test_f63_check_alone_tells_people_and_machines(project: DaemonProject) -> None:
    code, out, err = project.ended("--check", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert (document["passed"], document["failed"], len(document["preflights"])) == (3, 0, 3)

    project.say("check-b", "fail")
    out, _ = refused(project, "--check", "--json")
    failed = [row for row in json.loads(out)["preflights"] if not row["passed"]]
    assert failed == [
        {
            "name": "reachable",
            "partition": "b",
            "passed": False,
            "required": True,
            "problem": "ValueError: b is not there",
            "hint": "Is its name right?",
        }
    ]

    out, _ = refused(project, "--check")
    assert out.startswith("FAILED  reachable:b")
    assert out.endswith("1 of 3 preflights failed; nothing else was started.\n")


def test_f63_a_check_that_is_not_required_is_listed_and_leaves_its_partition_out(
    project: DaemonProject,
) -> None:
    retried_soon(project)
    project.say("optional", "yes")
    project.say("check-b", "fail")

    code, out, err = project.ended("--check", "--json")
    document = json.loads(out)
    assert (code, document["passed"], document["failed"], document["left_out"]) == (0, 2, 0, 1), err
    code, out, _ = project.ended("--check")
    assert code == 0
    assert out.startswith("failed  reachable:b")
    assert "1 of 3 preflights did not pass; they are not required" in out

    process = project.start()
    project.await_bodies("tick", 2)
    assert all(words[0] == "a" for words in project.bodies("tick"))
    project.unsay("check-b")
    wait_until(lambda: any(words[0] == "b" for words in project.bodies("tick")))

    assert project.stop(process) == 0
    assert "preflight:reachable:b did not pass and is not required" in project.errors()
    assert project.broken() == []


def test_f63_a_mistake_in_a_definition_is_said_before_anything_runs(
    project: DaemonProject,
) -> None:
    project.say("mistake", "yes")

    code, out, err = project.ended()

    assert (code, out) == (2, "")
    assert "mistaken" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert project.bodies("check") == project.bodies("tick") == []


def test_f63_an_app_without_checks_or_schedules_serves_its_queue(project: DaemonProject) -> None:
    project.say("checks", "none")
    project.say("schedules", "none")

    assert project.ended("--check")[:2] == (0, "The app has no preflights.\n")
    code, _, err = project.ended("--drain")
    assert code == 0, err


def test_f63_thousands_of_checks_are_all_told_of(project: DaemonProject) -> None:
    hosts = [f"host{n}" for n in range(2_000)]
    project.say("hosts", " ".join(hosts))
    for host in hosts[::100]:
        project.say(f"check-{host}", "fail")

    out, _ = refused(project, "--check", "--json")

    document = json.loads(out)
    assert (document["passed"], document["failed"]) == (1_981, 20)
    failed = [row["partition"] for row in document["preflights"] if not row["passed"]]
    assert failed == sorted(hosts[::100])
