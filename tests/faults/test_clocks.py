# SPDX-License-Identifier: Apache-2.0
"""What may clocks and names do to a lease? The rest of section B of the fault catalogue."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Context, Penstock
from penstock.clock import Clock
from penstock.ids import SystemIds
from penstock.model.job import JobState, NewJob
from penstock.model.lease import Verdict
from penstock.stores.sqlite.store import SqliteStore
from penstock.supervisor.heartbeat import LeaseHeartbeat
from penstock.testing import ManualClock
from penstock.worker.heartbeat import HeartbeatThread
from penstock.worker.slot_table import SlotTable
from tests.faults.point_deaths import kill_at, lines, starts
from tests.faults.project import CONFIG
from tests.faults.races import done, put, register, take
from tests.faults.roles import NOT_HERE, STORE, add_works
from tests.faults.zygote import Zygote
from tests.processes import freeze
from tests.unit.worker.worker_world import World, simulate
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

HOUR, DAY = 3600, 86_400
JUMPS = (HOUR, -HOUR, DAY, -DAY)
TTL = 30.0
SHORT_LEASE = {"PENSTOCK_RUNTIME__LEASE_TTL_SECONDS": "3"}  # of an owner that shall die
RUNTIME = {"async_slots": 4, "lease_ttl_seconds": TTL, "beat_seconds": 10.0, "grace_seconds": 10.0}


class WallClock:
    """Owns the file that says by how much the wall clock of some processes is wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, seconds: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(descriptor, struct.pack("q", seconds), 0)
        os.close(descriptor)


@pytest.fixture
def wall_clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "offset")


