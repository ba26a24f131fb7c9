# SPDX-License-Identifier: Apache-2.0
"""What is left when a process dies: section A of the fault catalogue."""

from __future__ import annotations

import os
import signal
from math import log2
from pathlib import Path

import pytest

from penstock.model.job import ErrorCategory, JobId, JobState, WorkerId
from penstock.model.lease import ConfiguredCaps, LeaseRequest, WorkerInfo
from penstock.stores.protocol import JobFilter
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.point_deaths import PRODUCER_POINTS, TTL, kill_at, producer_dies, worker_dies
from tests.faults.project import Project
from tests.faults.roles import STORE, LaterBootClock, add_works, sweep_all
from tests.faults.zygote import Zygote
from tests.processes import children_of, is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("point", PRODUCER_POINTS)
def test_f01_a_producer_killed_around_its_commit_leaves_the_job_whole_or_not_at_all(
    zygote: Zygote, tmp_path: Path, point: str
) -> None:
    producer_dies(zygote, tmp_path, point)


def test_f02_a_worker_killed_before_dispatch_repeats_nothing(
    zygote: Zygote, tmp_path: Path
) -> None:
    worker_dies(zygote, tmp_path, "lease.committed")


def test_f03_a_worker_killed_in_user_code_repeats_that_job_once(
    zygote: Zygote, tmp_path: Path
) -> None:
    worker_dies(zygote, tmp_path, "exec.during")


def test_f04_a_worker_killed_before_its_acknowledgement_repeats_that_job_under_the_same_key(
    zygote: Zygote, tmp_path: Path
) -> None:
    worker_dies(zygote, tmp_path, "exec.after")


def test_f05_a_worker_killed_inside_its_acknowledgement_has_not_acknowledged(
    zygote: Zygote, tmp_path: Path
) -> None:
    worker_dies(zygote, tmp_path, "ack.in_tx")


def test_f05_a_worker_killed_after_its_acknowledgement_repeats_nothing(
    zygote: Zygote, tmp_path: Path
) -> None:
    worker_dies(zygote, tmp_path, "ack.committed")


def test_f06_a_killed_worker_under_a_live_supervisor_is_buried_at_once(project: Project) -> None:
    keys = project.add("works_when_told", 12)
    run = project.run("--drain", PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="600")
    wait_until(lambda: len(project.bodies()) >= 4)
    (worker,) = children_of(run.pid)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(worker))
    (project.folder / "go").touch()

    # By design half a second; what is asserted is only that nobody waits for the lease.
    assert run.wait(240) == 0, project.errors()
    assert project.states() == dict.fromkeys(keys, JobState.DONE)
    running = {key for key, pid, _ in project.bodies() if pid == worker}
    assert len(running) == 4
    for key in running:  # exactly one repeat of what ran, with the signal in its history
        assert project.starts()[key] == 2
        lost, done = project.attempts(key)
        assert (lost.outcome, done.outcome) == ("lost", "done")
        assert lost.error is not None
        assert lost.error.message == "killed by SIGKILL"
        assert (project.job(key).attempts, project.job(key).crashes) == (0, 0)
    assert all(n == 1 for key, n in project.starts().items() if key not in running)
    assert project.store.check().result() == []


