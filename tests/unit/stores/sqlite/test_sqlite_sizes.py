# SPDX-License-Identifier: Apache-2.0
"""Are large payloads cut into bearable pieces, and is nothing left of what is over?"""

from __future__ import annotations

from pathlib import Path

import apsw

from penstock.model.job import NewJob, WorkerId
from penstock.model.lease import ConfiguredCaps, LeaseRequest, WorkerInfo
from penstock.stores.protocol import LEASE_BYTES_MAX
from penstock.stores.sqlite.store import SqliteStore


def test_a_lease_of_large_payloads_is_bounded_and_promises_more(tmp_path: Path) -> None:
    payload = '{"text":"' + "x" * 900_000 + '"}'
    count = LEASE_BYTES_MAX // 900_000 + 8
    store = SqliteStore.open(tmp_path / "q.db", durability="normal")
    worker = WorkerInfo(id=WorkerId("w"), run_id="r", tasks=("t",))
    store.register(worker, 60).result()
    for n in range(count):
        store.enqueue([NewJob(key=f"k{n}", task="t", payload=payload, group="g")]).result()
    request = LeaseRequest(worker=worker.id, tasks=("t",), limit=count, caps=ConfiguredCaps())

    batches = [store.lease(request).result() for _ in range(3)]
    store.close()

    assert 0 < len(batches[0].jobs) < count
    assert batches[0].more
    assert sum(len(batch.jobs) for batch in batches) == count


def test_nothing_stays_of_what_workers_said_of_crashes(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "q.db", durability="normal")
    for name in ("ended", "voided", "last"):
        worker = WorkerInfo(id=WorkerId(name), run_id="r", tasks=("t",), max_crashes=7)
        store.register(worker, 60).result()
        if name == "voided":
            store.void_leases(0).result()
        else:
            store.retire(worker.id).result()
    store.close()

    connection = apsw.Connection(str(tmp_path / "q.db"))
    kept = connection.execute("select name from meta where name glob 'max_*'").fetchall()
    connection.close()

    assert kept == []
