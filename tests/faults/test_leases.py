# SPDX-License-Identifier: Apache-2.0
"""Who owns a job, and what may a stale owner do? The leases of section B of the fault catalogue."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from apsw import shell

from penstock import Context, Penstock
from penstock.errors import LeaseLost, StoreBusy
from penstock.events.kinds import SchedulerEventKind
from penstock.model.job import AttemptError, ErrorCategory, JobId, JobState, NewJob, WorkerId
from penstock.model.lease import EnqueueJobs, JobEnd, JobFailure, JobRef, SetCursor, Verdict
from penstock.stores.protocol import JobFilter, Store
from penstock.stores.sqlite.in_process import InProcessStore
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing import ManualClock
from tests.faults.project import Project
from tests.faults.races import done, put, race_ack_against_sweep, race_two_acks, register, take
from tests.faults.roles import STORE
from tests.faults.zygote import Zygote
from tests.processes import children_of, freeze
from tests.unit.worker.worker_world import World, simulate
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

TTL = 30.0
RUNTIME = {"async_slots": 4, "lease_ttl_seconds": TTL, "beat_seconds": 10.0, "grace_seconds": 10.0}


class Ledger:
    """A store on a manual clock, and a picture of everything in it."""

    def __init__(self, store: Store, clock: ManualClock, path: Path | None) -> None:
        self.store = store
        self.clock = clock
        self._path = path

    def digest(self) -> object:
        """All that a job's holder could have changed; equal pictures mean that nothing was."""
        if self._path is not None:
            # Never with the standard library's SQLite: two copies of SQLite in one process take
            # each other's locks away.
            connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
            dump = io.StringIO()
            shell.Shell(db=connection, stdout=dump).process_command(".dump")  # type: ignore[no-untyped-call]
            connection.close()
            text = dump.getvalue()
            assert "INSERT INTO" in text
            # A stale end still tells that a body has ended: what is detached for it may go.
            passing = ("--", "INSERT INTO detached")
            return [line for line in text.splitlines() if not line.startswith(passing)]
        jobs = self.store.jobs(JobFilter(), JobId(0), 100).result()
        history = [self.store.attempts(job.key).result() for job in jobs]
        return jobs, history, self.store.cursor("mark").result(), self.store.stats().result().states


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    clock = ManualClock()
    path = tmp_path / "s.db"
    store: Store
    if request.param == "memory":
        store, found = InProcessStore(clock), None
    else:
        store = SqliteStore.open(path, clock=clock, boot_clock=clock, durability="normal")
        found = path
    yield Ledger(store, clock, found)
    assert store.check().result() == []
    store.close()


def test_f12_a_frozen_owner_is_fenced_when_it_wakes(zygote: Zygote, project: Project) -> None:
    """Worker and supervisor are stopped for longer than the lease; another one does the job."""
    project.add("fans_out", seconds=3.0)
    run = project.run(PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="4")
    wait_until(lambda: len(project.bodies()) >= 1)
    frozen = [*children_of(run.pid), run.pid]
    freeze(frozen, project.folder / STORE)
    began = time.monotonic()

    assert zygote.run(project.folder, "run") == 0  # waits for the lease to expire, then works

    assert time.monotonic() - began > 0.5
    assert project.outcomes("fans_out-0") == ["lost", "done"]
    by_heir = project.job("fans_out-0")
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    wait_until(
        lambda: "its jobs are given up" in project.errors() or "discarded" in project.errors()
    )
    wait_until(lambda: "This process was stopped for" in project.errors())
    run.send_signal(signal.SIGTERM)
    run.wait(60)
    assert project.job("fans_out-0") == by_heir  # the late end of the first owner changed nothing
    assert project.outcomes("fans_out-0") == ["lost", "done"]
    assert project.states() == dict.fromkeys(["fans_out-0", "fans_out-0/child"], JobState.DONE)
    assert project.starts() == {"fans_out-0": 2, "fans_out-0/child": 1}
    assert project.store.check().result() == []


def test_f12_a_stopped_supervisor_costs_nobody_anything(project: Project) -> None:
    """SIGSTOP hits the supervisor alone: its worker renews its own lease instead."""
    project.add("fans_out", seconds=6.0)
    run = project.run("--drain", PENSTOCK_RUNTIME__LEASE_TTL_SECONDS="4")
    wait_until(lambda: len(project.bodies()) >= 1)
    freeze([run.pid], project.folder / STORE)

    wait_until(lambda: project.outcomes("fans_out-0") == ["done"])  # after more than a lease
    os.kill(run.pid, signal.SIGCONT)

    assert run.wait(90) == 0
    assert project.states() == dict.fromkeys(["fans_out-0", "fans_out-0/child"], JobState.DONE)
    assert project.starts() == {"fans_out-0": 1, "fans_out-0/child": 1}
    assert "its jobs are given up" not in project.errors()
    assert project.store.check().result() == []


