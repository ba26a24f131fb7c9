# SPDX-License-Identifier: Apache-2.0
"""What an operator's commands print and end with: list, cancel, retry, rerun, purge, limit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import Edge, JobState, finished
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing.clocks import ManualClock
from tests.contract.world import StoreWorld
from tests.unit.cli.conftest import Command

OPERATING = (
    ["list"],
    ["cancel", "k"],
    ["cancel", "--task", "visit", "--yes"],
    ["retry-failed"],
    ["retry", "k"],
    ["rerun", "k"],
    ["purge", "--yes"],
    ["limit"],
    ["limit", "host:h", "2"],
    ["pause"],
    ["resume"],
)


@pytest.fixture
def world(project: Path) -> Iterator[StoreWorld]:
    """The project's store, in a time long ago; its jobs are of the tasks `visit` and `broken`."""
    clock = ManualClock()
    (project / ".penstock").mkdir()
    path = project / ".penstock" / "shop.db"
    store = SqliteStore.open(path, clock=clock, boot_clock=clock, durability="normal")
    yield StoreWorld(store, clock)
    assert store.check().result() == []
    store.close()


def visit(world: StoreWorld, key: str, *after: Edge) -> None:
    world.add(world.job(key, task="visit", after=after))


def fill(world: StoreWorld) -> None:
    """`bad` failed, `child` and `grandchild` were skipped; `good` is done, `held` in progress."""
    worker = world.new_worker(tasks=["visit"])
    visit(world, "bad")
    visit(world, "child", Edge("bad"))
    visit(world, "grandchild", Edge("child"))
    world.run(worker, "bad", JobState.ERROR)
    visit(world, "good")
    world.run(worker, "good")
    visit(world, "held")
    world.take_one(worker)
    visit(world, "next")
    visit(world, "waits", Edge("next"))
    world.add(world.job("late", task="broken", delay=3600.0))


# all of them


@pytest.mark.parametrize("arguments", OPERATING, ids=" ".join)
def test_a_store_that_does_not_exist_is_refused_and_not_made(
    command: Command, project: Path, arguments: list[str]
) -> None:
    ended = command("queue", *arguments, "--store", "sqlite:///none.db")

    assert ended.code == 2
    assert "There is no store sqlite:///none.db yet." in ended.sentence
    assert not (project / "none.db").exists()


# list


def test_list_shows_a_line_a_job(command: Command, world: StoreWorld) -> None:
    fill(world)

    lines = command("queue", "list").out.splitlines()

    words = [line.split()[:3] for line in lines]
    assert words[0] == ["error", "visit", "bad"]
    assert lines[0].endswith("(trouble)")
    assert lines[1] == "skipped      visit   child  (upstream failed: bad)"
    assert lines[3] == "done         visit   good"
    assert lines[4].endswith("held  (held by worker-1)")
    assert lines[6].endswith("waits  (waits for 1)")
    assert re.search(r"^queued +broken +late +\(due at 2025-", lines[7])
    assert len(lines) == 8


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["--state", "queued"], ["next", "late"]),
        (["--state", "queued", "--task", "visit"], ["next"]),
        (["--task", "visit", "--limit", "2"], ["bad", "child"]),
        (["--state", "cancelled"], []),
    ],
)
def test_list_is_one_document(
    command: Command, world: StoreWorld, arguments: list[str], keys: list[str]
) -> None:
    fill(world)

    ended = command("queue", "list", "--json", *arguments)

    assert (ended.code, ended.err) == (0, "")
    assert [job["key"] for job in ended.document["jobs"]] == keys
    assert all("history" not in job and "payload" in job for job in ended.document["jobs"])


def test_list_names_the_nearest_state_and_task(command: Command, world: StoreWorld) -> None:
    fill(world)

    state = command("queue", "list", "--state", "quened")
    task = command("queue", "list", "--task", "vist")

    assert state.code == 2
    assert "No state is called 'quened'; the nearest is 'queued'." in state.sentence
    assert (task.code, task.out) == (0, "No jobs.\n")
    assert "no job of a task named 'vist'; it has jobs of 'visit'" in task.sentence


def test_a_list_goes_over_pages_and_escapes_keys(command: Command, world: StoreWorld) -> None:
    world.add(*(world.job(f"k{n}\u202e", task="visit") for n in range(1_201)))

    lines = command("queue", "list").out.splitlines()
    jobs = command("queue", "list", "--json").document["jobs"]

    assert len(lines) == len(jobs) == 1_201
    assert lines[700].endswith("k700\\u202e")
    assert jobs[-1]["key"] == "k1200\u202e"


