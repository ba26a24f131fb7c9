# SPDX-License-Identifier: Apache-2.0
"""How does the memory store retry what failed and forget what is old, slice by slice?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from penstock.model.job import JobId
from penstock.model.views import FIRST_END, EndMark, Progress, PutBack, RetryCounts, Settled
from penstock.stores.protocol import CHORE_SLICE
from penstock.stores.sql.row_state import RowState
from tests.model.memory_calls import Calls
from tests.model.memory_edges import Dependants
from tests.model.memory_ends import Ends
from tests.model.memory_plans import Plans
from tests.model.memory_rows import JobRow, Tables


class Chores:
    """Owns which rows a slice touches. Does not know what an end or an edge means."""

    def __init__(
        self, tables: Tables, edges: Dependants, ends: Ends, calls: Calls, plans: Plans
    ) -> None:
        self._tables = tables
        self._plans = plans
        self._calls = calls
        self._edges = edges
        self._ends = ends

    def retry_failed(self, task: str | None, max_attempts: int | None, now: int) -> Settled:
        failed = list(self._tables.failed(task, max_attempts, JobId(0)))
        revived = [self._ends.retry(row, now) for row in failed]
        self._tables.retried += len(revived)
        self._tables.put_back += self._edges.put_back(revived, now)
        return self.settled()

    def settled(self) -> Settled:
        return Settled(
            more=False, failed_total=self._tables.retried, dependants_total=self._tables.put_back
        )

    def retry(self, rows: Iterable[JobRow], now: int) -> PutBack:
        failed = [row for row in rows if row.state is RowState.ERROR and row.new.plan_id is None]
        revived = [self._ends.retry(row, now) for row in failed]
        self._tables.retried += len(revived)
        self._tables.put_back += self._edges.put_back(revived, now)
        return _put_back(failed)

    def rerun(self, rows: Iterable[JobRow], now: int, *, fresh: bool) -> PutBack:
        done = [row for row in rows if row.state is RowState.DONE and row.is_plain]
        for row in done:
            self._ends.retry(row, now)
            self._tables.raise_token(row)
            if fresh:
                self._calls.forget(row.id)
                row.due_at = now
        return _put_back(done)

    def would_retry(self, task: str | None, max_attempts: int | None) -> RetryCounts:
        failed = [row.id for row in self._tables.failed(task, max_attempts, JobId(0))]
        return RetryCounts(len(failed), self._edges.would_put_back(failed))

    def purge(self, before: int, after: EndMark) -> tuple[Progress, EndMark]:
        seen = list(islice(self._old(before, after), CHORE_SLICE))
        forgotten = [row for row in seen if self._is_free(row)]
        mark = EndMark(seen[-1].finished_at or 0, seen[-1].id) if seen else after
        self._forget(forgotten)
        if not seen:
            self._plans.purge(before)
        return Progress(len(forgotten), more=bool(seen)), mark

    def purge_jobs(self, ends: Sequence[EndMark]) -> Progress:
        forgotten = [row for row in self._ended(ends) if self._is_free(row)]
        self._forget(forgotten)
        return Progress(len(forgotten), more=bool(forgotten))

    def would_purge_jobs(self, ends: Sequence[EndMark]) -> int:
        return sum(map(self._is_free, self._ended(ends)))

    def _ended(self, ends: Sequence[EndMark]) -> Iterator[JobRow]:
        for finished_at, job_id in ends:
            row = self._tables.jobs.get(JobId(job_id))
            if row is not None and row.finished_at == finished_at:
                yield row

    def _forget(self, rows: Iterable[JobRow]) -> None:
        for row in rows:
            self._edges.forget(row)
            self._calls.forget(row.id)

    def would_purge(self, before: int) -> int:
        return sum(map(self._is_free, self._old(before, FIRST_END)))

    def _old(self, before: int, after: EndMark) -> Iterator[JobRow]:
        """Jobs that ended before a time, above a mark, by end."""
        for finished_at, job_id in self._tables.ended.above((after.finished_at, JobId(after.id))):
            if finished_at >= before:
                return
            yield self._tables.jobs[job_id]

    def _is_free(self, row: JobRow) -> bool:
        """Does nobody need this one: no unfinished job, no body that still runs, no open plan?"""
        unfinished = any(not self._tables.jobs[child].terminal for child, _ in row.children)
        needed = unfinished or self._plans.keeps(row.new.plan_id)
        return self._tables.sees(row) and not needed and not self._tables.is_detached(row.id)


def _put_back(rows: Iterable[JobRow]) -> PutBack:
    return PutBack(frozenset(row.new.key for row in rows), more=False)
