# SPDX-License-Identifier: Apache-2.0
"""What does an end do to the slices of datasets, and how are they tidied up?"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.effects import CommitLevel, Effect, StageManifest
from penstock.model.job import JobId
from penstock.model.lock import PlanState
from penstock.model.views import Progress
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction


def own_name(tx: Transaction, proposed: str) -> str:
    """What the roots of this store know it by."""
    tx.run("name_store", proposed)
    return str(tx.value("read_meta", "own_name"))


def may_write(tx: Transaction, effects: Sequence[Effect]) -> bool:
    """Are the plans of all slices and levels among these effects running, until the commit?"""
    known = tx.slices.may_write
    for effect in effects:
        if not isinstance(effect, StageManifest | CommitLevel):
            continue
        place = (effect.plan_id, effect.level)
        if place not in known:
            row = tx.row("plan_at", *place)
            known[place] = row is not None and row[0] == PlanState.RUNNING
            if row is not None and row[1]:
                tx.slices.committed.add(place)
        if not known[place]:
            return False
    return True


def apply(tx: Transaction, job_id: JobId, effects: Sequence[Effect]) -> None:
    """Note what an accepted end does to slices; it is written before the commit."""
    staged = [effect for effect in effects if isinstance(effect, StageManifest)]
    levels = [effect for effect in effects if isinstance(effect, CommitLevel)]
    if staged:
        tx.slices.staged(job_id, staged)
        tx.passed.append("dataset.staged")
    for level in levels:
        tx.slices.commits(level)
        tx.passed.append("dataset.level_committed")


def tidy(tx: Transaction, limit: int) -> Progress:
    """Write numbers into rows of committed levels; forget what is superseded, and what was left."""
    tx.one_at_a_time()
    tx.flush_slices()
    found = tx.array("untidy_slices", limit + 1)
    rows = found[:limit]
    numbered = as_json([(row_id, dataset, at, n) for row_id, dataset, at, n in rows if n])
    if numbered != "[]":
        tx.run("number_slices", numbered)
        tx.run("drop_superseded", numbered)
    left = [row_id for row_id, _, _, n in rows if not n]
    if left:
        tx.run("drop_slices", as_json(left))
    return Progress(len(rows), more=len(found) > limit)
