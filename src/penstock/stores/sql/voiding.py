# SPDX-License-Identifier: Apache-2.0
"""How is a store freed from everybody who owned something in it before it was restored?"""

from __future__ import annotations

from penstock.model.job import JobState
from penstock.stores.protocol import lease_voided
from penstock.stores.sql.locking import void_locks
from penstock.stores.sql.statements import as_json
from penstock.stores.sql.transaction import Transaction


def void_leases(tx: Transaction, above: int) -> int:
    """End every lease and every worker, and raise all tokens; how many leases there were."""
    tx.one_at_a_time()
    floor = max(above, int(tx.value("highest_token")))
    tx.run("void_history", tx.now, as_json(lease_voided()))
    tx.units.grown.update(tx.array("leased_units"))
    voided = tx.array("leased_by_lane")
    tx.run("void_jobs", tx.now)
    for lane_id, count in voided:
        tx.move(lane_id, JobState.IN_PROGRESS, JobState.QUEUED, count)
        tx.touch(lane_id)
    tx.run("void_holders")
    tx.run("void_lingering")
    tx.run("unpark_all")
    tx.run("end_all_workers", tx.now)
    void_locks(tx, above)
    tx.raise_tokens(floor)
    tx.run("write_meta", "token_floor", str(floor))
    tx.forget_alive()
    tx.made_work = True
    return sum(count for _, count in voided)
