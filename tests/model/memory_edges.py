# SPDX-License-Identifier: Apache-2.0
"""How does the memory store accept jobs, and what do dependants learn from an end?

Jobs are walked by id, lowest first: a dependant always has a higher id than what it waits for, so
this is the order of the graph, and nothing recurses however deep a chain is.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from penstock.clock import to_micros
from penstock.errors import EnqueueRefused
from penstock.model.job import (
    BATCH_JOBS_MAX,
    AttemptError,
    Edge,
    EdgeKind,
    ErrorCategory,
    JobId,
    JobKind,
    NewJob,
    kind_of_name,
)
from penstock.model.strict_json import is_same
from penstock.model.views import EnqueueReport
from penstock.stores.sql.enqueue import no_end
from penstock.stores.sql.row_state import RowState
from tests.model.memory_rows import JobRow, Need, Tables


class Dependants:
    """Owns the meaning of edges. Does not know leases or attempts."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def refuse(self, jobs: Sequence[NewJob], earlier: set[str]) -> None:
        """Raise unless these jobs can be accepted; adds their keys to the `earlier` ones."""
        if len(jobs) > BATCH_JOBS_MAX:
            raise EnqueueRefused(
                f"{len(jobs):,} jobs in one batch; at most {BATCH_JOBS_MAX:,} are accepted."
            )
        known = self._tables.by_key
        for job in jobs:
            if job.key in known or job.key in earlier:
                continue
            for edge in job.after:
                if edge.key == job.key:
                    raise EnqueueRefused(f"Job {job.key!r} is to run after itself.")
                if kind_of_name(edge.key) is JobKind.TICK:
                    raise no_end(job.key, edge.key)
                if edge.key not in known and edge.key not in earlier:
                    raise EnqueueRefused(
                        f"Job {job.key!r} is to run after {edge.key!r}, which is neither in the "
                        "store nor earlier in the batch. Enqueue it first, or correct the key."
                    )
            earlier.add(job.key)

    def accept(self, jobs: Sequence[NewJob], now: int) -> EnqueueReport:
        """Add jobs that `refuse` has let pass; the first of a key wins."""
        created: set[str] = set()
        existing: set[str] = set()
        differing: set[str] = set()
        for job in jobs:
            if job.key not in self._tables.by_key:
                self._insert(job, now)
                created.add(job.key)
                continue
            if job.key not in created:
                existing.add(job.key)
            if self._differs(job):
                differing.add(job.key)
        return EnqueueReport(frozenset(created), frozenset(existing), frozenset(differing))

    def _differs(self, job: NewJob) -> bool:
        kept = self._tables.by_key[job.key].new
        return kept.task != job.task or not is_same(kept.payload, job.payload)

    def _insert(self, job: NewJob, now: int) -> None:
        due_at = now + max(0, to_micros(job.delay_seconds))
        needs = self._needs(job.after)
        forbidding = self._forbidding(needs)
        unmet = self._unmet(needs)
        if forbidding is not None:
            state = RowState.SKIPPED
        elif unmet:
            state = RowState.WAITING
        else:
            state = RowState.DELAYED if due_at > now else RowState.READY
        row = self._tables.insert(job, state, now, due_at, needs)
        if forbidding is not None:
            self._blame(row, forbidding)
        else:
            row.open |= unmet

    def tell(self, ended: Iterable[JobId], now: int) -> None:
        """Release or skip what waits for these ended jobs, and so on."""
        todo = list(ended)
        heapq.heapify(todo)
        while todo:
            parent = self._tables.jobs[heapq.heappop(todo)]
            for child_id, kind in sorted(parent.children):
                child, need = self._tables.jobs[child_id], Need(parent.id, kind)
                if need not in child.open:
                    continue
                if parent.forbids(kind):
                    self._tables.move(child, RowState.SKIPPED, now)
                    self._blame(child, parent)
                    heapq.heappush(todo, child.id)
                    continue
                child.open.remove(need)
                if not child.open:
                    self._tables.queue(child, now, child.available_at)

    def put_back(self, revived: Iterable[JobId], now: int) -> int:
        """Let what was skipped because of these jobs wait again, and so on; how many.

        A dependant that another ended job forbids stays skipped, because of that one from now on:
        it would wait for ever otherwise.
        """
        todo = list(revived)
        heapq.heapify(todo)
        back: list[JobRow] = []
        while todo:
            parent = self._tables.jobs[heapq.heappop(todo)]
            for child_id, _ in sorted(parent.children):
                child = self._tables.jobs[child_id]
                if child.state is not RowState.SKIPPED or child.skipped_by != parent.id:
                    continue
                forbidding = self._forbidding(child.needs)
                if forbidding is not None:
                    self._blame(child, forbidding)
                    continue
                child.skipped_by = child.error = None
                self._tables.move(child, RowState.WAITING, now)
                back.append(child)
                heapq.heappush(todo, child.id)
        for child in back:  # not before all are back: they may wait for each other
            child.open |= self._unmet(child.needs)
        return len(back)

    def would_put_back(self, revived: Iterable[JobId]) -> int:
        """How many would put_back let wait again? Changes nothing."""
        todo = list(revived)
        back, failed = set(todo), len(todo)
        heapq.heapify(todo)
        while todo:
            parent = self._tables.jobs[heapq.heappop(todo)]
            for child_id, _ in sorted(parent.children):
                child = self._tables.jobs[child_id]
                hangs = child.state is RowState.SKIPPED and child.skipped_by in back
                if not hangs or child_id in back:
                    continue
                if all(n.parent in back or not self._forbids(n) for n in child.needs):
                    back.add(child_id)
                    heapq.heappush(todo, child_id)
        return len(back) - failed

    def blame_like(self, child: JobRow, error: AttemptError | None) -> None:
        """Blame a skipped job on the one that this error names, if that forbids it as well."""
        for need in child.needs:
            parent = self._tables.jobs[need.parent]
            if parent.forbids(need.kind) and _upstream_error(parent) == error:
                self._blame(child, parent)

    def forget(self, row: JobRow) -> None:
        """Delete an ended job; a skipped dependant that it forbids stays skipped for good."""
        for child_id, kind in sorted(row.children):
            child = self._tables.jobs[child_id]
            hangs = child.state is RowState.SKIPPED and child.skipped_by in self._tables.jobs
            if hangs and row.forbids(kind) and child.skipped_by != row.id:
                self._blame(child, row)
        self._tables.delete(row)

    def _forbids(self, need: Need) -> bool:
        return self._tables.jobs[need.parent].forbids(need.kind)

    def _needs(self, after: Sequence[Edge]) -> set[Need]:
        """One edge for each parent; where both kinds are asked for, `success` asks for more."""
        strict = {edge.key for edge in after if edge.kind is EdgeKind.SUCCESS}
        return {
            Need(
                self._tables.by_key[edge.key].id,
                EdgeKind.SUCCESS if edge.key in strict else EdgeKind.FINISHED,
            )
            for edge in after
        }

    def _unmet(self, needs: set[Need]) -> set[Need]:
        return {need for need in needs if not self._tables.jobs[need.parent].meets(need.kind)}

    def _forbidding(self, needs: set[Need]) -> JobRow | None:
        """The first dependency, by id, that ended otherwise than it had to."""
        for need in sorted(needs):
            parent = self._tables.jobs[need.parent]
            if parent.forbids(need.kind):
                return parent
        return None

    def _blame(self, child: JobRow, parent: JobRow) -> None:
        child.skipped_by = parent.id
        child.error = _upstream_error(parent)


def _upstream_error(parent: JobRow) -> AttemptError:
    how = "skipped" if parent.state is RowState.SKIPPED else "failed"
    return AttemptError(ErrorCategory.OWN, "upstream", f"upstream {how}: {parent.new.key}")
