# SPDX-License-Identifier: Apache-2.0
"""Begins, adopts, ends and cancels plans of builds, with their jobs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import failpoints
from penstock.clock import MICROSECONDS, BootTime
from penstock.model.dataset import BUILD
from penstock.model.job import START, JobState
from penstock.model.plan import LocksTaken, LockView, PlanRow
from penstock.model.views import Progress
from penstock.stores.protocol import CHORE_SLICE
from penstock.stores.sql.dependants import note_ended
from penstock.stores.sql.row_state import PUBLIC, RowState
from penstock.stores.sql.statements import Row, Statements, as_json
from penstock.stores.sql.transaction import Transaction


def take_locks(
    tx: Transaction,
    names: Sequence[str],
    run_id: str,
    mark: str,
    ttl_seconds: float,
    gone: Sequence[str],
) -> LocksTaken:
    """All or none; who loses one loses all of his, and his open plans are left."""
    tx.locks_alone()
    wanted = sorted(set(names))
    known = [_view(row) for row in tx.array("hold_locks", as_json(wanted), *_boot(tx.boot))]
    others = [lock for lock in known if lock.name in wanted and lock.run_id != run_id]
    held = [lock for lock in others if lock.alive and lock.mark not in gone]
    if held:
        return LocksTaken(taken=False, held=tuple(held))
    left: tuple[str, ...] = ()
    if others:
        left = free_all(tx, sorted({lock.run_id for lock in others}))
    if wanted:
        until = _until(tx, ttl_seconds)
        tx.run("take_locks", as_json(wanted), run_id, mark, tx.boot.boot_id, until, tx.now)
    failpoints.hit("lock.in_tx")
    return LocksTaken(taken=True, left=left)


def _boot(boot: BootTime) -> tuple[str, int]:
    return boot.boot_id, boot.at


def _until(tx: Transaction, ttl_seconds: float) -> int:
    return tx.boot.at + round(ttl_seconds * MICROSECONDS)


def free_all(tx: Transaction, runs: Sequence[str]) -> tuple[str, ...]:
    """These runs hold nothing any more; the plans that are left by it."""
    wanted = as_json(runs)
    tx.plans_change()
    tx.run("free_locks", wanted)
    return tuple(sorted(plan_id for (plan_id,) in tx.rows("leave_plans", wanted)))


def beat_locks(tx: Transaction, run_id: str, ttl_seconds: float) -> bool:
    """Renew what a run holds; False if that is nothing."""
    renewed = tx.run("beat_locks", run_id, tx.boot.boot_id, _until(tx, ttl_seconds))
    failpoints.hit("lock.in_tx")
    return renewed > 0


def release_locks(tx: Transaction, run_id: str, names: Sequence[str]) -> None:
    """Free some of a run's locks; without any its open plans are left."""
    tx.locks_alone()
    tx.run("release_locks", run_id, as_json(sorted(set(names))))
    if not tx.value("has_lock", run_id):
        free_all(tx, [run_id])


def void_locks(tx: Transaction, above: int) -> None:
    """Nobody holds anything any more, and every plan that was on its way is left."""
    tx.locks_alone()
    tx.plans_change()
    tx.run("void_locks", above)
    tx.run("leave_all_plans")


def locks_of(reader: Statements, boot: BootTime) -> list[LockView]:
    return [_view(row) for row in reader.array("list_locks", *_boot(boot))]


def _view(row: Row) -> LockView:
    name, run_id, mark, token, taken_at, alive = row
    return LockView(
        name=name, run_id=run_id, mark=mark, token=token, taken_at=taken_at, alive=bool(alive)
    )


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
    row = tx.row("open_job", f"{BUILD}{plan_id}:start", tx.app)
    if row is not None and row[2] in _QUEUED:
        job_id, lane_id, row_state, *_ = row
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
            tx.run("detach", job_id, token, worker)
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
