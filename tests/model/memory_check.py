# SPDX-License-Identifier: Apache-2.0
"""Which invariants of the memory store are broken?

Counts everything anew and compares: for tests only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from penstock.model.job import JobState
from penstock.model.lease import JobRef
from penstock.stores.sql.row_state import RowState
from tests.model.memory_index import Counts
from tests.model.memory_rows import JobRow, Tables

T = TypeVar("T")


def broken_invariants(tables: Tables) -> list[str]:
    """Say every broken invariant in a sentence."""
    found = [sentence for row in tables.jobs.values() for sentence in _row(tables, row)]
    return found + list(_indexes(tables)) + list(_counters(tables))


def _row(tables: Tables, row: JobRow) -> Iterator[str]:
    name = f"job {row.new.key!r} ({row.state.name.lower()})"
    held = row.state is RowState.IN_PROGRESS
    if held != (row.worker is not None):
        yield f"{name} has worker {row.worker and row.worker.info.id}"
    if row.worker is not None and row.worker.jobs.get(row.id) is not row:
        yield f"{name} is not among what its worker holds"
    if row.solo and row.state not in (RowState.IN_PROGRESS, RowState.SUSPECT):
        yield f"{name} is solo although nobody may run it alone"
    waits = row.state is RowState.WAITING and row.id not in tables.units
    if bool(row.open) != waits:
        yield f"{name} has {len(row.open)} open edges"
    if not row.open <= row.needs:
        yield f"{name} has an open edge that is no edge"
    if (row.finished_at is not None) != row.terminal:
        yield f"{name} has finished_at {row.finished_at}"
    if row.skipped_by is not None and row.state is not RowState.SKIPPED:
        yield f"{name} says what it was skipped by"
    for need in row.needs:
        parent = tables.jobs.get(need.parent)
        if parent is None or (row.id, need.kind) not in parent.children:
            yield f"{name} has an edge that its parent {need.parent} does not know"
        elif need in row.open and parent.terminal:
            yield f"{name} was not told that {parent.new.key!r} ended"
    tokens = [attempt.token for attempt in row.history]
    if tokens != sorted(set(tokens)) or (tokens and tokens[-1] > row.token):
        yield f"{name} has tokens {tokens} in its history, and now {row.token}"


def _indexes(tables: Tables) -> Iterator[str]:
    rows = list(tables.jobs.values())
    yield from _same("ids", list(tables.ids), sorted(tables.jobs))
    keys = {(app, key): row for app, of in tables.keys.items() for key, row in of.items()}
    yield from _same("keys", keys, {(row.app, row.new.key): row for row in rows})
    yield from _same(
        "apps of lanes", {row.id: row.lane.app for row in rows}, {r.id: r.app for r in rows}
    )
    for state in JobState:
        ids = sorted(row.id for row in rows if row.public is state)
        yield from _same(f"jobs in {state}", list(tables.by_state[state]), ids)
    of = {state: [row for row in rows if row.state is state] for state in RowState}
    due = sorted((row.available_at, row.id) for row in of[RowState.DELAYED])
    yield from _same("delayed jobs", list(tables.delayed), due)
    suspects = sorted(row.id for row in of[RowState.SUSPECT])
    yield from _same("suspects", list(tables.suspects), suspects)
    ended = sorted((row.finished_at, row.id) for row in rows if row.finished_at is not None)
    yield from _same("ended jobs", list(tables.ended), ended)
    for lane in tables.lanes.values():
        turns = sorted(row.turn for row in of[RowState.READY] if row.lane is lane)
        yield from _same(f"ready jobs of lane {lane.id}", list(lane.ready), turns)
        listed = tables.ready_lanes.get(lane.group, {}).get(lane.id) is lane
        yield from _same(f"lane {lane.id} among the ready ones", listed, bool(turns))
        jobs = sum(row.lane is lane for row in rows)
        yield from _same(f"jobs of lane {lane.id}", lane.jobs, jobs)
    held: dict[str, set[JobRef]] = {}
    for row in of[RowState.IN_PROGRESS]:
        for key in row.new.limit_keys:
            held.setdefault(key, set()).add(row.ref)
    for worker in tables.workers.values():
        for ref, limit_keys in worker.detached.items():
            for key in limit_keys:
                held.setdefault(key, set()).add(ref)
    yield from _same("held limit keys", tables.held, held)
    leased = {job_id for worker in tables.workers.values() for job_id in worker.jobs}
    yield from _same("leased jobs", leased, {row.id for row in of[RowState.IN_PROGRESS]})


def _counters(tables: Tables) -> Iterator[str]:
    rows = tables.jobs.values()
    by_task = Counter((row.app, row.new.task, row.public) for row in rows)
    by_group = Counter((row.new.group, row.public) for row in rows)
    kept = {
        (app, *key): count
        for app, counts in tables.counts.items()
        for key, count in _flat(counts).items()
    }
    yield from _same("jobs by task", kept, by_task)
    yield from _same("jobs by group", _flat(tables.group_counts), by_group)


def _flat(counts: Counts) -> dict[tuple[str, JobState], int]:
    return {
        (name, state): count
        for name, counter in counts.by_name.items()
        for state, count in counter.items()
    }


def _same(what: str, kept: T, counted: T) -> Iterator[str]:
    if kept != counted:
        yield f"{what}: kept {kept}, counted {counted}"
