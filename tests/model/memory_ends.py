# SPDX-License-Identifier: Apache-2.0
"""How does a lease of the memory store end: acknowledged, failed, given back, or lost?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from penstock.clock import to_micros
from penstock.errors import EnqueueRefused, InternalError
from penstock.model.job import (
    BATCH_JOBS_MAX,
    TERMINAL,
    Attempt,
    AttemptError,
    ErrorCategory,
    JobId,
    JobState,
)
from penstock.model.lease import (
    EnqueueJobs,
    JobEnd,
    JobFailure,
    JobRef,
    Rearm,
    SetCursor,
    Verdict,
)
from penstock.model.schedule import FAILED_TICKS_KEPT, tried_at
from penstock.stores.protocol import (
    EXPIRIES_BEFORE_SUSPECT,
    LOSSES_BEFORE_SUSPECT,
    SWEEP_SLICE,
    lease_voided,
)
from penstock.stores.sql.row_state import OF_STATE, RowState
from tests.model.memory_edges import Dependants
from tests.model.memory_rows import JobRow, Tables, WorkerRow

EXPIRED = "its lease expired"  # the cause of a death that nobody saw


class Ends:
    """Owns what an end does to a job, its history and its dependants. Does not know expiry."""

    def __init__(self, tables: Tables, edges: Dependants) -> None:
        self._tables = tables
        self._edges = edges

    def verdict(self, worker: WorkerRow | None, asked_by: str, ref: JobRef) -> Verdict:
        """May this lease still write? `worker` is None if it is not alive."""
        if worker is not None:
            self._tables.let_go(worker, ref)
        row = self._tables.jobs.get(ref.id)
        if row is None:
            return Verdict.STALE
        if row.ended == (asked_by, ref.token):
            return Verdict.DUPLICATE
        mine = worker is not None and row.worker is worker and row.token == ref.token
        return Verdict.ACCEPTED if mine else Verdict.STALE

    # By the holder

    def refuse(self, end: JobEnd, earlier: set[str]) -> None:
        """Raise unless this end and its effects can be applied."""
        if end.state not in TERMINAL:
            raise InternalError(f"Job {end.job.key!r} cannot end as {end.state}.")
        batches = [effect.jobs for effect in end.effects if isinstance(effect, EnqueueJobs)]
        count = sum(len(jobs) for jobs in batches)
        if count > BATCH_JOBS_MAX:
            raise EnqueueRefused(
                f"Job {end.job.key!r} enqueues {count:,} jobs when it ends; at most "
                f"{BATCH_JOBS_MAX:,} are accepted."
            )
        for jobs in batches:
            self._edges.refuse(jobs, earlier)
        rearm = _rearm(end)
        if rearm is not None and rearm.at <= self._tables.jobs[end.job.id].due_at:
            raise EnqueueRefused(
                f"Job {end.job.key!r} cannot be armed again for a time that is not later than "
                "its last."
            )

    def finish(self, row: JobRow, end: JobEnd, now: int) -> None:
        """End a job or re-arm it; the other effects are applied when its dependants are told."""
        rearm = _rearm(end)
        if rearm is None or end.state is not JobState.DONE:
            self._record(row, end.state.value, end.ended_at, end.error, end.started_at)
        if end.state is JobState.DONE or end.result is not None:
            row.result = end.result  # else what it returned last is kept
        row.error, row.started_at = end.error, end.started_at
        row.deferred_since = None
        self._sign(row)
        if rearm is None:
            self._close(row, end.state, end.ended_at)
        else:
            row.attempts = row.crashes = 0
            if row.id in self._tables.units:
                self._tables.units[row.id].ticked(row.due_at, end.ended_at, rearm.missed)
            available_at = tried_at(rearm.at, rearm.period, now)
            late = max(available_at, row.due_at + 1)
            row.due_at = rearm.at if available_at == rearm.at else late
            self._tables.queue(row, now, available_at)

    def apply(self, end: JobEnd, now: int) -> None:
        """Apply the effects of an end on jobs and cursors, in their order."""
        for effect in end.effects:
            match effect:
                case EnqueueJobs(jobs=jobs):
                    self._edges.accept(jobs, now)
                case SetCursor(name=name, value=value):
                    self._tables.cursors[name] = value
                case _:
                    continue  # Rearm was applied instead of the end; the others are not for jobs

    def fail(self, row: JobRow, failure: JobFailure, now: int) -> None:
        """Queue a job again later, or end it if this was its last attempt."""
        row.crashes += failure.crashed
        if failure.charge:
            row.attempts += 1
            row.deferred_since = None
        elif not failure.crashed and row.deferred_since is None:
            row.deferred_since = failure.ended_at
        outcome = "error" if failure.ends else "retry"
        self._record(row, outcome, failure.ended_at, failure.error, failure.started_at)
        row.error, row.started_at = failure.error, failure.started_at
        self._sign(row)
        if row.id in self._tables.units:
            self._tables.units[row.id].failed += 1
        if failure.ends:
            self._close(row, JobState.ERROR, failure.ended_at, detached=failure.detached)
            self._edges.tell([row.id], now)
        else:
            again_at = now + to_micros(failure.delay_seconds)
            self._tables.queue(row, now, again_at, detached=failure.detached)

    def _sign(self, row: JobRow) -> None:
        """The holder itself ends this lease: the job is no suspect any more, the lease not lost."""
        if row.worker is None:
            raise InternalError(f"Job {row.new.key!r} has no holder that could end it.")
        row.ended = (row.worker.info.id, row.token)
        row.losses, row.solo = 0, False

    def release(self, row: JobRow, now: int) -> None:
        """Make a held job ready again that was not started: its lease was not lost."""
        row.losses = 0
        self._put_back(row, now)

    def _put_back(self, row: JobRow, now: int, *, detached: bool = False) -> None:
        """Make a held job ready again; a suspect stays one."""
        suspect, row.solo = row.solo, False
        to = RowState.SUSPECT if suspect else RowState.READY
        self._tables.move(row, to, now, detached=detached)

    # By others

    def revoke(self, row: JobRow, reason: str, now: int) -> None:
        """End an attempt from outside; the job may be tried again at once."""
        error = AttemptError(ErrorCategory.OWN, "revoked", reason)
        self._record(row, "revoked", now, error)
        self._put_back(row, now, detached=True)

    def cancel(self, rows: Sequence[JobRow], now: int) -> None:
        for row in rows:
            if row.state is RowState.IN_PROGRESS:
                self._record(row, "cancelled", now, None)
            self._close(row, JobState.CANCELLED, now, detached=row.worker is not None)
        self._edges.tell((row.id for row in rows), now)

    def expire(self, worker: WorkerRow, now: int) -> None:
        """Take back what an expired worker held: anything of it may have been running."""
        accused: list[JobRow] = []
        for row in worker.held():
            if row.solo and not row.cell:
                self._crash(row, EXPIRED, worker.info.max_crashes, now)
                continue
            self._record(row, "lost", now, _death("lost", EXPIRED))
            row.losses += not row.solo
            if row.solo or row.losses >= EXPIRIES_BEFORE_SUSPECT:
                accused.append(row)
            else:
                self._tables.move(row, RowState.READY, now)
        self._quarantine(worker, accused, now, seen=False)

    def void(self, worker: WorkerRow, now: int) -> int:
        """Take back what a worker held before the store was restored; it is no job's fault."""
        held = worker.held()
        for row in held:
            self._record(row, "lost", now, lease_voided())
            self._put_back(row, now)
        return len(held)

    def reap(
        self, worker: WorkerRow, started: set[JobRef], cause: str, max_crashes: int, now: int
    ) -> int:
        """Take back what a dead worker held; only what had started is under suspicion."""
        held = worker.held()
        accused: list[JobRow] = []
        for row in held:
            ran = JobRef(row.id, row.token) in started
            if not ran and not self._lost_too_often(row):
                self._put_back(row, now)
            elif row.solo and not row.cell:
                self._crash(row, cause, max_crashes, now)
            else:
                accused.append(row)
                if ran:
                    self._record(row, "lost", now, _death("lost", cause))
        self._quarantine(worker, accused, now, seen=True)
        return len(held)

    def _lost_too_often(self, row: JobRow) -> bool:
        """Its body had ended, or not begun; but again and again is no chance."""
        row.losses += 1
        often = row.losses >= LOSSES_BEFORE_SUSPECT
        if often and row.solo:
            row.losses = 0
        return often

    def _quarantine(
        self, worker: WorkerRow, accused: list[JobRow], now: int, *, seen: bool
    ) -> None:
        """Put those that may have killed a worker into cells, smaller ones than before."""
        formers = [row.cell if row.solo else -1 for row in accused]
        cell = worker.no * SWEEP_SLICE
        for former in sorted(set(formers)):
            rows = [row for row, of in zip(accused, formers, strict=True) if of == former]
            parts = (1 if seen else math.ceil(math.sqrt(len(rows)))) if former < 0 else 2
            parts = parts if seen or former < 0 else len(rows)
            for part in range(parts):
                begin, end = (len(rows) * n // parts for n in (part, part + 1))
                for row in rows[begin:end]:
                    row.solo, row.cell = False, cell if end - begin > 1 else 0
                    self._tables.move(row, RowState.SUSPECT, now)
                cell += end - begin > 1

    def _crash(self, row: JobRow, cause: str, max_crashes: int, now: int) -> None:
        row.crashes += 1
        times = "once" if row.crashes == 1 else f"{row.crashes} times"
        error = _death("crashed", f"the worker died {times} while this job ran alone: {cause}")
        if row.crashes < max_crashes:
            self._record(row, "crashed", now, error)
            row.solo = False
            self._tables.move(row, RowState.SUSPECT, now)
            return
        self._record(row, "error", now, error)
        row.error = error
        self._close(row, JobState.ERROR, now)
        self._edges.tell([row.id], now)

    def _close(self, row: JobRow, state: JobState, at: int, *, detached: bool = False) -> None:
        if row.worker is not None and state is not JobState.CANCELLED:
            by_run = self._tables.ended_by_run
            by_run.setdefault(row.worker.info.run_id, Counter())[state] += 1
        row.losses, row.solo = 0, False
        self._tables.move(row, OF_STATE[state], at, detached=detached)

    def _record(
        self,
        row: JobRow,
        outcome: str,
        ended_at: int,
        error: AttemptError | None,
        started_at: int | None = None,
    ) -> None:
        if row.worker is None:
            raise InternalError(f"Job {row.new.key!r} has no attempt that could end.")
        row.history.append(
            Attempt(
                token=row.token,
                worker=row.worker.info.id,
                outcome=outcome,
                started_at=started_at,
                ended_at=ended_at,
                error=None if error is None else error.without_traceback(),
            )
        )
        if row.id in self._tables.units:
            del row.history[:-FAILED_TICKS_KEPT]

    def retry(self, row: JobRow, now: int) -> JobId:
        """Let a job that has ended start afresh."""
        row.attempts = row.crashes = row.losses = 0
        row.deferred_since = None
        self._tables.queue(row, now, now)
        return row.id


def _rearm(end: JobEnd) -> Rearm | None:
    return next((effect for effect in end.effects if isinstance(effect, Rearm)), None)


def _death(kind: str, message: str) -> AttemptError:
    return AttemptError(ErrorCategory.CRASHED, kind, message)
