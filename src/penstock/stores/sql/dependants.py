# SPDX-License-Identifier: Apache-2.0
"""Tells dependants that a job has ended: they are released, skipped, or put back by a retry.

An ended job with dependants stands in `settling` until all of them are told. Each transaction
tells a bounded number; what is left is durable, and the next transaction of anybody goes on. So is
a retry: first all failed jobs that it means are put back, slice by slice, and then, in the order of
the graph, what was skipped because of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import json

from penstock import failpoints
from penstock.model.job import EdgeKind, JobState
from penstock.stores.protocol import CHORE_SLICE, SETTLE_SLICE
from penstock.stores.sql.enqueue import upstream_error
from penstock.stores.sql.row_state import PUBLIC, RowState
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction

STEP_COST = 4  # what a step costs besides its rows, in rows
FAILED_TOTAL = "retried"  # the fact that counts failed jobs put back, ever
DEPENDANTS_TOTAL = "put_back"  # and the one that counts their dependants
RETRIES = "retries"  # what is asked for: [[task, most attempts, app, id that it has come to], …]


def ask_for_retry(
    tx: Transaction, task: str | None, max_attempts: int | None, app: int | None
) -> None:
    """Note that failed jobs are to be put back, behind what was asked for before."""
    tx.run("write_meta", RETRIES, as_json([*_retries(tx), [task, max_attempts, app, 0]]))


def _retries(tx: Transaction) -> list[list[Any]]:
    asked: list[list[Any]] = json.decode(tx.first("read_meta", RETRIES) or "[]")
    return asked


def _requeue_failed(tx: Transaction, most: int) -> int:
    """Put failed jobs back as is asked for; how many rows are left of `most`, 0 or less if not all.

    No dependant may be put back before: it would not wait for the second end of one that follows.
    """
    asked = _retries(tx)
    if not asked:
        return most
    while asked and most > 0:
        task, max_attempts, app, after = asked[0]
        size = min(most, CHORE_SLICE)
        seen = tx.array("failed_jobs", after, task, max_attempts, size, app)
        retry_these(tx, [(job_id, lane_id) for job_id, lane_id, wanted in seen if wanted])
        failpoints.hit("retry.in_tx")
        if len(seen) < size:
            del asked[0]
        else:
            asked[0][-1] = seen[-1][0]
        most -= len(seen) + STEP_COST
    tx.run("write_meta", RETRIES, as_json(asked))
    return 0 if asked else most


def retry_these(tx: Transaction, failed: Sequence[tuple[int, int]]) -> None:
    """Put failed jobs back, [id, lane]; what was skipped because of them is to follow."""
    if failed:
        requeue(tx, failed, RowState.ERROR)
        revive_later(tx, [job_id for job_id, _ in failed])
        _count(tx, FAILED_TOTAL, len(failed))


def requeue(
    tx: Transaction, jobs: Sequence[tuple[int, int]], ended: RowState, due_at: int | None = None
) -> None:
    """Let jobs that ended so, [id, lane], start afresh; `due_at` is their new time, if any."""
    if not jobs:
        return
    tx.hold("hold_settling", as_json([job_id for job_id, _ in jobs]))
    tx.run("requeue_jobs", as_json(jobs), tx.now, int(ended), due_at)
    for _, lane_id in jobs:
        tx.move(lane_id, PUBLIC[ended], JobState.QUEUED)
        tx.touch(lane_id)


def revive_later(tx: Transaction, job_ids: Iterable[int]) -> None:
    """These jobs were put back; note that what was skipped because of them must be, too."""
    tx.run("revive_later", as_json(list(job_ids)))


def revive(tx: Transaction, most: int) -> bool:
    """Put back what is left to be, about so many rows; True if some is left."""
    count, collected = 0, False
    while most > 0:
        if not collected:
            edges, collected = _collect(tx, most)
            most -= edges
            if not collected:
                continue
        judged = tx.array("next_revivable", max(most, 1))
        if not judged:
            break
        failpoints.hit("revive.in_tx")
        now = _independent(judged)
        put_back, collected = _judge(tx, now)
        count += put_back
        most -= len(now) + STEP_COST
    if count:
        _count(tx, DEPENDANTS_TOTAL, count)
    return bool(tx.value("is_reviving"))


def total(tx: Transaction, fact: str) -> int:
    """How many jobs were put back since the store was made: the failed ones, or dependants."""
    return int(tx.first("read_meta", fact) or 0)


def _count(tx: Transaction, fact: str, more: int) -> None:
    tx.run("write_meta", fact, str(total(tx, fact) + more))


def _collect(tx: Transaction, most: int) -> tuple[int, bool]:
    """Note skipped dependants of jobs that were put back; how many edges, and if these are all."""
    edges = tx.array("edges_of_revived", most)
    hanging = [child for _, child, hangs in edges if hangs]
    if hanging:
        tx.run("judge_later", as_json(hanging))
    if len(edges) < most:
        tx.run("drop_reviving")
        return len(edges), True
    last, child, _ = edges[-1]
    tx.run("drop_reviving_below", last)
    tx.run("collected_to", last, child)
    return len(edges), False


def _independent(judged: Sequence[tuple[int, int | None]]) -> list[int]:
    """The first of these that no other of them can come before; [id, its first dependant]."""
    border = judged[0][1]
    found = []
    for job_id, first_child in judged:
        if border is not None and job_id >= border:
            break
        found.append(job_id)
        if first_child is not None:
            border = first_child if border is None else min(border, first_child)
    return found


def _judge(tx: Transaction, job_ids: Sequence[int]) -> tuple[int, bool]:
    """Put these back, but those that another ended job forbids; how many.

    True if nothing new is to be collected because of it.
    """
    all_ids = as_json(job_ids)
    tx.hold("hold_settling", all_ids)  # whoever tells of one has told it
    tx.hold("hold_parents", all_ids)  # none of them ends between here and the commit
    blamed: dict[int, tuple[int, int, str]] = {}
    for child, parent, row_state, key in tx.array("spoilt_by", all_ids):
        error = as_json(upstream_error(row_state, key))
        blamed.setdefault(child, (child, parent, error))
    if blamed:
        tx.run("blame", as_json(list(blamed.values())))
    tx.run("drop_revivable", all_ids)
    free = [job_id for job_id in job_ids if job_id not in blamed]
    if not free:
        return 0, True
    wanted = as_json(free)
    tx.run("reopen_edges", wanted)
    for _, lane_id, row_state in tx.rows("restore_children", wanted, tx.now):
        tx.move(lane_id, JobState.SKIPPED, PUBLIC[row_state])
        tx.touch(lane_id)
    return len(free), tx.run("revive_later", wanted) == 0


def note_ended(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Jobs have ended: tell those who wait for them."""
    waiting = tx.array("with_dependants", as_json(job_ids))
    if waiting:
        tx.run("settle_later", as_json(waiting))
        _tell(tx, SETTLE_SLICE)


