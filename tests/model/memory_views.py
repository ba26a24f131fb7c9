# SPDX-License-Identifier: Apache-2.0
"""What does the memory store tell people?"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from itertools import islice

from penstock.clock import MICROSECONDS
from penstock.model.job import TERMINAL, Job, JobId, JobKind, JobState, kind_of_name
from penstock.model.lease import JobRef
from penstock.model.views import Dependency, HeldKey, Holder, JobContext, Outlook, Stats
from penstock.stores.protocol import (
    DELAYED_IN_STATS,
    DEPENDENCIES_SHOWN,
    GROUPS_IN_STATS,
    HOLDERS_SHOWN,
    JobFilter,
)
from penstock.stores.sql.views import PAUSES_IN_STATS
from tests.model.memory_rows import JobRow, Tables, WorkerRow

_OPEN_STATES = tuple(state for state in JobState if state not in TERMINAL)


def stats_of(tables: Tables, now: int, alive: int, *, paused: bool) -> Stats:
    """The queue in numbers."""
    tasks, oldest = tables.task_counts, tables.oldest_ready_at()
    idle = tables.group_counts.is_idle
    groups = sorted(tables.group_counts.by_name, key=lambda name: (idle(name), name))
    schedules = {name: tasks.of(name) for name in sorted(tasks.by_name) if _recurs(name)}
    jobs = {name: tasks.of(name) for name in sorted(tasks.by_name) if not _recurs(name)}
    of_units = {
        state: sum(counts.get(state, 0) for counts in schedules.values()) for state in JobState
    }
    delayed = tables.delayed_after(now) - of_units[JobState.QUEUED]
    return Stats(
        states={state: sum(c.get(state, 0) for c in jobs.values()) for state in JobState},
        tasks=jobs,
        groups={name: tables.group_counts.of(name) for name in groups[:GROUPS_IN_STATS]},
        groups_total=len(groups),
        oldest_ready_seconds=None if oldest is None else max(0, now - oldest) / MICROSECONDS,
        next_due_at=tables.next_due_at(),
        delayed=min(max(0, delayed), DELAYED_IN_STATS),
        suspects=suspects_of(tables),
        workers=alive,
        paused=paused,
        schedules=schedules,
        paused_schedules=tuple(
            sorted({name for app, name in tables.pauses if tables.own in (None, app)})
        )[:PAUSES_IN_STATS],
    )


def suspects_of(tables: Tables) -> int:
    """How many jobs that calls are about wait to run alone."""
    return sum(tables.sees(tables.jobs[job_id]) for job_id in tables.suspects)


def _recurs(task: str) -> bool:
    return kind_of_name(task) is JobKind.TICK


def outlook_of(
    tables: Tables, run_id: str, others: Collection[WorkerRow], *, paused: bool
) -> Outlook:
    """What is left, and which of it other live workers know."""
    open_by_task: dict[str, dict[JobState, int]] = {}
    tasks = tables.task_counts
    for task in sorted(tasks.by_name):
        counts = tasks.of(task)
        left = {state: counts[state] for state in _OPEN_STATES if state in counts}
        if left:
            open_by_task[task] = left
    return Outlook(
        open_by_task=open_by_task,
        next_due_at=tables.next_due_at(),
        suspects=suspects_of(tables),
        served_elsewhere=frozenset(task for other in others for task in other.info.tasks),
        ended_in_run=dict(tables.ended_by_run.get(run_id, {})),
        paused=paused,
    )


def circumstances_of(tables: Tables, row: JobRow, now: int) -> JobContext:
    """A job with what it waits for."""
    needs = sorted(row.needs, key=lambda need: (need not in row.open, need.parent))
    blamed = None if row.skipped_by is None else tables.jobs.get(row.skipped_by)
    return JobContext(
        job=row.as_job(),
        now=now,
        dependencies=tuple(
            Dependency(
                tables.jobs[need.parent].new.key,
                need.kind,
                tables.jobs[need.parent].public,
                need in row.open,
            )
            for need in needs[:DEPENDENCIES_SHOWN]
        ),
        skipped_by=None if blamed is None else blamed.new.key,
        detached=tuple(
            worker.info.id
            for worker in tables.workers.values()
            for ref in worker.detached
            if ref.id == row.id
        ),
        held=tuple(_held(tables, limit_key) for limit_key in row.new.limit_keys),
    )


def _held(tables: Tables, limit_key: str) -> HeldKey:
    refs = tables.held.get(limit_key, set())
    shown = heapq.nsmallest(HOLDERS_SHOWN, refs)
    return HeldKey(limit_key, len(refs), tuple(_holder(tables, ref) for ref in shown))


def _holder(tables: Tables, ref: JobRef) -> Holder:
    row = tables.jobs[ref.id]
    for worker in tables.workers.values():
        if ref in worker.detached:
            return Holder(row.new.key, worker.info.id, None, detached=True)
    holder = None if row.worker is None else row.worker.info.id
    return Holder(row.new.key, holder, row.updated_at, detached=False)


def jobs_of(tables: Tables, wanted: JobFilter, after_id: JobId, limit: int) -> list[Job]:
    """One page of jobs with an id above `after_id`, by id."""
    ids = tables.ids if wanted.state is None else tables.by_state[wanted.state]
    rows = (tables.jobs[job_id] for job_id in ids.above(after_id))
    chosen = (
        row
        for row in rows
        if wanted.task in (None, row.new.task)
        and (tables.sees(row) if wanted.app is None else row.app == wanted.app)
    )
    return [row.as_job() for row in islice(chosen, limit)]