@pytest.fixture
def jumpy(tmp_path: Path, wall_clock: WallClock) -> Iterator[Zygote]:
    """Forks processes whose wall clock a test may set."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler called cc for the clock shim")
    shim = tmp_path / "shim.so"
    source = Path(__file__).with_name("wall_clock_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    zygote = Zygote(
        tmp_path,
        environment={"LD_PRELOAD": str(shim), "PENSTOCK_TEST_CLOCK_OFFSET": str(wall_clock.path)},
    )
    yield zygote
    zygote.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    (tmp_path / "penstock.toml").write_text(CONFIG)
    store = SqliteStore.open(tmp_path / STORE, durability="normal")
    yield store
    assert store.check().result() == []
    store.close()


def started_at(store: SqliteStore, key: str) -> float:
    job = store.job(key).result()
    assert job is not None
    assert job.started_at is not None
    return job.started_at / 1_000_000


def test_f19_jumps_of_the_wall_clock_end_no_lease_early(
    jumpy: Zygote, wall_clock: WallClock, store: SqliteStore, tmp_path: Path
) -> None:
    keys = [f"k{n}" for n in range(20)]
    add_works(store, *keys, seconds=0.5)
    run = jumpy.fork(tmp_path, "run")
    expired = jumps = 0
    while jumpy.poll(run) is None:
        wall_clock.set(JUMPS[jumps % 4])
        jumps += 1
        expired += sum(not worker.alive for worker in store.workers().result())
        time.sleep(0.02)

    assert jumps >= 8
    assert expired == 0
    assert starts(tmp_path) == dict.fromkeys(keys, 1)
    for key in keys:
        assert [attempt.outcome for attempt in store.attempts(key).result()] == ["done"]
    off = [abs(started_at(store, key) - time.time()) for key in keys]
    assert max(off) > HOUR / 2  # the shim did move the clock that rows are stamped with


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_f19_a_jump_of_the_wall_clock_ends_no_lease_late(
    jumpy: Zygote, wall_clock: WallClock, store: SqliteStore, tmp_path: Path, jump: int
) -> None:
    add_works(store, "k")
    code = jumpy.run(tmp_path, "run", failpoints=kill_at("exec.during"), environment=SHORT_LEASE)
    assert code == -signal.SIGKILL
    wall_clock.set(jump)

    assert jumpy.run(tmp_path, "run") == 0

    assert [attempt.outcome for attempt in store.attempts("k").result()] == ["lost", "done"]
    first, second = (float(line[3]) for line in lines(tmp_path, "bodies.log") if line[0] == "start")
    # The heir sees that the owner's process is gone, or waits for its lease: seconds, not a day.
    assert second - first < HOUR


def test_f19_a_waiting_worker_notices_that_a_jump_made_a_delayed_job_due(
    jumpy: Zygote, wall_clock: WallClock, store: SqliteStore, tmp_path: Path
) -> None:
    add_works(store, "k", delay=HOUR)
    run = jumpy.fork(tmp_path, "run")
    wait_until(lambda: len(store.workers().result()) == 1)
    assert starts(tmp_path) == {}
    wall_clock.set(DAY)

    assert jumpy.wait(run) == 0

    assert starts(tmp_path) == {"k": 1}


@pytest.mark.parametrize("jump", JUMPS)
def test_f19_a_jump_changes_no_lease_and_a_delay_is_a_moment_of_the_wall_clock(
    tmp_path: Path, jump: int
) -> None:
    """With a clock of our own: leases to the microsecond, delays as documented."""
    clock = ManualClock()
    store = SqliteStore.open(tmp_path / "s.db", clock=clock, boot_clock=clock, durability="normal")
    put(store, "k")
    delayed = NewJob(key="later", task="t", payload="{}", group="g", delay_seconds=2 * HOUR)
    store.enqueue([delayed]).result()
    owner = register(store, "owner", ttl=TTL)
    (job,) = take(store, owner)
    clock.advance(TTL / 2)
    clock.jump(jump)
    heir = register(store, "heir", ttl=1e6)
    clock.advance(TTL / 2 - 0.000001)
    assert [taken.key for taken in take(store, heir)] == (["later"] if jump == DAY else [])
    clock.advance(0.000001)
    assert [taken.key for taken in take(store, heir)] == ["k"]
    assert store.ack(owner, [done(job)]).result() == [Verdict.STALE]

    left = 2 * HOUR - TTL - jump  # by the wall clock
    if jump != DAY:
        clock.advance(left - 0.000001)
        assert take(store, heir) == []
        clock.advance(0.000001)
        assert [taken.key for taken in take(store, heir)] == ["later"]
    store.close()


def test_f19_a_worker_in_virtual_time_lives_through_jumps_with_its_lease() -> None:
    app = Penstock("jumps")
    ran: list[str] = []

    @app.task()
    async def work(ctx: Context) -> None:
        ran.append(ctx.job.key)
        await asyncio.sleep(3 * TTL)

    async def main(world: World) -> None:
        for n in range(8):
            world.enqueue("work", f"k{n}")
        worker = world.worker()
        running = world.start(worker)
        for jump in JUMPS * 5:
            await asyncio.sleep(7)
            world.clock.jump(jump)
        await running
        assert len(world.store.registered) == 1
        assert sorted(ran) == [f"k{n}" for n in range(8)]
        assert set(world.states().values()) == {JobState.DONE}

    simulate(app, main, runtime=RUNTIME)


def test_f20_after_a_suspension_leases_are_over_and_their_owner_is_fenced(
    zygote: Zygote, store: SqliteStore, tmp_path: Path
) -> None:
    """Boot time moves on by an hour while the owner is frozen; its monotonic clock does not."""
    before = ("unshare", "--user", "--map-root-user", "--time", "--boottime", str(HOUR), "--fork")
    try:
        subprocess.run([*before, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs time namespaces for unprivileged users (unshare --time)")
    add_works(store, "k", seconds=3.0)
    long = {"PENSTOCK_RUNTIME__LEASE_TTL_SECONDS": "600"}
    owner = zygote.fork(tmp_path, "run", environment=long)
    wait_until(lambda: starts(tmp_path) == {"k": 1})
    freeze([owner], tmp_path / STORE)
    (view,) = store.workers().result()
    assert view.alive  # by the boot-time clock of this side

    resumed = Zygote(tmp_path, before)
    assert resumed.run(tmp_path, "run", environment=long) == 0
    resumed.close()

    assert [attempt.outcome for attempt in store.attempts("k").result()] == ["lost", "done"]
    by_heir = store.job("k").result()
    os.kill(owner, signal.SIGCONT)
    assert zygote.wait(owner) == 0
    assert store.job("k").result() == by_heir
    assert starts(tmp_path) == {"k": 2}
    said = (tmp_path / "processes.log").read_text()
    assert "Job 'k' is no longer held by this worker" in said or "its jobs are given up" in said


def test_f20_a_suspended_owner_stops_believing_with_the_first_beat_after_it(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore.open(tmp_path / "s.db", clock=clock, boot_clock=clock, durability="normal")
    put(store, "k")
    alone, supervised = register(store, "alone", TTL), register(store, "supervised", TTL)
    (job,) = take(store, alone)
    beat = HeartbeatThread(store, clock, TTL, 10.0)
    beat.adopt(alone, clock.monotonic() + TTL)
    table = SlotTable.create(1)
    table.set_worker(supervised)
    table.set_lease_until(clock.monotonic() + TTL)

    clock.suspend(HOUR)

    assert store.ack(alone, [done(job)]).result() == [Verdict.STALE]
    beat.run_once()
    LeaseHeartbeat(store, lambda: [table], clock, TTL, 10.0).run_once()
    assert beat.believed_until() < clock.monotonic()
    assert table.lease_until() < clock.monotonic()
    heir = register(store, "heir", TTL)
    assert [taken.key for taken in take(store, heir)] == ["k"]
    table.close()
    store.close()


class SuspendableClock:
    """The lease clock of a store on a virtual loop: it also counts the time that others sleep."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now, self.sleep = clock.now, clock.sleep
        self.suspended = 0.0

    def cpu(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return self._clock.monotonic() + self.suspended


@pytest.mark.parametrize("seed", range(3))
def test_f20_a_worker_in_virtual_time_gives_its_jobs_up_after_a_suspension(seed: int) -> None:
    app = Penstock("suspended")
    ran: list[float] = []

    @app.task()
    async def work(ctx: Context) -> int:
        ran.append(asyncio.get_running_loop().time())
        await asyncio.sleep(4 * TTL)
        return len(ran)

    async def main(world: World) -> None:
        clock = SuspendableClock(world.clock)
        world.store._clock = clock
        world.enqueue("work", "k")
        worker = world.worker()
        running = world.start(worker)
        await asyncio.sleep(TTL)
        clock.suspended += HOUR
        await running
        assert world.outcomes("k") == ["lost", "done"]
        assert len(world.store.registered) == 2
        first, second = ran
        assert (
            second - first < TTL + 10.0 + 2.0
        )  # a beat and a sweep after the suspension, not a lease

    # One slot, and it is taken: the worker does not lease, so only the beat can tell it.
    simulate(app, main, seed=seed, runtime={**RUNTIME, "async_slots": 1, "thread_slots": 1})


def test_f22_fifty_clones_with_one_host_name_and_pid_are_fifty_workers(
    zygote: Zygote, store: SqliteStore, tmp_path: Path
) -> None:
    long = {"PENSTOCK_RUNTIME__LEASE_TTL_SECONDS": "600"}
    clones = [zygote.fork(tmp_path, "be_a_clone", environment=long) for _ in range(50)]
    codes = [zygote.wait(pid) for pid in clones]
    if NOT_HERE in codes:
        pytest.skip("needs process and host name namespaces (unshare)")

    assert codes == [0] * 50
    views = store.workers().result()
    assert {(view.host, view.pid) for view in views} == {("clone", 1)}
    assert len({view.id for view in views}) == 50
    assert all(view.alive for view in views)


def test_f22_the_end_of_one_clone_is_not_the_end_of_another(tmp_path: Path) -> None:
    """Two workers of one host name and pid: one acknowledges for itself only, and dies alone."""
    store = SqliteStore.open(tmp_path / "s.db", durability="normal")
    put(store, "one", "two")
    first, second = (register(store, SystemIds().new_id("w")) for _ in range(2))
    (mine,), (yours,) = take(store, first), take(store, second)

    assert store.ack(second, [done(mine)]).result() == [Verdict.STALE]
    assert store.reap(first, [], "killed by SIGKILL", 3).result().count == 1

    assert store.beat([first, second], TTL).result() == {second}
    assert store.ack(second, [done(yours)]).result() == [Verdict.ACCEPTED]
    assert store.check().result() == []
    store.close()
