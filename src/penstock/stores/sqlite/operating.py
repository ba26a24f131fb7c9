# SPDX-License-Identifier: Apache-2.0
"""What may an operator do to jobs: cancel, revoke, retry, purge?"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from penstock.model.job import AttemptError, ErrorCategory, JobId, JobState
from penstock.model.lease import JobRef, Verdict
from penstock.model.views import Progress
from penstock.stores.row_state import PUBLIC, RowState
from penstock.stores.sqlite.enqueueing import upstream_error
from penstock.stores.sqlite.settling import note_ended
from penstock.stores.sqlite.transaction import Transaction, as_json
from penstock.stores.store import CHORE_SLICE


def cancel(tx: Transaction, keys: Sequence[str]) -> frozenset[str]:
    """Cancel jobs that have not ended."""
    cancelled: dict[str, int] = {}
    for key in keys:
        row = tx.row("open_job", key)
        if row is None:
            continue
        job_id, lane_id, row_state, token, worker = row
        tx.run("cancel_job", job_id, tx.now)
        tx.run("close_edges_of", as_json([job_id]))
        if row_state == RowState.IN_PROGRESS:
            outcome = str(JobState.CANCELLED)
            tx.run("write_attempt", job_id, token, worker, outcome, None, tx.now, None)
            tx.run("linger", job_id, token, worker)
        tx.move(lane_id, PUBLIC[row_state], JobState.CANCELLED)
        tx.touch(lane_id)
        cancelled[key] = job_id
    # Dependants learn of it last: one that is cancelled in the same call is cancelled, not skipped.
    note_ended(tx, as_json([(job_id,) for job_id in cancelled.values()]))
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
    tx.run("linger", *ref, held[0])
    tx.move(lane_id, JobState.IN_PROGRESS, JobState.QUEUED)
    tx.touch(lane_id)
    return Verdict.ACCEPTED


def retry_failed(
    tx: Transaction, task: str | None, max_attempts: int | None, after_id: JobId
) -> tuple[Progress, JobId]:
    """Put one slice of failed jobs back, with what was skipped because of them."""
    failed = tx.array("failed_jobs", after_id, task, max_attempts, CHORE_SLICE)
    if not failed:
        return Progress(0, more=False), after_id
    tx.run("requeue_jobs", as_json(failed), tx.now)
    for _, lane_id in failed:
        tx.move(lane_id, JobState.ERROR, JobState.QUEUED)
        tx.touch(lane_id)
    restored = _restore(tx, [job_id for job_id, _ in failed])
    last = JobId(failed[-1][0])
    return Progress(len(failed) + restored, more=len(failed) == CHORE_SLICE), last


def _restore(tx: Transaction, causes: Sequence[int]) -> int:
    """Put back what was skipped because of these jobs.

    In the order of ids, in which parents come before their dependants: so each one sees what has
    become of all that it waits for.
    """
    heap = _skipped_because(tx, causes)
    heapify(heap)
    count, last = 0, 0
    while heap:
        job_id = heappop(heap)
        if job_id == last:
            continue
        last = job_id
        only = as_json([job_id])
        spoilt = tx.array("spoilt_by", only)
        if spoilt:
            _, parent, row_state, key = spoilt[0]
            tx.run("blame", job_id, parent, as_json(upstream_error(row_state, key)))
            continue
        tx.run("reopen_edges", only)
        for _, lane_id, row_state in tx.rows("restore_children", only, tx.now):
            tx.move(lane_id, JobState.SKIPPED, PUBLIC[row_state])
            tx.touch(lane_id)
        count += 1
        for child in _skipped_because(tx, [job_id]):
            heappush(heap, child)
    return count


def _skipped_because(tx: Transaction, causes: Sequence[int]) -> list[int]:
    return [job_id for job_id, _ in tx.array("skipped_because", as_json(causes))]


def purge(tx: Transaction, before: int) -> Progress:
    """Forget one slice of jobs that ended long ago."""
    old = tx.array("purgeable", before, CHORE_SLICE)
    if not old:
        return Progress(0, more=False)
    rows = as_json(old)
    tx.run("note_purged", rows)
    tx.run("purge_history", rows)
    tx.run("purge_edges_to", rows)
    tx.run("purge_edges_from", rows)
    tx.run("purge_jobs", rows)
    lanes = {lane_id for _, lane_id, _ in old}
    groups = {group for _, _, group in tx.array("lane_names", as_json(sorted(lanes)))}
    for _, lane_id, row_state in old:
        tx.move(lane_id, PUBLIC[row_state], None)
    tx.flush_counts()
    tx.flush_heads()
    states = as_json(list(JobState))
    tx.run("purge_lanes", as_json(sorted(lanes)), states)
    tx.run("purge_group_counts", as_json(sorted(groups)), states)
    return Progress(len(old), more=len(old) == CHORE_SLICE)
