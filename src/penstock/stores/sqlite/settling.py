# SPDX-License-Identifier: Apache-2.0
"""Who learns that a job has ended, and what follows for them?

An ended job with dependants stands in `settling` until all of them are told. Each transaction
tells a bounded number; what is left is durable, and the next transaction of anybody goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock import failpoints
from penstock.model.job import EdgeKind, JobState
from penstock.stores.row_state import RowState
from penstock.stores.sqlite.enqueueing import upstream_error
from penstock.stores.sqlite.reviving import STEP_COST, revive
from penstock.stores.sqlite.transaction import Transaction, as_json
from penstock.stores.store import SETTLE_SLICE


def note_ended(tx: Transaction, ids_json: str) -> None:
    """Jobs have ended; `ids_json` = [[id, …], …]. Tell those who wait for them."""
    waiting = tx.array("with_dependants", ids_json)
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
    return bool(tx.value("is_reviving")) and revive(tx, left)


def _tell(tx: Transaction, budget: int) -> int:
    """Tell dependants; what is left of the budget, 0 or less if there may be more to tell."""
    while budget > 0:
        row = tx.row("next_settling")
        if row is None:
            break
        job_id, row_state, key = row
        children = tx.array("open_dependants", job_id, budget)
        if not children:
            tx.run("drop_settling", job_id)
            continue
        failpoints.hit("settle.in_tx")
        budget -= len(children) + STEP_COST
        done = row_state == RowState.DONE
        freed = [child for child, kind in children if done or kind == EdgeKind.FINISHED]
        spoilt = [child for child, kind in children if not (done or kind == EdgeKind.FINISHED)]
        if freed:
            _free(tx, job_id, freed)
        if spoilt:
            _skip(tx, job_id, row_state, key, spoilt)
    return budget


def _free(tx: Transaction, parent_id: int, children: Sequence[int]) -> None:
    wanted = as_json(children)
    tx.run("close_edges", parent_id, wanted)
    for _, lane_id, row_state in tx.rows("release_children", wanted, tx.now):
        if row_state == RowState.WAITING:
            continue
        tx.move(lane_id, JobState.WAITING, JobState.QUEUED)
        tx.touch(lane_id)


def _skip(
    tx: Transaction, parent_id: int, parent_state: int, parent_key: str, children: Sequence[int]
) -> None:
    error = as_json(upstream_error(parent_state, parent_key))
    skipped = tx.rows("skip_children", as_json(children), tx.now, parent_id, error)
    tx.run("close_edges_of", as_json(children))
    for _, lane_id in skipped:
        tx.move(lane_id, JobState.WAITING, JobState.SKIPPED)
    waiting = tx.array("with_dependants", as_json([(id_,) for id_, _ in skipped]))
    if waiting:
        tx.run("settle_later", as_json(waiting))
