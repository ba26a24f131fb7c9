# SPDX-License-Identifier: Apache-2.0
"""What an operator may do to jobs: cancel, revoke, retry."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import KeyOfSeveralApps
from penstock.model.job import AttemptError, ErrorCategory, JobId, JobKind, JobState
from penstock.model.lease import JobRef, Verdict
from penstock.model.views import Retried, Settled
from penstock.stores.protocol import CHORE_SLICE
from penstock.stores.sql.dependants import note_ended, revive_later, settle, total
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
    """Tell and put back a slice of dependants."""
    return Settled(settle(tx), total(tx))


def retry_failed(
    tx: Transaction, task: str | None, max_attempts: int | None, after_id: JobId, app: int | None
) -> Retried:
    """Put one slice of failed jobs back; what was skipped because of them follows in slices."""
    tx.one_at_a_time()
    if settle(tx):  # whoever is not told yet that a job failed cannot be put back
        return Retried(0, total(tx), more=True, last=after_id)
    seen = tx.array("failed_jobs", after_id, task, max_attempts, CHORE_SLICE, app)
    failed = [(job_id, lane_id) for job_id, lane_id, wanted in seen if wanted]
    if failed:
        tx.hold("hold_settling", as_json([job_id for job_id, _ in failed]))
        tx.run("requeue_jobs", as_json(failed), tx.now)
        for _, lane_id in failed:
            tx.move(lane_id, JobState.ERROR, JobState.QUEUED)
            tx.touch(lane_id)
        revive_later(tx, [job_id for job_id, _ in failed])
        left = settle(tx)
    else:
        left = False
    return Retried(
        len(failed),
        total(tx),
        more=left or len(seen) == CHORE_SLICE,
        last=JobId(seen[-1][0]) if seen else after_id,
    )