def settle(tx: Transaction) -> bool:
    """Go on telling, then putting back, a bounded number of jobs; True if some are left.

    Nobody is put back before all are told: a job that is skipped and has not told its own
    dependants would be taken for one that did, and a failed one would tell nobody.
    """
    left = _tell(tx, SETTLE_SLICE)
    if left <= 0:
        return bool(tx.value("is_settling")) or bool(tx.value("is_reviving"))
    if not (tx.value("is_reviving") and tx.is_my_turn()):
        return False
    left = _requeue_failed(tx, left)
    return left <= 0 or revive(tx, left)


def _tell(tx: Transaction, most: int) -> int:
    """Tell dependants; how many rows are left of `most`, 0 or less if there may be more to tell."""
    while most > 0:
        ended = tx.array("take_settling", most)
        if not ended:
            break
        edges = tx.array("edges_to_settle", as_json(ended), most)
        all_told = len(edges) < most
        told = ended if all_told else [job_id for job_id in ended if job_id < edges[-1][0]]
        if told:
            tx.run("drop_settling", as_json(told))
        failpoints.hit("settle.in_tx")
        most -= len(edges) + STEP_COST
        if not _tell_some(tx, edges) and all_told and len(ended) < most:
            break
    return most


def _tell_some(tx: Transaction, edges: Sequence[Sequence[Any]]) -> bool:
    """Tell the dependants at these edges, [parent, row_state, key, child, kind]; True: one skipped.

    By parent, lowest first; the first that forbids a dependant is to blame.
    """
    spoilt: dict[int, tuple[int, int, str]] = {}
    for parent, row_state, key, child, kind in edges:
        if row_state != RowState.DONE and kind != EdgeKind.FINISHED and child not in spoilt:
            spoilt[child] = (parent, row_state, key)
    freed = [(parent, child) for parent, _, _, child, _ in edges if child not in spoilt]
    if freed:
        _free(tx, freed)
    if spoilt:
        _skip(tx, spoilt)
    return bool(spoilt)


def _free(tx: Transaction, edges: Sequence[tuple[int, int]]) -> None:
    """Dependants have fewer to wait for; those with none left may run."""
    closed = tx.close_edges(edges)
    children = sorted(Counter(child for _, child in closed).items())
    for _, lane_id, row_state in tx.rows("release_children", as_json(children), tx.now):
        if row_state == RowState.WAITING:
            continue
        tx.move(lane_id, JobState.WAITING, JobState.QUEUED)
        tx.touch(lane_id)


def _skip(tx: Transaction, spoilt: Mapping[int, tuple[int, int, str]]) -> None:
    """Dependants cannot run any more; theirs must be told next."""
    rows = [
        (child, parent, as_json(upstream_error(row_state, key)))
        for child, (parent, row_state, key) in sorted(spoilt.items())
    ]
    skipped = tx.rows("skip_children", as_json(rows), tx.now)
    tx.run("close_edges_of", as_json(list(spoilt)))
    for _, lane_id in skipped:
        tx.move(lane_id, JobState.WAITING, JobState.SKIPPED)
    waiting = tx.array("with_dependants", as_json([id_ for id_, _ in skipped]))
    if waiting:
        tx.run("settle_later", as_json(waiting))
