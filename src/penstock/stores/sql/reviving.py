# SPDX-License-Identifier: Apache-2.0
"""Who is put back when a failed job is tried again?

A job that was put back stands in `reviving` until its skipped dependants are collected, and each
of those in `revivable` until it is judged. Both are durable: a transaction does a bounded part, and
the next one of anybody goes on. Dependants are judged by id, lowest first, and only when all that
could come before them are collected: ids grow from parents to dependants, so each sees what has
become of all that it waits for. What was judged may have run meanwhile, or failed again; only
what stands in the rows counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock import failpoints
from penstock.model.job import JobState
from penstock.stores.sql.enqueue import upstream_error
from penstock.stores.sql.row_state import PUBLIC
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction

STEP_COST = 4  # what a step costs besides its rows, in rows
TOTAL = "put_back"  # the fact that counts dependants put back, ever


def revive_later(tx: Transaction, job_ids: Iterable[int]) -> None:
    """These jobs were put back; what was skipped because of them shall be, too."""
    tx.run("revive_later", as_json(list(job_ids)))


def revive(tx: Transaction, budget: int) -> bool:
    """Put back what is left to be, as far as the budget goes; True if some is left."""
    count, collected = 0, False
    while budget > 0:
        if not collected:
            edges, collected = _collect(tx, budget)
            budget -= edges
            if not collected:
                continue
        judged = tx.array("next_revivable", max(budget, 1))
        if not judged:
            break
        failpoints.hit("revive.in_tx")
        now = _independent(judged)
        put_back, collected = _judge(tx, now)
        count += put_back
        budget -= len(now) + STEP_COST
    if count:
        tx.run("write_meta", TOTAL, str(total(tx) + count))
    return bool(tx.value("is_reviving"))


def total(tx: Transaction) -> int:
    """How many dependants were put back since the store was made."""
    row = tx.row("read_meta", TOTAL)
    return int(row[0]) if row else 0


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