def test_f12_an_owner_that_lost_its_lease_is_cancelled_and_what_it_wanted_is_refused() -> None:
    """In virtual time: the body is deaf to its cancellation and ends as if nothing had happened."""
    app = Penstock("frozen")
    cancelled: list[float] = []

    @app.task()
    async def child(ctx: Context) -> None:
        return None

    @app.task()
    async def work(ctx: Context) -> str:
        first = not cancelled
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(asyncio.get_running_loop().time())
        ctx.enqueue(child.job(), key="first's" if first else "second's")
        return "first" if first else "second"

    async def main(world: World) -> None:
        world.enqueue("work", "k")
        worker = world.worker()
        world.beats[0].cut = True
        running = world.start(worker)
        await asyncio.sleep(TTL + 1)
        assert len(cancelled) == 1
        world.beats[0].cut = False
        await running
        assert world.outcomes("k") == ["lost", "done"]
        assert world.job("k").result == '"second"'
        assert set(world.states()) == {"k", "second's"}

    simulate(app, main, runtime=RUNTIME)


def test_f13_the_same_acknowledgement_twice_is_known_and_changes_nothing(ledger: Ledger) -> None:
    store = ledger.store
    put(store, "k")
    worker = register(store, "w")
    (job,) = take(store, worker)
    assert store.ack(worker, [done(job, "1")]).result() == [Verdict.ACCEPTED]
    before = ledger.digest()

    assert store.ack(worker, [done(job, "1")]).result() == [Verdict.DUPLICATE]
    assert store.ack(worker, [done(job, "2"), done(job, "3")]).result() == [Verdict.DUPLICATE] * 2

    assert ledger.digest() == before
    view = store.job("k").result()
    assert view is not None
    assert (view.state, view.result) == (JobState.DONE, "1")


def test_f13_the_same_acknowledgement_from_two_connections_is_accepted_once(tmp_path: Path) -> None:
    race_two_acks(tmp_path, rounds=100)


def _ref(end: JobEnd) -> JobRef:
    return JobRef(end.job.id, end.job.token)


Stale = Callable[[Store, WorkerId, JobEnd], object]
NEW = NewJob(key="child", task="t", payload="{}", group="g")
TROUBLE = AttemptError(ErrorCategory.OWN, "ValueError", "trouble")
STALE_WRITES: dict[str, tuple[Stale, object]] = {
    "ack": (lambda store, w, end: store.ack(w, [end]).result(), [Verdict.STALE]),
    "children": (
        lambda store, w, end: store.ack(
            w, [JobEnd(end.job, end.state, 1, 2, None, None, (EnqueueJobs((NEW,)),))]
        ).result(),
        [Verdict.STALE],
    ),
    "cursor": (
        lambda store, w, end: store.ack(
            w, [JobEnd(end.job, end.state, 1, 2, None, None, (SetCursor("mark", "9"),))]
        ).result(),
        [Verdict.STALE],
    ),
    "failure": (
        lambda store, w, end: store.fail_and_retry(
            w, [JobFailure(_ref(end), end.job.key, "t", TROUBLE, 1, 2, 0.0, True, True)]
        ).result(),
        [Verdict.STALE],
    ),
    "release": (
        lambda store, w, end: store.release(w, [_ref(end)]).result(),
        0,
    ),
    "revoke": (
        lambda store, w, end: store.revoke(_ref(end), "late").result(),
        Verdict.STALE,
    ),
}


@pytest.mark.parametrize("heir", ["another worker", "the same worker"])
@pytest.mark.parametrize("write", STALE_WRITES)
def test_f14_a_stale_owner_changes_no_row_after_a_new_lease(
    ledger: Ledger, write: str, heir: str
) -> None:
    store = ledger.store
    put(store, "k")
    first = register(store, "first")
    (old,) = take(store, first)
    assert store.revoke(JobRef(old.id, old.token), "an operator").result() is Verdict.ACCEPTED
    second = first if heir == "the same worker" else register(store, "second")
    (new,) = take(store, second)
    assert new.token == old.token + 1
    before = ledger.digest()

    call, expected = STALE_WRITES[write]

    assert call(store, first, done(old, "9")) == expected
    assert ledger.digest() == before
    assert store.ack(second, [done(new, "1")]).result() == [Verdict.ACCEPTED]
    settled = ledger.digest()
    assert call(store, first, done(old, "9")) == expected  # nor after the heir has ended it
    assert ledger.digest() == settled


def test_f14_a_refused_acknowledgement_leaves_a_trace_with_its_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Penstock("stale")

    @app.task()
    async def work(ctx: Context) -> None:
        await asyncio.sleep(5)

    async def main(world: World) -> None:
        world.enqueue("work", "k")
        worker = world.worker()
        running = world.start(worker)
        await asyncio.sleep(4.999)  # the worker has no time to hear of it before the body ends
        job = world.job("k")
        assert world.store.revoke(JobRef(job.id, job.token), "over").result() is Verdict.ACCEPTED
        await running
        assert worker.totals.refused == 1
        assert world.outcomes("k") == ["revoked", "done"]
        (trace,) = world.sink.of(SchedulerEventKind.RELEASE_DIAGNOSTIC)
        assert trace.reason == Verdict.STALE
        assert trace.correlation.job_id == job.id

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        simulate(app, main, runtime=RUNTIME)
    assert "Job 'k' is no longer held by this worker; what its attempt 1 did" in caplog.text


