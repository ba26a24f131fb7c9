# SPDX-License-Identifier: Apache-2.0
"""Do two stores that are told the same always answer the same?

The model is the memory store. In two places stores may choose: which jobs a lease call takes, and
which of several dependencies that ended badly in one call a skipped dependant names. There the
store under test chooses, the model judges whether it might, and then does the same. All else must
be equal: verdicts, refusals, job rows, history, counters, effects.

`HYPOTHESIS_PROFILE=soak` runs for minutes and draws new examples each time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import PenstockError
from penstock.model.job import (
    TERMINAL,
    Attempt,
    AttemptError,
    Edge,
    EdgeKind,
    ErrorCategory,
    Job,
    JobId,
    JobState,
    LeasedJob,
    NewJob,
    WorkerId,
)
from penstock.model.lease import (
    ConfiguredCaps,
    Effect,
    EnqueueJobs,
    JobEnd,
    JobFailure,
    JobRef,
    LeaseBatch,
    LeaseRequest,
    Rearm,
    SetCursor,
    Verdict,
    WorkerInfo,
)
from penstock.model.views import FIRST_END, EndMark, Progress
from penstock.stores.protocol import JobFilter, Store
from penstock.stores.sql.row_state import RowState
from penstock.stores.sqlite.store import SqliteStore
from penstock.stores.store_future import Reply
from penstock.testing.clocks import ManualClock
from tests.depth import SOAK
from tests.model.memory import MemoryStore
from tests.model.memory_choice import FairChoice
from tests.model.memory_rows import JobRow, WorkerRow
from tests.simulation.dataset_rules import DatasetRules, levels, seen_of_datasets, slices

PROFILE = settings(
    max_examples=1_500 if SOAK else 16,
    stateful_step_count=80 if SOAK else 50,
    derandomize=not SOAK,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explaining is slow
)
CALLS_MAX = 50  # lease calls that may say `more` and find nothing
CAPS = ConfiguredCaps({"l:a": 1, "l:b": 2, "m:*": 1})
TASKS = ("x", "y")
LIMITS: list[tuple[str, ...]] = [(), (), ("l:a",), ("l:b",), ("l:a", "l:b"), ("l:b", "m:c")]

T = TypeVar("T")

keys = st.integers(0, 40).map(lambda n: f"k{n}")
picks = st.integers(0, 255)  # an index into whatever there is, see _pick
edges = st.tuples(picks, st.sampled_from([*[EdgeKind.SUCCESS] * 3, EdgeKind.FINISHED]))
new_jobs = st.builds(
    NewJob,
    key=keys,
    task=st.sampled_from("xxy"),
    payload=st.just("{}"),
    group=st.sampled_from("ghi"),
    limit_keys=st.sampled_from(LIMITS),
    priority=st.integers(0, 2),
    delay_seconds=st.sampled_from([0.0, 0.0, 0.0, 5.0, 40.0]),
    plan_id=st.sampled_from([None, None, None, "p", "q"]),
    level=st.sampled_from([None, 0, 1]),
)
linked_jobs = st.tuples(new_jobs, st.lists(edges, max_size=2))
batches = st.lists(linked_jobs, min_size=1, max_size=6)
errors = st.builds(
    AttemptError,
    st.sampled_from(ErrorCategory),
    st.sampled_from(["ValueError", "Timeout"]),
    st.sampled_from(["", "ä \n ✓"]),
)
simple_effects = st.one_of(
    st.builds(SetCursor, st.just("mark"), st.sampled_from(["1", "2"])),
    slices,
    levels,
)


class Judge(FairChoice):
    """Takes what another store took, if it might."""

    dictated: list[str]
    passed_over: list[str]  # ready jobs with room that stood before a taken one of their group

    def take(self, worker: WorkerRow, request: LeaseRequest, now: int) -> list[JobRow]:
        ready = [row for row in self._tables.jobs.values() if row.state is RowState.READY]
        rows = [self._tables.by_key[key] for key in self.dictated]
        assert len(rows) <= max(0, request.limit)
        for row in rows:
            assert row.state is RowState.READY, f"{row.new.key} was not ready"
            assert row.new.task in request.tasks, f"{row.new.key} is of a foreign task"
            assert self._has_room(row.lane, request), f"{row.new.key} is above a cap"
            self._hand_out(row, worker, now, solo=False)
        last = {
            row.new.group: max(x.turn for x in rows if x.lane.group == row.new.group)
            for row in rows
        }
        self.passed_over = [
            row.new.key
            for row in ready
            if row.state is RowState.READY
            and row.new.task in request.tasks
            and row.new.group in last
            and row.turn < last[row.new.group]
            and self._has_room(row.lane, request)
        ]
        return rows


class Lease:
    """One lease as both stores name it."""

    def __init__(self, worker: WorkerId, ours: LeasedJob, model: LeasedJob) -> None:
        self.worker, self.ours, self.model = worker, ours, model

    def __repr__(self) -> str:
        return f"<Lease {self.ours.key}/{self.ours.token} of {self.worker}>"


def _has_leases(machine: StoreMachine) -> bool:
    return bool(machine.model._tables.by_state[JobState.IN_PROGRESS])


class StoreMachine(DatasetRules):
    """Owns a store under test and its model, on one clock."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.model = MemoryStore(self.clock)
        self.judge = Judge(self.model._tables)
        self.model._choice = self.judge
        self.folder = tempfile.TemporaryDirectory()
        self.store = self.open_store(Path(self.folder.name))
        self.workers: list[WorkerInfo] = []
        self.leases: list[Lease] = []
        self.fresh = count()
        self.waiting: set[JobId] = set()  # by the model's id: what waited before this step
        self.floors: dict[JobId, int] = {}  # by the model's id: the token that a job began with

    def open_store(self, folder: Path) -> Store:
        return MemoryStore(self.clock)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()
        super().teardown()

    def both(self, call: Callable[[Store], Reply[T]]) -> T | None:
        """Call both stores; the same value, or a refusal of the same class (then None)."""
        ours, model = _outcome(call(self.store)), _outcome(call(self.model))
        assert ours == model, f"{ours} is not {model}"
        return ours if not isinstance(ours, type) else None

    def _pick_worker(self, pick: int) -> WorkerInfo:
        """A worker by number; one time in eight perhaps a dead one."""
        if not self._alive():
            self.register(TASKS, 30.0)
        return _pick(self.workers if pick % 8 == 7 else self._alive(), pick // 8)

    def _alive(self) -> list[WorkerInfo]:
        return [worker for worker in self.workers if self.model._alive(worker.id) is not None]

    def _pick_lease(self, pick: int) -> Lease:
        """A lease by number; one time in eight perhaps one that is over.

        Best of all one whose worker has leased the same job again: only the token tells them apart.
        """
        rows = self.model._tables.jobs
        running = [
            (lease, row)
            for lease in self.leases
            if (row := rows.get(lease.model.id)) is not None and row.state is RowState.IN_PROGRESS
        ]
        held = [lease for lease, row in running if row.token == lease.model.token]
        if held and pick % 8 != 7:
            return _pick(held, pick // 8)
        superseded = [
            lease
            for lease, row in running
            if row.token != lease.model.token
            and row.worker is not None
            and row.worker.info.id == lease.worker
        ]
        return _pick(superseded if pick % 16 == 7 and superseded else self.leases, pick // 16)

    def _link(self, batch: list[tuple[NewJob, list[tuple[int, EdgeKind]]]]) -> list[NewJob]:
        """Give new jobs edges to jobs that exist, to earlier ones, and now and then to nobody."""
        known = list(self.model._tables.by_key)
        linked: list[NewJob] = []
        for job, wanted in batch:
            after = {
                "nobody" if number % 32 == 31 else _pick(known, number): kind
                for number, kind in wanted
                if known
            }
            edges = tuple(Edge(key, after[key]) for key in [*known, "nobody"] if key in after)
            linked.append(msgspec.structs.replace(job, after=edges))
            if job.key not in known:
                known.append(job.key)
        return linked

    # Jobs and workers come

    @initialize(batch=batches)
    def start(self, batch: list[tuple[NewJob, list[tuple[int, EdgeKind]]]]) -> None:
        self.register(TASKS, 60.0)
        self.build("p", "run-1")
        self.enqueue(batch)

    @rule(batch=batches)
    def enqueue(self, batch: list[tuple[NewJob, list[tuple[int, EdgeKind]]]]) -> None:
        jobs = self._link(batch)
        self.both(lambda store: store.enqueue(jobs))

    @rule(shapes=st.lists(picks, min_size=1, max_size=8))
    def enqueue_fresh(self, shapes: list[int]) -> None:
        """Plain jobs under keys that nobody has used, so that there is always something to do."""
        jobs = [
            NewJob(
                key=f"f{next(self.fresh)}",
                task=_pick("xxy", shape),
                payload="{}",
                group=_pick("ghi", shape // 3),
                limit_keys=_pick(LIMITS, shape // 9),
            )
            for shape in shapes
        ]
        self.both(lambda store: store.enqueue(jobs))

    def register(self, tasks: tuple[str, ...], ttl: float) -> None:
        number = len(self.workers) + 1
        worker = WorkerInfo(id=WorkerId(f"w{number}"), run_id=f"r{number % 2}", tasks=tasks)
        self.both(lambda store: store.register(worker, ttl))
        self.workers.append(worker)

    @rule(
        pick=picks,
        tasks=st.sampled_from([None, TASKS, ("x",)]),
        ttl=st.sampled_from([10.0, 20.0, 30.0, 60.0]),
    )
    def beat_or_register(self, pick: int, tasks: tuple[str, ...] | None, ttl: float) -> None:
        if tasks is not None:
            self.register(tasks, ttl)
        else:
            worker = self._pick_worker(pick)
            self.both(lambda store: store.beat([worker.id], ttl))

    @rule(pick=picks)
    def worker_is_known_to_be_gone(self, pick: int) -> None:
        worker = self._pick_worker(pick)
        self.both(lambda store: store.expire([worker.id]))

    @rule(seconds=st.sampled_from([0.5, 5.0, 10.0, 31.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # Leases

    def _lease(
        self, worker: WorkerInfo, limit: int, *, quarantine: bool, mate: Lease | None = None
    ) -> list[Lease]:
        request = LeaseRequest(
            worker=worker.id,
            tasks=worker.tasks,
            limit=limit,
            caps=CAPS,
            quarantine=quarantine,
            cell=(mate.ours.cell or 0) if mate else 0,
        )
        twin = msgspec.structs.replace(request, cell=(mate.model.cell or 0) if mate else 0)
        for _ in range(CALLS_MAX):
            ours = _outcome(self.store.lease(request))
            self.judge.dictated = _keys(ours)
            self.judge.passed_over = []
            model = _outcome(self.model.lease(twin))
            if isinstance(ours, type) or isinstance(model, type):
                assert ours is model
                return []
            found = self._compare_batches(request, ours, model)
            if found or not ours.more:
                return found
        raise AssertionError(f"{CALLS_MAX} lease calls promised more and found nothing")

    def _compare_batches(
        self, request: LeaseRequest, ours: LeaseBatch, model: LeaseBatch
    ) -> list[Lease]:
        by_key = {job.key: job for job in model.jobs}
        assert {job.key for job in ours.jobs} == set(by_key)
        for job in ours.jobs:
            twin = by_key[job.key]
            assert _plain(job) == _plain(twin), _difference(_plain(job), _plain(twin))
            assert job.token == twin.token + self.floors[twin.id]
        assert (ours.next_due_at, ours.paused) == (model.next_due_at, model.paused)
        if not request.quarantine:
            assert ours.suspects == model.suspects
        assert ours.more or not model.more, "work is left, and nobody is told"
        assert ours.more or not self.judge.passed_over, self.judge.passed_over
        for blocked in ours.blocked:
            full = self.model._tables.full_key((blocked.limit_key,), CAPS)
            assert full == blocked, f"{blocked} is named, {full} is true"
        return [Lease(request.worker, job, by_key[job.key]) for job in ours.jobs]

    @rule(pick=picks, limit=st.integers(1, 4))
    def lease(self, pick: int, limit: int) -> None:
        self.leases += self._lease(self._pick_worker(pick), limit, quarantine=False)

    @rule(pick=picks)
    def lease_more(self, pick: int) -> None:
        self.leases += self._lease(self._pick_worker(pick), 10, quarantine=False)

    @precondition(lambda self: bool(self.model._tables.suspects))
    @rule(pick=picks, limit=st.integers(1, 4))
    def lease_cell(self, pick: int, limit: int) -> None:
        self.leases += self._lease(self._pick_worker(pick), limit, quarantine=True)

    @precondition(lambda self: any(lease.ours.cell for lease in self.leases))
    @rule(pick=picks, limit=st.integers(1, 4))
    def lease_more_of_a_cell(self, pick: int, limit: int) -> None:
        mates = [lease for lease in self.leases if lease.ours.cell]
        mate = mates[pick % len(mates)]
        self.leases += self._lease(self._pick_worker(pick), limit, quarantine=True, mate=mate)

    @precondition(_has_leases)
    @rule(quarantine=st.booleans())
    def everybody_expires(self, quarantine: bool) -> None:
        self.clock.advance(61.0)
        self.register(TASKS, 30.0)
        self.leases += self._lease(self.workers[-1], 3, quarantine=quarantine)

    @precondition(_has_leases)
    @rule(pick=picks, max_crashes=st.integers(1, 3))
    def crash_alone(self, pick: int, max_crashes: int) -> None:
        """A worker dies, what it ran is tried alone, and kills that worker as well."""
        lease = self._pick_lease(pick)
        for _ in range(2):
            worker, refs = lease.worker, [lease]
            self.both(
                lambda store, worker=worker, refs=refs: store.reap(  # type: ignore[misc]
                    worker, self._refs(store, refs), "signal", max_crashes
                )
            )
            self.register(TASKS, 30.0)
            alone = self._lease(self.workers[-1], 1, quarantine=True)
            self.leases += alone
            if not alone:
                return
            lease = alone[0]

    @precondition(_has_leases)
    @rule(pick=picks, max_crashes=st.integers(1, 3), limit=st.integers(2, 4))
    def crash_together(self, pick: int, max_crashes: int, limit: int) -> None:
        """A worker dies with all that it holds, and the one that runs its cell does, too."""
        lease = self._pick_lease(pick)
        for _ in range(2):
            worker = lease.worker
            refs = [one for one in self.leases if one.worker == worker]
            self.both(
                lambda store, worker=worker, refs=refs: store.reap(  # type: ignore[misc]
                    worker, self._refs(store, refs), "signal", max_crashes
                )
            )
            self.register(TASKS, 30.0)
            cell = self._lease(self.workers[-1], limit, quarantine=True)
            self.leases += cell
            if not cell:
                return
            lease = cell[0]

    # Ends

    @precondition(_has_leases)
    @rule(
        pick=picks,
        state=st.sampled_from([JobState.DONE, JobState.DONE, JobState.SKIPPED, JobState.ERROR]),
        error=errors,
        times=st.integers(1, 2),
    )
    def ack(self, pick: int, state: JobState, error: AttemptError, times: int) -> None:
        lease = self._pick_lease(pick)
        bad = None if state is JobState.DONE else error
        self._ack([lease] * times, state, bad, ())

    @precondition(_has_leases)
    @rule(some=st.lists(picks, min_size=2, max_size=5))
    def ack_many(self, some: list[int]) -> None:
        chosen = [self._pick_lease(pick) for pick in some]
        for worker in dict.fromkeys(lease.worker for lease in chosen):
            mine = [lease for lease in chosen if lease.worker == worker]
            self._ack(mine, JobState.DONE, None, ())

    @precondition(_has_leases)
    @rule(
        pick=picks,
        state=st.sampled_from([JobState.DONE, JobState.ERROR]),
        effects=st.lists(simple_effects, max_size=3),
        batch=batches,
    )
    def ack_with_effects(
        self,
        pick: int,
        state: JobState,
        effects: list[Effect],
        batch: list[tuple[NewJob, list[tuple[int, EdgeKind]]]],
    ) -> None:
        new = EnqueueJobs(tuple(self._link(batch)))
        self._ack([self._pick_lease(pick)], state, None, (new, *effects))

    @precondition(_has_leases)
    @rule(
        pick=picks,
        step=st.sampled_from([0, 1_000_000, 20_000_000]),
        effects=st.lists(simple_effects, max_size=1),
    )
    def rearm(self, pick: int, step: int, effects: list[Effect]) -> None:
        lease = self._pick_lease(pick)
        arm = Rearm(lease.ours.due_at + step)
        self._ack([lease], JobState.DONE, None, (*effects, arm))

    def _ack(
        self,
        leases: list[Lease],
        state: JobState,
        error: AttemptError | None,
        effects: tuple[Effect, ...],
    ) -> None:
        now = self.clock.now_micros

        def ack(store: Store) -> Reply[list[Verdict]]:
            ends = [
                JobEnd(
                    job=self._job(store, lease),
                    state=state,
                    started_at=now - 5,
                    ended_at=now,
                    result='"r"',
                    error=error,
                    effects=effects,
                )
                for lease in leases
            ]
            return store.ack(leases[0].worker, ends)

        self.both(ack)

    @precondition(_has_leases)
    @rule(
        pick=picks,
        error=errors,
        delay=st.sampled_from([0.0, 1.0, 15.0]),
        charge=st.booleans(),
        ends=st.sampled_from([False, False, True]),
        crashed=st.sampled_from([False, False, True]),
        detached=st.booleans(),
    )
    def fail(
        self,
        pick: int,
        error: AttemptError,
        delay: float,
        charge: bool,
        ends: bool,
        crashed: bool,
        detached: bool,
    ) -> None:
        now, lease = self.clock.now_micros, self._pick_lease(pick)

        def fail(store: Store) -> Reply[list[Verdict]]:
            job = self._job(store, lease)
            failure = JobFailure(
                ref=JobRef(job.id, job.token),
                key=job.key,
                task=job.task,
                error=error,
                started_at=now - 5,
                ended_at=now,
                delay_seconds=delay,
                charge=charge,
                ends=ends,
                crashed=crashed,
                detached=detached,
            )
            return store.fail_and_retry(lease.worker, [failure])

        self.both(fail)

    def _job(self, store: Store, lease: Lease) -> LeasedJob:
        return lease.ours if store is self.store else lease.model

    def _refs(self, store: Store, leases: list[Lease]) -> list[JobRef]:
        jobs = [self._job(store, lease) for lease in leases]
        return [JobRef(job.id, job.token) for job in jobs]

    @precondition(_has_leases)
    @rule(some=st.lists(picks, min_size=1, max_size=3))
    def release(self, some: list[int]) -> None:
        chosen = [self._pick_lease(pick) for pick in some]
        worker = chosen[0].worker
        self.both(lambda store: store.release(worker, self._refs(store, chosen)))

    @precondition(_has_leases)
    @rule(pick=picks)
    def revoke(self, pick: int) -> None:
        lease = self._pick_lease(pick)
        self.both(lambda store: store.revoke(self._refs(store, [lease])[0], "why"))

    @precondition(_has_leases)
    @rule(
        some=st.lists(picks, min_size=1, max_size=3),
        max_crashes=st.integers(1, 3),
        over_time=st.booleans(),
    )
    def reap(self, some: list[int], max_crashes: int, over_time: bool) -> None:
        chosen = [self._pick_lease(pick) for pick in some]
        worker = chosen[0].worker
        late = self._pick_lease(some[-1])

        def reap(store: Store) -> Reply[Progress]:
            job = self._job(store, late)
            overdue = JobFailure(
                ref=JobRef(job.id, job.token),
                key=job.key,
                task=job.task,
                error=AttemptError(ErrorCategory.TIMEOUT, "TimeLimitError", "too long"),
                started_at=self.clock.now_micros - 5,
                ended_at=self.clock.now_micros,
                delay_seconds=1.0,
                charge=True,
                ends=job.attempts > 0,
            )
            started = self._refs(store, chosen)
            return store.reap(
                worker, started, "signal", max_crashes, [overdue] if over_time else []
            )

        self.both(reap)

    # Operators

    @rule(some=st.lists(picks, min_size=1, max_size=3))
    def cancel(self, some: list[int]) -> None:
        known = [*self.model._tables.by_key, "nobody"]
        names = [_pick(known, pick) for pick in some]
        self.both(lambda store: store.cancel(names))

    @precondition(lambda self: bool(self.model._tables.by_state[JobState.ERROR]))
    @rule(task=st.sampled_from([None, "x"]), max_attempts=st.sampled_from([None, None, 0, 1]))
    def retry_failed(self, task: str | None, max_attempts: int | None) -> None:
        self.both(lambda store: store.would_retry(task, max_attempts))
        self.both(lambda store: store.retry_failed(task, max_attempts))

    @precondition(lambda self: bool(self.model._tables.ended))
    @rule(
        some=st.lists(picks, min_size=1, max_size=3),
        verb=st.sampled_from(["retry", "rerun", "rerun", "fresh"]),
    )
    def put_back_by_key(self, some: list[int], verb: str) -> None:
        ended = [row.new.key for row in self.model._tables.jobs.values() if row.terminal]
        names = [_pick([*ended, "nobody"], pick) for pick in some]
        if verb == "retry":
            self.both(lambda store: store.retry(names))
        else:
            self.both(lambda store: store.rerun(names, fresh=verb == "fresh"))

    @precondition(lambda self: bool(self.model._tables.ended))
    @rule(some=st.lists(picks, min_size=1, max_size=2), older=st.integers(0, 1))
    def purge_by_key(self, some: list[int], older: int) -> None:
        known = [*self.model._tables.by_key]
        names = [_pick(known, pick) for pick in some]

        def ends(store: Store) -> list[EndMark]:
            jobs = [store.job(name).result() for name in dict.fromkeys(names)]
            return [EndMark((job.finished_at or 0) - older, job.id) for job in jobs if job]

        self.both(lambda store: store.would_purge_jobs(ends(store)))
        self.both(lambda store: store.purge_jobs(ends(store)))

    @precondition(lambda self: bool(self.model._tables.ended))
    @rule(age=st.sampled_from([0, 5_000_000, 30_000_000]))
    def purge(self, age: int) -> None:
        border = self.clock.now_micros - age
        self.both(lambda store: store.would_purge(border))
        ours, model = (
            store.purge(border, FIRST_END).result()[0] for store in (self.store, self.model)
        )
        assert ours == model

    @precondition(lambda self: bool(self.model._tables.held) or bool(self.model._tables.caps))
    @rule(
        limit_key=st.sampled_from(["l:a", "l:b", "m:c"]),
        cap=st.sampled_from([None, None, 0, 1, 2, 3]),
    )
    def set_cap(self, limit_key: str, cap: int | None) -> None:
        self.both(lambda store: store.set_cap(limit_key, cap))

    @precondition(_has_leases)
    @rule(pick=picks, above=st.sampled_from([0, 3, 50]))
    def void_leases(self, pick: int, above: int) -> None:
        if pick % 4 == 3:  # it ends every worker, so not too often
            self.both(lambda store: store.void_leases(above))

    @rule(pick=picks, pause=st.booleans())
    def pause_or_retire(self, pick: int, pause: bool) -> None:
        worker = self._pick_worker(pick)
        if pause:
            self.both(lambda store: store.set_paused(True))
            assert self._lease(worker, 5, quarantine=False) == []
            self.both(lambda store: store.set_paused(False))
        else:
            self.both(lambda store: store.retire(worker.id))

    # What must hold after every step

    @invariant()
    def no_invariant_is_broken(self) -> None:
        for store in (self.store, self.model):
            broken = store.check().result()
            assert not broken, broken

    @invariant()
    def jobs_are_the_same(self) -> None:
        ours = _jobs(self.store)
        self._name_the_same_culprits(ours)
        model = _jobs(self.model)
        self.waiting = {job.id for job in model.values() if job.state is JobState.WAITING}
        assert ours.keys() == model.keys()
        for key, job in ours.items():
            twin = model[key]
            assert _view(job) == _view(twin), _difference(_view(job), _view(twin))
            token = self.token_of(job)
            floor = self.floors.setdefault(twin.id, token - twin.token)
            assert token == twin.token + floor
            assert self._history(self.store, key, floor) == self._history(self.model, key, 0)

    def _name_the_same_culprits(self, ours: dict[str, Job]) -> None:
        """Let what the model skipped in this step name whom the store names, if it might."""
        for key, row in self.model._tables.by_key.items():
            if row.state is RowState.SKIPPED and row.id in self.waiting and key in ours:
                self.model._edges.blame_like(row, ours[key].last_error)

    def token_of(self, job: Job) -> int:
        """The token that the next lease of a job is above."""
        return job.token

    def _history(self, store: Store, key: str, floor: int) -> list[Attempt]:
        attempts = store.attempts(key).result()
        return [msgspec.structs.replace(x, token=x.token - floor) for x in attempts]

    @invariant()
    def numbers_are_the_same(self) -> None:
        ours, model = (_numbers(store) for store in (self.store, self.model))
        assert ours == model, _difference(ours, model)


def _outcome(reply: Reply[T]) -> T | type[PenstockError]:
    try:
        return reply.result()
    except PenstockError as error:
        return type(error)


def _jobs(store: Store) -> dict[str, Job]:
    return {job.key: job for job in store.jobs(JobFilter(), JobId(0), 1_000).result()}


def _keys(outcome: LeaseBatch | type[PenstockError]) -> list[str]:
    return [] if isinstance(outcome, type) else [job.key for job in outcome.jobs]


def _pick(choices: Sequence[T], number: int) -> T:
    return choices[number % len(choices)]


def _plain(job: LeasedJob) -> dict[str, object]:
    return {
        name: getattr(job, name)
        for name in job.__struct_fields__
        if name not in ("id", "lane_id", "cell")
    } | {"cell": job.cell and "shared"}


def _view(job: Job) -> dict[str, object]:
    """A row without what stores may name or time as they like."""
    hidden = {"id", "updated_at", "token"}
    if job.state in TERMINAL:
        hidden.add("available_at")
    return {name: getattr(job, name) for name in job.__struct_fields__ if name not in hidden}


def _difference(ours: dict[str, object], model: dict[str, object]) -> str:
    return "; ".join(
        f"{name}: {ours[name]!r} is not {model[name]!r}"
        for name in ours
        if ours[name] != model[name]
    )


def _numbers(store: Store) -> dict[str, object]:
    stats = store.stats().result()
    outlook = store.outlook(WorkerId("w1"), "r1").result()
    return {
        "states": stats.states,
        "tasks": stats.tasks,
        "groups": stats.groups,
        "groups_total": stats.groups_total,
        "next_due_at": stats.next_due_at,
        "suspects": stats.suspects,
        "workers": stats.workers,
        "paused": stats.paused,
        "outlook": outlook,
        "caps": store.caps().result(),
        "cursor": store.cursor("mark").result(),
        **seen_of_datasets(store),
        "workers_seen": store.workers().result(),
    }


class SqliteMachine(StoreMachine):
    """The embedded store against its model."""

    def open_store(self, folder: Path) -> Store:
        path = folder / "store.db"
        return SqliteStore.open(path, clock=self.clock, boot_clock=self.clock, durability="normal")


@pytest.mark.timeout(7_200 if SOAK else 600)  # a failure is made small, which takes its time
@pytest.mark.parametrize("machine", [StoreMachine, SqliteMachine])
def test_a_store_answers_as_its_model_does(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(machine, settings=PROFILE)
