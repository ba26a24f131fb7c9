# SPDX-License-Identifier: Apache-2.0
"""What is the simplest correct store?

Plain dictionaries, one thread, every answer at once: the model that the other stores are tested
against, and the store of the test harness in virtual time. It cuts nothing into slices that need
not be cut, so `more` is rare; it parks no lanes, because it counts holders whenever it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

from penstock.clock import MICROSECONDS, Clock, to_micros
from penstock.errors import InternalError, LeaseLost, UsageError
from penstock.ids import IdSource, SystemIds
from penstock.model.job import Attempt, Job, JobId, NewJob, WorkerId
from penstock.model.lease import (
    ForgetCalls,
    JobEnd,
    JobFailure,
    JobRef,
    LeaseBatch,
    LeaseRequest,
    Verdict,
    WorkerInfo,
)
from penstock.model.provider import CooldownKey, ProviderModelKey
from penstock.model.views import (
    EndMark,
    EnqueueReport,
    JobContext,
    Outlook,
    Progress,
    PutBack,
    ResultPage,
    ResultRow,
    RetryCounts,
    Settled,
    Stats,
    StoredCooldown,
    StoredLimit,
    UpstreamRow,
    WorkerView,
)
from penstock.model.worker import Inbox
from penstock.stores.protocol import RESULT_PAGE_BYTES, JobFilter
from penstock.stores.sql.row_state import RowState
from tests.model.memory_app_operations import AppOperations
from tests.model.memory_check import broken_invariants
from tests.model.memory_choice import FairChoice
from tests.model.memory_chores import Chores
from tests.model.memory_control import Control
from tests.model.memory_cooldowns import Cooldowns
from tests.model.memory_learned import Learned
from tests.model.memory_operation import operation
from tests.model.memory_rows import JobRow, Tables, WorkerRow
from tests.model.memory_views import circumstances_of, jobs_of, outlook_of, stats_of, suspects_of


class MemoryStore(AppOperations):
    """Owns jobs, leases, edges and effects in memory. Belongs to one thread and has no locks.

    A call that is refused was checked before it changed anything.
    """

    bulk_jobs = 1_000

    def __init__(self, clock: Clock, ids: IdSource | None = None) -> None:
        self.id = (ids or SystemIds()).new_id("memory")
        super().__init__(clock, Tables())
        self._chores = Chores(self._tables, self._edges, self._ends, self._calls, self._plans)
        self._choice = FairChoice(self._tables)
        self._control = Control()
        self._learned = Learned()
        self._cooldowns = Cooldowns()
        self._paused = False
        self._worker_numbers = count(1)

    def __repr__(self) -> str:
        tables = self._tables
        return f"<MemoryStore {self.id}: {len(tables.jobs)} jobs, {len(tables.workers)} workers>"

    # Life

    @property
    def url(self) -> str:
        return "memory:"

    def close(self) -> None:
        self._closed = True
        self._idlers.wake_all()

    async def wait_for_work(self, timeout: float | None) -> None:
        """Return when something became leasable since the last lease call, or is due, or late."""
        if not self._closed:
            moments = [timeout, *self._moments()]
            soonest = min((x for x in moments if x is not None), default=None)
            await self._idlers.wait(self._tables.version, soonest)

    def _moments(self) -> Iterator[float]:
        """In how many seconds does the next job fall due, or a worker that holds some expire?"""
        due_at, now = self._tables.next_due_at(), self._lease_clock()
        if due_at is not None:
            yield (due_at - self._now()) / MICROSECONDS
        for row in self._tables.workers.values():
            if row.jobs:
                yield (row.expires_at - now) / MICROSECONDS

    # Jobs and workers come

    @operation
    def enqueue(self, jobs: Sequence[NewJob]) -> EnqueueReport:
        self._edges.refuse(jobs, set())
        return self._edges.accept(jobs, self._now())

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> EnqueueReport:
        raise UsageError("connection= enqueues in a transaction of PostgreSQL.")

    async def enqueue_within_async(
        self, connection: object, jobs: Sequence[NewJob]
    ) -> EnqueueReport:
        return self.enqueue_within(connection, jobs)

    @operation
    def register(self, worker: WorkerInfo, ttl_seconds: float) -> None:
        if worker.id in self._tables.workers:
            raise InternalError(f"Worker {worker.id!r} is registered already.")
        expires_at = self._lease_clock() + to_micros(ttl_seconds)
        self._tables.workers[worker.id] = WorkerRow(
            worker, expires_at, self._now(), next(self._worker_numbers), self._tables.app
        )

    @operation
    def beat(self, worker_ids: Sequence[WorkerId], ttl_seconds: float) -> frozenset[WorkerId]:
        alive = [row for row in map(self._alive, worker_ids) if row is not None]
        for row in alive:
            row.expires_at = max(row.expires_at, self._lease_clock() + to_micros(ttl_seconds))
        return frozenset(row.info.id for row in alive)

    @operation
    def expire(self, worker_ids: Sequence[WorkerId]) -> int:
        alive = [row for row in map(self._alive, worker_ids) if row is not None]
        for row in alive:
            row.expires_at = self._lease_clock()
            self._tables.version += 1
        return len(alive)

    # Leases begin

    @operation
    def lease(self, request: LeaseRequest) -> LeaseBatch:
        worker = self._alive(request.worker)
        if worker is None:
            raise LeaseLost(
                f"Worker {request.worker!r} is not alive: its lease ended, or it never registered. "
                "It must register anew under a new id."
            )
        now = self._now()
        self._sweep(now)
        self._tables.promote(now)
        taken, more = self._take(worker, request, now)
        if not more:
            self._idlers.saw(self._tables.version)
        return self._batch(request, taken, more=more)

    def _take(
        self, worker: WorkerRow, request: LeaseRequest, now: int
    ) -> tuple[list[JobRow], bool]:
        if self._paused:
            return [], False
        take = self._choice.take_cell if request.quarantine else self._choice.take
        taken = self._units.lay_aside(take(worker, request, now), now)
        return taken, self._choice.more(request)

    def _batch(self, request: LeaseRequest, taken: Sequence[JobRow], *, more: bool) -> LeaseBatch:
        ordinary = not self._paused and not request.quarantine
        return LeaseBatch(
            jobs=[row.as_lease() for row in taken],
            next_due_at=self._tables.next_due_at(),
            blocked=self._choice.blocked(request) if ordinary else (),
            more=more,
            suspects=suspects_of(self._tables),
            paused=self._paused,
        )

    def _sweep(self, now: int) -> None:
        """Take the jobs of expired workers back and forget these workers."""
        for worker in list(self._tables.workers):
            if self._alive(worker) is None:
                self._ends.expire(self._tables.workers[worker], now)
                self._tables.forget(worker)

    # Leases end

    @operation
    def ack(self, worker: WorkerId, ends: Sequence[JobEnd]) -> list[Verdict]:
        holder, now = self._alive(worker), self._now()
        verdicts: list[Verdict] = []
        accepted: dict[JobId, JobEnd] = {}
        earlier: set[str] = set()
        for end in ends:  # all of them are judged before anything is written
            first = accepted.get(end.job.id)
            if first is not None:
                same = first.job.token == end.job.token
                verdicts.append(Verdict.DUPLICATE if same else Verdict.STALE)
                continue
            verdict = self._ends.verdict(holder, worker, JobRef(end.job.id, end.job.token))
            if verdict is Verdict.ACCEPTED and not self._manifests.may_write(end.effects):
                verdict = Verdict.STALE
            verdicts.append(verdict)
            if verdict is Verdict.ACCEPTED:
                self._ends.refuse(end, earlier)
                accepted[end.job.id] = end
        one_by_one = any(end.effects for end in ends)  # effects see what follows from their end
        for job_id, end in accepted.items():
            self._ends.finish(self._tables.jobs[job_id], end, now)
            if one_by_one:
                self._tell([job_id], now)
                self._ends.apply(end, now)
                self._manifests.apply(job_id, end.effects)
                if any(isinstance(effect, ForgetCalls) for effect in end.effects):
                    self._calls.forget(job_id)
        self._tell(accepted, now)
        return verdicts

    def _tell(self, ended: Iterable[JobId], now: int) -> None:
        self._edges.tell((x for x in ended if self._tables.jobs[x].terminal), now)

    @operation
    def fail_and_retry(self, worker: WorkerId, failures: Sequence[JobFailure]) -> list[Verdict]:
        holder, now = self._alive(worker), self._now()
        verdicts: list[Verdict] = []
        for failure in failures:
            verdict = self._ends.verdict(holder, worker, failure.ref)
            if verdict is Verdict.ACCEPTED:
                self._fail(failure, now)
            verdicts.append(verdict)
        return verdicts

    def _fail(self, failure: JobFailure, now: int) -> None:
        self._ends.fail(self._tables.jobs[failure.ref.id], failure, now)
        if failure.charge:
            self._calls.spoil(failure.spoils, now)

    @operation
    def release(self, worker: WorkerId, refs: Sequence[JobRef]) -> int:
        holder, now = self._alive(worker), self._now()
        count = 0
        for ref in refs:
            if self._ends.verdict(holder, worker, ref) is Verdict.ACCEPTED:
                self._ends.release(self._tables.jobs[ref.id], now)
                count += 1
        return count

    @operation
    def reap(
        self,
        worker: WorkerId,
        started: Sequence[JobRef],
        cause: str,
        max_crashes: int,
        overdue: Sequence[JobFailure] = (),
    ) -> Progress:
        row, now = self._tables.workers.get(worker), self._now()
        if row is None:
            return Progress(0, more=False)
        for failure in overdue:
            if self._ends.verdict(row, worker, failure.ref) is Verdict.ACCEPTED:
                self._fail(failure, now)
        count = self._ends.reap(row, set(started), cause, max_crashes, now)
        self._tables.forget(worker)
        return Progress(count, more=False)

    @operation
    def retire(self, worker: WorkerId) -> Progress:
        row = self._tables.workers.get(worker)
        if row is None:
            return Progress(0, more=False)
        held = row.held()
        for job in held:
            self._ends.release(job, self._now())
        self._tables.forget(worker)
        return Progress(len(held), more=False)

    @operation
    def revoke(self, ref: JobRef, error: str) -> Verdict:
        row = self._tables.jobs.get(ref.id)
        if row is None or row.state is not RowState.IN_PROGRESS or row.token != ref.token:
            return Verdict.STALE
        self._ends.revoke(row, error, self._now())
        return Verdict.ACCEPTED

    # Operators

    @operation
    def cancel(self, keys: Sequence[str], app: str | None = None) -> frozenset[str]:
        unfinished = [row for row in self._all_found(keys, app) if not row.terminal]
        self._ends.cancel(unfinished, self._now())
        return frozenset(row.new.key for row in unfinished)

    @operation
    def leases(self, worker: WorkerId) -> list[JobRef]:
        return [row.ref for row in self._tables.held_by(worker)]

    @operation
    def settle(self) -> Settled:
        return self._chores.settled()

    @operation
    def retry_failed(self, task: str | None, max_attempts: int | None) -> Settled:
        return self._chores.retry_failed(task, max_attempts, self._now())

    @operation
    def would_retry(self, task: str | None, max_attempts: int | None) -> RetryCounts:
        return self._chores.would_retry(task, max_attempts)

    @operation
    def retry(self, keys: Sequence[str], app: str | None = None) -> PutBack:
        return self._chores.retry(self._all_found(keys, app), self._now())

    @operation
    def rerun(self, keys: Sequence[str], app: str | None = None, *, fresh: bool = False) -> PutBack:
        return self._chores.rerun(self._all_found(keys, app), self._now(), fresh=fresh)

    @operation
    def purge_jobs(self, ends: Sequence[EndMark]) -> Progress:
        return self._chores.purge_jobs(ends)

    @operation
    def would_purge_jobs(self, ends: Sequence[EndMark]) -> int:
        return self._chores.would_purge_jobs(ends)

    @operation
    def purge(self, before: int, after: EndMark) -> tuple[Progress, EndMark]:
        return self._chores.purge(before, after)

    @operation
    def would_purge(self, before: int) -> int:
        return self._chores.would_purge(before)

    @operation
    def void_leases(self, above: int) -> int:
        count = 0
        for worker in list(self._tables.workers):
            count += self._ends.void(self._tables.workers[worker], self._now())
            self._tables.forget(worker)
        self._tables.raise_tokens(above)
        self._locks.void(above)
        return count

    # Reading

    @operation
    def stats(self) -> Stats:
        alive = sum(self._alive(worker) is not None for worker in self._tables.workers)
        return stats_of(self._tables, self._now(), alive, paused=self._paused)

    @operation
    def job(self, key: str, app: str | None = None) -> Job | None:
        row = self._found(key, app)
        return row.as_job() if row is not None else None

    @operation
    def attempts(self, key: str, app: str | None = None) -> list[Attempt]:
        row = self._found(key, app)
        return list(row.history) if row is not None else []

    @operation
    def jobs(self, wanted: JobFilter, after_id: JobId, limit: int) -> list[Job]:
        return jobs_of(self._tables, wanted, after_id, limit)

    @operation
    def job_context(self, key: str, app: str | None = None) -> JobContext | None:
        row = self._found(key, app)
        return None if row is None else circumstances_of(self._tables, row, self._now())

    @operation
    def results(self, task: str, after: EndMark, limit: int, app: str | None = None) -> ResultPage:
        own = self._tables.own if app is None else app
        rows: list[ResultRow] = []
        size = 0
        for finished_at, job_id in self._tables.ended.above((after.finished_at, JobId(after.id))):
            row, after = self._tables.jobs[job_id], EndMark(finished_at, job_id)
            if row.state is RowState.DONE and row.new.task == task and own in (None, row.app):
                rows.append(ResultRow(row.new.key, row.result))
                size += len((row.result or "").encode())
            if len(rows) == limit or size > RESULT_PAGE_BYTES:
                return ResultPage(tuple(rows), after, more=True)
        return ResultPage(tuple(rows), after, more=False)

    @operation
    def upstream(self, job: JobId) -> list[UpstreamRow]:
        child = self._tables.jobs[job]
        order = {edge.key: place for place, edge in reversed([*enumerate(child.new.after)])}
        parents = [self._tables.jobs[need.parent] for need in child.needs]
        return [
            UpstreamRow(row.new.key, row.new.task, row.public, row.result)
            for row in sorted(parents, key=lambda row: order[row.new.key])
        ]

    @operation
    def outlook(self, worker: WorkerId, run_id: str) -> Outlook:
        others = [self._alive(other) for other in self._tables.workers if other != worker]
        own = self._tables.own
        alive = [other for other in others if other is not None and own in (None, other.app)]
        return outlook_of(self._tables, run_id, alive, paused=self._paused)

    @operation
    def check_ready(self) -> None:
        """It has no indexes."""

    @operation
    def check(self) -> list[str]:
        broken = broken_invariants(self._tables) + self._calls.broken() + self._units.broken()
        return broken + self._broken_datasets()

    # Limits and status

    @operation
    def caps(self) -> dict[str, int]:
        return dict(self._tables.caps)

    @operation
    def holders(self, limit: int) -> dict[str, int]:
        return {key: len(refs) for key, refs in sorted(self._tables.held.items())[:limit]}

    @operation
    def set_cap(self, limit_key: str, cap: int | None) -> None:
        if cap is None:
            self._tables.caps.pop(limit_key, None)
        else:
            self._tables.caps[limit_key] = cap
        self._tables.version += 1

    @operation
    def publish(self, worker: WorkerId, document: str) -> None:
        row = self._tables.workers.get(worker)
        if row is not None:
            row.status, row.status_at = document, self._now()

    @operation
    def workers(self) -> list[WorkerView]:
        now = self._lease_clock()
        rows = self._tables.workers.values()
        return [row.as_view((row.expires_at - now) / MICROSECONDS) for row in rows]

    @operation
    def set_paused(self, paused: bool) -> None:
        self._paused = paused
        self._tables.version += 1

    @operation
    def save_learned(self, limits: Mapping[ProviderModelKey, str]) -> None:
        self._learned.save(limits, self._now())

    @operation
    def learned(self) -> list[StoredLimit]:
        return self._learned.newest()

    @operation
    def begin_cooldown(self, key: CooldownKey, seconds: float, document: str) -> None:
        self._cooldowns.begin(key, seconds, document, self._now())

    @operation
    def take_probe(self, key: CooldownKey, *, at_once: bool = False) -> bool:
        return self._cooldowns.take_probe(key, at_once, self._now())

    @operation
    def end_cooldown(self, key: CooldownKey) -> None:
        self._cooldowns.end(key)

    @operation
    def cooldowns(self) -> list[StoredCooldown]:
        return self._cooldowns.newest(self._now())

    # What is said to a worker

    @operation
    def inbox(self, worker: WorkerId) -> Inbox:
        row = self._tables.workers.get(worker)
        detached = sorted(row.detached) if row is not None else []
        return Inbox(detached, self._control.open(worker))

    @operation
    def ask(self, worker: WorkerId, ref: JobRef) -> int:
        return self._control.ask(worker, ref, self._now())

    @operation
    def answer(self, question: int, document: str) -> bool:
        return self._control.answer(question, document)

    @operation
    def answer_to(self, question: int) -> str | None:
        return self._control.answer_to(question)
