# SPDX-License-Identifier: Apache-2.0
"""Does each occurrence of a unit end well at most once, whatever happens to it?

Two workers tick, fail, die and come too late, while units are armed, changed, retired, retried
and purged. A small model counts; the store must say the same after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.model.job import JobState, LeasedJob, WorkerId
from penstock.model.lease import Effect, EnqueueJobs, JobRef, Rearm, SetCursor, Verdict
from penstock.model.schedule import ArmReport, UnitView
from penstock.stores.protocol import Store
from penstock.stores.sqlite.store import SqliteStore
from penstock.testing.clocks import ManualClock
from tests.contract.unit_words import APP, POLL, SECOND, arm, unit
from tests.contract.world import StoreWorld
from tests.model.memory import MemoryStore

NAMES = ["a", "b", "c"]
TTL = 30.0
OPEN = (JobState.WAITING, JobState.QUEUED, JobState.IN_PROGRESS)

names = st.sampled_from(NAMES)
some = st.lists(names, min_size=1, max_size=3, unique=True)
seconds = st.sampled_from([0.0, 0.5, 1.0, 7.0])


@dataclass
class Known:
    """What must be true of a unit."""

    timing: str
    retired: bool = False
    ticks: int = 0
    missed: int = 0
    failed: int = 0
    last: int | None = None  # the last occurrence that ended well


@dataclass
class Lease:
    worker: WorkerId
    job: LeasedJob
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.job.key.removeprefix(f"{POLL}:")


class UnitMachine(RuleBasedStateMachine):
    """Owns a store and a model of its units."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__()
        self.store, self.clock = store, clock
        self.world = StoreWorld(store, clock)
        self.units: dict[str, Known] = {}
        self.held: dict[str, Lease] = {}
        self.lost: list[Lease] = []
        self.cursors: dict[str, str] = {}
        self.jobs: set[str] = set()
        self.paused: set[str] = set()
        self.workers = [self._register(), self._register()]

    def _register(self) -> WorkerId:
        return self.world.new_worker((POLL,), ttl=TTL)

    def teardown(self) -> None:
        self.store.close()

    @initialize()
    def begun(self) -> None:
        self.armed(NAMES, "every 1 s", 0.0, "", ())

    def _lose(self, worker: WorkerId) -> None:
        for name in [name for name, lease in self.held.items() if lease.worker == worker]:
            self.lost.append(self.held.pop(name))

    @rule(
        wanted=some,
        timing=st.sampled_from(["every 1 s", "every 2 s"]),
        first=st.sampled_from([-60.0, 0.0, 2.0]),
        group=st.sampled_from(["", "g"]),
        keys=st.sampled_from([(), ("host:x",)]),
    )
    def armed(
        self, wanted: list[str], timing: str, first: float, group: str, keys: tuple[str, ...]
    ) -> None:
        before = {name: self._view(name) for name in wanted}
        plans = [
            unit(self.world, name, timing=timing, first=first, group=group, limit_keys=keys)
            for name in wanted
        ]
        found = arm(self.world, *plans)

        expected = {"new": 0, "kept": 0, "retimed": 0, "revived": 0}
        for name in wanted:
            view = before[name]
            if view is None:
                expected["new"] += 1
                self.units[name] = Known(timing)
                continue
            ended = view.state not in OPEN
            same = self.units[name].timing == timing
            expected["revived" if ended else "kept" if same else "retimed"] += 1
            self.units[name].timing = timing
            self.units[name].retired = False
        assert found == ArmReport(**expected)

    @rule(which=st.integers(0, 1), quarantine=st.sampled_from([False, False, False, True]))
    def leased(self, which: int, quarantine: bool) -> None:
        worker = self.workers[which]
        for job in self.world.lease(worker, 3, quarantine=quarantine).jobs:
            lease = Lease(worker, job)
            assert lease.name not in self.held, "a unit overlaps itself"
            assert self.paused.isdisjoint((job.key, job.task)), "a paused unit ticks"
            last = self.units[lease.name].last
            assert last is None or job.due_at > last
            self.held[lease.name] = lease

    @rule(step=st.sampled_from([0.000_001, 1.0, 2.0]), missed=st.integers(0, 2))
    def ticked(self, step: float, missed: int) -> None:
        """All that run end well; if none does, what is due is leased first."""
        if not self.held:
            self.leased(0, False)
        for name in sorted(self.held):
            lease = self.held.pop(name)
            assert self._tick(lease, step, missed) is Verdict.ACCEPTED
            known, due_at = self.units[name], lease.job.due_at
            known.ticks, known.missed, known.last = known.ticks + 1, known.missed + missed, due_at
            self.cursors[lease.job.key] = str(due_at)
            self.jobs.add(f"{name}@{due_at}")
            self.lost.append(lease)

    def _tick(self, lease: Lease, step: float, missed: int) -> Verdict:
        job, due_at = lease.job, lease.job.due_at
        new = self.world.job(f"{lease.name}@{due_at}")
        at = max(due_at, self.clock.now_micros) + round(step * SECOND)
        effects: list[Effect] = [
            SetCursor(job.key, str(due_at)),
            EnqueueJobs((new,)),
            Rearm(at, missed),
        ]
        return self.world.ack(lease.worker, job, effects=effects)

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def came_too_late(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.lost))

        assert self._tick(lease, 1.0, 5) in (Verdict.STALE, Verdict.DUPLICATE)
        verdict = self.world.fail(lease.worker, lease.job)
        assert verdict in (Verdict.STALE, Verdict.DUPLICATE)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delay=seconds, charge=st.booleans(), give_up=st.booleans())
    def failed(self, data: st.DataObject, delay: float, charge: bool, give_up: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        lease = self.held.pop(name)
        verdict = self.world.fail(
            lease.worker, lease.job, delay=delay, charge=charge, give_up=give_up
        )
        assert verdict is Verdict.ACCEPTED
        self.units[name].failed += 1
        self.lost.append(lease)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def given_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        lease = self.held.pop(name)
        ref = JobRef(lease.job.id, lease.job.token)
        assert self.store.release(lease.worker, [ref]).result() == 1
        self.lost.append(lease)

    @rule(which=st.integers(0, 1), started=st.booleans())
    def died(self, which: int, started: bool) -> None:
        worker = self.workers[which]
        mine = [lease.job for lease in self.held.values() if lease.worker == worker]
        self.world.reap(worker, mine if started else [])
        self._lose(worker)
        self.workers[which] = self._register()

    @rule(passed=st.sampled_from([0.000_001, 0.5, 1.0, 5.0]))
    def waited(self, passed: float) -> None:
        self.clock.advance(passed)
        assert self.store.beat(self.workers, TTL).result() == set(self.workers)

    @rule(which=st.integers(0, 1))
    def expired(self, which: int) -> None:
        for _ in range(2):  # one beats, the other does not
            self.clock.advance(TTL / 2)
            self.store.beat([self.workers[1 - which]], TTL).result()
        self.world.settle()
        self._lose(self.workers[which])
        self.workers[which] = self._register()

    @rule(wanted=some)
    def ticked_early(self, wanted: list[str]) -> None:
        early = self.store.tick_units([f"{POLL}:{name}" for name in wanted]).result()
        live = {f"{POLL}:{name}" for name in self.units if name not in self.held}
        assert early <= live - {f"{POLL}:{x}" for x, unit in self.units.items() if unit.retired}

    @rule(name=st.sampled_from([POLL, *(f"{POLL}:{name}" for name in NAMES)]))
    def paused_or_resumed(self, name: str) -> None:
        is_paused = name in self.paused
        change = self.store.resume_units if is_paused else self.store.pause_units
        assert change(name).result()
        self.paused ^= {name}

    @rule(wanted=some)
    def retired(self, wanted: list[str]) -> None:
        mine = [name for name in wanted if name in self.units and not self.units[name].retired]

        keys = [f"{POLL}:{name}" for name in wanted]
        assert self.store.retire_units(keys).result() == len(mine)

        for name in mine:
            self.units[name].retired = True
            if name in self.held:
                self.lost.append(self.held.pop(name))

    @rule()
    def tried_again(self) -> None:
        self.world.retry_failed()

    @rule()
    def purged(self) -> None:
        self.clock.advance(0.000_001)
        self.world.purge(self.clock.now_micros)
        for name in list(self.units):
            if self._view(name) is None:
                del self.units[name]
                self.jobs = {key for key in self.jobs if not key.startswith(f"{name}@")}

    def _view(self, name: str) -> UnitView | None:
        return self.store.unit(f"{POLL}:{name}").result()

    @invariant()
    def units_are_as_the_model_says(self) -> None:
        assert self.store.check().result() == []
        views = self.store.units(APP, "", 10).result()
        assert [view.partition for view in views] == sorted(self.units)
        for view in views:
            known = self.units[view.partition or ""]
            assert (view.ticks, view.missed, view.failed) == (
                known.ticks,
                known.missed,
                known.failed,
            )
            assert (view.retired_at is not None) is known.retired
            assert (view.state is JobState.IN_PROGRESS) is (view.partition in self.held)
            assert view.timing == known.timing
            by = next((name for name in (view.task, view.key) if name in self.paused), None)
            assert (view.paused_by, view.paused_at is None) == (by, by is None)
            assert by is not None or view.state is not JobState.WAITING
            if view.state in OPEN and known.last is not None:
                assert view.due_at > known.last

    @invariant()
    def cursors_and_jobs_moved_with_the_ticks(self) -> None:
        keys = [f"{POLL}:{name}" for name in NAMES]
        assert self.store.cursors(keys).result() == self.cursors
        for key in self.jobs:
            assert self.store.job(key).result() is not None
        queued = self.store.stats().result().tasks.get("work", {})
        assert sum(queued.values()) >= len(self.jobs)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_each_occurrence_ends_well_at_most_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    numbers = count()

    def machine() -> UnitMachine:
        clock = ManualClock()
        if kind == "memory":
            return UnitMachine(MemoryStore(clock), clock)
        if kind == "sqlite":
            path = tmp_path / f"{next(numbers)}.db"
            store = SqliteStore.open(path, clock=clock, boot_clock=clock, durability="normal")
            return UnitMachine(store, clock)
        from penstock.stores.postgres.open import open_postgres

        url = request.getfixturevalue("empty_store")()
        server = open_postgres(url, durability="normal", server_time=lambda: clock.now_micros)
        return UnitMachine(server, clock)

    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]  # makes one, as its class would
        settings=settings(
            max_examples=3 if kind == "postgres" else 15,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