def test_a_reader_who_has_seen_enough_ends_a_list_quietly(world: StoreWorld, project: Path) -> None:
    world.add(*(world.job(f"k{n}" * 50, task="visit") for n in range(5_000)))

    for flag in ("", " --json"):
        ended = subprocess.run(
            f"set -o pipefail; {sys.executable} -m penstock.cli.main queue list{flag} | head -n 2",
            shell=True,
            executable="/bin/bash",
            cwd=project,
            env={**os.environ},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.count("\n") == 2


# cancel


def test_cancel_says_what_became_of_every_key(command: Command, world: StoreWorld) -> None:
    fill(world)

    ended = command("queue", "cancel", "held", "next", "good", "nobody", "next")

    assert ended.code == 1
    assert ended.out.splitlines() == [
        "Job 'held' is cancelled.",
        "Job 'next' is cancelled.",
        "Job 'good' had ended already: done.",
    ]
    assert "No job has the key 'nobody'." in ended.err
    assert "Cancelled 2 jobs: held, next (by " in ended.err
    assert world.states("held", "next", "waits") == [
        JobState.CANCELLED,
        JobState.CANCELLED,
        JobState.SKIPPED,
    ]


def test_cancel_is_one_document(command: Command, world: StoreWorld) -> None:
    fill(world)

    ended = command("queue", "cancel", "late", "bad", "--json")

    assert ended.code == 0
    assert ended.document == {"cancelled": ["late"], "ended": {"bad": "error"}, "unknown": []}


def test_a_cancel_in_bulk_asks_first(command: Command, world: StoreWorld) -> None:
    fill(world)

    asked = command("queue", "cancel", "--task", "visit")
    states = world.states("held", "next", "waits")
    queued = command("queue", "cancel", "--task", "visit", "--state", "queued", "--json")
    done = command("queue", "cancel", "--task", "visit", "--yes")

    assert (asked.code, asked.out) == (2, "")
    assert asked.sentence == "3 jobs would be cancelled; add --yes to do it."
    assert states == [JobState.IN_PROGRESS, JobState.QUEUED, JobState.WAITING]
    assert (queued.code, queued.document) == (2, {"cancelled": 0, "would_cancel": 1})
    assert (done.code, done.out) == (0, "3 jobs cancelled.\n")
    assert world.states("held", "next", "waits") == [JobState.CANCELLED] * 3
    assert world.state("late") is JobState.QUEUED


def test_a_cancel_of_an_unknown_task_names_those_that_have_jobs(
    command: Command, world: StoreWorld
) -> None:
    fill(world)

    ended = command("queue", "cancel", "--task", "vist", "--yes")

    assert ended.out == "0 jobs cancelled.\n"
    assert "no job of a task named 'vist'; it has jobs of 'visit'" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Name jobs by their keys, or all of a kind by --task and --state."),
        (["k", "--task", "visit"], "Name jobs by their keys, or all of a kind"),
        (["--state", "done"], "Jobs in done have ended"),
        (["--state", "waitin"], "the nearest is 'waiting'"),
    ],
)
def test_cancel_refuses_in_one_sentence(
    command: Command, world: StoreWorld, arguments: list[str], said: str
) -> None:
    ended = command("queue", "cancel", *arguments)

    assert ended.code == 2
    assert said in ended.sentence


# retry-failed


def test_a_dry_run_counts_what_a_retry_then_puts_back(command: Command, world: StoreWorld) -> None:
    fill(world)
    counts = {"failed": 1, "skipped": 2, "of_builds": 0}

    dry = command("queue", "retry-failed", "--dry-run", "--json")
    said = command("queue", "retry-failed", "--dry-run").out
    unchanged = world.states("bad", "child", "grandchild")
    wet = command("queue", "retry-failed", "--json")
    again = command("queue", "retry-failed")

    assert dry.document == {**counts, "dry_run": True}
    assert said == "1 job that failed, and 2 jobs skipped because of that, would be put back.\n"
    assert unchanged == [JobState.ERROR, JobState.SKIPPED, JobState.SKIPPED]
    assert wet.document == {**counts, "dry_run": False}
    assert "Put back 1 job that failed and 2 jobs skipped because of that (by " in wet.err
    assert world.states("bad", "child", "grandchild") == [
        JobState.QUEUED,
        JobState.WAITING,
        JobState.WAITING,
    ]
    assert again.out == "No failed job is to be put back.\n"


