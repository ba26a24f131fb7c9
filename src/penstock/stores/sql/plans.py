# SPDX-License-Identifier: Apache-2.0
"""How do plans begin, go on and end, and what becomes of their jobs?"""

from __future__ import annotations

from penstock import failpoints
from penstock.model.dataset import BUILD, START
from penstock.model.job import JobState
from penstock.model.lock import PlanRow
from penstock.model.views import Progress
from penstock.stores.protocol import CHORE_SLICE
from penstock.stores.sql.dependants import note_ended
from penstock.stores.sql.locking import free_all
from penstock.stores.sql.row_state import PUBLIC, RowState
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction

_QUEUED = (RowState.DELAYED, RowState.READY, RowState.SUSPECT)


def add_plan(tx: Transaction, plan: PlanRow) -> bool:
    """Keep a draft."""
    row = (plan.id, plan.app, plan.digest, plan.run_id, plan.root, plan.document, plan.levels)
    return tx.run("add_plan", *row, plan.jobs, tx.now) > 0


def begin_plan(tx: Transaction, plan_id: str, run_id: str) -> bool:
    """All its jobs are there: what they wait for ends, and the first of them may run."""
    tx.plans_change()
    if not tx.run("begin_plan", plan_id, run_id, tx.now):
        return False
    row = tx.row("open_job", f"{BUILD}{plan_id}:start")
    if row is not None and row[2] in _QUEUED:
        job_id, lane_id, row_state, _, _ = row
        if tx.lane_names([lane_id])[lane_id][0] == START:
            tx.run("finish_job", job_id, tx.now)
            tx.move(lane_id, JobState.QUEUED, JobState.DONE)
            if row_state == RowState.READY:
                tx.leave(lane_id)
            note_ended(tx, [job_id])
    failpoints.hit("plan.in_tx")
    return True


def adopt_plan(tx: Transaction, plan_id: str, run_id: str) -> bool:
    """A plan that was left after it had begun goes on."""
    tx.plans_change()
    changed = tx.run("adopt_plan", plan_id, run_id) > 0
    failpoints.hit("plan.in_tx")
    return changed


def end_plan(tx: Transaction, plan_id: str) -> None:
    """A running plan is over, and its run holds nothing more, unless for another plan."""
    tx.locks_alone()
    tx.plans_change()
    ended = tx.row("end_plan", plan_id, tx.now)
    if ended is not None and not tx.value("has_open_plan", ended[0]):
        free_all(tx, [ended[0]])
    failpoints.hit("plan.in_tx")


def abandon_plan(tx: Transaction, plan_id: str) -> None:
    """It changes nothing more."""
    tx.plans_change()
    tx.run("abandon_plan", plan_id, tx.now)
    failpoints.hit("plan.in_tx")


def cancel_plan(tx: Transaction, plan_id: str) -> Progress:
    """Cancel a slice of open jobs, the newest first: what waits goes before what it waits for."""
    found = tx.array("open_jobs_of_plan", plan_id, CHORE_SLICE + 1)
    rows = sorted(found, reverse=True)[:CHORE_SLICE]
    ids = [row[0] for row in rows]
    if ids:
        tx.run("cancel_jobs", as_json(ids), tx.now)
        tx.run("close_edges_of", as_json(ids))
    for job_id, lane_id, row_state, token, worker in rows:
        if row_state == RowState.IN_PROGRESS:
            outcome = str(JobState.CANCELLED)
            tx.run("write_attempt", job_id, token, worker, outcome, None, tx.now, None)
            tx.run("linger", job_id, token, worker)
        tx.move(lane_id, PUBLIC[row_state], JobState.CANCELLED)
        if row_state == RowState.READY:
            tx.leave(lane_id)
    note_ended(tx, ids)
    return Progress(len(ids), more=len(found) > CHORE_SLICE)


def purge_plans(tx: Transaction, before: int) -> None:
    """Forget plans that were over before a time, and have neither jobs nor staged slices."""
    tx.flush_slices()
    old = as_json(tx.array("old_plans", before, CHORE_SLICE))
    if old != "[]":
        tx.run("purge_commits", old)
        tx.run("purge_plans", old)
