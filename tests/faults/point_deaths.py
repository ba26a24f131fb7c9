# SPDX-License-Identifier: Apache-2.0
"""What must be true after a process died at one named point?

One death each, with everything that follows from it; a test does each once, `make soak-points` does
each some hundred times. Nobody waits for a lease to expire: the heir reads a later boot-time clock.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

from penstock.model.job import ErrorCategory, JobId, JobState
from penstock.stores.protocol import JobFilter
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.roles import STORE, LaterBootClock, add_works, sweep_all
from tests.faults.zygote import Zygote

TTL = 30.0
CONFIG = f"""
store = "sqlite:///{STORE}"
durability = "normal"
[runtime]
lease_ttl_seconds = {TTL}
beat_seconds = 10.0
async_slots = 1
thread_slots = 1
process_slots = 1
"""
PRODUCER_POINTS = ("enqueue.begin", "enqueue.in_tx", "enqueue.committed")
WORKER_POINTS = ("lease.committed", "exec.during", "exec.after", "ack.in_tx", "ack.committed")


def kill_at(point: str, hit: int = 1) -> dict[str, object]:
    return {point: {"at": hit}}


def lines(folder: Path, name: str) -> list[list[str]]:
    path = folder / name
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def starts(folder: Path) -> Counter[str]:
    return Counter(line[1] for line in lines(folder, "bodies.log") if line[0] == "start")


def producer_dies(zygote: Zygote, folder: Path, point: str) -> None:
    """F01: the second of three jobs is being enqueued when its producer dies."""
    (folder / "penstock.toml").write_text(CONFIG)
    keys = ("one", "two", "three")

    code = zygote.run(folder, "produce", *keys, failpoints=kill_at(point, 2))

    assert code == -signal.SIGKILL
    store = SqliteStore.open(folder / STORE, durability="normal")
    there = {job.key: job.id for job in store.jobs(JobFilter(), JobId(0), 10).result()}
    assert list(there) == (["one", "two"] if point == "enqueue.committed" else ["one"])
    assert lines(folder, "accepted.log") == [["one"]]  # no reply was seen for the second
    assert zygote.run(folder, "produce", *keys) == 0
    again = {job.key: job.id for job in store.jobs(JobFilter(), JobId(0), 10).result()}
    assert sorted(again) == sorted(keys)
    assert there.items() <= again.items()  # the same key is the same job
    assert store.stats().result().states[JobState.QUEUED] == 3
    assert store.check().result() == []
    store.close()


def worker_dies(zygote: Zygote, folder: Path, point: str) -> None:
    """F02 to F05: an embedded worker with one slot dies while it is at its first job."""
    (folder / "penstock.toml").write_text(CONFIG)
    clock = LaterBootClock(0)
    store = SqliteStore.open(folder / STORE, boot_clock=clock, durability="normal")
    # While an acknowledgement is written the next body may have begun: then there is only one.
    keys = ["first"] if point.startswith("ack.") else ["first", "second"]
    add_works(store, *keys)

    assert zygote.run(folder, "run", failpoints=kill_at(point)) == -signal.SIGKILL

    ended = point == "ack.committed"
    held = keys[1:] if ended else keys
    assert _in_progress(store) == set(held)
    clock.seconds = TTL - 5
    sweep_all(store, "too early")
    assert _in_progress(store) == set(held)  # nobody may take it before its time
    clock.seconds = TTL + 1
    sweep_all(store, "in time")
    assert _in_progress(store) == set()
    for key in held:
        (loss,) = store.attempts(key).result()
        assert loss.outcome == "lost"
        assert loss.error is not None
        assert (loss.error.category, loss.error.message) == (
            ErrorCategory.CRASHED,
            "its lease expired",
        )

    assert zygote.run(folder, "run") == 0

    ran_before = point not in ("lease.committed", "ack.committed")
    assert starts(folder) == {**dict.fromkeys(keys, 1), "first": 2 if ran_before else 1}
    for key in keys:
        job = store.job(key).result()
        assert job is not None
        assert (job.state, job.attempts, job.crashes) == (JobState.DONE, 0, 0)
        assert job.result == f'"result of {key}"'
        outcomes = [attempt.outcome for attempt in store.attempts(key).result()]
        assert outcomes == (["lost", "done"] if key in held else ["done"])
    assert store.check().result() == []
    store.close()


def _in_progress(store: SqliteStore) -> set[str]:
    wanted = JobFilter(state=JobState.IN_PROGRESS)
    return {job.key for job in store.jobs(wanted, JobId(0), 10).result()}