def test_a_retry_can_be_narrowed(command: Command, world: StoreWorld) -> None:
    fill(world)
    worker = world.new_worker(tasks=["visit"])
    visit(world, "often")
    for _ in range(3):
        jobs = world.take(worker)
        world.fail(worker, jobs["often"], max_attempts=3)

    other = command("queue", "retry-failed", "--task", "broken", "--json").document
    seldom = command("queue", "retry-failed", "--max-attempts", "2", "--json").document

    assert (other["failed"], seldom["failed"]) == (0, 1)
    assert world.states("often", "bad") == [JobState.ERROR, JobState.QUEUED]
    assert command("queue", "retry-failed", "--max-attempts", "-1").code == 2


# purge


def test_a_purge_asks_first_and_forgets_only_what_nobody_waits_for(
    command: Command, world: StoreWorld
) -> None:
    fill(world)
    visit(world, "later", finished("good"), Edge("next"))

    asked = command("queue", "purge", "--older-than", "1d")
    before = world.store.stats().result().states
    done = command("queue", "purge", "--older-than", "1d", "--yes", "--json")

    assert (asked.code, asked.out) == (2, "")
    assert asked.sentence == "3 jobs would be forgotten; add --yes to do it."
    assert before[JobState.DONE] == 1
    others: dict[str, object] = {"kept": 0, "refused": {}, "unknown": []}
    assert (done.code, done.document) == (0, {"purged": 3, "would_purge": 3, **others})
    assert "Purged 3 jobs that ended over 86400 s ago (by " in done.err
    assert world.store.job("bad").result() is None
    assert world.state("good") is JobState.DONE


def test_a_purge_keeps_what_is_younger(command: Command, world: StoreWorld) -> None:
    fill(world)

    assert command("queue", "purge", "--older-than", "36500d", "--yes").out == "0 jobs forgotten.\n"
    assert command("queue", "purge", "--yes").out == "4 jobs forgotten.\n"  # the setting: 30 days


@pytest.mark.parametrize(
    ("text", "said"),
    [("soon", "--older-than must be a number of seconds"), ("-1d", "must be at least 0")],
)
def test_purge_refuses_in_one_sentence(
    command: Command, world: StoreWorld, text: str, said: str
) -> None:
    ended = command("queue", "purge", "--older-than", text, "--yes")

    assert ended.code == 2
    assert said in ended.sentence


# by key


def test_named_jobs_are_retried_run_again_and_forgotten(
    command: Command, world: StoreWorld
) -> None:
    fill(world)

    retried = command("queue", "retry", "bad")
    dry = command("queue", "rerun", "good", "--dry-run")
    rerun = command("queue", "rerun", "good", "--fresh")
    asked = command("queue", "purge", "late", "child")

    put_back = "1 job that failed, and 2 jobs skipped because of that, is put back.\n"
    assert retried.out == put_back
    assert dry.out == "1 job would run again.\n"
    assert rerun.out == "1 job runs again, and what was bought is bought anew.\n"
    assert "1 job run again, and buy their answers anew (by " in rerun.err
    assert world.states("bad", "child", "good") == [
        JobState.QUEUED,
        JobState.WAITING,
        JobState.QUEUED,
    ]
    assert asked.code == 1
    assert "Job 'late' is queued, it has not ended: 'penstock queue cancel late' ends" in asked.err


def test_a_job_that_cannot_run_again_is_told_what_fits(command: Command, world: StoreWorld) -> None:
    fill(world)

    failed = command("queue", "rerun", "bad")
    done = command("queue", "retry", "good", "godo", "--store", "sqlite:///.penstock/shop.db")
    gone = command("queue", "purge", "bad", "--yes")

    assert (failed.code, done.code) == (1, 1)
    assert failed.sentence == "Job 'bad' has failed: 'penstock queue retry bad' puts it back."
    shared = "--store sqlite:///.penstock/shop.db"
    assert done.err.splitlines() == [
        f"Job 'good' is done: 'penstock queue rerun good {shared}' runs it again.",
        "No job has the key 'godo'; closest: 'good'.",
    ]
    assert (gone.code, gone.out) == (0, "1 job forgotten.\n")
    assert command("queue", "rerun", "good", "--json").document == {
        "rerun": 1,
        "refused": {},
        "unknown": [],
        "fresh": False,
        "dry_run": False,
    }


