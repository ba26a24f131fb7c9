# SPDX-License-Identifier: Apache-2.0
"""How does a plan end, and what came of it? Needs the store only, and nothing of the app."""

from __future__ import annotations

from penstock.model.job import TERMINAL
from penstock.model.plan import BuildReport
from penstock.model.plan_facts import PlanFacts
from penstock.planning.submission import PlanKeys
from penstock.runtime.build_report import read_report
from penstock.stores.store import Store

TIDY_SLICE = 1_000


async def ended_build(store: Store, plan_id: str, run_id: str) -> BuildReport | None:
    """End a plan whose jobs have all ended; one that has not is left, its locks are free.

    None if the plan is not this run's any more.
    """
    row = await store.plan(plan_id)
    if row is None or row.run_id != run_id:
        return None
    facts = PlanFacts.read(row.document)
    last = await store.job(PlanKeys(plan_id).end)
    ended = last is None or last.state in TERMINAL
    report = await read_report(store, plan_id, facts, run_id, stopped=not ended)
    if not ended:
        await store.release_locks(run_id, facts.datasets)
        return report
    await store.end_plan(plan_id)
    while (await store.tidy_manifests(TIDY_SLICE)).more:
        pass
    return report
