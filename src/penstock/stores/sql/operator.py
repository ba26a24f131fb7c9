# SPDX-License-Identifier: Apache-2.0
"""What an operator may do to jobs: cancel, revoke, retry, run again."""

from __future__ import annotations

from collections.abc import Sequence

from penstock import failpoints
from penstock.errors import KeyOfSeveralApps
from penstock.model.job import AttemptError, ErrorCategory, JobKind, JobState
from penstock.model.lease import JobRef, Verdict
from penstock.model.views import PutBack, Settled
from penstock.stores.protocol import CALLS_DROPPED
from penstock.stores.sql.dependants import (
    DEPENDANTS_TOTAL,
    FAILED_TOTAL,
    ask_for_retry,
    note_ended,
    requeue,
    retry_these,
    settle,
    total,
)
from penstock.stores.sql.journal import forget_calls
from penstock.stores.sql.row_state import PUBLIC, RowState
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction

OWNER = 25  # the column of `job_rows` that names the app


def refuse_several(key: str, apps: Sequence[str]) -> None:
    """Raise if jobs of this key belong to several apps, and nobody has said which is meant."""
    if len(apps) > 1:
        raise KeyOfSeveralApps(key, tuple(sorted(apps)))


def cancel(tx: Transaction, keys: Sequence[str], app: int | None) -> frozenset[str]:
    """Cancel jobs of an app that have not ended; of any, if only one has such a job."""
    cancelled: dict[str, int] = {}
    for key in keys:
        rows = tx.rows("open_job", key, app)
        if len(rows) > 1:
            refuse_several(key, [found[OWNER] for found in tx.rows("read_job", key, None)])
        if not rows:
            continue
        job_id, lane_id, row_state, token, worker, kind = rows[0]
        tx.run("cancel_job", job_id, tx.now)
        tx.run("close_edges_of", as_json([job_id]))
        if row_state == RowState.IN_PROGRESS:
            outcome = str(JobState.CANCELLED)
            tx.run("write_attempt", job_id, token, worker, outcome, None, tx.now, None)
            tx.run("detach", job_id, token, worker)
            if kind == JobKind.TICK:
                tx.units.grown.add(job_id)
        tx.move(lane_id, PUBLIC[row_state], JobState.CANCELLED)
        if row_state == RowState.READY:
            tx.leave(lane_id)
        cancelled[key] = job_id
    # Dependants learn of it last: one that is cancelled in the same call is cancelled, not skipped.
    note_ended(tx, list(cancelled.values()))
    return frozenset(cancelled)


def revoke(tx: Transaction, ref: JobRef, error: str) -> Verdict:
    """End one lease from outside: the job is ready again, its holder fenced."""
    held = tx.row("holder_of", ref.id, ref.token)
    row = tx.row("revoke_job", ref.id, ref.token, tx.now)
    if row is None or held is None:
        return Verdict.STALE
    lane_id = row[0]
    why = AttemptError(ErrorCategory.OWN, "revoked", error)
    tx.run("write_attempt", ref.id, ref.token, held[0], "revoked", None, tx.now, as_json(why))
    tx.run("detach", *ref, held[0])
    tx.units.grown.add(ref.id)
    tx.move(lane_id, JobState.IN_PROGRESS, JobState.QUEUED)
    tx.touch(lane_id)
    return Verdict.ACCEPTED


def go_on(tx: Transaction) -> Settled:
    """Go on with retries, and tell and put back a slice of dependants."""
    tx.one_at_a_time()
    more = settle(tx)
    return Settled(more, total(tx, FAILED_TOTAL), total(tx, DEPENDANTS_TOTAL))


def retry_failed(
    tx: Transaction, task: str | None, max_attempts: int | None, app: int | None
) -> Settled:
    """Ask for failed jobs to be put back, and begin with it."""
    ask_for_retry(tx, task, max_attempts, app)
    return go_on(tx)


def retry(tx: Transaction, keys: Sequence[str], app: int | None) -> PutBack:
    """Put the failed jobs of these keys back; what was skipped because of them follows."""
    tx.one_at_a_time()
    if settle(tx):  # whoever is not told yet that a job failed cannot be put back
        return PutBack(frozenset(), more=True)
    failed = _named(tx, keys, RowState.ERROR, app, None)
    retry_these(tx, [*failed.values()])
    return PutBack(frozenset(failed), more=settle(tx))


def rerun(tx: Transaction, keys: Sequence[str], app: int | None, *, fresh: bool) -> PutBack:
    """Let the done jobs of these keys run again; those that wait for them were told before.

    Fresh: what they bought is forgotten. They are meant for another time from now on, so that no
    provider takes a call of theirs for one that it has served.
    """
    tx.one_at_a_time()
    if settle(tx):
        return PutBack(frozenset(), more=True)
    done = _named(tx, keys, RowState.DONE, app, JobKind.JOB)
    if fresh and forget_calls(tx, [job_id for job_id, _ in done.values()]) == CALLS_DROPPED:
        return PutBack(frozenset(), more=True)  # they may have more
    failpoints.hit("rerun.in_tx")
    requeue(tx, [*done.values()], RowState.DONE, tx.now if fresh else None)
    return PutBack(frozenset(done), more=False)


def _named(
    tx: Transaction, keys: Sequence[str], state: RowState, app: int | None, kind: JobKind | None
) -> dict[str, tuple[int, int]]:
    """Jobs of these keys in a state, of no plan: id and lane by key."""
    found: dict[str, tuple[int, int]] = {}
    apps: dict[str, list[str]] = {}
    wanted = as_json(list(dict.fromkeys(keys)))
    for key, job_id, lane_id, owner in tx.array("named_jobs", wanted, int(state), app, kind):
        found[key] = job_id, lane_id
        apps.setdefault(key, []).append(owner)
    for key, owners in apps.items():
        refuse_several(key, owners)
    return found
