# SPDX-License-Identifier: Apache-2.0
"""Retention: purges jobs that ended long ago, and ended ones that somebody names.

In slices, bounded in jobs and in edges. A job with very many edges loses them slice by slice
before it goes itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

from penstock.model.job import JobState
from penstock.model.views import EndMark, Progress
from penstock.stores.protocol import CALLS_DROPPED, CHORE_SLICE, PURGE_EDGES
from penstock.stores.sql.dependants import settle
from penstock.stores.sql.enqueue import upstream_error
from penstock.stores.sql.journal import forget_calls
from penstock.stores.sql.plans import purge_plans
from penstock.stores.sql.row_state import PUBLIC, RowState
from penstock.stores.sql.statements import Statements, as_json
from penstock.stores.sql.transaction import Transaction

MANY_EDGES = 500  # to dependants, or from what it waited for: such a job is stripped first


class _Old(NamedTuple):
    """A job that ended long ago; the order of columns in `old_jobs`."""

    id: int
    lane_id: int
    row_state: int
    finished_at: int
    free: int  # may it go? With many edges only the first dependants were asked
    edges: int  # counted up to MANY_EDGES in each direction


def purge(
    tx: Transaction, before: int, after: EndMark, app: int | None
) -> tuple[Progress, EndMark]:
    """Forget what may be forgotten of the next jobs that ended long ago, of an app or of all."""
    tx.one_at_a_time()
    if settle(tx):  # what is still to be told or put back must not be forgotten
        return Progress(0, more=True), after
    rows = tx.array("old_jobs", before, *after, CHORE_SLICE, MANY_EDGES, app)
    seen = [_Old(*row) for row in rows]
    if not seen:
        purge_plans(tx, before)
        return Progress(0, more=False), after
    if seen[0].edges >= MANY_EDGES and seen[0].free and _strip(tx, seen[0]):
        return Progress(0, more=True), after  # it is the first again, with fewer edges
    visited = _few_edges(seen)
    count = _forget_free(tx, visited)
    if count is None:
        return Progress(0, more=True), after
    last = visited[-1]
    return Progress(count, more=True), EndMark(last.finished_at, last.id)


def purge_jobs(tx: Transaction, ends: Sequence[EndMark], app: int | None) -> Progress:
    """Forget what may be forgotten of these jobs, as far as they have not run again since."""
    tx.one_at_a_time()
    if settle(tx):
        return Progress(0, more=True)
    seen = [_Old(*row) for row in rows_of_ends(tx, ends, MANY_EDGES, app)]
    free = [job for job in seen if job.free]
    if any(job.edges >= MANY_EDGES and _strip(tx, job) for job in free):
        return Progress(0, more=True)  # it has fewer edges now
    few = [job for job in free if job.edges < MANY_EDGES]
    count = _forget_free(tx, _few_edges(few)) if few else 0
    return Progress(count or 0, more=count != 0)


def rows_of_ends(
    reader: Statements, ends: Sequence[EndMark], edges: int, app: int | None
) -> Iterator[Sequence[Any]]:
    """The rows of `old_jobs` of single jobs, each found by its end, as far as it is still there."""
    for ended_at, job_id in ends:
        rows = reader.array("old_jobs", ended_at + 1, ended_at, job_id - 1, 1, edges, app)
        yield from (row for row in rows if row[0] == job_id)


def _forget_free(tx: Transaction, jobs: Sequence[_Old]) -> int | None:
    """Forget those of these jobs that may go; how many. None: calls of theirs, before they go."""
    may_go = tx.forget_alone({job.id for job in jobs if job.free and job.edges < MANY_EDGES})
    old = [job for job in jobs if job.id in may_go]
    if old:
        if forget_calls(tx, [job.id for job in old]) == CALLS_DROPPED:
            return None  # they may have more
        _forget(tx, old)
    return len(old)


def _few_edges(seen: Sequence[_Old]) -> list[_Old]:
    """The first of these jobs, as many as have a bounded number of edges; at least one."""
    edges = 0
    found: list[_Old] = []
    for job in seen:
        edges += job.edges
        if found and (edges > PURGE_EDGES or job.edges >= MANY_EDGES):
            break
        found.append(job)
    return found


def _strip(tx: Transaction, job: _Old) -> bool:
    """Forget a slice of the edges of a job that has many; False if it must be kept.

    A failed or skipped one is cancelled first: a retry in between would miss the dependants whose
    edges are gone.
    """
    if job.row_state in (RowState.SKIPPED, RowState.ERROR):
        if tx.value("has_unfinished_dependant", job.id, -1):
            return False
        tx.run("forget_soon", job.id)
        tx.move(job.lane_id, PUBLIC[job.row_state], JobState.CANCELLED)
    elif tx.value("has_unfinished_dependant", job.id, PURGE_EDGES):
        return False
    _blame_forgotten(tx, [job.id], PURGE_EDGES)
    if not tx.run("strip_dependants", job.id, PURGE_EDGES):
        tx.run("strip_dependencies", job.id, PURGE_EDGES)
    return True


def _forget(tx: Transaction, old: Sequence[_Old]) -> None:
    rows = as_json([(job.id,) for job in old])
    _blame_forgotten(tx, [job.id for job in old], MANY_EDGES)
    tx.note_purged(rows)
    tx.run("purge_history", rows)
    tx.run("purge_edges_to", rows)
    tx.run("purge_edges_from", rows)
    tx.run("purge_units", rows)
    tx.run("purge_jobs", rows)
    for job in old:
        tx.move(job.lane_id, PUBLIC[job.row_state], None)
    forget_lanes(tx, {job.lane_id for job in old})


def forget_lanes(tx: Transaction, lanes: Set[int]) -> None:
    """Forget lanes that jobs have left, and their groups, where no job is left in the group."""
    groups = {group for _, group, _ in tx.lane_names(lanes).values()}
    tx.add_up_counts()
    tx.flush_heads()
    states = as_json(list(JobState))
    tx.hold("hold_lanes", as_json(sorted(lanes)))
    tx.run("purge_lanes", as_json(sorted(lanes)), states)
    tx.run("purge_group_counts", as_json(sorted(groups)), states)


def _blame_forgotten(tx: Transaction, order: Sequence[int], most: int) -> None:
    """Skipped dependants stay skipped when one of those that forbid them is forgotten.

    They are blamed on it, whatever skipped them first: nobody can put it back any more. Asks for
    the first dependants of each job, `most` of them.
    """
    places = {job_id: place for place, job_id in enumerate(order)}
    blamed: dict[int, tuple[int, int, str] | None] = {}
    spoilt = tx.array("spoilt_by_forgotten", as_json(order), most)
    for child, parent, row_state, key, blames in sorted(spoilt, key=lambda row: places[row[1]]):
        fresh = (child, parent, as_json(upstream_error(row_state, key)))
        blamed.setdefault(child, None if blames == parent else fresh)
    changed = [blame for blame in blamed.values() if blame is not None]
    if changed:
        tx.run("blame", as_json(changed))
