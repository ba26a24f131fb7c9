# SPDX-License-Identifier: Apache-2.0
"""Takes back the jobs of dead workers; a poison job runs alone, then ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock import failpoints
from penstock.clock import MICROSECONDS
from penstock.model.job import AttemptError, ErrorCategory, JobId, JobState, WorkerId
from penstock.model.lease import JobFailure, JobRef
from penstock.model.views import Progress
from penstock.stores.protocol import LOSSES_BEFORE_SOLO, MAX_CRASHES_BY_EXPIRY, SWEEP_SLICE
from penstock.stores.sql.ack import fail, free_keys, let_go
from penstock.stores.sql.dependants import note_ended
from penstock.stores.sql.row_state import RowState
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction

WORKER_ROWS_KEPT_SECONDS = 24 * 3600
SWEEP_WORKERS = 16  # expired workers that one lease call looks at


@dataclass(frozen=True, slots=True)
class _Fate:
    """How the jobs of a worker that is gone are judged."""

    started: frozenset[JobRef] = field(default_factory=frozenset)
    cause: str = ""
    max_crashes: int = MAX_CRASHES_BY_EXPIRY
    died: bool = False  # it did not end in good order
    expired: bool = False  # nobody saw the end: anything it held may have been running
    same_boot: bool = True  # False: the whole machine went down; that is no job's fault


def sweep(tx: Transaction) -> bool:
    """Take back what expired workers held, a slice; True if some is left."""
    budget = SWEEP_SLICE
    expired = tx.rows("expired_workers", tx.boot.boot_id, tx.boot.at, SWEEP_WORKERS)
    for no, same_boot, run_id in expired:
        failpoints.hit("sweep.in_tx")
        fate = _Fate(cause="its lease expired", died=True, expired=True, same_boot=bool(same_boot))
        count = _take_back(tx, no, run_id, fate, budget)
        budget -= count
        if budget <= 0:
            return True
        _end_worker(tx, no)
    return len(expired) == SWEEP_WORKERS


def reap(
    tx: Transaction,
    worker: WorkerId,
    started: Sequence[JobRef],
    cause: str,
    max_crashes: int,
    overdue: Sequence[JobFailure],
) -> Progress:
    """End a worker whose death was seen; unstarted jobs are ready again, started ones suspect."""
    row = tx.row("worker_no", worker)
    if row is None:
        return Progress(0, more=False)
    failpoints.hit("reap.in_tx")
    for failure in overdue:
        fail(tx, row[0], row[1], failure)
    fate = _Fate(frozenset(started), cause, max_crashes, died=True)
    count = _take_back(tx, row[0], row[1], fate, SWEEP_SLICE)
    if count < SWEEP_SLICE:
        _end_worker(tx, row[0])
    return Progress(count, more=count == SWEEP_SLICE)


def retire(tx: Transaction, worker: WorkerId) -> Progress:
    """End a worker that stops cleanly."""
    row = tx.row("worker_no", worker)
    if row is None:
        return Progress(0, more=False)
    count = _take_back(tx, row[0], row[1], _Fate(), SWEEP_SLICE)
    if count < SWEEP_SLICE:
        _end_worker(tx, row[0])
    return Progress(count, more=count == SWEEP_SLICE)


def _end_worker(tx: Transaction, no: int) -> None:
    for job_id, token in tx.rows("detached_of", no):  # no more than it had slots
        let_go(tx, JobRef(job_id, token))
    tx.run("end_worker", no, tx.now)
    tx.run("forget_workers", tx.now - WORKER_ROWS_KEPT_SECONDS * MICROSECONDS)
    tx.forget_alive()


def _take_back(tx: Transaction, no: int, run_id: str, fate: _Fate, most: int) -> int:
    leased = tx.array("leased_by", no, most)
    back: list[tuple[int, int, int, int]] = []
    freed: list[tuple[int, int]] = []
    crashed: list[tuple[int, int, int, int]] = []
    for job_id, token, solo, lane_id, losses, crashes, limited in leased:
        ran_alone = bool(solo) and (fate.expired or JobRef(job_id, token) in fate.started)
        if solo and fate.died and not ran_alone:
            # Its body had ended, or not begun; but again and again is no chance.
            losses += 1
            if losses >= LOSSES_BEFORE_SOLO:
                ran_alone, losses = True, 0
        if ran_alone and fate.same_boot:
            crashes += 1
        if ran_alone and fate.same_boot and crashes >= fate.max_crashes:
            crashed.append((job_id, token, lane_id, crashes))
        else:
            ref = JobRef(job_id, token)
            state, losses = _judge(fate, ref, bool(solo), losses)
            if ran_alone and fate.same_boot:
                _write(tx, ref, no, "crashed", _crash(crashes, fate.cause))
            elif fate.expired or ref in fate.started:
                _write(tx, ref, no, "lost", _loss(fate.cause))
            back.append((job_id, int(state), losses, crashes))
            tx.move(lane_id, JobState.IN_PROGRESS, JobState.QUEUED)
            tx.touch(lane_id)
        if limited:
            freed.append((job_id, token))
    if back:
        tx.run("take_back", as_json(back), tx.now)
        tx.made_work = True
    for job_id, token, lane_id, crashes in crashed:
        error = _crash(crashes, fate.cause)
        tx.run("end_crashed", job_id, as_json(error), crashes, tx.now)
        _write(tx, JobRef(JobId(job_id), token), no, str(JobState.ERROR), error)
        tx.move(lane_id, JobState.IN_PROGRESS, JobState.ERROR)
        tx.ended_in_run(run_id, JobState.ERROR)
        note_ended(tx, [job_id])
    free_keys(tx, freed)
    return len(leased)


def _judge(fate: _Fate, ref: JobRef, solo: bool, losses: int) -> tuple[RowState, int]:
    """Where a job goes whose worker is gone."""
    if solo or ref in fate.started:
        return RowState.SUSPECT, losses
    if not fate.died:
        return RowState.READY, 0
    if not fate.same_boot:
        return RowState.READY, losses
    losses += 1
    return (RowState.SUSPECT if losses >= LOSSES_BEFORE_SOLO else RowState.READY), losses


def _crash(crashes: int, cause: str) -> AttemptError:
    times = "once" if crashes == 1 else f"{crashes} times"
    return AttemptError(
        ErrorCategory.CRASHED,
        "crashed",
        f"the worker died {times} while this job ran alone: {cause}",
    )


def _loss(cause: str) -> AttemptError:
    return AttemptError(ErrorCategory.CRASHED, "lost", cause)


def _write(tx: Transaction, ref: JobRef, no: int, outcome: str, error: AttemptError) -> None:
    tx.run("write_attempt", ref.id, ref.token, no, outcome, None, tx.now, as_json(error))
    tx.units.grown.add(ref.id)