def test_f08_a_sweep_of_ten_thousand_leases_killed_in_the_middle_is_finished_by_the_next(
    zygote: Zygote, tmp_path: Path
) -> None:
    """Eighty dead workers hold 8,000 jobs; a live one holds 2,000 older ones, which are exempt."""
    store = SqliteStore.open(tmp_path / STORE, durability="normal")
    exempt, doomed = 2_000, 8_000
    for first in range(0, exempt + doomed, 5_000):
        add_works(store, *(f"k{n:05}" for n in range(first, first + 5_000)))
    hold(store, "alive", exempt, ttl=10 * TTL)
    for number in range(80):
        hold(store, f"dead-{number}", doomed // 80, ttl=TTL)

    # The third expired worker is being swept when the sweeper dies: nothing of it is left.
    assert zygote.run(tmp_path, "sweep", str(TTL + 1), failpoints=kill_at("sweep.in_tx", 3)) == -9
    assert store.stats().result().states[JobState.IN_PROGRESS] == exempt + doomed
    # Another one gets further, and dies in its third transaction: two whole slices are done.
    assert zygote.run(tmp_path, "sweep", str(TTL + 1), failpoints=kill_at("sweep.in_tx", 25)) == -9
    left = store.stats().result().states[JobState.IN_PROGRESS]
    assert exempt < left < exempt + doomed
    assert store.check().result() == []

    assert zygote.run(tmp_path, "sweep", str(TTL + 1)) == 0

    states = store.stats().result().states
    assert (states[JobState.QUEUED], states[JobState.IN_PROGRESS]) == (doomed, exempt)
    page = store.jobs(JobFilter(state=JobState.IN_PROGRESS), JobId(0), exempt + 1).result()
    assert [job.key for job in page] == [f"k{n:05}" for n in range(exempt)]  # the exempt ones
    assert [a.outcome for a in store.attempts("k05000").result()] == ["lost"]  # each lost once
    assert store.check().result() == []
    store.close()


def test_f08_a_page_of_dead_workers_without_jobs_hides_nobody(tmp_path: Path) -> None:
    """One sweep goes on until every dead worker is swept, not only the first page of them."""
    clock = LaterBootClock(0)
    store = SqliteStore.open(tmp_path / STORE, boot_clock=clock, durability="normal")
    add_works(store, *(f"k{n}" for n in range(20)))
    for number in range(40):
        hold(store, f"idle-{number}", 0, ttl=TTL)
    for number in range(20):
        hold(store, f"dead-{number}", 1, ttl=TTL)
    clock.seconds = TTL + 1

    sweep_all(store, "sweeper")

    states = store.stats().result().states
    assert (states[JobState.QUEUED], states[JobState.IN_PROGRESS]) == (20, 0)
    store.close()


def test_f10_a_poison_job_ends_after_three_crashes_alone_and_harms_nobody(project: Project) -> None:
    keys = project.add("works", 30, seconds=0.05)
    project.add("reads_null")
    project.add("eats_memory")

    code, said = project.drain(PENSTOCK_TASKS__MAX_ATTEMPTS="1")

    assert code == 1
    assert {key: project.states()[key] for key in keys} == dict.fromkeys(keys, JobState.DONE)
    poison = project.job("reads_null-0")
    assert (poison.state, poison.crashes, poison.attempts) == (JobState.ERROR, 3, 0)
    assert poison.last_error is not None
    assert poison.last_error.category == ErrorCategory.CRASHED
    assert "3 times" in poison.last_error.message
    assert "killed by SIGSEGV" in poison.last_error.message
    outcomes = project.outcomes("reads_null-0")
    assert outcomes[-3:] == ["crashed", "crashed", "error"]  # alone
    # Before that beside others: in the crowd, with all of that again, and in halves of halves.
    together = len(outcomes) - 3
    assert outcomes[:together] == ["lost"] * together
    assert 1 <= together <= 2 + log2(len(keys) + 2)
    assert project.starts()["reads_null-0"] == len(outcomes)
    assert "'reads_null-0'" in said
    # What the kernel refuses in the open is an ordinary error of its own job.
    hungry = project.job("eats_memory-0")
    assert hungry.state is JobState.ERROR
    assert hungry.last_error is not None
    assert (hungry.last_error.category, hungry.last_error.kind) == ("own", "MemoryError")
    # The first worker, its successor, one for each death, perhaps two that found nothing to do.
    assert len(outcomes) + 1 <= len(project.imports()) <= len(outcomes) + 4
    assert project.store.check().result() == []


def hold(store: SqliteStore, name: str, count: int, ttl: float) -> None:
    """Let a new worker lease this many jobs."""
    worker = WorkerId(name)
    store.register(WorkerInfo(id=worker, run_id="r", tasks=("works",)), ttl).result()
    while count:
        request = LeaseRequest(worker=worker, tasks=("works",), limit=count, caps=ConfiguredCaps())
        count -= len(store.lease(request).result().jobs)