def test_jobs_of_a_task_run_again_and_are_forgotten(command: Command, world: StoreWorld) -> None:
    fill(world)

    kept = command("queue", "purge", "--task", "visit", "--yes", "--older-than", "36500d")
    gone = command("queue", "purge", "--task", "visit", "--yes")
    none = command("queue", "rerun", "--task", "visit")

    assert (kept.out, gone.out) == ("0 jobs forgotten.\n", "4 jobs forgotten.\n")
    assert (none.code, none.out) == (0, "0 jobs run again.\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rerun"], "Name jobs by their keys, or all done ones of a task by --task."),
        (["rerun", "k", "--task", "visit"], "Name jobs by their keys, or all done ones"),
        (["rerun", "--task", "schedule:watch"], "is no task of yours"),
        (["purge", "k", "--task", "visit"], "Name jobs by their keys, or by --task"),
    ],
)
def test_what_is_named_twice_or_not_at_all_is_refused(
    command: Command, world: StoreWorld, arguments: list[str], said: str
) -> None:
    ended = command("queue", *arguments)

    assert ended.code == 2
    assert said in ended.err


# limit


def test_a_limit_is_changed_and_forgotten(
    command: Command, world: StoreWorld, project: Path
) -> None:
    (project / "penstock.toml").write_text('[limits.host]\n"*" = 4\n')

    changed = command("queue", "limit", "host:h", "0")
    caps = world.store.caps().result()
    shown = command("queue", "limit", "host:h", "--json").document
    back = command("queue", "limit", "host:h", "default", "--json").document

    assert (changed.code, changed.out) == (0, "host:h: 4 → 0\n")
    assert "Changed the limit host:h from 4 to 0 (by " in changed.err
    assert caps == {"host:h": 0}
    assert shown["limits"] == {
        "host:h": {"configured": 4, "override": 0, "cap": 0, "holders": 0},
    }
    assert back == {"key": "host:h", "before": 0, "cap": 4, "override": None}
    assert world.store.caps().result() == {}


def test_limits_are_listed_with_their_holders(
    command: Command, world: StoreWorld, project: Path
) -> None:
    (project / "penstock.toml").write_text('[limits.host]\n"*" = 4\n')
    world.add(world.job("a", limit_keys=["host:h"]), world.job("b", limit_keys=["user:u"]))
    world.take_all(world.new_worker())
    world.store.set_cap("host:x", 2).result()

    lines = command("queue", "limit").out.splitlines()

    assert [line.split() for line in lines[1:]] == [
        ["host:*", "4", "0"],
        ["host:h", "4", "1"],
        ["host:x", "4", "2", "0"],
        ["user:u", "no", "limit", "1"],
    ]


def test_a_dimension_that_nobody_knows_is_set_with_a_warning(
    command: Command, world: StoreWorld
) -> None:
    known = command("queue", "limit", "host:h", "1")
    unknown = command("queue", "limit", "hots:h", "1")

    assert "knows the dimension" not in known.err
    assert unknown.code == 0
    assert "No setting and no task knows the dimension 'hots' (known: host)" in unknown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["host", "1"], "A limit key is dimension:value"),
        (["host:h", "many"], "A limit is a whole number from 0 to 1,000,000"),
    ],
)
def test_limit_refuses_in_one_sentence(
    command: Command, world: StoreWorld, arguments: list[str], said: str
) -> None:
    ended = command("queue", "limit", *arguments)

    assert ended.code == 2
    assert said in ended.sentence


# pause and resume


def test_pause_and_resume_may_be_said_twice(command: Command, world: StoreWorld) -> None:
    said = [command("queue", word).out for word in ("pause", "pause", "resume", "resume")]

    assert said == [
        "The queue is paused.\n",
        "The queue was already paused.\n",
        "The queue is running.\n",
        "The queue was already running.\n",
    ]


def test_a_pause_is_seen_by_leases_and_by_stats(command: Command, world: StoreWorld) -> None:
    world.add("k")
    worker = world.new_worker()

    document = command("queue", "pause", "--json").document
    taken = world.take_all(worker)
    stats = command("queue", "stats")
    command("queue", "resume")

    assert document == {"paused": True, "changed": True}
    assert taken == {}
    assert "The queue is paused." in stats.out
    assert list(world.take_all(worker)) == ["k"]
