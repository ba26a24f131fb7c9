# SPDX-License-Identifier: Apache-2.0
"""Ends leases under their fencing tokens: acknowledged, failed, or released."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import failpoints
from penstock.clock import MICROSECONDS
from penstock.errors import EnqueueRefused
from penstock.model.job import BATCH_JOBS_MAX, JobId, JobKind, JobState, WorkerId
from penstock.model.lease import (
    Effect,
    EnqueueJobs,
    ForgetCalls,
    JobEnd,
    JobFailure,
    JobRef,
    Rearm,
    SetCursor,
    Verdict,
)
from penstock.model.schedule import tried_at
from penstock.stores.sql import slices
from penstock.stores.sql.dependants import note_ended
from penstock.stores.sql.enqueue import enqueue
from penstock.stores.sql.journal import forget_calls, spoil
from penstock.stores.sql.row_state import OF_STATE, RowState
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction, scoped

RETRY = "retry"  # the outcome of an attempt that was not the last


def ack(tx: Transaction, worker: WorkerId, ends: Sequence[JobEnd]) -> list[Verdict]:
    """End jobs under their tokens, with their effects. Runs in a savepoint."""
    alive = tx.alive(worker)
    if alive is None:
        return [_verdict(tx, end.job.id, end.job.token) for end in ends]
    no, run_id = alive
    plain = [end for end in ends if not end.effects]
    if len(plain) == len(ends):
        verdicts = _end_many(tx, no, run_id, plain)
    else:
        verdicts = [
            _end_with_effects(tx, no, run_id, end) if end.effects else _end_one(tx, no, run_id, end)
            for end in ends
        ]
    failpoints.hit("ack.in_tx")
    tx.passed.append("ack.committed")
    return verdicts


def _columns(end: JobEnd) -> tuple[object, ...]:
    job = end.job
    return (
        job.id,
        job.token,
        int(OF_STATE[end.state]),
        end.result,
        None if end.error is None else as_json(end.error),
        end.started_at,
        end.ended_at,
        end.state,
    )


def _end_many(tx: Transaction, no: int, run_id: str, ends: Sequence[JobEnd]) -> list[Verdict]:
    """End many jobs in a few statements; one by one only where one is not ours any more."""
    ended = tx.end_jobs([_columns(end) for end in ends], no)
    if len(ended) == len(ends):
        _after_end(tx, no, run_id, ends)
        return [Verdict.ACCEPTED] * len(ends)
    _after_end(tx, no, run_id, [end for end in ends if end.job.id in ended])
    return [
        Verdict.ACCEPTED if end.job.id in ended else _end_one(tx, no, run_id, end) for end in ends
    ]


def _end_one(tx: Transaction, no: int, run_id: str, end: JobEnd) -> Verdict:
    if not tx.end_job(_columns(end), no):
        return _refused(tx, end.job.id, end.job.token)
    _after_end(tx, no, run_id, [end])
    return Verdict.ACCEPTED


def _after_end(tx: Transaction, no: int, run_id: str, ends: Sequence[JobEnd]) -> None:
    """What follows when jobs have ended: limit keys, dependants, counters."""
    if not ends:
        return
    free_keys(tx, [(end.job.id, end.job.token) for end in ends if end.job.limited])
    for end in ends:
        if end.job.kind is JobKind.TICK:
            tx.units.grown.add(end.job.id)
        tx.move(end.job.lane_id, JobState.IN_PROGRESS, end.state)
        tx.ended_in_run(run_id, end.state)
    note_ended(tx, [end.job.id for end in ends])


def _refused(tx: Transaction, job_id: int, token: int) -> Verdict:
    let_go(tx, JobRef(JobId(job_id), token))
    return _verdict(tx, job_id, token)


def _verdict(tx: Transaction, job_id: int, token: int) -> Verdict:
    row = tx.row("verdict_row", job_id)
    return Verdict.DUPLICATE if row is not None and row[1] == token else Verdict.STALE


def let_go(tx: Transaction, ref: JobRef) -> None:
    """The body of a lease that was detached has ended: nothing is held by it any more."""
    if tx.run("drop_detached", ref.id, ref.token):
        free_keys(tx, [ref])


def free_keys(tx: Transaction, refs: Sequence[tuple[int, int]]) -> None:
    """Leases of limited jobs are over: their keys have room, and parked lanes may try again."""
    if refs:
        tx.free_keys(refs)


def _end_with_effects(tx: Transaction, no: int, run_id: str, end: JobEnd) -> Verdict:
    if not slices.may_write(tx, end.effects):
        return _refused(tx, end.job.id, end.job.token)
    rearm = next((effect for effect in end.effects if isinstance(effect, Rearm)), None)
    if rearm is None:
        verdict = _end_one(tx, no, run_id, end)
    else:
        verdict = _rearm(tx, no, end, rearm)
    if verdict is Verdict.ACCEPTED:
        jobs = sum(len(e.jobs) for e in end.effects if isinstance(e, EnqueueJobs))
        if jobs > BATCH_JOBS_MAX:
            raise EnqueueRefused(
                f"Job {end.job.key!r} enqueues {jobs:,} jobs when it ends; at most "
                f"{BATCH_JOBS_MAX:,} are accepted."
            )
        for effect in end.effects:
            _apply(tx, end, effect)
        slices.apply(tx, end.job.id, end.effects)
    return verdict


def _rearm(tx: Transaction, no: int, end: JobEnd, rearm: Rearm) -> Verdict:
    job = end.job
    if rearm.at <= job.due_at:
        if tx.row("holder_of", job.id, job.token) != (no,):
            return _refused(tx, job.id, job.token)
        raise EnqueueRefused(
            f"Job {job.key!r} cannot be armed again for a time that is not later than its last."
        )
    available_at = tried_at(rearm.at, rearm.period, tx.now)
    due_at = rearm.at if available_at == rearm.at else max(available_at, job.due_at + 1)
    state = RowState.DELAYED if available_at > tx.now else RowState.READY
    moved = tx.run(
        "rearm_job",
        job.id,
        job.token,
        int(state),
        due_at,
        available_at,
        end.result,
        end.started_at,
        end.ended_at,
        no,
    )
    if not moved:
        return _refused(tx, job.id, job.token)
    free_keys(tx, [(job.id, job.token)] if job.limited else [])
    tx.move(job.lane_id, JobState.IN_PROGRESS, JobState.QUEUED)
    _back(tx, job.lane_id, state)
    if job.kind is JobKind.TICK:
        tx.units.ticked(job.id, rearm.missed, end.ended_at, job.due_at)
    return Verdict.ACCEPTED


def _back(tx: Transaction, lane_id: int, row_state: int) -> None:
    """A job of this lane is queued again, ready or for later."""
    if row_state == RowState.READY:
        tx.touch(lane_id)
    tx.made_work = True


def _apply(tx: Transaction, end: JobEnd, effect: Effect) -> None:
    if isinstance(effect, EnqueueJobs):
        enqueue(tx, effect.jobs)
    elif isinstance(effect, SetCursor):
        tx.units.cursors[scoped(tx.app, effect.name)] = effect.value
    elif isinstance(effect, ForgetCalls):
        forget_calls(tx, [end.job.id])


def fail_and_retry(
    tx: Transaction, worker: WorkerId, failures: Sequence[JobFailure]
) -> list[Verdict]:
    """Put jobs back with a delay, or end them in error after their last attempt."""
    alive = tx.alive(worker)
    if alive is None:
        return [_verdict(tx, *failure.ref) for failure in failures]
    verdicts = [fail(tx, *alive, failure) for failure in failures]
    failpoints.hit("ack.in_tx")
    tx.passed.append("ack.committed")
    return verdicts


def fail(tx: Transaction, no: int, run_id: str, failure: JobFailure) -> Verdict:
    """Fail one attempt of a worker: its job is queued again, or ends in error."""
    ref = failure.ref
    again_at = tx.now + round(failure.delay_seconds * MICROSECONDS)
    error = as_json(failure.error)
    row = tx.row(
        "fail_job",
        *ref,
        again_at,
        int(failure.charge),
        int(failure.ends),
        int(failure.crashed),
        error,
        failure.started_at,
        failure.ended_at,
        no,
        tx.now,
    )
    if row is None:
        return _refused(tx, *ref)
    row_state, lane_id, limited, kind = row
    ended = row_state == RowState.ERROR
    outcome = str(JobState.ERROR) if ended else RETRY
    tx.run(
        "write_attempt",
        *ref,
        no,
        outcome,
        failure.started_at,
        failure.ended_at,
        as_json(failure.error.without_traceback()),
    )
    if kind == JobKind.TICK:
        tx.units.failed(ref.id)
    if failure.charge and failure.spoils:
        spoil(tx, failure.spoils)
    if failure.detached:
        tx.run("detach", *ref, no)
    elif limited:
        free_keys(tx, [ref])
    if ended:
        tx.move(lane_id, JobState.IN_PROGRESS, JobState.ERROR)
        tx.ended_in_run(run_id, JobState.ERROR)
        note_ended(tx, [ref.id])
    else:
        tx.move(lane_id, JobState.IN_PROGRESS, JobState.QUEUED)
        _back(tx, lane_id, row_state)
    return Verdict.ACCEPTED


def release(tx: Transaction, worker: WorkerId, refs: Sequence[JobRef]) -> int:
    """Give unstarted jobs back at once, uncharged."""
    alive = tx.alive(worker)
    if alive is None:
        return 0
    count = 0
    freed = []
    for ref in refs:
        row = tx.row("release_job", ref.id, ref.token, alive[0], tx.now)
        if row is None:
            let_go(tx, ref)
            continue
        count += 1
        tx.move(row[0], JobState.IN_PROGRESS, JobState.QUEUED)
        tx.touch(row[0])
        if row[1]:
            freed.append(ref)
    free_keys(tx, freed)
    return count
