# SPDX-License-Identifier: Apache-2.0
"""What does the memory store remember, and in which orders can it find it again?

Rows are plain objects; every change of state goes through `Tables.move`, which is the only place
that keeps the indexes and the counters. Nothing here decides anything.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import InternalError
from penstock.model.job import (
    START_TRANSITIONS,
    TERMINAL,
    TRANSITIONS,
    UNIT_TRANSITIONS,
    Attempt,
    AttemptError,
    EdgeKind,
    Job,
    JobId,
    JobKind,
    JobState,
    LeasedJob,
    NewJob,
    WorkerId,
)
from penstock.model.lease import BlockedKey, Caps, JobRef, WorkerInfo
from penstock.model.views import WorkerView
from penstock.stores.protocol import HOLDERS_SHOWN
from penstock.stores.sql.row_state import PUBLIC, RowState
from tests.model.memory_dataset_rows import DatasetTables
from tests.model.memory_index import Counts, Ordered
from tests.model.memory_unit_row import UnitRow


class Need(NamedTuple):
    """One edge as its child keeps it."""

    parent: JobId
    kind: EdgeKind


class Turn(NamedTuple):
    """The order of ready jobs inside a group."""

    minus_priority: int
    available_at: int
    id: JobId


@dataclass(eq=False, slots=True)
class Lane:
    """Jobs of one task, group and set of limit keys of an app."""

    id: int
    task: str
    group: str
    limit_keys: tuple[str, ...]
    app: str = ""
    jobs: int = 0  # rows of any state
    ready: Ordered[Turn] = field(default_factory=Ordered)


@dataclass(eq=False, slots=True)
class JobRow:
    """One job, whole."""

    id: JobId
    new: NewJob
    lane: Lane
    state: RowState
    created_at: int
    updated_at: int
    due_at: int  # when it was first meant to run; retries do not move it
    available_at: int
    app: str = ""
    needs: set[Need] = field(default_factory=set)  # edges, for as long as the job is remembered
    open: set[Need] = field(default_factory=set)  # those that are not satisfied yet
    children: set[tuple[JobId, EdgeKind]] = field(default_factory=set)
    token: int = 0
    ended: tuple[WorkerId, int] | None = None  # the last lease that its holder itself ended
    worker: WorkerRow | None = None
    solo: bool = False  # leased as a suspect
    cell: int = 0  # of a suspect; in 0 it runs alone
    attempts: int = 0
    crashes: int = 0
    losses: int = 0  # leases lost by expiry in a row
    deferred_since: int | None = None
    result: str | None = None
    error: AttemptError | None = None
    skipped_by: JobId | None = None
    started_at: int | None = None
    finished_at: int | None = None
    history: list[Attempt] = field(default_factory=list)

    @property
    def public(self) -> JobState:
        return PUBLIC[self.state]

    @property
    def terminal(self) -> bool:
        return PUBLIC[self.state] in TERMINAL

    @property
    def is_plain(self) -> bool:
        """Whether it is a job of a task, and of no plan."""
        return self.new.kind is JobKind.JOB and self.new.plan_id is None

    @property
    def ref(self) -> JobRef:
        return JobRef(self.id, self.token)

    @property
    def turn(self) -> Turn:
        return Turn(-self.new.priority, self.available_at, self.id)

    def meets(self, kind: EdgeKind) -> bool:
        """Has this job ended as an edge of this kind asks for?"""
        return self.terminal if kind is EdgeKind.FINISHED else self.state is RowState.DONE

    def forbids(self, kind: EdgeKind) -> bool:
        """Has this job ended so that an edge of this kind can never be met?"""
        return self.terminal and not self.meets(kind)

    def as_lease(self) -> LeasedJob:
        new = self.new
        return LeasedJob(
            id=self.id,
            token=self.token,
            key=new.key,
            task=new.task,
            group=new.group,
            lane_id=self.lane.id,
            payload=new.payload,
            attempts=self.attempts,
            crashes=self.crashes,
            priority=new.priority,
            due_at=self.due_at,
            deferred_since=self.deferred_since,
            partition=new.partition,
            plan_id=new.plan_id,
            level=new.level,
            limited=bool(new.limit_keys),
            kind=new.kind,
            cell=self.cell if self.solo else None,
        )

    def as_job(self) -> Job:
        new = self.new
        return Job(
            id=self.id,
            key=new.key,
            task=new.task,
            kind=new.kind,
            app=self.app,
            group=new.group,
            partition=new.partition,
            limit_keys=new.limit_keys,
            priority=new.priority,
            payload=new.payload,
            state=self.public,
            suspect=self.state is RowState.SUSPECT,
            token=self.token,
            worker=self.worker.info.id if self.worker is not None else None,
            attempts=self.attempts,
            crashes=self.crashes,
            deferred_since=self.deferred_since,
            available_at=self.available_at,
            pending=len(self.open),
            plan_id=new.plan_id,
            level=new.level,
            result=self.result,
            last_error=self.error,
            created_at=self.created_at,
            updated_at=self.updated_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
        )


@dataclass(eq=False, slots=True)
class WorkerRow:
    """One registered worker and what it holds."""

    info: WorkerInfo
    expires_at: int  # microseconds of the lease clock
    started_at: int
    no: int  # counted from 1
    app: str = ""
    status: str | None = None
    status_at: int | None = None
    jobs: dict[JobId, JobRow] = field(default_factory=dict)
    detached: dict[JobRef, tuple[str, ...]] = field(default_factory=dict)  # with limit keys

    def held(self) -> list[JobRow]:
        """What it holds now, by id; safe to change while it is walked."""
        return [self.jobs[job_id] for job_id in sorted(self.jobs)]

    def as_view(self, left_seconds: float) -> WorkerView:
        info = self.info
        return WorkerView(
            id=info.id,
            run_id=info.run_id,
            host=info.host,
            pid=info.pid,
            started_at=self.started_at,
            alive=left_seconds > 0,
            lease_seconds=max(left_seconds, 0.0),
            tasks=info.tasks,
            status=self.status,
            status_at=self.status_at,
        )


class Tables:
    """Owns all rows and every index over them. Does not know time, fairness or edges' meaning."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, JobRow] = {}
        self.own: str | None = None  # the app that calls are about; None: all of them
        self.apps: dict[str, int | None] = {"": None}  # by name: when each was last seen
        self.keys: dict[str, dict[str, JobRow]] = {}  # by app
        self.ids: Ordered[JobId] = Ordered()
        self.by_state: dict[JobState, Ordered[JobId]] = {state: Ordered() for state in JobState}
        self.lanes: dict[tuple[str, str, tuple[str, ...], str], Lane] = {}
        self.ready_lanes: dict[str, dict[int, Lane]] = {}  # by group, next turn first
        self.delayed: Ordered[tuple[int, JobId]] = Ordered()  # by available_at
        self.suspects: Ordered[JobId] = Ordered()
        self.ended: Ordered[tuple[int, JobId]] = Ordered()  # by finished_at
        self.held: dict[str, set[JobRef]] = {}  # by limit key: leases, also those that are detached
        self.workers: dict[WorkerId, WorkerRow] = {}
        self.counts: dict[str, Counts] = {}  # of tasks, by app
        self.group_counts = Counts()
        self.ended_by_run: dict[str, Counter[JobState]] = {}
        self.caps: dict[str, int] = {}
        self.all_cursors: dict[str, dict[str, str]] = {}  # by app
        self.units: dict[JobId, UnitRow] = {}
        self.pauses: dict[tuple[str, str], int] = {}  # by app and name: since when
        self.datasets = DatasetTables()
        self.retried = 0  # failed jobs that retries have put back
        self.put_back = 0  # dependants of those
        self.version = 0  # rises when there may be something new to lease
        self._token_floor = 0  # every token handed out is greater
        self._last_id = 0
        self._last_lane = 0

    @property
    def app(self) -> str:
        """Whose jobs are enqueued and leased."""
        return self.own or ""

    @property
    def by_key(self) -> dict[str, JobRow]:
        return self.keys.setdefault(self.app, {})

    @property
    def cursors(self) -> dict[str, str]:
        return self.all_cursors.setdefault(self.app, {})

    @property
    def task_counts(self) -> Counts:
        """Of the app that calls are about, or of all."""
        merged = Counts()
        for app, counts in self.counts.items():
            if self.own in (None, app):
                for name, counter in counts.by_name.items():
                    for state, count in counter.items():
                        merged.add(name, state, count)
        return merged

    def sees(self, row: JobRow) -> bool:
        return self.own is None or row.app == self.own

    def give(self, row: JobRow, app: str) -> None:
        """Let a job belong to another app."""
        self._leave(row)
        self._leave_lane(row)
        del self.keys[row.app][row.new.key]
        row.app = app
        self.keys.setdefault(app, {})[row.new.key] = row
        row.lane = self.lane(row.new, app)
        row.lane.jobs += 1
        self._enter(row, row.finished_at or row.updated_at)

    def lane(self, job: NewJob, app: str) -> Lane:
        spec = (job.task, job.group, job.limit_keys, app)
        lane = self.lanes.get(spec)
        if lane is None:
            self._last_lane += 1
            lane = self.lanes[spec] = Lane(self._last_lane, *spec)
        return lane

    def insert(
        self, job: NewJob, state: RowState, now: int, due_at: int, needs: set[Need]
    ) -> JobRow:
        """Add a job; the caller has decided its first state."""
        self._last_id += 1
        lane = self.lane(job, self.app)
        row = JobRow(
            JobId(self._last_id), job, lane, state, now, now, due_at, due_at, self.app, needs
        )
        row.token = self._token_floor
        lane.jobs += 1
        self.jobs[row.id] = self.by_key[job.key] = row
        self.ids.add(row.id)
        for need in needs:
            self.jobs[need.parent].children.add((row.id, need.kind))
        self._enter(row, now)
        return row

    def replace(self, row: JobRow, new: NewJob) -> None:
        """Let a queued job be planned otherwise, in another lane if need be."""
        self._leave(row)
        self._leave_lane(row)
        row.new, row.lane = new, self.lane(new, row.app)
        row.lane.jobs += 1
        self._enter(row, row.updated_at)

    def raise_token(self, row: JobRow) -> None:
        """The same of one that was done, and is to be leased again."""
        row.token = max(row.token, self._token_floor)

    def raise_tokens(self, above: int) -> None:
        """Let every later token be greater than `above` and than any so far."""
        tokens = (row.token for row in self.jobs.values())
        self._token_floor = max(above, self._token_floor, *tokens)
        for row in self.jobs.values():
            if row.state is not RowState.DONE:  # that one is raised when it runs again
                row.token = self._token_floor

    def delete(self, row: JobRow) -> None:
        """Forget a job with its history and every edge at either end."""
        self._leave(row)
        for need in row.needs:
            self.jobs[need.parent].children.discard((row.id, need.kind))
        for child, kind in row.children:
            self.jobs[child].needs.discard(Need(row.id, kind))
        self.ids.remove(row.id)
        del self.jobs[row.id], self.keys[row.app][row.new.key]
        self.units.pop(row.id, None)
        self._leave_lane(row)

    def _leave_lane(self, row: JobRow) -> None:
        row.lane.jobs -= 1
        if not row.lane.jobs:
            del self.lanes[row.lane.task, row.lane.group, row.lane.limit_keys, row.app]

    def move(
        self,
        row: JobRow,
        to: RowState,
        at: int,
        *,
        available_at: int | None = None,
        worker: WorkerRow | None = None,
        detached: bool = False,
    ) -> None:
        """Change a job's state, its due time and its holder, with every index; `at` is when."""
        before, after = row.public, PUBLIC[to]
        known = after in TRANSITIONS[before] or before is after is JobState.QUEUED
        special = UNIT_TRANSITIONS if row.id in self.units else START_TRANSITIONS
        if not known and after not in special.get(before, ()):
            raise InternalError(f"Job {row.new.key!r} cannot go from {before} to {after}.")
        if detached and row.worker is not None:
            row.worker.detached[row.ref] = row.new.limit_keys
        self._leave(row)
        row.state, row.worker, row.updated_at = to, worker, at
        if available_at is not None:
            row.available_at = available_at
        self._enter(row, at)

    def serve_last(self, group: str) -> None:
        """Put a group that was served behind all others that have ready jobs."""
        if group in self.ready_lanes:
            self.ready_lanes[group] = self.ready_lanes.pop(group)

    def queue(self, row: JobRow, now: int, available_at: int, *, detached: bool = False) -> None:
        """Make a job ready, or delayed if it is not due."""
        to = RowState.DELAYED if available_at > now else RowState.READY
        self.move(row, to, now, available_at=available_at, detached=detached)

    def _leave(self, row: JobRow) -> None:
        match row.state:
            case RowState.DELAYED:
                self.delayed.remove((row.available_at, row.id))
            case RowState.READY:
                row.lane.ready.remove(row.turn)
                if not row.lane.ready:
                    lanes = self.ready_lanes[row.lane.group]
                    del lanes[row.lane.id]
                    if not lanes:
                        del self.ready_lanes[row.lane.group]
            case RowState.SUSPECT:
                self.suspects.remove(row.id)
            case RowState.IN_PROGRESS:
                self._let_go(row)
            case _ if row.finished_at is not None:
                self.ended.remove((row.finished_at, row.id))
                row.finished_at = None
        self._count(row, -1)
        self.by_state[row.public].remove(row.id)

    def _enter(self, row: JobRow, at: int) -> None:
        match row.state:
            case RowState.DELAYED:
                self.delayed.add((row.available_at, row.id))
                self.version += 1
            case RowState.READY:
                row.lane.ready.add(row.turn)
                self.ready_lanes.setdefault(row.lane.group, {})[row.lane.id] = row.lane
                self.version += 1
            case RowState.SUSPECT:
                self.suspects.add(row.id)
                self.version += 1
            case RowState.IN_PROGRESS:
                self._hold(row)
            case _ if row.terminal:
                row.finished_at = at
                row.open.clear()
                self.ended.add((at, row.id))
        self._count(row, +1)
        self.by_state[row.public].add(row.id)

    def _hold(self, row: JobRow) -> None:
        if row.worker is None:
            raise InternalError(f"Job {row.new.key!r} is in progress without a worker.")
        row.worker.jobs[row.id] = row
        for key in row.new.limit_keys:
            self.held.setdefault(key, set()).add(row.ref)

    def _let_go(self, row: JobRow) -> None:
        if row.worker is None:
            raise InternalError(f"Job {row.new.key!r} was in progress without a worker.")
        del row.worker.jobs[row.id]
        if row.ref not in row.worker.detached:
            self._free(row.ref, row.new.limit_keys)

    def is_detached(self, job_id: JobId) -> bool:
        """May a body of this job still run although its lease is over?"""
        return any(ref.id == job_id for row in self.workers.values() for ref in row.detached)

    def forget(self, worker: WorkerId) -> None:
        """A worker is gone, and with it whatever still ran."""
        row = self.workers.pop(worker)
        for ref in list(row.detached):
            self.let_go(row, ref)

    def let_go(self, worker: WorkerRow, ref: JobRef) -> None:
        """The body of a lease that was detached has ended."""
        limit_keys = worker.detached.pop(ref, None)
        if limit_keys is not None:
            self._free(ref, limit_keys)

    def _free(self, ref: JobRef, limit_keys: tuple[str, ...]) -> None:
        for key in limit_keys:
            self.held[key].remove(ref)
            if not self.held[key]:
                del self.held[key]
            self.version += 1

    def held_by(self, worker: WorkerId) -> list[JobRow]:
        """What a worker holds, by id; nothing if it is not known."""
        row = self.workers.get(worker)
        return [] if row is None else row.held()

    def _count(self, row: JobRow, step: int) -> None:
        self.counts.setdefault(row.app, Counts()).add(row.new.task, row.public, step)
        self.group_counts.add(row.new.group, row.public, step)

    def full_key(self, limit_keys: tuple[str, ...], caps: Caps) -> BlockedKey | None:
        """The first of these keys that has no slot left, or None: there is room."""
        for key in limit_keys:
            cap = caps.cap(key, self.caps)
            holders = self.held.get(key, set())
            if cap is not None and len(holders) >= cap:
                shown = heapq.nsmallest(HOLDERS_SHOWN, holders)
                return BlockedKey(key, cap, tuple(self.jobs[one.id].new.key for one in shown))
        return None

    def promote(self, now: int) -> None:
        """Make ready what fell due."""
        while (first := self.delayed.first()) is not None and first[0] <= now:
            self.move(self.jobs[first[1]], RowState.READY, now)

    def next_due_at(self) -> int | None:
        first = self.delayed.first()
        return first[0] if first is not None else None

    def delayed_after(self, now: int) -> int:
        """How many are not due."""
        return sum(1 for at, _ in self.delayed if at > now)

    def oldest_ready_at(self) -> int | None:
        lanes = [lane for lanes in self.ready_lanes.values() for lane in lanes.values()]
        return min((turn.available_at for lane in lanes for turn in lane.ready), default=None)

    def failed(
        self, task: str | None, max_attempts: int | None, after_id: JobId
    ) -> Iterator[JobRow]:
        """Jobs in `error` above an id, of no plan, of one task, with few charged attempts."""
        for row in map(self.jobs.__getitem__, self.by_state[JobState.ERROR].above(after_id)):
            fits = max_attempts is None or row.attempts <= max_attempts
            fits = fits and self.sees(row)
            if fits and row.new.plan_id is None and task in (None, row.new.task):
                yield row
