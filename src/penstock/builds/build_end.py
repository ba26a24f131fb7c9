# SPDX-License-Identifier: Apache-2.0
"""How does a plan end, and what came of it? Needs the store only, and nothing of the app."""

from __future__ import annotations

from functools import partial

from penstock.builds.report import AskStore, read_report
from penstock.model.job import TERMINAL
from penstock.model.plan import BuildReport
from penstock.model.plan_facts import PlanFacts
from penstock.planning.submission import PlanKeys
from penstock.stores.protocol import Store

TIDY_SLICE = 1_000


async def ended_build(
    store: Store, ask: AskStore, plan_id: str, facts: PlanFacts, run_id: str
) -> BuildReport:
    """End a plan whose jobs have all ended; one that has not is left. The run's locks are free."""
    last = await ask(partial(store.job, PlanKeys(plan_id).end))
    ended = last is None or last.state in TERMINAL
    report = await read_report(store, ask, plan_id, facts, run_id, stopped=not ended)
    if not ended:
        await ask(partial(store.release_locks, run_id, facts.datasets))
        return report
    await ask(partial(store.end_plan, plan_id))
    while (await ask(partial(store.tidy_manifests, TIDY_SLICE))).more:
        pass
    return report
