# SPDX-License-Identifier: Apache-2.0
"""How does a test get a plan that runs, so that ends may carry slices?"""

from __future__ import annotations

from penstock.model.plan import PlanRow
from penstock.stores.protocol import Store


def run_plan(store: Store, plan_id: str = "p", run_id: str = "build", ttl: float = 1e6) -> None:
    """Take a lock for a run, and begin a plan of it."""
    assert store.take_locks([f"lock of {plan_id}"], run_id, "mark", ttl, []).result().taken
    row = PlanRow(
        id=plan_id,
        app="app",
        digest="d",
        run_id=run_id,
        root="root",
        document="{}",
        levels=1,
        jobs=1,
    )
    assert store.add_plan(row).result()
    assert store.begin_plan(plan_id, run_id).result()