def test_f15_an_acknowledgement_and_a_sweep_at_the_instant_of_expiry_have_one_winner(
    tmp_path: Path,
) -> None:
    wins: Counter[str] = Counter()
    for number in range(5):  # again, if the machine has let the same one win each time
        folder = tmp_path / str(number)
        folder.mkdir()
        wins += race_ack_against_sweep(folder, rounds=300)
        if min(wins["ack"], wins["sweep"]) > 0:
            break

    assert sum(wins.values()) == 300 * (number + 1)
    assert min(wins["ack"], wins["sweep"]) > 0  # it was a race


def test_f16_an_expired_lease_is_dead_though_nobody_has_taken_the_job(ledger: Ledger) -> None:
    store, clock = ledger.store, ledger.clock
    put(store, "k")
    worker = register(store, "w", ttl=TTL)
    (job,) = take(store, worker)
    clock.advance(TTL - 0.000001)
    assert store.beat([worker], 0.000001).result() == {worker}  # the last moment; not shortened
    clock.advance(0.000001)
    before = ledger.digest()

    assert store.beat([worker], TTL).result() == frozenset()
    assert store.ack(worker, [done(job)]).result() == [Verdict.STALE]
    assert store.release(worker, [JobRef(job.id, job.token)]).result() == 0
    assert ledger.digest() == before
    with pytest.raises(LeaseLost):
        take(store, worker)

    heir = register(store, "heir")
    (again,) = take(store, heir)
    assert again.token == job.token + 1
    assert store.beat([worker], TTL).result() == frozenset()


def test_f17_an_acknowledgement_that_meets_a_busy_store_for_longer_than_its_lease_lands_once() -> (
    None
):
    """It takes longer than the lease, which is renewed meanwhile."""
    app = Penstock("busy")
    ran: list[str] = []

    @app.task()
    async def work(ctx: Context) -> str:
        ran.append(ctx.job.key)
        return "done"

    async def main(world: World) -> None:
        world.enqueue("work", "k")
        world.store.fails("ack", StoreBusy("held"), 30)
        worker = await world.drain()
        assert world.clock.monotonic() > TTL
        assert world.store.asked_for.count("ack") == 31
        assert ran == ["k"]
        assert world.outcomes("k") == ["done"]
        assert worker.totals.refused == 0

    simulate(app, main, runtime=RUNTIME)


@pytest.mark.parametrize("seed", range(3))
def test_f17_an_acknowledgement_that_never_lands_ends_in_a_second_run(seed: int) -> None:
    """Neither acknowledgement nor renewal reaches the store until the lease is over."""
    app = Penstock("busy")
    ran: list[str] = []

    @app.task()
    async def work(ctx: Context) -> str:
        ran.append(ctx.job.key)
        return f"run {len(ran)}"

    async def main(world: World) -> None:
        world.enqueue("work", "k")
        world.store.fails("ack", StoreBusy("held"), 10_000)
        worker = world.worker()
        world.beats[0].cut = True
        running = world.start(worker)
        await asyncio.sleep(TTL + 5)
        world.store.heals()
        world.beats[0].cut = False
        await running
        assert world.outcomes("k") == ["lost", "done"]
        assert world.job("k").result == '"run 2"'
        assert ran == ["k", "k"]

    simulate(app, main, seed=seed, runtime=RUNTIME)


def test_f18_whatever_starves_the_heartbeat_of_a_worker_loses_no_lease(project: Project) -> None:
    """Bodies block the loop, spin, or keep the GIL inside C, for longer than the lease lives."""
    keys = [*project.add("sleeps_on_the_loop", seconds=1.8), *project.add("spins", seconds=1.8)]
    keys += [*project.add("matches", seconds=1.2), *project.add("hoards", seconds=2.6)]
    run = project.run("--drain")
    lost: list[str] = []
    while run.poll() is None:
        lost += [str(worker) for worker in project.store.workers().result() if not worker.alive]
        time.sleep(0.02)

    said = project.errors()
    assert run.returncode == 0, said
    assert lost == []  # at no moment had a lease expired
    assert project.states() == dict.fromkeys(keys, JobState.DONE)
    assert project.starts() == dict.fromkeys(keys, 1)
    for key in keys:
        assert project.outcomes(key) == ["done"]
    # The worker names the body itself where it can, the supervisor where the worker cannot.
    assert "blocked for" in said
    assert "job 'sleeps_on_the_loop-0' of task 'sleeps_on_the_loop'" in said
    assert "job 'spins-0' of task 'spins'" in said
    assert "job 'hoards-0' of task 'hoards'" in said
