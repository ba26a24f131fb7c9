# SPDX-License-Identifier: Apache-2.0
"""Who learns that a job has ended, and what follows for them?

An ended job with dependants stands in `settling` until all of them are told. Each transaction
tells a bounded number; what is left is durable, and the next transaction of anybody goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import failpoints
from penstock.model.job import EdgeKind, JobState
from penstock.stores.protocol import SETTLE_SLICE
from penstock.stores.sql.enqueue import upstream_error
from penstock.stores.sql.reviving import STEP_COST, revive
from penstock.stores.sql.row_state import RowState
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction


def note_ended(tx: Transaction, job_ids: Sequence[int]) -> None:
    """Jobs have ended: tell those who wait for them."""
    waiting = tx.array("with_dependants", as_json(job_ids))
    if waiting:
        tx.run("settle_later", as_json(waiting))
        _tell(tx, SETTLE_SLICE)


def settle(tx: Transaction) -> bool:
    """Go on telling, then putting back, a bounded number of dependants; True if some are left.

    Nobody is put back before all are told: a job that is skipped and has not told its own
    dependants would be taken for one that did.
    """
    left = _tell(tx, SETTLE_SLICE)
    if left <= 0:
        return bool(tx.value("is_settling")) or bool(tx.value("is_reviving"))
    return bool(tx.value("is_reviving")) and tx.is_my_turn() and revive(tx, left)


def _tell(tx: Transaction, budget: int) -> int:
    """Tell dependants; what is left of the budget, 0 or less if there may be more to tell."""
    while budget > 0:
        ended = tx.array("take_settling", budget)
        if not ended:
            break
        edges = tx.array("edges_to_settle", as_json(ended), budget)
        all_told = len(edges) < budget
        told = ended if all_told else [job_id for job_id in ended if job_id < edges[-1][0]]
        if told:
            tx.run("drop_settling", as_json(told))
        failpoints.hit("settle.in_tx")
        budget -= len(edges) + STEP_COST
        if not _tell_some(tx, edges) and all_told and len(ended) < budget:
            break
    return budget


def _tell_some(tx: Transaction, edges: Sequence[Sequence[Any]]) -> bool:
    """Tell the dependants at these edges, [parent, row_state, key, child, kind]; was any skipped?

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
